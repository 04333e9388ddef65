// Why an answer ranks where it does; and of two answers, what makes one better.

import { get, post } from "./api.js";
import { combobox } from "./combobox.js";
import { byId, el, fill, name } from "./dom.js";
import * as judge from "./judge.js";
import { OF_GRAPH, go, link, now } from "./state.js";
import { advantages, count, fixed, many, mark, percent, signal, signed, sum } from "./words.js";

const BECAUSE = /^(.*) \(([\d,]+) of ([\d,]+)\)$/s;

const part = (title, ...content) => el("div", { class: "part" }, el("h3", {}, title), ...content);

// Bars from a middle line: right speaks for it, left against it.
function balance(pairs, most) {
  return el(
    "dl",
    { class: pairs.some(([, value]) => value < 0) ? "balance" : "balance is-for" },
    pairs.map(([key, value]) =>
      el(
        "div",
        {},
        el("dt", {}, signal(key)),
        el(
          "dd",
          {},
          el(
            "span",
            { class: "axis", "aria-hidden": "true" },
            el("i", {
              class: `s-${key}${value < 0 ? " is-against" : ""}`,
              vars: { "--length": Math.abs(value) / (most || 1) },
            }),
          ),
          el("span", { class: "number" }, signed(value)),
        ),
      ),
    ),
  );
}

// Warm where the model expects the token, pale where it is surprised.
function tokens(answer) {
  return el(
    "ol",
    { class: "tokens" },
    answer.tokens.map((token) =>
      el(
        "li",
        {
          vars: { "--heat-share": `${Math.round(100 * Math.max(0, Math.min(1, 1 + token.log_likelihood / 10)))}%` },
          title: `log-likelihood ${fixed(token.log_likelihood, 3)}`,
        },
        el("span", { class: "token" }, name(token.text.trim() || "␣")),
        el("span", { class: "number" }, fixed(token.log_likelihood, 1)),
      ),
    ),
  );
}

function because(answer) {
  return el(
    "ul",
    { class: "because" },
    answer.because.map((sentence) => {
      const [, body, right, all] = BECAUSE.exec(sentence) ?? [null, sentence, "", ""];
      const share = Number(right.replaceAll(",", "")) / Number(all.replaceAll(",", ""));
      return el(
        "li",
        {},
        el("span", { class: "rule" }, name(body)),
        all && el("span", { class: "number", title: `right in ${right} of ${all} cases in training` }, percent(share)),
      );
    }),
  );
}

// The text that the masked LM reads, with a box for each mask token, and the neighbors in it.
function told({ before, after, hole, cut, neighbors }) {
  const boxes = Array.from({ length: hole }, () => el("i"));
  const masks = el("span", { class: "masks", role: "img", "aria-label": `a hole of ${many(hole, "token")}` }, boxes);
  const edges = neighbors.map((edge) =>
    el(
      "li",
      {},
      el("span", { class: "dim" }, name(edge.target === "tail" ? edge.relation.name : `inverse of ${edge.relation.name}`)),
      " ",
      name(edge.entity.name),
    ),
  );
  return el(
    "details",
    { class: "part told" },
    el("summary", {}, "What the model was told"),
    el("p", { class: "read", dir: "auto" }, before, " ", masks, " ", after),
    cut > 0 && el("p", { class: "dim" }, `${many(cut, "token")} did not fit.`),
    edges.length > 0 && el("p", { class: "dim" }, `Of its neighbors, ${edges.length}:`),
    edges.length > 0 && el("ul", { class: "plain" }, edges),
  );
}

function triple(found, given, answer) {
  const [head, tail] = found.target === "tail" ? [given, answer] : [answer, given];
  return el(
    "span",
    {},
    name(head.name), " ", el("span", { class: "dim" }, name(found.relation.name)), " ", name(tail.name),
  );
}

// Training triples like this one; they come a moment later.
function nearby(answer, found) {
  const place = el("div", {});
  if (!found.entity.of_graph) return place;
  const asked = { [found.target === "tail" ? "head" : "tail"]: found.entity.label };
  post("/near", { ...asked, relation: found.relation.label, answer: answer.entity })
    .then((near) => {
      const rows = (list, shown) =>
        list
          .filter((row) => row.shared > 0)
          .slice(0, 3)
          .map((row) =>
            el("li", {}, shown(row), el("span", { class: "number" }, `shares ${count(row.shared)} of ${many(row.of, "fact")}`)),
          );
      const same = rows(near.same_answer, (row) => triple(found, row, answer));
      const others = rows(near.same_question, (row) => triple(found, found.entity, row));
      if (!same.length && !others.length) return;
      fill(
        place,
        part(
          "Similar facts",
          same.length > 0 && el("p", { class: "dim" }, "like ", name(found.entity.name), ":"),
          same.length > 0 && el("ul", { class: "near" }, same),
          others.length > 0 && el("p", { class: "dim" }, "like ", name(answer.name), ":"),
          others.length > 0 && el("ul", { class: "near" }, others),
        ),
      );
    })
    .catch(() => {});
  return place;
}

