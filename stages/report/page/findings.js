// What the page shows first: the answer, what it rests on, three figures, findings and verdicts.

const PREDICTIONS = {
  enough: "Enough",
  needed: "Needed",
  selective: "Selective",
};
const EXPLAINED = {
  enough:
    "Late neurons with a heuristic, kept without all others, keep more correct answers than " +
    "as many other neurons, random or of the nearest variance, and than the most frequent answer.",
  needed: "Ablating them leaves fewer correct answers than ablating as many other late neurons.",
  selective:
    "Ablating one heuristic lowers the answer's logit most on the heuristic's own prompts, more " +
    "so than ablating other neurons does.",
};
const SIGNS = {
  holds: "✓",
  "holds in part": "◐",
  "does not hold": "✗",
  "not testable": "–",
};
const OUTCOMES = new Map([[true, "holds"], [false, "does not hold"], [null, "not testable"]]);
const VERDICTS = { reproduced: "holds", "not reproduced": "does not hold" }; // else not testable
const LEFT = 78; // of the scale of a chart, in its units; the operators' names are before it
const [WIDTH, RIGHT] = [340, 326];
const INTERVALS = [["control", "control_low", "control_high"], ["value", "low", "high"]];
const MAPS = 4; // maps beside the answer

/**
 * Shows the findings of a model, for an operator or for all.
 * isLate: whether people have selected something else in the meantime.
 */
async function showFindings(about, operator, isLate) {
  const first = await read(`${about.subject}/findings`, null);
  if (isLate()) return;
  byId("question").textContent = `Does the bag of heuristics hold for ${about.subject}?`;
  const part = first?.parts[operator];
  if (!part) {
    const why = operator ? withoutPrompts(about.subject, operator) : "There are no findings yet.";
    byId("answer").replaceChildren(make("p", {}, why));
    const places = ["tested", "charts", "sentences", "all-verdicts"];
    for (const name of places) byId(name).replaceChildren();
    return;
  }
  const reasons = part.reasons.join(" ");
  const verdict = make("p", { className: "verdict" }, part.answer);
  byId("answer").replaceChildren(verdict, make("p", {}, reasons));
  const own = operator ? [operator] : about.operators;
  const listed = claimsOf(first.claims, operator);
  byId("tested").replaceChildren(scores(own, first.tested), ...summary(listed));
  byId("sentences").replaceChildren(...part.findings.map(sentenceOf));
  byId("all-verdicts").replaceChildren(...verdicts(listed));
  const maps = await mapsOf(about.subject, own);
  if (isLate()) return;
  const figures = [maps, circuits(own, first.charts), alone(own, first.charts)];
  byId("charts").replaceChildren(...figures.filter(Boolean));
}

function sentenceOf({ item, title, text }) {
  const link = make("a", { href: `#${item}` }, title);
  return make("div", {}, make("dt", {}, link), make("dd", {}, text));
}

/** Returns the class of a verdict in style.css. */
function nameOf(verdict) {
  return verdict.replaceAll(" ", "-");
}

/** Returns a sign for a verdict, with its words for those who cannot see it. */
function sign(verdict, before = "") {
  const words = make("span", { className: "unseen" }, `${before}${verdict}`);
  const mark = make("span", { "aria-hidden": "true" }, SIGNS[verdict]);
  return make("span", { className: `sign ${nameOf(verdict)}`, title: verdict }, mark, words);
}

