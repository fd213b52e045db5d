// What runs in the browser: the address follows the fields, and a figure becomes a picture.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.explorer = {
  // Returns the address with the fields' values, once a shown field has changed. The values of a
  // field with several are separated by |. A query runs when its field is left: half a query would
  // be an error, or the work of minutes.
  address: function (values, left, ids, search, shown) {
    const { no_update } = window.dash_clientside;
    if (!shown || document.activeElement?.tagName === "TEXTAREA") return no_update;
    const fields = new URLSearchParams(search || "");
    const texts = values.map((value) => [value ?? ""].flat().join("|"));
    const isShown = ({ field }, place) => texts[place] === (shown.fields[field] ?? "");
    if (ids.every(isShown)) return no_update;
    ids.forEach(({ field }, place) => {
      // the default prompt stays out of the address: another model has another default
      const untouched = !fields.has(field) && texts[place] === shown.fields[field];
      if (field === "prompt" && untouched) return;
      texts[place] === "" ? fields.delete(field) : fields.set(field, texts[place]);
    });
    return "?" + fields;
  },
};
// A button saves its figure with its query, which the server puts into it. This is no callback of
// Dash: that also runs when a figure appears, and the browser then drops the figure being saved.
document.addEventListener("click", async ({ target }) => {
  const format = target.dataset.save;
  if (!format) return;
  const figure = target.closest("figure");
  const plot = figure.querySelector(".js-plotly-plot");
  const font = { ...plot.layout.font, color: "#1b1b1b" };
  const layout = { ...plot.layout, paper_bgcolor: "#ffffff", font };
  const size = { width: plot.clientWidth, height: plot.clientHeight };
  const form = { format, scale: 2, ...size };
  const image = await window.Plotly.toImage({ data: plot.data, layout }, form);
  const name = figure.id.replace("figure-", "");
  const query = figure.querySelector("code")?.textContent ?? "";
  const data = { name, format, data: image, query, page: location.href };
  window.dash_clientside.set_props("picture", { data });
});
