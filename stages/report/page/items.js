// Items: the table and the figures of each, for a subject and an operator.

const declared = JSON.parse(document.getElementById("declared").textContent);
const ENLARGED = 1.3; // how much larger than drawn a figure may become to fill the page
const narrow = matchMedia("(max-width: 40rem)"); // where pictures are wider than the page and scroll in their frame

/** Fills in one item: its figures, its rows and where the file is. Returns whether it has anything to show. */
function showItem(item, chosen, tables, figures) {
  const place = document.getElementById(item.id);
  const pictures = item.figures.flatMap((figure) => drawn(figure, item, chosen, figures));
  place.querySelector(".figures").replaceChildren(...pictures);
  if (!item.table) return pictures.length > 0;
  const table = tables[item.id];
  place.querySelector(".rows").replaceChildren(...rowsOf(item, chosen, table));
  const file = place.querySelector(".file");
  file.hidden = !table;
  if (table) Object.assign(file.querySelector("a"), { href: `../${table.file}`, textContent: table.file });
  for (const name of place.querySelectorAll("[data-subject]")) name.textContent = chosen.about.subject;
  return Boolean(table && table.rows.length);
}

function rowsOf(item, { about: subject, operator }, table) {
  const whose = item.shared ? "" : ` of ${subject.subject}`;
  if (!table) {
    const why = item.made ? "the stage that writes it has not run" : "no stage writes it yet";
    return [sentence(`There is no table ${item.table}${item.shared ? "" : ` for ${subject.subject}`}: ${why}.`)];
  }
  const rows = rowsAbout(table, item.operators, operator);
  if (!rows.length) {
    const asked = item.shared || !operator || subject.operators.includes(operator);
    if (!asked) return [sentence(`${subject.subject} was not asked to ${operator}.`)];
    return [sentence(`The table ${item.table}${whose} has no rows${operator ? ` for ${operator}` : ""}. ${item.empty}`)];
  }
  const all = rows.length === table.rows.length;
  const found = all ? Object.values(table.found).reduce((sum, count) => sum + count, 0) : table.found[operator] ?? rows.length;
  const note = found > rows.length ? `, the first of ${found} in the file` : "";
  const caption = [item.title, ...(item.shared ? [] : [subject.subject]), operator || "all operators"].join(" · ");
  return tableOf({ ...table, rows, caption, shares: item.shares, note, perPage: declared.perPage });
}

/** The figure, or one of each operator where it has an operator's name in its path. */
function drawn(figure, item, { about: subject, operator }, figures) {
  const each = figure.path.includes("{operator}");
  const operators = !each ? [""] : operator ? [operator] : subject.operators;
  return operators.map((name) => {
    const path = figure.path.replace("{subject}", subject.subject).replace("{operator}", name);
    if (!(path in figures)) {
      const unasked = each && !subject.operators.includes(name);
      return sentence(unasked ? `${subject.subject} was not asked to ${name}.` : `There is no figure reports/${path}.`);
    }
    const what = [...(item.shared ? [] : [subject.subject]), ...(name ? [name] : [])].join(", ");
    const alt = `${figure.alt}${what ? ` ${what}.` : ""}`;
    const scrolled = narrow.matches ? { tabIndex: 0, role: "group", "aria-label": alt } : {};
    const picture = make("img", { src: source(figures[path]), alt, decoding: "async" });
    picture.onload = () => (picture.style.maxWidth = `${ENLARGED * picture.naturalWidth}px`);
    const links = [["svg", "vector"], ["png", "picture"]].map(([ending, kind]) =>
      make("a", { href: `${path}.${ending}`, "aria-label": `${kind} file reports/${path}.${ending}` }, `${kind} (.${ending})`));
    const caption = make("figcaption", {}, `${figure.alt} `, links[0], ", ", links[1]);
    return make("figure", {}, make("div", { className: "card", ...scrolled }, picture), caption);
  });
}

/** The address of a picture that the page carries: SVG as text, WebP in base64. */
function source(content) {
  return content.startsWith("<") ? `data:image/svg+xml,${encodeURIComponent(content)}` : `data:image/webp;base64,${content}`;
}