/** Returns the table of operators and of what the bag of heuristics predicts for them. */
function scores(operators, tested) {
  const column = (text, title) => make("th", { scope: "col", title }, text);
  const names = Object.entries(PREDICTIONS);
  const heads = names.map(([name, title]) => column(title, EXPLAINED[name]));
  const head = make("tr", {}, make("td"), ...heads, column("The bag", "Do all predictions hold?"));
  const rows = operators.map((operator) => {
    const cells = names.map(([name]) => make("td", {}, sign(OUTCOMES.get(tested[operator][name]))));
    const { verdict } = tested[operator];
    const whole = make("td", { className: "whole" }, sign(verdict), ` ${verdict}`);
    whole.querySelector(".unseen").remove();
    return make("tr", {}, make("th", { scope: "row" }, operatorName(operator)), ...cells, whole);
  });
  const caption = make("caption", {}, "What a bag of heuristics predicts, and whether it holds");
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

function operatorName(operator) {
  return `${operator} ${declared.operators[operator]}`;
}

function chart(title, text, item, ...content) {
  const link = make("a", { href: `#${item}`, "aria-label": `${title}: the whole figure` }, "more");
  const caption = make("figcaption", {}, `${text} `, link);
  return make("figure", {}, make("h2", {}, title), ...content, caption);
}

/** Returns the figure of maps: the first labelled neurons, each with another kind of heuristic. */
async function mapsOf(subject, operators) {
  const { operators: known = {} } = await read(`${subject}/neurons`);
  const each = Math.ceil(MAPS / operators.length);
  const kinds = new Set();
  const cards = [];
  for (const operator of operators.filter((name) => name in known)) {
    const part = known[operator];
    const placed = part.neurons.map((neuron, place) => ({ neuron, place }));
    const drawn = placed.filter(({ neuron }) => neuron.map);
    const cells = drawn.length && (await payload(`${subject}/maps-${operator}`));
    const isNew = ({ neuron }) => !kinds.has(kindOf(neuron));
    for (let i = 0; i < each && drawn.length; i += 1) {
      const at = Math.max(drawn.findIndex(isNew), 0);
      const [{ neuron, place }] = drawn.splice(at, 1);
      kinds.add(kindOf(neuron));
      cards.push(mapCard(neuron, part, cells, place, operator));
    }
  }
  if (!cards.length) return null;
  const text = "Activation over op1 (down) and op2 (across); red is positive, blue negative.";
  const grid = make("div", { className: "grid" }, ...cards.slice(0, MAPS));
  return chart("What neurons respond to", text, "labels", grid);
}

function kindOf({ names }) {
  return (names[0] ?? "").replace(/\d+/g, "");
}

function mapCard(neuron, part, cells, place, operator) {
  const map = clearest(part, cells, place);
  const name = `layer ${neuron.layer}, neuron ${neuron.neuron}`;
  const label = neuron.names[0] ?? "no heuristic";
  const range = `op1 ${map.from[0]} to ${map.to[0]}, op2 ${map.from[1]} to ${map.to[1]}`;
  const words = `${operator}, ${name}: ${label}; ${range}`;
  const canvas = make("canvas", { role: "img", "aria-label": words });
  paint(canvas, { ...map, ...neuron.map });
  const where = `${declared.operators[operator]} ${neuron.layer}.${neuron.neuron}`;
  const caption = make("p", {}, make("b", {}, where), ` ${label}`);
  return make("div", { title: words }, canvas, caption);
}

/** Returns the whole map or its detail, whichever has stronger colours per cell of the grid. */
function clearest(part, cells, place) {
  const [[rows, columns], [high, wide]] = [part.whole, part.detail];
  const first = place * (rows * columns + high * wide);
  const view = (from, length) => new Int8Array(cells.buffer, from, length);
  const last = part.operands.map((length) => length - 1);
  const whole = { cells: view(first, rows * columns), rows, columns, from: [0, 0], to: last };
  const { corner } = part.neurons[place].map;
  if (!corner) return whole;
  const to = [corner[0] + high - 1, corner[1] + wide - 1];
  const inside = view(first + rows * columns, high * wide);
  const detail = { cells: inside, rows: high, columns: wide, from: corner, to };
  const strength = (map) => {
    const squares = map.cells.reduce((sum, code) => sum + (code === NO_CELL ? 0 : code ** 2), 0);
    return squares / map.cells.length;
  };
  return strength(detail) > 2 * strength(whole) ? detail : whole;
}

/** Returns the figure of circuits: few heads, and few neurons, against equally many random ones. */
function circuits(operators, { heads, neurons }) {
  const isOwn = (row) => operators.includes(row.operator) && row.value !== null;
  const own = (rows) => rows.filter(isOwn);
  const groups = [];
  if (own(heads).length) {
    const numbers = own(heads).map((row) => row.heads);
    groups.push([`${span(numbers)} of ${heads[0].total} heads kept`, own(heads)]);
  }
  if (own(neurons).length) {
    const numbers = own(neurons).map((row) => row.neurons_per_layer);
    groups.push([`${span(numbers)} neurons per late layer, same heads`, own(neurons)]);
  }
  const marks = { value: "largest effect", control: "random", majority: "most frequent answer" };
  const text = "The right end is the accuracy of the whole model.";
  return groups.length ? dots("Accuracy of small circuits", text, "heads", groups, marks) : null;
}

/** Returns the figure of the bag alone against its controls. */
function alone(operators, charts) {
  const rows = charts.alone.filter((row) => operators.includes(row.operator));
  const marks = {
    value: "with a heuristic",
    control: "as many others",
    rest: "all without one",
    others: "all but as many others",
    majority: "most frequent answer",
  };
  const text =
    "All other late neurons take their mean. Others: random ones or those of the nearest " +
    "variance, whichever is the stronger control.";
  const groups = [["late neurons kept", rows]];
  const title = "Accuracy with heuristics alone";
  return rows.length ? dots(title, text, "bag-alone", groups, marks) : null;
}

function span(numbers) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  return low === high ? String(low) : `${low} to ${high}`;
}

