// Tables, a page of rows at a time.

const byId = (name) => document.getElementById(name);

/** Returns an element with attributes, or properties if it has them, and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Returns a value as people read it: numbers of a column with fractions have three digits. */
function written(value, isFraction = true) {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number" || !isFraction) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/** Returns a table's columns, each with its type and meaning, as its query describes them. */
function meanings(table) {
  const described = new Map();
  for (const row of document.querySelectorAll(`.made[data-table="${table}"] dl > div`)) {
    const [name, kind] = [row.querySelector("code"), row.querySelector("small")];
    const meaning = row.querySelector("dd");
    described.set(name.textContent, `${kind.textContent}: ${meaning.textContent}`);
  }
  return described;
}

/** Returns whether a value is no fraction: an integer, or no number at all. */
function isWhole(value) {
  return typeof value !== "number" || Number.isInteger(value);
}

/** Returns the rows about an operator; all if it is empty or the table has no such columns. */
function rowsAbout(table, operators, operator) {
  const places = operators.map((name) => table.columns.indexOf(name)).filter((at) => at >= 0);
  if (!operator || !places.length) return table.rows;
  return table.rows.filter((row) => places.some((place) => row[place] === operator));
}

/**
 * Returns a table of these rows, and buttons to turn pages if there are more than fit on a page.
 * name: of the table, whose columns have a meaning; shares: columns drawn as bars; left: columns to
 * leave out; note: added to the range of rows.
 */
function tableOf(content) {
  const { name, columns, kinds, rows, caption, perPage } = content;
  const { shares = [], left = [], note = "" } = content;
  const places = columns.map((_, place) => place);
  const shown = places.filter((place) => !left.includes(columns[place]));
  const help = meanings(name);
  const isFraction = places.map((place) => rows.some((row) => !isWhole(row[place])));
  const heading = (place) => {
    const cell = make("th", { scope: "col", className: kinds[place] }, columns[place]);
    if (help.has(columns[place])) cell.title = help.get(columns[place]);
    return cell;
  };
  const head = make("thead", {}, make("tr", {}, ...shown.map(heading)));
  const body = make("tbody");
  const table = make("table", {}, make("caption", {}, caption), head, body);
  const region = { className: "scroll", role: "group", tabIndex: 0, "aria-label": caption };
  const range = make("span", { role: "status" });
  const last = Math.max(Math.ceil(rows.length / perPage) - 1, 0);
  let page = 0;

  const cell = (row, place, at) => {
    const value = row[place];
    const share = shares.includes(columns[place]) && typeof value === "number";
    const tag = at === 0 ? "th" : "td";
    const text = written(value, isFraction[place]);
    const element = make(tag, { className: kinds[place] }, text);
    if (at === 0) element.scope = "row";
    if (typeof value === "number" && text !== String(value)) element.title = String(value);
    if (share) {
      element.classList.add("share");
      element.style.setProperty("--share", Math.min(Math.max(value, 0), 1));
    }
    return element;
  };
  const line = (row) => make("tr", {}, ...shown.map((place, at) => cell(row, place, at)));
  const fill = () => {
    const from = page * perPage;
    const part = rows.slice(from, from + perPage);
    body.replaceChildren(...part.map(line));
    const numbers = `rows ${from + 1} to ${from + part.length} of ${rows.length}${note}`;
    range.textContent = last || note ? numbers : "";
    back.setAttribute("aria-disabled", page === 0);
    on.setAttribute("aria-disabled", page === last);
  };
  const button = (by, name, sign) => {
    const turn = () => {
      page = Math.min(Math.max(page + by, 0), last);
      fill();
    };
    const label = `${name} rows of ${caption}`;
    return make("button", { type: "button", onclick: turn, "aria-label": label }, sign);
  };
  const [back, on] = [button(-1, "Previous", "←"), button(1, "Next", "→")];
  fill();
  const pager = make("div", { className: "pager" }, ...(last ? [back, on] : []), range);
  return [make("div", region, table), pager];
}

function sentence(text) {
  return make("p", { className: "absent" }, text);
}
