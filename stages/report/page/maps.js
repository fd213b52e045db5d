// Activation maps: colours, and reading a cell's value by pointer or by keys.

const NO_CELL = -128;
const GREY = [0xd0, 0xd0, 0xd0];
const STOPS = ["053061", "2166ac", "4393c3", "92c5de", "d1e5f0", "f7f7f7", "fddbc7", "f4a582", "d6604d", "b2182b", "67001f"].map((hex) =>
  [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

/** The colour of a number from -1 (blue) over 0 (white) to 1 (red). */
function colour(value) {
  const at = ((Math.min(Math.max(value, -1), 1) + 1) / 2) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[low].map((part, i) => Math.round(part + (STOPS[low + 1][i] - part) * (at - low)));
}

/** Paints cells (rows · columns, int8) into a canvas, one pixel each; the value of code 127 is `scale`, colours end at `limit`. */
function paint(canvas, { cells, rows, columns, scale, limit }) {
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const palette = new Map();
  cells.forEach((code, i) => {
    if (!palette.has(code)) palette.set(code, code === NO_CELL ? GREY : colour(((code / 127) * scale) / limit));
    image.data.set([...palette.get(code), 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

/** Numbers along the axes, from the first to the last operand of the map. */
function label(canvas, [top, left], [bottom, right]) {
  const map = canvas.closest(".map");
  for (const [axis, first, last] of [["op1", top, bottom], ["op2", left, right]]) {
    map.querySelector(`.${axis}`).replaceChildren(...[first, axis, last].map((text) => make("span", {}, String(text))));
  }
}

/** Lets people read the cells of a map: `tell` gets the row, the column and the code of the one pointed at, or moved to by arrow keys. */
function readable(canvas, map, tell) {
  const cursor = canvas.parentElement.querySelector(".cursor");
  let at = [map.rows >> 1, map.columns >> 1];
  const move = (row, column) => {
    at = [Math.min(Math.max(row, 0), map.rows - 1), Math.min(Math.max(column, 0), map.columns - 1)];
    const [y, x] = [at[0] / map.rows, at[1] / map.columns];
    Object.assign(cursor.style, { top: `${100 * y}%`, left: `${100 * x}%`, height: `${100 / map.rows}%`, width: `${100 / map.columns}%` });
    cursor.hidden = false;
    tell(...at, map.cells[at[0] * map.columns + at[1]]);
  };
  const keys = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  cursor.hidden = true;
  canvas.onpointermove = canvas.onpointerdown = (event) =>
    move(Math.floor((event.offsetY / canvas.clientHeight) * map.rows), Math.floor((event.offsetX / canvas.clientWidth) * map.columns));
  canvas.onkeydown = (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    const step = event.shiftKey ? 10 : 1;
    move(at[0] + step * keys[event.key][0], at[1] + step * keys[event.key][1]);
  };
}