/**
 * Returns a figure of accuracies, 0 to 1: a line per operator, with a mark for each column.
 * groups: titles and rows; marks: column -> words.
 */
function dots(title, text, item, groups, marks) {
  const lines = groups.reduce((sum, [, rows]) => sum + rows.length, 0);
  const step = Math.min(Math.max((214 - 20 * groups.length) / lines, 18), 44);
  const x = (value) => LEFT + value * (RIGHT - LEFT);
  const parts = [];
  let y = 4;
  for (const [above, rows] of groups) {
    parts.push(svg("text", { x: LEFT, y: y + 10, class: "above" }, above));
    y += 18;
    const [top, bottom] = [y, y + step * rows.length];
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      parts.push(svg("line", { class: "scale", x1: x(value), x2: x(value), y1: top, y2: bottom }));
    }
    for (const row of rows) {
      const middle = y + step / 2;
      parts.push(svg("text", { x: 0, y: middle + 4 }, operatorName(row.operator)));
      parts.push(...marked(row, marks, x, middle));
      y += step;
    }
    y += 6;
  }
  for (const value of [0, 0.5, 1]) {
    parts.push(svg("text", { x: x(value), y: y + 8, class: "tick" }, String(value)));
  }
  const words = groups.flatMap(([above, rows]) => rows.map((row) => described(above, row, marks)));
  const box = { viewBox: `0 0 ${WIDTH} ${y + 12}`, role: "img", "aria-label": words.join("; ") };
  const legend = Object.entries(marks).map(([name, meaning]) => {
    const symbol = svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, mark(name, 6, 6, 4));
    return make("span", {}, symbol, meaning);
  });
  const symbols = make("p", { className: "key" }, ...legend);
  return chart(title, text, item, svg("svg", box, ...parts), symbols);
}

function described(above, row, marks) {
  const values = Object.entries(marks).filter(([name]) => typeof row[name] === "number");
  const texts = values.map(([name, meaning]) => `${meaning} ${written(row[name])}`);
  return `${row.operator}, ${above}: ${texts.join(", ")}`;
}

/** Returns the marks of a row, its intervals below them; the value is drawn last, above all. */
function marked(row, marks, x, y) {
  const parts = [];
  if (typeof row.control === "number" && typeof row.value === "number") {
    parts.push(svg("line", { class: "gap", x1: x(row.control), x2: x(row.value), y1: y, y2: y }));
  }
  for (const [name, low, high] of INTERVALS) {
    if (typeof row[low] !== "number" || typeof row[high] !== "number") continue;
    const ends = { x1: x(row[low]), x2: x(row[high]), y1: y, y2: y };
    parts.push(svg("line", { class: `interval ${name}`, ...ends }));
  }
  for (const name of Object.keys(marks).reverse()) {
    if (typeof row[name] !== "number") continue;
    const title = svg("title", {}, `${marks[name]}: ${written(row[name])}`);
    const symbol = mark(name, x(row[name]), y, 5);
    symbol.append(title);
    parts.push(symbol);
  }
  return parts;
}

