// Why an answer ranks where it does; and of two answers, what makes one better.

import { get, post } from "./api.js";
import { combobox } from "./combobox.js";
import { byId, el, fill, name } from "./dom.js";
import * as judge from "./judge.js";
import { go, link, now } from "./state.js";
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

const told = (found) =>
  part(
    `The text told ${many(found.reading.neighbors.length, "neighbor")}`,
    el(
      "ul",
      { class: "plain" },
      found.reading.neighbors.map((edge) =>
        el(
          "li",
          {},
          el("span", { class: "dim" }, name(edge.target === "tail" ? edge.relation.name : `inverse of ${edge.relation.name}`)),
          " ",
          name(edge.entity.name),
        ),
      ),
    ),
  );

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
          "Nearest triples of training",
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

// An entity that training has nothing of is unlike those that probabilities were fitted to.
const sureness = (answer, found) =>
  answer.checked === false
    ? "probability, not checked on entities like these"
    : `the share of such answers in a hidden set ${found.hidden}`;

function headline(answer, found) {
  const [kind, meaning] = mark(answer);
  const number =
    answer.probability === null ? (found.hidden ? "" : `score ${fixed(answer.score)}`) : percent(answer.probability);
  return el(
    "div",
    { class: "headline" },
    number && el("strong", { class: "big" }, number),
    el(
      "span",
      {},
      el("span", { class: `kind is-${kind}`, title: meaning }, kind),
      answer.possible ? ` rank ${count(answer.rank)}` : "",
      number && found.hidden ? el("span", { class: "dim" }, ` · ${sureness(answer, found)}`) : null,
      !number && answer.known ? el("span", { class: "dim" }, " · training has this triple") : null,
    ),
    judge.buttons(answer, found),
  );
}

const walk = (answer) =>
  el(
    "a",
    { ...link({ side: "head", entity: answer.entity, relation: "", name: "", about: "", given: [], why: "", vs: "", page: 1, type: "" }), class: "walk" },
    "Ask about it →",
  );

function one(answer, found) {
  const pairs = advantages(answer, found.usual);
  const most = Math.max(...pairs.map(([, value]) => Math.abs(value)), 1e-9);
  return [
    headline(answer, found),
    answer.description && el("p", { class: "description", dir: "auto" }, answer.description),
    part("Against an average entity", balance(pairs, most)),
    answer.because.length > 0 && part("Rules say", because(answer)),
    found.reading?.neighbors.length > 0 && told(found),
    nearby(answer, found),
    answer.tokens.length > 0 && part("Its name, token by token", tokens(answer)),
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
  const theirs = new Map(advantages(second, found.usual));
  const pairs = advantages(first, found.usual).map(([key, value]) => [key, value - (theirs.get(key) ?? 0)]);
  const total = sum(pairs);
  const most = Math.max(...pairs.map(([, value]) => Math.abs(value)), 1e-9);
  const [better, worse] = total >= 0 ? [first, second] : [second, first];
  const strongest = [...pairs].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))[0];
  const side = (answer) =>
    el(
      "div",
      { class: "side" },
      el("h3", {}, name(answer.name)),
      headline(answer, found),
      answer.because.length > 0 && part("Rules say", because(answer)),
      answer.tokens.length > 0 && part("Token by token", tokens(answer)),
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
    part("What makes the difference", balance(pairs, most), ends(pairs, first, second)),
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
