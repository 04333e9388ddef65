// Accept or reject a triple. The service writes it into the run, where it may.

import { get, post } from "./api.js";
import { byId, el, fill, say } from "./dom.js";
import { download } from "./save.js";
import { count } from "./words.js";

let allowed = false;
const said = new Map(); // what counts, by triple

const key = (triple) => JSON.stringify([triple.head, triple.relation, triple.tail]);

// What was judged before, where judgments are taken at all.
export async function begin(yes) {
  allowed = yes;
  if (!allowed) return;
  const { results } = await get("/feedback");
  for (const judgment of results) said.set(key(judgment), judgment.label);
  showCount();
}

// Whether judgments are taken.
export const possible = () => allowed;

function showCount() {
  const labels = [...said.values()].filter((label) => label !== null);
  const accepted = labels.filter((label) => label === 1).length;
  const rows = () => [...said].filter(([, label]) => label !== null).map(([triple, label]) => [...JSON.parse(triple), label]);
  const listed = [...said].map(([triple, label]) => {
    const of = JSON.parse(triple);
    const text = of.join(" | ");
    return label === null ? null : el("li", {}, `${text} `, buttons({ head: of[0], relation: of[1], tail: of[2] }, text));
  });
  const opened = byId("judged").querySelector("details")?.open ?? false;
  fill(
    byId("judged"),
    labels.length > 0 &&
      el(
        "details",
        opened ? { open: "" } : {},
        el("summary", {}, `Judged: ${count(accepted)} accepted, ${count(labels.length - accepted)} rejected.`),
        el("ul", {}, listed.filter(Boolean)),
        el("p", { class: "quiet" }, "A second click on ✓ or ✗ takes a judgment back; `kgmlm feedback RUN --apply` then undoes it in the graph, too."),
      ),
    labels.length > 0 &&
      el(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => download("judgments.csv", ["head", "relation", "tail", "label"], rows()),
        },
        "Save as CSV",
      ),
  );
}

async function judge(asked, label, text) {
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
  showCount();
  say(to === null ? "taken back" : `${to ? "Accepted" : "Rejected"}: ${text}`);
}

// Two buttons for a triple of labels; `text` says which one it is.
export function buttons(asked, text) {
  if (!allowed) return null;
  const pair = [
    [1, "✓", "Accept"],
    [0, "✗", "Reject"],
  ].map(([label, sign, word]) =>
    el(
      "button",
      {
        type: "button",
        class: `judge is-${word.toLowerCase()}`,
        "aria-label": `${word} ${text}`,
        title: word,
        "aria-pressed": String(said.get(key(asked)) === label),
        "data-triple": key(asked),
        "data-label": label,
        onclick: () => judge(asked, label, text),
      },
      sign,
    ),
  );
  return el("span", { class: "judging" }, pair);
}

// The same for an answer of a question about an entity of the graph.
export function ofAnswer(answer, found) {
  if (!found.entity.of_graph) return null;
  const [head, tail] =
    found.target === "tail" ? [found.entity.label, answer.entity] : [answer.entity, found.entity.label];
  return buttons({ head, relation: found.relation.label, tail }, answer.name);
}
