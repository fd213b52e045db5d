// Activation maps: colours, and reading a cell's value by pointer or by keys.

const NO_CELL = -128;
const GREY = [0xd0, 0xd0, 0xd0];
const STOPS = [
  "053061", "2166ac", "4393c3", "92c5de", "d1e5f0", "f7f7f7",
  "fddbc7", "f4a582", "d6604d", "b2182b", "67001f",
].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const bounded = (value, low, high) => Math.min(Math.max(value, low), high);
const percent = (part, whole) => `${(100 * part) / whole}%`;

/** Returns the colour of a number from -1 (blue) over 0 (white) to 1 (red). */
function colour(value) {
  const at = ((bounded(value, -1, 1) + 1) / 2) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  const [from, to] = [STOPS[low], STOPS[low + 1]];
  return from.map((part, i) => Math.round(part + (to[i] - part) * (at - low)));
}

/**
 * Paints cells (rows · columns, int8) into a canvas, a pixel each.
 * scale: value of the code 127; limit: value at which colours end.
 */
function paint(canvas, { cells, rows, columns, scale, limit }) {
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const colourOf = (code) => (code === NO_CELL ? GREY : colour(((code / 127) * scale) / limit));
  const palette = new Map();
  cells.forEach((code, i) => {
    if (!palette.has(code)) palette.set(code, colourOf(code));
    image.data.set([...palette.get(code), 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

/** Labels the axes with the first and the last operand of the map. */
function label(canvas, [top, left], [bottom, right]) {
  const map = canvas.closest(".map");
  for (const [axis, first, last] of [["op1", top, bottom], ["op2", left, right]]) {
    const texts = [first, axis, last].map((text) => make("span", {}, String(text)));
    map.querySelector(`.${axis}`).replaceChildren(...texts);
  }
}

/**
 * Lets people read the cells of a map.
 * tell: is called with the row, the column and the code of the cell under the pointer, or of the
 * cell to which arrow keys lead.
 */
function readable(canvas, map, tell) {
  const { rows, columns } = map;
  const cursor = canvas.parentElement.querySelector(".cursor");
  let at = [rows >> 1, columns >> 1];
  const move = (row, column) => {
    at = [bounded(row, 0, rows - 1), bounded(column, 0, columns - 1)];
    const [top, left] = [percent(at[0], rows), percent(at[1], columns)];
    const size = { height: percent(1, rows), width: percent(1, columns) };
    Object.assign(cursor.style, { top, left, ...size });
    cursor.hidden = false;
    tell(...at, map.cells[at[0] * columns + at[1]]);
  };
  cursor.hidden = true;
  canvas.onpointermove = canvas.onpointerdown = (event) => {
    const row = Math.floor((event.offsetY / canvas.clientHeight) * rows);
    const column = Math.floor((event.offsetX / canvas.clientWidth) * columns);
    move(row, column);
  };
  canvas.onkeydown = (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const [down, right] = STEPS[event.key];
    const step = event.shiftKey ? 10 : 1;
    move(at[0] + step * down, at[1] + step * right);
  };
}
