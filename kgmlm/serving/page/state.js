// What the page shows is what its address says: every state has a link, and back and forward work.
//
// side: what the given entity is, "head" or "tail"; the other side is asked for.
// name, about, kind: of an entity that the graph has not, its types with "|" between them; `entity` is empty then.
// given: its triples, each [what the other entity is, relation, other entity], by labels.

const TEXTS = ["relation", "type", "why", "vs", "name", "about", "kind"];

function triples(text) {
  try {
    const isTriple = (t) => Array.isArray(t) && t.length === 3 && t.every((x) => typeof x === "string") && /^(head|tail)$/.test(t[0]);
    const given = JSON.parse(text || "[]");
    return Array.isArray(given) ? given.filter(isTriple) : [];
  } catch {
    return [];
  }
}

export function read(search = location.search) {
  const given = new URLSearchParams(search);
  const state = { side: given.has("tail") || given.get("side") === "tail" ? "tail" : "head" };
  state.entity = given.get(state.side) ?? "";
  for (const key of TEXTS) state[key] = given.get(key) ?? "";
  state.given = triples(given.get("given"));
  state.min = Math.min(1, Math.max(0, Number(given.get("min")) || 0));
  state.page = Math.max(1, Math.floor(Number(given.get("page")) || 1));
  return state;
}

export function address(state) {
  const values = new URLSearchParams();
  if (state.entity) values.set(state.side, state.entity);
  else if (state.name || state.about) values.set("side", state.side);
  for (const key of TEXTS) if (state[key]) values.set(key, state[key]);
  if (state.name && state.given.length) values.set("given", JSON.stringify(state.given));
  if (state.min) values.set("min", String(state.min));
  if (state.page > 1) values.set("page", String(state.page));
  return `?${values}`;
}

let current = read();
let changed = () => {};

export const now = () => current;

// `render` is called with the state whenever it is another one.
export function onChange(render) {
  changed = render;
  addEventListener("popstate", () => {
    current = read();
    changed(current);
  });
}

// Another question begins at its first page, with nothing chosen.
export const FRESH = { page: 1, why: "", vs: "", type: "" };

// It is about an entity of the graph.
export const OF_GRAPH = { ...FRESH, name: "", about: "", kind: "", given: [] };

export function go(changes, { replace = false } = {}) {
  current = { ...current, ...changes };
  const link = address(current);
  if (replace || link === address(read())) history.replaceState(null, "", link);
  else history.pushState(null, "", link);
  changed(current);
}

// A link that changes the state without loading the page again, and can be opened elsewhere.
export const link = (changes) => ({
  href: address({ ...current, ...changes }),
  onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(changes);
  },
});
