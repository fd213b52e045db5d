// The page: model, operator, colours, and the section that is being read.

const subjects = document.getElementById("subject");
const operators = document.getElementById("operator");
let shows = 0; // so that a slow model does not overwrite a later one

/** Shows everything for the selected model and operator. */
async function show() {
  const turn = ++shows;
  const about = declared.subjects[subjects.selectedIndex];
  const selected = { about, operator: operators.value };
  const name = about.subject;
  const names = [`${name}/tables`, `${name}/figures`, `${name}/study`];
  const all = [...names, "shared/tables", "shared/figures"].map((payload) => read(payload));
  const [tables, figures, study, sharedTables, sharedFigures] = await Promise.all(all);
  Object.assign(tables, study?.tables);
  Object.assign(figures, study?.figures);
  if (turn !== shows) return;
  const from = `${about.source} (${about.revision})`;
  const text = `${name}: ${from}, operators: ${about.operators.join(", ")}.`;
  document.getElementById("about").textContent = text;
  const filled = declared.items.filter((item) => {
    const data = item.shared ? [sharedTables, sharedFigures] : [tables, figures];
    return showItem(item, selected, ...data);
  });
  await showFindings(about, selected.operator, () => turn !== shows);
  if (turn !== shows) return;
  await offer(about, selected.operator);
  if (turn !== shows) return;
  const what = `${name}, ${selected.operator || "all operators"}`;
  const count = `${filled.length} of ${declared.items.length} figures and tables have data`;
  document.getElementById("status").textContent = `Showing ${what}: ${count}.`;
  document.body.dataset.shown = `${name} ${selected.operator}`.trim();
}

/** Lets the button select light or dark; before it is used, the system's preference applies. */
function themed() {
  const button = document.getElementById("theme");
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  let dark = null;
  const apply = () => {
    const scheme = dark ? "dark" : "light";
    document.documentElement.style.colorScheme = dark === null ? "" : scheme;
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
  const links = new Map();
  for (const link of document.querySelectorAll("nav > ol > li > a")) {
    links.set(link.hash.slice(1), link);
  }
  const seen = new Set();
  const update = (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) seen.add(target.id);
      else seen.delete(target.id);
    }
    const current = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) {
      if (id === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const watcher = new IntersectionObserver(update, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
}

/** Selects a model by its name, for example from the table of all models. */
function select(subject) {
  subjects.value = subject;
  scrollTo({ top: 0 });
  return show();
}

/** Opens what is closed around the target of a link to it. */
function reveal() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const closed = target?.closest("details:not([open])");
  if (closed) closed.open = true;
}

if (declared.subjects.length > 1) byId("models").replaceChildren(modelsTable(select));
addEventListener("hashchange", reveal);
subjects.onchange = operators.onchange = show;
themed();
follow();
// the newest functions that the scripts use
if ("DecompressionStream" in globalThis && Map.groupBy) await show();
else {
  const problem = "This browser cannot show the data of this page";
  const about = document.getElementById("about");
  about.textContent = `${problem}; use a browser of April 2024 or later.`;
}
