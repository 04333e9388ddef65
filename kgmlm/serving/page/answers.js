// The ranked answers: bars of what their scores are made of, filters, pages.

import { byId, el, fill, name } from "./dom.js";
import * as judge from "./judge.js";
import { go, link, now } from "./state.js";
import { advantages, count, fixed, many, mark, percent, signal, sum } from "./words.js";

export const SIZE = 10;

// What the model was trained or tuned on: nobody asks how probable it is.
const isGiven = (answer) => answer.known && !answer.in_test;

const ofType = (answer, state) => !state.type || answer.types.includes(state.type);

// Answers that are not given, as far as the filters leave them.
export const asked = (answers, state) =>
  answers.filter((a) => !isGiven(a) && ofType(a, state) && (!state.min || (a.probability ?? 0) >= state.min));

export const given = (answers, state) => answers.filter((a) => isGiven(a) && ofType(a, state));

// From 0 to 1: the probability, of which small ones can be told apart; without one, how far a score is from the
// average entity's to the best one's.
function strength(answer, found, best) {
  if (answer.probability !== null) return Math.sqrt(answer.probability);
  return Math.max(0, Math.min(1, sum(advantages(answer, found.usual)) / (best || 1)));
}

export function bar(answer, found, best) {
  const width = strength(answer, found, best);
  const pairs = advantages(answer, found.usual).filter(([, value]) => value > 0);
  const total = sum(pairs) || 1;
  const words = pairs.map(([key, value]) => `${signal(key)} ${Math.round((100 * value) / total)} %`).join(", ");
  return el(
    "span",
    { class: "bar", role: "img", "aria-label": words || "nothing speaks for it" },
    el(
      "span",
      { class: "bar-fill", vars: { "--width": `${100 * width}%` } },
      pairs.map(([key, value]) => el("i", { class: `s-${key}`, vars: { "--share": value / total } })),
    ),
  );
}

function value(answer, found) {
  if (isGiven(answer)) return el("span", { class: "given", title: mark(answer)[1] }, "known");
  if (answer.probability === null) return el("span", { title: "score" }, fixed(answer.score));
  return el("span", { title: found.standsFor }, percent(answer.probability));
}

function row(answer, found, best, chosen) {
  const [kind, meaning] = mark(answer);
  const { vs, why } = now();
  const tip = answer.description && `tip-${answer.rank}`;
  const to = link({ why: answer.entity, vs: "" });
  return el(
    "li",
    {
      class: `answer${answer.entity === chosen ? " is-chosen" : ""}${answer.entity === vs ? " is-second" : ""}${isGiven(answer) ? " is-given" : ""}`,
      value: answer.rank,
      onclick: (event) => event.target.closest("a, button") || to.onclick(event),
    },
    el("span", { class: "rank", "aria-hidden": "true" }, count(answer.rank)),
    el(
      "span",
      { class: "main" },
      el(
        "a",
        {
          ...to,
          class: "name",
          "data-entity": answer.entity,
          "aria-current": answer.entity === chosen ? "true" : null,
          "aria-describedby": tip || null,
        },
        name(answer.name),
      ),
      !isGiven(answer) && el("span", { class: `kind is-${kind.replace(" ", "-")}`, title: meaning }, kind),
      tip && el("span", { class: "tip", role: "tooltip", id: tip }, name(answer.description.slice(0, 400))),
    ),
    el("span", { class: "value" }, value(answer, found)),
    bar(answer, found, best),
    el(
      "span",
      { class: "actions" },
      judge.ofAnswer(answer, found),
      answer.entity === chosen
        ? el("span", { class: "compare is-self", "aria-hidden": "true" }, "Compare")
        : el(
            "a",
            {
              ...link({ why: why || chosen, vs: answer.entity === vs ? "" : answer.entity }),
              class: "compare",
              "aria-label": answer.entity === vs ? "Stop comparing" : `Compare with ${answer.name}`,
            },
            answer.entity === vs ? "Stop" : "Compare",
          ),
    ),
  );
}

export function showLegend(found) {
  const used = new Set(found.predictions.flatMap((a) => advantages(a, found.usual).map(([key]) => key)));
  fill(
    byId("legend"),
    [...used].map((key) => el("li", {}, el("i", { class: `s-${key}` }), signal(key))),
  );
  byId("legend").hidden = used.size < 2;
}

let built = "";

function showFilters(found, state) {
  const types = [...new Set(found.predictions.flatMap((a) => a.types))].sort();
  if (state.type && !types.includes(state.type)) types.push(state.type);
  const key = JSON.stringify([types, found.standsFor]);
  if (built !== key) {
    built = key;
    fill(
      byId("filters"),
      types.length > 0 &&
        el(
          "label",
          {},
          "type",
          el(
            "select",
            { id: "type", onchange: (e) => go({ type: e.target.value, page: 1 }) },
            el("option", { value: "" }, "any"),
            types.map((type) => el("option", { value: type }, type.length > 60 ? `${type.slice(0, 59)}…` : type)),
          ),
        ),
      found.standsFor &&
        el(
          "label",
          {},
          "probability ≥",
          el("input", {
            type: "range",
            id: "min",
            min: 0,
            max: 0.95,
            step: 0.05,
            oninput: (e) => (byId("least").textContent = `${Math.round(100 * e.target.value)} %`),
            onchange: (e) => go({ min: Number(e.target.value), page: 1 }),
          }),
          el("output", { id: "least", for: "min" }),
        ),
    );
  }
  if (byId("type")) byId("type").value = state.type;
  if (byId("min")) {
    byId("min").value = state.min;
    byId("least").textContent = `${Math.round(100 * state.min)} %`;
  }
}

// Known answers in one line, which opens.
function showKnown(found, known, best, chosen) {
  const open = known.some((answer) => answer.entity === now().why) || Boolean(byId("known").querySelector("details[open]"));
  const names = known.slice(0, 20).flatMap((answer, i) => [i ? ", " : "", name(answer.name)]);
  fill(
    byId("known"),
    known.length > 0 &&
      el(
        "details",
        { open },
        el("summary", {}, `${count(known.length)} known: `, names, known.length > 20 && " …"),
        el("ol", {}, known.map((answer) => row(answer, found, best, chosen))),
      ),
  );
}

// `rows` are those of this page; `more`: whether others follow; `known`: answers that training or validation has.
export function show(found, rows, known, chosen, more) {
  const state = now();
  const best = Math.max(...found.predictions.map((a) => sum(advantages(a, found.usual))), 1e-9);
  showLegend(found);
  showFilters(found, state);
  showKnown(found, known, best, chosen);
  fill(byId("list"), rows.map((answer) => row(answer, found, best, chosen)));
  const saved = (kind) => el("button", { type: "button", class: "quiet", "data-save": kind }, kind.toUpperCase());
  fill(
    byId("below"),
    rows.length === 0 &&
      el("p", { class: "none" }, state.type || state.min ? "No answer is left. Loosen the filters." : "No other answer."),
    el(
      "nav",
      { "aria-label": "Pages" },
      state.page > 1 && el("a", { ...link({ page: state.page - 1, why: "", vs: "" }), rel: "prev" }, "← Previous"),
      more && el("a", { ...link({ page: state.page + 1, why: "", vs: "" }), rel: "next" }, "Next →"),
    ),
    el("span", { class: "of" }, `of ${many(found.entities, "entity", "entities")}`),
    el("span", { class: "saves" }, "Save as ", saved("csv"), saved("json")),
  );
}
