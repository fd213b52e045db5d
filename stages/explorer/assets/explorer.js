// What has to happen in the browser: the address follows the fields, and a figure becomes a picture as it is seen.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.explorer = {
  // The fields' values as the address has them; several values of one field stand behind each other.
  address: function (values, ids, search) {
    const fields = new URLSearchParams(search || "");
    const before = fields.toString();
    ids.forEach((id, place) => {
      const text = [values[place] ?? ""].flat().join("|");
      if (text === "") fields.delete(id.field);
      else fields.set(id.field, text);
    });
    return !ids.length || fields.toString() === before ? window.dash_clientside.no_update : "?" + fields;
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
