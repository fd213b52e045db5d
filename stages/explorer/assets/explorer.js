// What has to happen in the browser: the address follows the fields, and a figure becomes a picture as it is seen.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.explorer = {
  // The address with the fields' values, once someone has changed one of those shown; several values of one stand behind each other.
  // A query is asked when its field is left: half of one would be an error, or the work of minutes.
  address: function (values, left, ids, search, shown) {
    if (document.activeElement?.tagName === "TEXTAREA") return window.dash_clientside.no_update;
    const fields = new URLSearchParams(search || "");
    const texts = values.map((value) => [value ?? ""].flat().join("|"));
    if (!shown || ids.every((id, place) => texts[place] === (shown.fields[id.field] ?? ""))) return window.dash_clientside.no_update;
    ids.forEach((id, place) => {
      // a prompt that nobody chose stays out of the address: another subject has one of its own
      const untouched = !fields.has(id.field) && texts[place] === shown.fields[id.field];
      if (id.field === "prompt" && untouched) return;
      texts[place] === "" ? fields.delete(id.field) : fields.set(id.field, texts[place]);
    });
    return "?" + fields;
  },
  // The figure whose button was pressed, with its query, for the server to put that into it.
  picture: async function (clicks) {
    const pressed = window.dash_clientside.callback_context.triggered_id;
    if (!pressed || !clicks.some((times) => times)) return window.dash_clientside.no_update;
    const figure = document.getElementById("figure-" + pressed.save);
    const plot = figure.querySelector(".js-plotly-plot");
    const layout = { ...plot.layout, paper_bgcolor: "#ffffff", font: { ...plot.layout.font, color: "#1b1b1b" } };
    const size = { width: plot.clientWidth, height: plot.clientHeight };
    const data = await window.Plotly.toImage({ data: plot.data, layout }, { format: pressed.format, scale: 2, ...size });
    return { name: pressed.save, format: pressed.format, data, query: figure.querySelector("code")?.textContent ?? "", page: location.href };
  },
};
