// Accept or reject an answer. The service writes it into the run, where it may.

import { get, post } from "./api.js";
import { el, say } from "./dom.js";

let allowed = false;
let said = new Map();

const key = (triple) => JSON.stringify([triple.head, triple.relation, triple.tail]);

export function allow(yes) {
  allowed = yes;
}

// What was said before of an entity's triples.
export async function know(entity) {
  said = new Map();
  if (!allowed || !entity) return;
  const { results } = await get("/feedback", { entity });
  for (const judgment of results) said.set(key(judgment), judgment.label);
}

function triple(answer, found) {
  const [head, tail] =
    found.target === "tail" ? [found.entity.label, answer.entity] : [answer.entity, found.entity.label];
  return { head, relation: found.relation.label, tail };
}

export function buttons(answer, found) {
  if (!allowed || !found.entity.of_graph) return null;
  const asked = triple(answer, found);
  const pair = [
    [1, "✓", "Accept"],
    [0, "✗", "Reject"],
  ].map(([label, sign, word]) =>
    el(
      "button",
      {
        type: "button",
        class: `judge is-${word.toLowerCase()}`,
        "aria-label": `${word} ${answer.name}`,
        title: word,
        "aria-pressed": String(said.get(key(asked)) === label),
        "data-triple": key(asked),
        "data-label": label,
        onclick: async () => {
          const to = said.get(key(asked)) === label ? null : label;
          try {
            await post("/feedback", { ...asked, label: to });
          } catch (error) {
            say(error.message);
            document.dispatchEvent(new CustomEvent("failed", { detail: error.message }));
            return;
          }
          said.set(key(asked), to);
          for (const button of document.querySelectorAll(".judge")) {
            if (button.dataset.triple === key(asked))
              button.setAttribute("aria-pressed", String(Number(button.dataset.label) === to && to !== null));
          }
          say(to === null ? "taken back" : `${word}ed: ${answer.name}`);
        },
      },
      sign,
    ),
  );
  return el("span", { class: "judging" }, pair);
}
