// A fact that the graph probably lacks, as a row: its probability and why.

import { el, name } from "./dom.js";
import * as judge from "./judge.js";
import { OF_GRAPH, link } from "./state.js";
import { percent } from "./words.js";

const asked = (fact) => ({ ...OF_GRAPH, side: "head", entity: fact.head, relation: fact.relation, why: fact.tail });

// Of several reasons the first, without how often it is right.
const because = (fact) => fact.because.split("; ")[0].replace(/ \([\d,]+ of [\d,]+\)$/, "");

export function row(fact) {
  const triple = { head: fact.head, relation: fact.relation, tail: fact.tail };
  return el(
    "li",
    { class: "fact" },
    el(
      "a",
      { ...link(asked(fact)), class: "statement" },
      name(fact.head_name), " ", el("span", { class: "dim" }, name(fact.relation_name)), " ", name(fact.tail_name),
    ),
    el("span", { class: "value" }, fact.probability === null ? "" : percent(fact.probability)),
    el("p", { class: "reason" }, fact.because ? ["because ", name(because(fact))] : "because of its texts and types: no rule and no similar fact says so"),
    el(
      "span",
      { class: "actions" },
      fact.in_test && el("span", { class: "kind is-new", title: "The list knows nothing of the test split." }, "test has it"),
      judge.buttons(triple, `${fact.head_name} ${fact.relation_name} ${fact.tail_name}`),
    ),
  );
}
