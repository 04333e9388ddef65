// An entity that the graph has not, added to the run: an update that the service begins.

import { get, post } from "./api.js";
import { byId, el, fill, name, say } from "./dom.js";
import { OF_GRAPH, link, now } from "./state.js";

const AGAIN = 2000; // milliseconds between two looks at the update
const LATER = 60; // looks until the service has opened the updated run, if it watches it
let allowed = false;
let told = null; // what is said of the latest update: its name and a sentence

export function begin(yes) {
  allowed = yes;
}

const pause = () => new Promise((done) => setTimeout(done, AGAIN));

function tell(of, sentence, more = null) {
  told = { of, sentence, more };
  show(now());
  say(sentence);
}

async function isKnown(label) {
  for (let look = 0; look < LATER; look += 1) {
    const { results } = await get("/entities", { q: label, k: 3 });
    if (results.some((found) => found.label === label)) return true;
    await pause();
  }
  return false;
}

async function add(state) {
  const triples = state.given.map(([side, relation, other]) => ({ [side]: other, relation }));
  const types = state.kind.split("|").map((type) => type.trim()).filter(Boolean);
  const entity = { name: state.name, description: state.about, types, triples };
  try {
    tell(state.name, "It is added to the run …");
    let found = await post("/update", { entities: [entity] });
    while (found.status === "updating") {
      await pause();
      found = await get("/update");
    }
    const alike = found.alike.map(({ known }) => ` “${known}” is another entity.`).join("");
    if (found.status === "failed") tell(state.name, `It is not added: ${found.why}.`);
    else if (await isKnown(state.name)) {
      const there = { ...OF_GRAPH, side: state.side, entity: state.name, relation: state.relation };
      tell(state.name, `The run has it now.${alike} `, el("a", link(there), name(state.name)));
    } else tell(state.name, `The run has it now.${alike} This service still answers by the run as it was opened; with --watch it follows.`);
  } catch (error) {
    tell(state.name, `It is not added: ${error.message}`);
  }
}

// Below the fields of a new entity; `state` is the question.
export function show(state) {
  const mine = told?.of === state.name ? told : null;
  const button = el("button", { type: "button", class: "quiet", onclick: () => add(state) }, "Add it to the run");
  fill(
    byId("keep"),
    allowed && state.name ? (mine ? el("span", { role: "status" }, mine.sentence, mine.more) : button) : null,
  );
}
