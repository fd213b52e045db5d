// The page: subject, operator, colours, and where in the page one is.

const [subjects, operators] = [document.getElementById("subject"), document.getElementById("operator")];
let shows = 0; // so that a slow subject does not overwrite a later one

/** Shows everything for the selected subject and operator. */
async function show() {
  const turn = ++shows;
  const chosen = { about: declared.subjects[subjects.selectedIndex], operator: operators.value };
  const name = chosen.about.subject;
  const [tables, figures, study, sharedTables, sharedFigures] = await Promise.all(
    [`${name}/tables`, `${name}/figures`, `${name}/study`, "shared/tables", "shared/figures"].map((payloadName) => read(payloadName)));
  Object.assign(tables, study?.tables);
  Object.assign(figures, study?.figures);
  if (turn !== shows) return;
  const { source: origin, revision, operators: asked } = chosen.about;
  document.getElementById("about").textContent = `${name}: ${origin} (${revision}), asked to ${asked.join(", ")}.`;
  const filled = declared.items.filter((item) =>
    showItem(item, chosen, item.shared ? sharedTables : tables, item.shared ? sharedFigures : figures)).length;
  await offer(chosen.about, chosen.operator);
  if (turn !== shows) return;
  const status = document.getElementById("status");
  status.textContent = `Showing ${name}, ${chosen.operator || "all operators"}: ${filled} of ${declared.items.length} findings have data.`;
  document.body.dataset.shown = `${name} ${chosen.operator}`.trim();
}

/** Light and dark: what the system prefers, until the button is used. */
function themed() {
  const button = document.getElementById("theme");
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  let dark = null;
  const apply = () => {
    document.documentElement.style.colorScheme = dark === null ? "" : dark ? "dark" : "light";
    button.setAttribute("aria-pressed", dark ?? preferred.matches);
  };
  button.onclick = () => {
    dark = !(dark ?? preferred.matches);
    apply();
  };
  preferred.onchange = apply;
  apply();
}

/** Marks in the navigation the section that is being read. */
function follow() {
  const links = new Map([...document.querySelectorAll("nav > ol > li > a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target.id);
    const current = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) {
      if (id === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
}

subjects.onchange = operators.onchange = show;
themed();
follow();
if ("DecompressionStream" in globalThis) await show();
else document.getElementById("about").textContent = "This browser is too old to unpack the numbers of this page; one of 2023 or later can.";
