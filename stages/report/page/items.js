// Items: the table and the figures of each, for a model and an operator.

const declared = JSON.parse(document.getElementById("declared").textContent);
const ENLARGED = 1.3; // how much larger than drawn a figure may become to fill the page
const narrow = matchMedia("(max-width: 40rem)"); // here pictures scroll in their frame

/** Fills in an item: its figures, its rows and its file. Returns whether it has any data. */
function showItem(item, selected, tables, figures) {
  const place = document.getElementById(item.id);
  const pictures = item.figures.flatMap((figure) => drawn(figure, item, selected, figures));
  place.querySelector(".figures").replaceChildren(...pictures);
  if (!item.table) return pictures.length > 0;
  const table = tables[item.id];
  place.querySelector(".rows").replaceChildren(...rowsOf(item, selected, table));
  const file = place.querySelector(".file");
  file.hidden = !table;
  if (table) {
    const link = { href: `../${table.file}`, textContent: table.file };
    Object.assign(file.querySelector("a"), link);
  }
  for (const name of place.querySelectorAll("[data-subject]")) {
    name.textContent = selected.about.subject;
  }
  return Boolean(table && table.rows.length);
}

/** Returns an item's table, or a sentence about why it has no rows. */
function rowsOf(item, { about, operator }, table) {
  const { subject } = about;
  if (!table) {
    const whose = item.shared ? "" : ` for ${subject}`;
    const why = item.made ? "the stage that writes it has not run" : "no stage writes it yet";
    return [sentence(`There is no table ${item.table}${whose}: ${why}.`)];
  }
  const rows = rowsAbout(table, item.operators, operator);
  if (!rows.length) return [sentence(whyEmpty(item, about, operator))];
  const note = noteOf(table, rows, operator);
  const caption = [item.title, ...(item.shared ? [] : [subject]), operator || "all operators"];
  const form = { shares: item.shares, note, perPage: declared.perPage };
  return tableOf({ ...table, rows, caption: caption.join(" · "), ...form });
}

function whyEmpty(item, { subject, operators }, operator) {
  const missing = !item.shared && operator && !operators.includes(operator);
  if (missing) return withoutPrompts(subject, operator);
  const whose = item.shared ? "" : ` of ${subject}`;
  const about = operator ? ` for ${operator}` : "";
  return `The table ${item.table}${whose} has no rows${about}. ${item.empty}`;
}

function withoutPrompts(subject, operator) {
  return `${subject} has no prompts with the operator ${operator}.`;
}

/** Returns how many rows the file has, if it has more than the page. */
function noteOf(table, rows, operator) {
  const total = Object.values(table.found).reduce((sum, count) => sum + count, 0);
  const isWhole = rows.length === table.rows.length;
  const count = isWhole ? total : table.found[operator] ?? rows.length;
  return count > rows.length ? `, the first of ${count} in the file` : "";
}

/** Returns the figure, or one for each operator if its path has an operator's name. */
function drawn(figure, item, { about, operator }, figures) {
  if (!figure.path.includes("{operator}")) return [drawnOf(figure, item, about, "", figures)];
  const operators = operator ? [operator] : about.operators;
  return operators.map((name) => drawnOf(figure, item, about, name, figures));
}

function drawnOf(figure, item, { subject, operators }, operator, figures) {
  const path = figure.path.replace("{subject}", subject).replace("{operator}", operator);
  if (!(path in figures)) {
    const missing = operator && !operators.includes(operator);
    const why = missing ? withoutPrompts(subject, operator) : `There is no figure reports/${path}.`;
    return sentence(why);
  }
  const what = [...(item.shared ? [] : [subject]), ...(operator ? [operator] : [])].join(", ");
  const alt = what ? `${figure.alt} ${what}.` : figure.alt;
  const scrolled = narrow.matches ? { tabIndex: 0, role: "group", "aria-label": alt } : {};
  const picture = make("img", { src: source(figures[path]), alt, decoding: "async" });
  picture.onload = () => (picture.style.maxWidth = `${ENLARGED * picture.naturalWidth}px`);
  const card = make("div", { className: "card", ...scrolled }, picture);
  const links = [fileLink(path, "svg", "vector"), ", ", fileLink(path, "png", "picture")];
  return make("figure", {}, card, make("figcaption", {}, `${figure.alt} `, ...links));
}

function fileLink(path, ending, kind) {
  const file = `${path}.${ending}`;
  const label = `${kind} file reports/${file}`;
  return make("a", { href: file, "aria-label": label }, `${kind} (.${ending})`);
}

/** Returns the address of a picture that the page carries: SVG as text, WebP in base64. */
function source(content) {
  if (content.startsWith("<")) return `data:image/svg+xml,${encodeURIComponent(content)}`;
  return `data:image/webp;base64,${content}`;
}