/** Returns the mark of a column: a full or an empty circle, a diamond, or a stroke. */
function mark(name, x, y, size) {
  const at = { class: `mark ${name}` };
  if (name === "majority") return svg("path", { ...at, d: `M${x} ${y - size}v${2 * size}` });
  if (name === "rest" || name === "others") {
    const side = `l${size} ${size}l${-size} ${size}l${-size} ${-size}z`;
    return svg("path", { ...at, d: `M${x} ${y - size}${side}` });
  }
  return svg("circle", { ...at, cx: x, cy: y, r: size - 0.5 });
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Returns the statements with a verdict for an operator, or for any. */
function claimsOf(claims, operator) {
  const own = claims.map((claim) => ({ ...claim, verdicts: verdictsOf(claim, operator) }));
  return own.filter((claim) => claim.verdicts.length);
}

/** Returns one bar of all verdicts. */
function summary(claims) {
  if (!claims.length) return [];
  const link = make("a", { href: "#all-verdicts" }, "Verdicts on published statements");
  const bars = make("div", { className: "bars" }, stack(claims));
  return [make("p", { className: "key" }, link), bars, key()];
}

function key() {
  const words = Object.entries({ ...VERDICTS, "not testable here": "not testable" });
  const spans = words.map(([text, name]) => make("span", {}, swatch(name), text));
  return make("p", { className: "key" }, ...spans);
}

/** Returns the verdicts: a bar of their numbers for each study, and every statement by its name. */
function verdicts(claims) {
  if (!claims.length) return [sentence("No statement is checked on this model.")];
  const studies = Map.groupBy(claims, (claim) => claim.source.split(",")[0]);
  const bars = [...studies].map(([study, listed]) => {
    return make("div", {}, make("span", { className: "study" }, study), stack(listed));
  });
  const isTestable = (claim) => claim.verdicts.some(([, verdict]) => verdict !== "not testable");
  const ordered = claims.toSorted((a, b) => isTestable(b) - isTestable(a));
  const names = ordered.map(({ claim, statement, verdicts: each }) => {
    const chips = each.map(([name, verdict]) => chip(name, verdict));
    const name = make("span", {}, claim.replaceAll("_", " "));
    return make("li", { title: statement }, make("span", {}, ...chips), name);
  });
  return [
    key(),
    make("div", { className: "bars" }, ...bars),
    make("ul", { className: "names" }, ...names),
    make("p", {}, make("a", { href: "#claims-table" }, "Measured and published values")),
  ];
}

function verdictsOf({ verdicts: all }, operator) {
  const shortened = ([name, verdict]) => [name, VERDICTS[verdict] ?? "not testable"];
  const each = Object.entries(all).map(shortened);
  return each.filter(([name]) => !operator || !name || name === operator);
}

function swatch(verdict) {
  return make("i", { className: `chip ${nameOf(verdict)}` });
}

/** Returns an operator's sign, coloured by a verdict; ∀ for all operators together. */
function chip(operator, verdict) {
  const shown = swatch(verdict);
  const words = `${operator || "all operators"}: ${verdict}, `;
  const text = make("span", { "aria-hidden": "true" }, declared.operators[operator] ?? "∀");
  shown.append(text, make("span", { className: "unseen" }, words));
  return shown;
}

/** Returns a bar whose parts are the numbers of verdicts. */
function stack(claims) {
  const all = claims.flatMap((claim) => claim.verdicts.map(([, verdict]) => verdict));
  const parts = [...Object.values(VERDICTS), "not testable"].map((verdict) => {
    const count = all.filter((each) => each === verdict).length;
    const part = make("span", { className: `part ${nameOf(verdict)}` }, String(count));
    part.style.flexGrow = count;
    part.hidden = !count;
    return part;
  });
  return make("div", { className: "stack" }, ...parts);
}

/** Returns the table of all models: whether the bag of heuristics holds for each operator. */
function modelsTable(select) {
  const options = [...document.querySelectorAll("#operator option")];
  const operators = options.map((option) => option.value).filter(Boolean);
  const names = ["model", ...operators.map(operatorName)];
  const heads = names.map((text) => make("th", { scope: "col" }, text));
  const rows = declared.subjects.map(({ subject, tested }) => {
    const button = make("button", { type: "button", onclick: () => select(subject) }, subject);
    const cells = operators.map((operator) => {
      const verdict = tested?.[operator]?.verdict;
      return make("td", {}, ...(verdict ? [sign(verdict)] : []));
    });
    return make("tr", {}, make("th", { scope: "row" }, button), ...cells);
  });
  const caption = make("caption", {}, "Does the bag hold? Select a model to see why.");
  const head = make("thead", {}, make("tr", {}, ...heads));
  return make("table", {}, caption, head, make("tbody", {}, ...rows));
}
