// Tables: rows of one, a page of them at a time.

/** An element with attributes, or properties where there are such, and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A number as people read it; the page has all of its digits already rounded. */
function written(value) {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential().replace("e+", "e") : String(value);
}

/** The rows that are about an operator; all of them where it is empty or the table knows no operators. */
function rowsAbout(table, operators, operator) {
  const places = operators.map((name) => table.columns.indexOf(name)).filter((place) => place >= 0);
  if (!operator || !places.length) return table.rows;
  return table.rows.filter((row) => places.some((place) => row[place] === operator));
}

/**
 * A table of these rows with a caption and, where they do not fit on one page, buttons to turn pages.
 * shares: columns drawn as bars; left: columns left out; note: what the range of rows is followed by.
 */
function tableOf({ columns, kinds, rows, caption, shares = [], left = [], note = "", perPage }) {
  const shown = columns.map((name, place) => place).filter((place) => !left.includes(columns[place]));
  const head = shown.map((place) => make("th", { scope: "col", className: kinds[place] }, columns[place]));
  const body = make("tbody");
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), body);
  const frame = make("div", { className: "scroll", role: "group", tabIndex: 0, "aria-label": caption }, table);
  const range = make("span", { role: "status" });
  const last = Math.max(Math.ceil(rows.length / perPage) - 1, 0);
  let page = 0;

  const cell = (row, place, first) => {
    const value = row[place];
    const share = shares.includes(columns[place]) && typeof value === "number";
    const element = make(first ? "th" : "td", { className: `${kinds[place]}${share ? " share" : ""}` }, written(value));
    if (first) element.scope = "row";
    if (share) element.style.setProperty("--share", Math.min(Math.max(value, 0), 1));
    return element;
  };
  const fill = () => {
    const part = rows.slice(page * perPage, (page + 1) * perPage);
    body.replaceChildren(...part.map((row) => make("tr", {}, ...shown.map((place, at) => cell(row, place, at === 0)))));
    const from = page * perPage;
    range.textContent = last || note ? `rows ${from + 1} to ${from + part.length} of ${rows.length}${note}` : "";
    back.setAttribute("aria-disabled", page === 0);
    on.setAttribute("aria-disabled", page === last);
  };
  const turn = (by) => () => {
    page = Math.min(Math.max(page + by, 0), last);
    fill();
  };
  const back = make("button", { type: "button", onclick: turn(-1), "aria-label": `Previous rows of ${caption}` }, "←");
  const on = make("button", { type: "button", onclick: turn(1), "aria-label": `Next rows of ${caption}` }, "→");
  fill();
  return [frame, make("div", { className: "pager" }, ...(last ? [back, on] : []), range)];
}

function sentence(text) {
  return make("p", { className: "absent" }, text);
}
