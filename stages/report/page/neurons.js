// The neuron browser: a list of neurons, and what is known about the selected neuron.

const browser = {
  operator: byId("browse-operator"),
  layer: byId("browse-layer"),
  search: byId("browse-search"),
  list: byId("browse-list"),
  count: byId("browse-count"),
};
let browsed = null; // the selected model's name, and its payload of neurons
const opened = new Set(); // titles of the facts that people have opened
let [offers, picks] = [0, 0]; // so that a slow model or answer does not overwrite a later one

/** Offers a model's neurons, for the page's operator if it has neurons for it. */
async function offer(about, operator) {
  const turn = ++offers;
  const neurons = await read(`${about.subject}/neurons`, { operators: {}, facts: [] });
  if (turn !== offers) return;
  browsed = { subject: about.subject, ...neurons };
  const operators = Object.keys(neurons.operators);
  const before = operator || browser.operator.value;
  browser.operator.replaceChildren(...operators.map((name) => make("option", {}, name)));
  if (operators.includes(before)) browser.operator.value = before;
  await offerLayers();
}

function offerLayers() {
  const neurons = browsed.operators[browser.operator.value]?.neurons ?? [];
  const numbers = new Set(neurons.map((neuron) => neuron.layer));
  const layers = [...numbers].sort((a, b) => a - b).map(String);
  const before = browser.layer.value;
  const all = make("option", { value: "" }, "all");
  browser.layer.replaceChildren(all, ...layers.map((layer) => make("option", {}, layer)));
  if (layers.includes(before)) browser.layer.value = before;
  return list();
}

/** Lists the neurons of the selected layer that have all words of the search. */
function list() {
  const { neurons = [] } = browsed.operators[browser.operator.value] ?? {};
  const words = browser.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const layer = browser.layer.value;
  const options = [];
  neurons.forEach((neuron, place) => {
    const names = neuron.names.join(", ") || "no name";
    const text = `${neuron.layer}.${neuron.neuron}`.padEnd(9, "\u00a0") + names;
    const fits = words.every((word) => text.toLowerCase().includes(word));
    if (!fits || (layer !== "" && neuron.layer !== Number(layer))) return;
    options.push(make("option", { value: place }, text + (neuron.map ? "" : " (no map)")));
  });
  browser.list.replaceChildren(...options);
  const count = `${options.length} of ${neurons.length} neurons`;
  browser.count.textContent = `${count}, as layer.neuron and labels`;
  browser.list.selectedIndex = options.length ? 0 : -1;
  return pick();
}

/** Shows the selected neuron. */
async function pick() {
  const turn = ++picks;
  const operator = browser.operator.value;
  const part = browsed.operators[operator];
  const place = Number(browser.list.value);
  const neuron = browser.list.value === "" ? null : part.neurons[place];
  byId("neuron").hidden = !neuron;
  if (!neuron) return;
  const cells = neuron.map && (await payload(`${browsed.subject}/maps-${operator}`));
  if (turn !== picks) return;
  const { layer, neuron: number, names } = neuron;
  byId("neuron-title").textContent = `Layer ${layer}, neuron ${number} on ${operator}`;
  const label = names.length > 1 ? "Labels" : "Label";
  const labels = `${label}: ${names.join("; ")}.`;
  const none = "No heuristic describes it well enough to be its label.";
  byId("neuron-names").textContent = names.length ? labels : none;
  byId("promoted").replaceChildren(...neuron.promoted.map(promoted));
  byId("maps").hidden = !neuron.map;
  byId("no-map").hidden = Boolean(neuron.map);
  byId("no-map").textContent = whereMap(part, operator);
  if (neuron.map) showMaps(neuron, part, cells, place);
  const facts = declared.facts.map((fact, i) => factOf(fact, browsed.facts[i], operator, neuron));
  byId("facts").replaceChildren(...facts);
}

function promoted([number, logit]) {
  return make("li", {}, `${number} `, make("small", {}, logit.toFixed(2)));
}

function whereMap(part, operator) {
  const count = part.neurons.filter((neuron) => neuron.map).length;
  const file = `data/${browsed.subject}/store/activations/${operator}.h5`;
  return `This page has the maps of ${count} neurons per operator. This map is in ${file}.`;
}

