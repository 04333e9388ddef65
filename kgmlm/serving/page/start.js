// The start page: facts that the graph probably lacks, and its relations.

import { get } from "./api.js";
import { byId, el, fill, name } from "./dom.js";
import { row } from "./fact.js";
import { OF_GRAPH, link } from "./state.js";
import { count, many, percent } from "./words.js";

const SIZE = 10;
const AGAIN = 2000; // milliseconds until it is asked again whether the facts are there
const RELATIONS = 12; // that are shown at first

let relation = ""; // whose facts are shown; all, where it is empty
let limit = SIZE;
let turn = 0;
let names = new Map(); // of relations, by label

const cameTrue = (hidden) =>
  hidden &&
  `Of the ${count(hidden.listed)} with ${percent(hidden.probability)} or more, the test split has ${count(hidden.true)}; ${count(Math.round(hidden.listed * hidden.expected))} were expected.`;

function chooser(found) {
  const all = found.relations.reduce((total, of) => total + of.facts, 0);
  const option = (value, text, facts) => el("option", { value, selected: value === relation }, `${text} (${count(facts)})`);
  const select = el(
    "select",
    { "aria-label": "Relation of the facts", onchange: (event) => ([relation, limit] = [event.target.value, SIZE]) && facts() },
    option("", "all relations", all),
    found.relations.map((of) => option(of.label, names.get(of.label) ?? of.label, of.facts)),
  );
  return found.relations.length > 1 && select;
}

function showFacts(found, standsFor) {
  const nothing = {
    looking: `Looking for facts that this graph lacks … ${Math.round(100 * found.progress)} %`,
    none: `No list of missing facts: ${found.why}.`,
    ready: `Nothing is probable enough: ${many(found.asked, "question")} asked.`,
  };
  fill(byId("facts-head"), chooser(found));
  fill(byId("facts"), found.facts.map(row));
  const more = el("button", { type: "button", class: "quiet", onclick: () => ((limit += SIZE), facts()) }, "More");
  const isSample = found.status === "looking" && found.total > 0;
  fill(
    byId("facts-said"),
    isSample && el("span", { role: "status" }, `From a first sample; looking further … ${Math.round(100 * found.progress)} % `),
    found.total
      ? el("span", {}, found.facts.some((fact) => fact.probability === null)
          ? `The best answers of ${many(found.asked, "question")}, the clearest first; validation has too little for probabilities.`
          : `The best answers of ${many(found.asked, "question")}; ${standsFor}. `, cameTrue(found.hidden) || "")
      : el("span", { role: "status" }, nothing[found.status]),
  );
  fill(byId("facts-more"), found.total > found.facts.length && limit < 100 && more);
}

let meaning = "";

// Until they are there, it is asked again, as long as the start page is shown.
async function facts() {
  const mine = ++turn;
  const found = await get("/new-facts", { limit, ...(relation && { relation }) }).catch((error) => ({
    status: "none", progress: 1, why: error.message, asked: 0, total: 0, relations: [], facts: [],
  }));
  if (mine !== turn) return;
  showFacts(found, meaning);
  if (found.status === "looking") setTimeout(() => mine === turn && facts(), AGAIN);
}

async function showRelations() {
  const { results } = await get("/relations");
  names = new Map(results.map((of) => [of.label, of.name]));
  const sorted = [...results].sort((a, b) => b.triples - a.triples);
  const most = sorted[0]?.triples || 1;
  const item = (of) =>
    el(
      "li",
      {},
      el("a", link({ ...OF_GRAPH, side: "head", entity: of.example ?? "", relation: of.label }), name(of.name)),
      el("span", { class: "number" }, count(of.triples)),
      el("span", { class: "bar", "aria-hidden": "true" }, el("span", { class: "bar-fill is-count", vars: { "--width": `${(100 * of.triples) / most}%` } })),
    );
  const rest = sorted.slice(RELATIONS);
  fill(
    byId("relations"),
    el("ul", {}, sorted.slice(0, RELATIONS).map(item)),
    rest.length > 0 && el("details", {}, el("summary", {}, `${count(rest.length)} more`), el("ul", {}, rest.map(item))),
  );
}

// Shows the page, or hides it; `info` is of the service.
export async function show(info) {
  byId("start").hidden = info === null;
  if (info === null) {
    turn += 1;
    return;
  }
  meaning = info.stands_for ?? "";
  await showRelations();
  await facts();
}
