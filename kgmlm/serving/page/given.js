// What is known of an entity that the graph has not: triples, each a relation and another entity.

import { combobox } from "./combobox.js";
import { byId, el, fill, name } from "./dom.js";
import { FRESH, go, now } from "./state.js";

let side = "tail"; // what the other entity is in the next triple
let picked = {}; // its relation and the other entity, as far as they are chosen
const names = new Map(); // of relations and entities, by label

const own = el("span", { class: "own" });
const fields = {};

const key = (kind, label) => JSON.stringify([kind, label]);
const called = (kind, label) => names.get(key(kind, label)) ?? label;

function pick(kind, option) {
  names.set(key(kind, option.value), option.text);
  picked[kind] = option.value;
  if (!picked.relation || !picked.entity) {
    fields[picked.relation ? "entity" : "relation"].input.focus();
    return;
  }
  const triple = [side, picked.relation, picked.entity];
  const given = now().given;
  picked = {};
  for (const field of Object.values(fields)) field.set("");
  fields.relation.input.focus();
  if (!given.some((other) => JSON.stringify(other) === JSON.stringify(triple))) go({ ...FRESH, given: [...given, triple] });
}

// In the order of the sentence; what is focused stays so.
function order() {
  const parts = [own, fields.relation.box, fields.entity.box];
  fill(byId("builder"), side === "tail" ? parts : parts.reverse());
}

const turn = el(
  "button",
  {
    type: "button",
    class: "quiet",
    onclick: () => {
      side = side === "tail" ? "head" : "tail";
      order();
    },
  },
  "⇄ the other way round",
);

// The field set; `findRelations` and `findEntities` are those of the question.
export function build(findRelations, findEntities) {
  fields.relation = combobox({
    label: "Relation of a known triple",
    placeholder: "a relation",
    find: findRelations,
    pause: 0,
    choose: (option) => pick("relation", option),
  });
  fields.entity = combobox({
    label: "Other entity of a known triple",
    placeholder: "another entity",
    find: findEntities,
    choose: (option) => pick("entity", option),
  });
  return el(
    "div",
    { class: "known-triples", role: "group", "aria-labelledby": "given-title" },
    el("p", { id: "given-title" }, "Known triples, if there are any: choose a relation and another entity"),
    el("ul", { id: "given" }),
    el("div", { class: "adding" }, el("span", { id: "builder" }), turn),
  );
}

function line(triple, i, given, whose) {
  const [at, relation, entity] = triple;
  const words = [name(whose), " ", name(called("relation", relation)), " ", name(called("entity", entity))];
  const remove = el(
    "button",
    {
      type: "button",
      class: "quiet",
      "aria-label": `Remove the triple with ${called("entity", entity)}`,
      onclick: () => go({ ...FRESH, given: given.filter((_, other) => other !== i) }),
    },
    "×",
  );
  return el("li", {}, el("span", {}, at === "tail" ? words : words.reverse()), remove);
}

// The triples of the state; `found` has their names, when it is there.
export function show(state, found) {
  for (const { relation, entity } of found?.entity.given ?? []) {
    names.set(key("relation", relation.label), relation.name);
    names.set(key("entity", entity.label), entity.name);
  }
  const whose = state.name || "it";
  fill(own, name(whose));
  if (!byId("builder").children.length) order();
  fill(byId("given"), state.given.map((triple, i) => line(triple, i, state.given, whose)));
}
