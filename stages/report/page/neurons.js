// The neuron browser: a list to pick from, and what is known of the picked neuron.

const byId = (name) => document.getElementById(name);
const browser = Object.fromEntries(["operator", "layer", "search", "list", "count"].map((name) => [name, byId(`browse-${name}`)]));
let browsed = null; // of the selected subject: about, and its payload of neurons
let [offers, picks] = [0, 0]; // so that a slow subject or answer does not overwrite a later one

/** Offers a subject's neurons, of the page's operator where it has such neurons. */
async function offer(subject, operator) {
  const turn = ++offers;
  const neurons = await read(`${subject.subject}/neurons`, { operators: {}, facts: [] });
  if (turn !== offers) return;
  browsed = { subject: subject.subject, ...neurons };
  const operators = Object.keys(neurons.operators);
  const before = operator || browser.operator.value;
  browser.operator.replaceChildren(...operators.map((name) => make("option", {}, name)));
  if (operators.includes(before)) browser.operator.value = before;
  await offerLayers();
}

function offerLayers() {
  const neurons = browsed.operators[browser.operator.value]?.neurons ?? [];
  const layers = [...new Set(neurons.map((neuron) => neuron.layer))].sort((a, b) => a - b);
  const before = browser.layer.value;
  browser.layer.replaceChildren(make("option", { value: "" }, "all"), ...layers.map((layer) => make("option", {}, String(layer))));
  if (layers.map(String).includes(before)) browser.layer.value = before;
  return list();
}

function list() {
  const { neurons = [] } = browsed.operators[browser.operator.value] ?? {};
  const words = browser.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = neurons
    .map((neuron, place) => [place, `${neuron.layer}.${neuron.neuron}`.padEnd(9, "\u00a0") + (neuron.names.join(", ") || "no name")])
    .filter(([place]) => browser.layer.value === "" || neurons[place].layer === Number(browser.layer.value))
    .filter(([, text]) => words.every((word) => text.toLowerCase().includes(word)));
  const option = ([place, text]) => make("option", { value: place }, text + (neurons[place].map ? "" : " (no map)"));
  browser.list.replaceChildren(...fits.map(option));
  browser.count.textContent = `${fits.length} of ${neurons.length} neurons, as layer.neuron and what it is called`;
  browser.list.selectedIndex = fits.length ? 0 : -1;
  return pick();
}

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
  byId("neuron-title").textContent = `Layer ${neuron.layer}, neuron ${neuron.neuron} on ${operator}`;
  const named = `Called ${neuron.names.join("; ")}.`;
  byId("neuron-names").textContent = neuron.names.length ? named : "No heuristic describes it well enough to give it a name.";
  const vote = ([number, logit]) => make("li", {}, `${number} `, make("small", {}, logit.toFixed(2)));
  byId("votes").replaceChildren(...neuron.votes.map(vote));
  byId("maps").hidden = !neuron.map;
  byId("no-map").hidden = Boolean(neuron.map);
  const drawnOnes = part.neurons.filter((other) => other.map).length;
  const file = `data/${browsed.subject}/store/activations/${operator}.h5`;
  byId("no-map").textContent = `Only ${drawnOnes} neurons of an operator have their map on this page. This one's is in ${file}.`;
  if (neuron.map) showMaps(neuron, part, cells, place);
  byId("facts").replaceChildren(...declared.facts.map((fact, i) => factOf(fact, browsed.facts[i], operator, neuron)));
}

function showMaps(neuron, part, cells, place) {
  const [[rows, columns], [high, wide], block] = [part.whole, part.detail, part.block];
  const each = rows * columns + high * wide;
  const view = (from, length) => new Int8Array(cells.buffer, place * each + from, length);
  const colours = { scale: neuron.map.scale, limit: neuron.map.limit };
  const whole = { cells: view(0, rows * columns), rows, columns, ...colours };
  const corner = neuron.map.corner;
  draw("whole", whole, [0, 0], block, part.operands, neuron);
  byId("averaged").textContent = block > 1 ? `, means of ${block} by ${block} cells` : "";
  byId("closer").hidden = byId("frame").hidden = !corner;
  if (corner) {
    draw("detail", { cells: view(rows * columns, high * wide), rows: high, columns: wide, ...colours }, corner, 1, part.operands, neuron);
    const share = (operands, axis) => `${(100 * operands) / (part.whole[axis] * block)}%`;
    const [top, left, height, width] = [share(corner[0], 0), share(corner[1], 1), share(high, 0), share(wide, 1)];
    Object.assign(byId("frame").style, { top, left, height, width });
  }
  const ends = [-1, 1].map((sign) => (sign * neuron.map.limit).toPrecision(2));
  document.querySelectorAll(".legend span").forEach((end, i) => (end.textContent = ends[i]));
  document.querySelector(".legend").ariaLabel = `Colours: blue ${ends[0]}, white 0, red ${ends[1]}, grey no cell`;
}

/** One map; corner: operands of its first cell, block: operands of a cell. */
function draw(name, map, corner, block, operands, neuron) {
  const canvas = byId(name);
  const last = [map.rows, map.columns].map((length, axis) => Math.min(corner[axis] + length * block, operands[axis]) - 1);
  const range = (axis, at) => {
    const first = corner[axis] + at * block;
    const end = Math.min(first + block, operands[axis]) - 1;
    return first === end ? String(first) : `${first} to ${end}`;
  };
  paint(canvas, map);
  label(canvas, corner, last);
  const [down, right] = corner.map((first, axis) => `${first} to ${last[axis]}`);
  const whose = `Activation of layer ${neuron.layer}, neuron ${neuron.neuron}`;
  canvas.ariaLabel = `${whose}, op1 ${down} downwards, op2 ${right} to the right; arrow keys read cells`;
  readable(canvas, map, (row, column, code) => {
    const activation = `${block > 1 ? "mean activation" : "activation"} ${((code / 127) * map.scale).toPrecision(3)}`;
    const value = code === NO_CELL ? "no cell" : activation;
    byId("cell").textContent = `op1 ${range(0, row)}, op2 ${range(1, column)}: ${value}`;
  });
}

/** A table of what is known of the neuron, or of its heuristics. */
function factOf(fact, table, operator, neuron) {
  const title = make("h4", {}, fact.title);
  if (!table) return make("div", {}, title, sentence(`There is no table ${fact.table} for ${browsed.subject}.`));
  const at = (name) => table.columns.indexOf(name);
  const own = fact.by === "neuron"
    ? (row) => row[at("layer")] === neuron.layer && row[at("neuron")] === neuron.neuron
    : (row) => neuron.names.includes(row[at("heuristic")]);
  const rows = table.rows.filter((row) => row[at("operator")] === operator && own(row));
  if (!rows.length) return make("div", {}, title, sentence(fact.empty));
  const caption = `${fact.title} · layer ${neuron.layer}, neuron ${neuron.neuron} · ${operator}`;
  const left = fact.by === "neuron" ? ["operator", "layer", "neuron"] : ["operator"];
  return make("div", {}, title, ...tableOf({ ...table, rows, caption, shares: fact.shares, left, perPage: declared.perPage }));
}

browser.operator.onchange = offerLayers;
browser.layer.onchange = browser.search.oninput = list;
browser.list.onchange = pick;
browser.search.form.onsubmit = (event) => event.preventDefault();
