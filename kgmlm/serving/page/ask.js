// The question, as a sentence with a hole: an entity, a relation, and what is asked for.

import { get } from "./api.js";
import { combobox } from "./combobox.js";
import { byId, el, fill, name } from "./dom.js";
import * as given from "./given.js";
import { FRESH, go, now } from "./state.js";
import { count, many } from "./words.js";

const PAUSE = 450; // milliseconds after the last letter of a new entity

let relations = [];
let relationsOf = "";
let timer;

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

async function findEntities(text) {
  if (!text) return [];
  const { results } = await get("/entities", { q: text, k: 12 });
  return results.map((found) => ({
    value: found.label,
    text: found.name,
    note: short(found.description, 90) || (found.label === found.name.replaceAll(" ", "_") ? "" : found.label),
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
  choose: (option) => go({ ...FRESH, entity: option.value, name: "", about: "", given: [], type: "" }),
});
const relation = combobox({
  label: "Relation",
  placeholder: "a relation",
  find: findRelations,
  pause: 0,
  choose: (option) => go({ ...FRESH, relation: option.value, type: "" }),
});
const hole = el("span", { class: "hole" });
const swap = el(
  "button",
  {
    type: "button",
    class: "quiet",
    onclick: () => go({ ...FRESH, side: now().side === "head" ? "tail" : "head", type: "" }),
  },
  "",
);
const newName = el("input", { type: "text", id: "new-name", maxlength: 990, dir: "auto", autocomplete: "off" });
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
      byId("new").hidden = !open;
      whatIf.setAttribute("aria-expanded", String(open));
      if (open) newName.focus();
      else if (now().name) go({ ...FRESH, name: "", about: "", given: [], entity: now().entity || before });
    },
  },
  "What if …",
);
const tools = el("span", { class: "tools" }, swap, whatIf);
let before = "";

function described() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const typed = newName.value.trim();
    if (!typed) return;
    before = now().entity || before;
    const begun = Boolean(now().name);
    go({ ...FRESH, entity: "", name: typed, about: about.value.trim() }, { replace: begun });
  }, PAUSE);
}

export function build() {
  newName.addEventListener("input", described);
  about.addEventListener("input", described);
  fill(
    byId("new"),
    el("p", {}, "An entity that the graph does not have. The model knows it by what you write here, and nothing is kept."),
    el("div", {}, el("label", { for: "new-name" }, "Name"), newName),
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
    fill(row, parts);
    focused?.focus?.();
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
    byId("new").hidden = false;
    whatIf.setAttribute("aria-expanded", "true");
    if (document.activeElement !== newName) newName.value = state.name;
    if (document.activeElement !== about) about.value = state.about;
  }
}

// What stands in the hole: the answer that is looked at.
export function showHole(answer) {
  fill(hole, answer ? name(answer.name) : "?");
  hole.classList.toggle("is-filled", Boolean(answer));
}

// What the model reads, with its masks.
export function showText(reading) {
  const long = reading.before.length + reading.after.length > 320;
  const masks = el(
    "span",
    { class: "masks", role: "img", "aria-label": `a hole of ${many(reading.hole, "token")}` },
    Array.from({ length: reading.hole }, () => el("i")),
  );
  const text = el("span", { class: long ? "read is-long" : "read", dir: "auto" }, reading.before, " ", masks, " ", reading.after);
  const more = el(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-expanded": "false",
      onclick: () => {
        const open = text.classList.toggle("is-open");
        more.setAttribute("aria-expanded", String(open));
        more.textContent = open ? "less" : "all of it";
      },
    },
    "all of it",
  );
  const cut = reading.cut ? ` (${many(reading.cut, "token")} did not fit)` : "";
  fill(byId("text"), el("span", { class: "label" }, `The model reads${cut}`), text, long && more);
}