function showMaps(neuron, part, cells, place) {
  const [[rows, columns], [high, wide], block] = [part.whole, part.detail, part.block];
  const each = rows * columns + high * wide;
  const view = (from, length) => new Int8Array(cells.buffer, place * each + from, length);
  const { corner, scale, limit } = neuron.map;
  const whole = { cells: view(0, rows * columns), rows, columns, scale, limit };
  drawMap("whole", whole, { corner: [0, 0], block, operands: part.operands }, neuron);
  byId("averaged").textContent = block > 1 ? `, means of ${block} by ${block} cells` : "";
  byId("closer").hidden = byId("frame").hidden = !corner;
  if (corner) {
    const inside = { cells: view(rows * columns, high * wide), rows: high, columns: wide };
    const location = { corner, block: 1, operands: part.operands };
    drawMap("detail", { ...inside, scale, limit }, location, neuron);
    const [height, width] = [rows * block, columns * block];
    const at = { top: percent(corner[0], height), left: percent(corner[1], width) };
    const size = { height: percent(high, height), width: percent(wide, width) };
    Object.assign(byId("frame").style, { ...at, ...size });
  }
  const ends = [-1, 1].map((sign) => (sign * limit).toPrecision(2));
  const legend = document.querySelector(".legend");
  legend.querySelectorAll("span").forEach((end, i) => (end.textContent = ends[i]));
  legend.ariaLabel = `Colours: blue ${ends[0]}, white 0, red ${ends[1]}, grey no cell`;
}

/**
 * Draws a map, and lets people read its cells.
 * corner: operands of its first cell; block: operands per row and column; operands: of the grid.
 */
function drawMap(name, map, { corner, block, operands }, neuron) {
  const canvas = byId(name);
  const size = [map.rows, map.columns];
  const after = (axis, at) => Math.min(corner[axis] + at * block, operands[axis]);
  const last = size.map((length, axis) => after(axis, length) - 1);
  const range = (axis, at) => {
    const [first, end] = [corner[axis] + at * block, after(axis, at + 1) - 1];
    return first === end ? String(first) : `${first} to ${end}`;
  };
  paint(canvas, map);
  label(canvas, corner, last);
  const [down, right] = corner.map((first, axis) => `${first} to ${last[axis]}`);
  const whose = `Activation of layer ${neuron.layer}, neuron ${neuron.neuron}`;
  const axes = `op1 ${down} downwards, op2 ${right} to the right`;
  canvas.ariaLabel = `${whose}, ${axes}; arrow keys read cells`;
  const kind = block > 1 ? "mean activation" : "activation";
  readable(canvas, map, (row, column, code) => {
    const activation = `${kind} ${((code / 127) * map.scale).toPrecision(3)}`;
    const value = code === NO_CELL ? "no cell" : activation;
    byId("cell").textContent = `op1 ${range(0, row)}, op2 ${range(1, column)}: ${value}`;
  });
}

/** Returns the rows of a table about the neuron, or about its heuristics. */
function factOf(fact, table, operator, neuron) {
  const saying = (text) => make("div", {}, make("h4", {}, fact.title), sentence(text));
  if (!table) return saying(`There is no table ${fact.table} for ${browsed.subject}.`);
  const about = {
    neuron: (row) => row.layer === neuron.layer && row.neuron === neuron.neuron,
    heuristic: (row) => neuron.names.includes(row.heuristic),
  }[fact.by];
  const fits = (row) => {
    const fields = Object.fromEntries(table.columns.map((name, at) => [name, row[at]]));
    return fields.operator === operator && about(fields);
  };
  const rows = table.rows.filter(fits);
  if (!rows.length) return saying(fact.empty);
  const caption = `${fact.title} · layer ${neuron.layer}, neuron ${neuron.neuron} · ${operator}`;
  const left = fact.by === "neuron" ? ["operator", "layer", "neuron"] : ["operator"];
  const form = { caption, shares: fact.shares, left, perPage: declared.perPage };
  const content = tableOf({ ...table, name: fact.table, rows, ...form });
  const count = `${fact.title}, ${rows.length === 1 ? "1 row" : `${rows.length} rows`}`;
  const open = opened.has(fact.title);
  const folded = make("details", { open }, make("summary", {}, count), ...content);
  folded.ontoggle = () => opened[folded.open ? "add" : "delete"](fact.title);
  return make("div", {}, folded);
}

browser.operator.onchange = offerLayers;
browser.layer.onchange = browser.search.oninput = list;
browser.list.onchange = pick;
browser.search.form.onsubmit = (event) => event.preventDefault();
