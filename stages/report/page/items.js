// Items: the table and the figures of each, for a model and an operator.

const declared = JSON.parse(document.getElementById("declared").textContent);
const ENLARGED = 1.1; // how much larger than drawn a figure may become to fill the page
const FIGURE = `
  svg { display: block; width: 100%; height: 100%; fill: currentColor; }
  /* text may be on a pale cell of a heat map, also on a dark page */
  [id^="text_"] use {
    paint-order: stroke; stroke: var(--paper); stroke-linejoin: round;
    stroke-width: 1200px; /* of the 6400 that letters are high */
  }
  [style*="fill: #ffffff"] use { stroke: none; }
`;
const undrawn = new WeakMap(); // the place of a vector figure -> its text
const arrived = (entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
};
const near = new IntersectionObserver(arrived, { rootMargin: "600px" });
const narrow = matchMedia("(max-width: 40rem)"); // here pictures scroll in their frame

/** Fills in an item: its figures, its rows and its file. Returns whether it has any data. */
function showItem(item, selected, tables, figures) {
  const place = document.getElementById(item.id);
  const pictures = item.figures.flatMap((figure) => drawn(figure, item, selected, figures));
  showFigures(place, pictures);
  if (!item.table) return pictures.some(({ tagName }) => tagName === "FIGURE");
  const table = tables[item.id];
  const rows = rowsOf(item, selected, table);
  place.querySelector(".rows").replaceChildren(...rows);
  showCount(place.querySelector(".table"), item, table, selected.operator);
  const file = place.querySelector(".file");
  file.hidden = !table;
  if (table) {
    const link = { href: `${declared.root}/${table.file}`, textContent: table.file };
    Object.assign(file.querySelector("a"), link);
  }
  for (const name of place.querySelectorAll("[data-subject]")) {
    name.textContent = selected.about.subject;
  }
  return Boolean(table && table.rows.length);
}

/** Shows the first figure, and all others in a part that can be opened. */
function showFigures(place, [first, ...others]) {
  place.querySelector(".figures").replaceChildren(...(first ? [first] : []));
  const more = place.querySelector(".others");
  more.hidden = !others.length;
  more.querySelector("div").replaceChildren(...others);
  const count = `${others.length} more ${others.length === 1 ? "figure" : "figures"}`;
  more.querySelector(".count").textContent = count;
  place.querySelector(".enlarge").hidden = !place.querySelector(".figures .card");
}

/**
 * Says how many rows the table has. A table without rows says why, and cannot be closed. A table
 * that people have opened stays open for the next model or operator.
 */
function showCount(details, item, table, operator) {
  const rows = table ? rowsAbout(table, item.operators, operator).length : 0;
  const wasOpened = details.open && !details.classList.contains("empty");
  details.classList.toggle("empty", !rows);
  details.open = !rows || wasOpened;
  const count = rows === 1 ? "1 row" : `${rows} rows`;
  details.querySelector(".count").textContent = `Table, ${count}`;
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
  return tableOf({ ...table, name: item.table, rows, caption: caption.join(" · "), ...form });
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
  const links = [fileLink(path, "svg", "vector"), ", ", fileLink(path, "png", "picture")];
  const whose = operator ? `${operator}: ` : "";
  const caption = make("figcaption", {}, `${whose}${figure.alt} `, ...links);
  return make("figure", {}, shown(figures[path], alt), caption);
}

/** Returns a figure's picture in a frame. A click makes its item as wide as the page, or narrow. */
function shown(content, alt) {
  const scrolled = narrow.matches ? { tabIndex: 0, role: "group", "aria-label": alt } : {};
  const isVector = content.startsWith("<");
  const bitmap = { src: `data:image/webp;base64,${content}`, alt, decoding: "async" };
  const picture = isVector ? vector(content, alt) : make("img", bitmap);
  const card = make("div", { className: `card${isVector ? "" : " bitmap"}`, ...scrolled }, picture);
  card.onclick = () => widen(card.closest("article"));
  return card;
}

/** Makes an item as wide as the page, or narrow again. isWide: null changes what it is. */
function widen(article, isWide = null) {
  const before = article.getBoundingClientRect().top;
  article.classList.toggle("wide", isWide ?? !article.classList.contains("wide"));
  const button = article.querySelector(".enlarge");
  const is = article.classList.contains("wide");
  button?.setAttribute("aria-expanded", is);
  if (button) button.textContent = is ? "Smaller" : "Enlarge";
  scrollBy({ top: article.getBoundingClientRect().top - before, behavior: "instant" });
}

/** Returns a place for a vector figure, which is drawn when people come near. */
function vector(content, alt) {
  const [, width, height] = content.match(/viewBox="0 0 ([\d.]+) ([\d.]+)"/);
  const host = make("div", { className: "vector", role: "img", "aria-label": alt });
  host.style.aspectRatio = `${width} / ${height}`;
  host.style.maxWidth = `${ENLARGED * width}pt`;
  undrawn.set(host, content);
  near.observe(host);
  return host;
}

/**
 * Draws a vector figure whose text and lines have the page's colours. It is in a shadow tree, so
 * that names of its parts are its own.
 */
function draw(host) {
  const content = undrawn.get(host);
  if (!content) return;
  undrawn.delete(host);
  near.unobserve(host);
  const parsed = new DOMParser().parseFromString(content, "image/svg+xml").documentElement;
  parsed.removeAttribute("width");
  parsed.removeAttribute("height");
  const style = make("style", {}, FIGURE);
  host.attachShadow({ mode: "open" }).append(style, document.importNode(parsed, true));
}

function fileLink(path, ending, kind) {
  const file = `reports/${path}.${ending}`;
  const link = { href: `${declared.root}/${file}`, "aria-label": `${kind} file ${file}` };
  return make("a", link, `${kind} (.${ending})`);
}

for (const article of document.querySelectorAll(".items > article")) {
  article.querySelector(".enlarge").onclick = () => widen(article);
  for (const details of article.querySelectorAll(".more > details")) {
    // a table or a query needs the whole width
    details.querySelector("summary").onclick = () => details.open || widen(article, true);
  }
}
addEventListener("beforeprint", () => document.querySelectorAll(".vector").forEach(draw));