function headline(answer, found) {
  const [kind, meaning] = mark(answer);
  const isUnchecked = answer.checked === false; // no hidden set has such entities
  const score = found.standsFor && !isUnchecked ? "" : `score ${fixed(answer.score)}`;
  const number = answer.probability === null ? score : percent(answer.probability);
  return el(
    "div",
    { class: "headline" },
    number && el("strong", { class: "big" }, number),
    el(
      "span",
      {},
      el("span", { class: `kind is-${kind}`, title: meaning }, kind),
      answer.possible ? ` rank ${count(answer.rank)}` : "",
      answer.probability !== null ? el("span", { class: "dim" }, ` · ${found.standsFor}`) : null,
      isUnchecked && found.standsFor ? el("span", { class: "dim" }, " · no probability: training has nothing of one of the entities") : null,
      !number && answer.known ? el("span", { class: "dim" }, " · training has this triple") : null,
    ),
    judge.ofAnswer(answer, found),
  );
}

const walk = (answer) =>
  el(
    "a",
    { ...link({ ...OF_GRAPH, side: "head", entity: answer.entity, relation: "" }), class: "walk" },
    "Ask about it →",
  );

const most = (pairs) => Math.max(...pairs.map(([, value]) => Math.abs(value)), 1e-9);

// What each signal adds to one answer more than to another.
function lead(first, second, found) {
  const theirs = new Map(advantages(second, found.usual));
  return advantages(first, found.usual).map(([key, value]) => [key, value - (theirs.get(key) ?? 0)]);
}

// The best of the other answers that are not known.
const runnerUp = (answer, found) =>
  found.predictions.find((other) => other.entity !== answer.entity && other.possible && (!other.known || other.in_test));

function speaks(answer, found) {
  const other = runnerUp(answer, found);
  const pairs = other ? lead(answer, other, found) : advantages(answer, found.usual);
  const against = other ? ["against ", name(other.name), ", the best of the others"] : ["against an average entity"];
  return part("What speaks for it", el("p", { class: "dim" }, against), balance(pairs, most(pairs)));
}

function one(answer, found) {
  return [
    headline(answer, found),
    answer.description && el("p", { class: "description", dir: "auto" }, answer.description),
    speaks(answer, found),
    answer.because.length > 0 && part("Rules say", because(answer)),
    nearby(answer, found),
    answer.tokens.length > 0 && part("How the name reads", tokens(answer)),
    found.reading && told(found.reading),
  ];
}

// To which answer each end of the bars belongs.
const ends = (pairs, first, second) =>
  el(
    "p",
    { class: "ends dim" },
    pairs.some(([, value]) => value < 0) && el("span", {}, "← for ", name(second.name)),
    el("span", {}, "for ", name(first.name), " →"),
  );

function two(first, second, found) {
  const pairs = lead(first, second, found);
  const total = sum(pairs);
  const [better, worse] = total >= 0 ? [first, second] : [second, first];
  // Of what speaks for the better one: others may speak louder against it.
  const strongest = pairs.filter(([, value]) => value * total > 0).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))[0];
  const side = (answer) =>
    el(
      "div",
      { class: "side" },
      el("h3", {}, name(answer.name)),
      headline(answer, found),
      answer.because.length > 0 && part("Rules say", because(answer)),
      answer.tokens.length > 0 && part("How the name reads", tokens(answer)),
    );
  return [
    el(
      "p",
      { class: "verdict" },
      el("strong", {}, name(better.name)),
      ` is ahead of `,
      name(worse.name),
      ` by ${fixed(Math.abs(total))}`,
      strongest && pairs.length > 1 ? `, most by ${signal(strongest[0])}.` : ".",
    ),
    part("What makes the difference", balance(pairs, most(pairs)), ends(pairs, first, second)),
    el("div", { class: "sides" }, side(first), side(second)),
  ];
}

const other = combobox({
  label: "Compare with another entity",
  placeholder: "Why not …?",
  find: async (text) =>
    text
      ? (await get("/entities", { q: text, k: 8 })).results.map((f) => ({ value: f.label, text: f.name, note: "" }))
      : [],
  choose: (option) => {
    other.set("");
    go({ vs: option.value, why: now().why || shown });
  },
});
let shown = "";

export function show(found, first, second) {
  shown = first?.entity ?? "";
  const title = el("h2", { id: "why-title" }, second ? "Why not?" : "Why", second ? null : " ", second ? null : name(first?.name ?? ""), second ? null : "?");
  if (!first) {
    fill(byId("why"), el("h2", { id: "why-title" }, "Why"), el("p", { class: "dim" }, "Choose an answer."));
    return;
  }
  const focused = document.activeElement === other.input;
  fill(
    byId("why"),
    el("div", { class: "head" }, title, second ? el("a", { ...link({ vs: "" }), class: "walk" }, "Stop comparing") : walk(first)),
    second ? two(first, second, found) : one(first, found),
    el("div", { class: "other" }, other.box),
  );
  if (focused) other.input.focus();
}
