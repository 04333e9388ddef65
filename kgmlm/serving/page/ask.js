// The question, as a sentence with a hole: an entity, a relation, and what is asked for.

import { get } from "./api.js";
import { combobox, silently } from "./combobox.js";
import { byId, el, fill, name } from "./dom.js";
import * as given from "./given.js";
import { FRESH, OF_GRAPH, go, now } from "./state.js";
import { count } from "./words.js";

const PAUSE = 450; // milliseconds after the last letter of a new entity

let relations = [];
let relationsOf = "";
let timer;

// The alias by which an entity was found, where its name does not have what was typed.
function also(found, typed) {
  const has = (text) => text.toLowerCase().includes(typed.toLowerCase());
  const alias = typed && ![found.name, found.label].some(has) && found.aliases.find(has);
  return alias ? `also ${alias}` : "";
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// What was typed; before anything is, some that the relation is asked of.
async function findEntities(text) {
  const examples = { relation: now().relation, side: now().side };
  const { results } = await get("/entities", { q: text, k: 12, ...(text ? {} : examples) });
  return results.map((found) => ({
    value: found.label,
    text: found.name,
    note: short(also(found, text) || found.description, 90) || (found.label === found.name.replaceAll(" ", "_") ? "" : found.label),
  }));
}

async function findRelations(text) {
  const typed = text.toLowerCase();
  const words = relations.map((r) => ({ r, at: `${r.name} ${r.label}`.toLowerCase().indexOf(typed) }));
  const found = words.filter(({ at }) => at >= 0);
  if (typed) found.sort((a, b) => (a.at === 0 ? 0 : 1) - (b.at === 0 ? 0 : 1));
  return found.slice(0, 200).map(({ r }) => ({
    value: r.label,
    text: r.name,
    mark: r.own ? `has ${count(r.own)}` : r.share >= 0.01 ? "usual" : "",
  }));
}

const entity = combobox({
  label: "Entity",
  placeholder: "an entity",
  find: findEntities,
  choose: (option) => (option.isNew ? invent(option.value) : go({ ...OF_GRAPH, entity: option.value })),
  also: (text) => ({ value: text, text: `Ask about a new entity “${short(text, 40)}”`, isNew: true, keep: text }),
});
const relation = combobox({
  label: "Relation",
  placeholder: "a relation",
  find: findRelations,
  pause: 0,
  choose: (option) => go({ ...FRESH, relation: option.value }),
});
const hole = el("span", { class: "hole" });
const swap = el(
  "button",
  {
    type: "button",
    class: "quiet",
    onclick: () => go({ ...FRESH, side: now().side === "head" ? "tail" : "head" }),
  },
  "",
);
const newName = el("input", { type: "text", id: "new-name", maxlength: 990, dir: "auto", autocomplete: "off" });
const kind = el("input", { type: "text", id: "new-kind", list: "types", maxlength: 990, dir: "auto", autocomplete: "off" });
const about = el("textarea", { id: "new-about", rows: 2, maxlength: 10000, dir: "auto" });
const whatIf = el(
  "button",
  {
    type: "button",
    class: "quiet",
    "aria-expanded": "false",
    "aria-controls": "new",
    onclick: () => {
      const open = byId("new").hidden;
      unfold(open);
      if (open) newName.focus();
      else if (now().name) go({ ...OF_GRAPH, entity: before });
    },
  },
  "What if …",
);
const tools = el("span", { class: "tools" }, swap, whatIf);
let before = "";
let wasNew = false; // whether the question before was about an entity that the graph has not

function unfold(open) {
  byId("new").hidden = !open;
  whatIf.setAttribute("aria-expanded", String(open));
}

// Ask about an entity of this name.
function invent(text, more = {}) {
  before = now().entity || before;
  newName.value = text;
  about.value = more.about ?? "";
  kind.value = more.kind ?? "";
  unfold(true);
  go({ ...OF_GRAPH, entity: "", name: text, ...more });
}

function described() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const typed = newName.value.trim();
    if (!typed) return;
    before = now().entity || before;
    const begun = Boolean(now().name);
    go({ ...FRESH, entity: "", name: typed, about: about.value.trim(), kind: kind.value.trim() }, { replace: begun });
  }, PAUSE);
}

const triplesOf = (proposed) =>
  proposed.triples.map((t) => [t.tail === undefined ? "head" : "tail", t.relation, t.tail ?? t.head]);

function proposal(proposed) {
  const state = { side: "head", relation: proposed.relation, about: proposed.description, kind: proposed.types.join("|") };
  return el(
    "button",
    { type: "button", class: "quiet", onclick: () => invent(proposed.name, { ...state, given: triplesOf(proposed) }) },
    name(short(proposed.name, 40)),
  );
}

// `info` is of the service.
export function build(info) {
  for (const field of [newName, about, kind]) field.addEventListener("input", described);
  fill(
    byId("new"),
    el("p", {}, "An entity that the graph does not have. The model knows it by what you write here; nothing is kept unless you add it to the run."),
    info.what_if.length > 0 && el("p", { class: "proposed" }, "For example: ", info.what_if.map(proposal)),
    el("div", {}, el("label", { for: "new-name" }, "Name"), newName),
    info.types.length > 0 && el("div", {}, el("label", { for: "new-kind" }, "Type"), kind, el("datalist", { id: "types" }, info.types.map((type) => el("option", { value: type })))),
    el("div", {}, el("label", { for: "new-about" }, "Description"), about),
    given.build(findRelations, findEntities),
  );
}

// Relations in the order of what the entity's kind has; resolves to the first one.
export async function know(state) {
  const key = `${state.side} ${state.entity}`;
  if (key !== relationsOf || !relations.length) {
    const found = await get("/relations", { entity: state.entity, side: state.side });
    [relations, relationsOf] = [found.results, key];
  }
  return relations[0]?.label ?? "";
}

function order(state) {
  const sides = [entity.box, relation.box, hole];
  const parts = [...(state.side === "head" ? sides : sides.reverse()), tools];
  const row = byId("sentence");
  if (parts.some((part, i) => row.children[i] !== part)) {
    const focused = document.activeElement;
    silently(() => {
      fill(row, parts);
      focused?.focus?.();
    });
  }
}

// The sentence as the state has it; `found` is the service's answer, when it is there.
export function show(state, found) {
  order(state);
  const isNew = Boolean(state.name);
  if (document.activeElement !== entity.input) entity.set(isNew ? state.name : (found?.entity.name ?? state.entity));
  entity.box.classList.toggle("is-new", isNew);
  const chosen = relations.find((r) => r.label === state.relation);
  if (document.activeElement !== relation.input) relation.set(chosen?.name ?? state.relation);
  swap.textContent = state.side === "head" ? "⇄ ask for the head" : "⇄ ask for the tail";
  given.show(state, found);
  if (isNew) {
    wasNew = true;
    unfold(true);
    for (const [field, text] of [[newName, state.name], [about, state.about], [kind, state.kind]])
      if (document.activeElement !== field) field.value = text;
  } else if (before || wasNew) {
    [before, wasNew] = ["", false];
    unfold(false);
  }
}

// Names like an unknown one of the address, to click.
export async function alike(state) {
  const entities = state.entity ? (await get("/entities", { q: state.entity, k: 3 })).results : [];
  const known = relations.some((r) => r.label === state.relation);
  const link = (text, changes) => el("button", { type: "button", class: "quiet", onclick: () => go({ ...FRESH, ...changes }) }, name(text));
  return [
    ...entities.filter((e) => e.label !== state.entity).map((e) => link(e.name, { entity: e.label })),
    ...(known ? [] : relations.slice(0, 5).map((r) => link(r.name, { relation: r.label }))),
  ];
}

// What stands in the hole: the answer that is looked at; nothing as long as it is not known.
export function showHole(answer) {
  fill(hole, answer ? name(answer.name) : "\u00a0");
  hole.classList.toggle("is-filled", Boolean(answer));
}
