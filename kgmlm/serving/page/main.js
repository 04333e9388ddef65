// From the address to what is shown.

import * as answers from "./answers.js";
import { get, onToken, post } from "./api.js";
import * as around from "./around.js";
import * as ask from "./ask.js";
import { byId, el, fill, name, say } from "./dom.js";
import * as judge from "./judge.js";
import * as keep from "./keep.js";
import { save } from "./save.js";
import * as start from "./start.js";
import { go, now, onChange } from "./state.js";
import { many } from "./words.js";
import * as why from "./why.js";

const MOST = 1000; // answers that the service gives of a query
const FILTERED = 200; // that are asked for first where filters leave some out
const NEW = "new: "; // before the name of an entity that the graph has not: its label

let info = null;
let asked = ""; // the question that `found` answers
let found = null;
let drawn = ""; // the question whose neighborhood is drawn
let rows = [];
let turn = 0;
let leave = new AbortController();

const question = (state) => JSON.stringify([state.side, state.entity, state.relation, state.name, state.about, state.kind, state.given]);

function body(state, k, also) {
  const isNew = Boolean(state.name);
  const given = isNew ? NEW + state.name : state.entity;
  const triples = state.given.map(([side, relation, other]) => ({ [side]: other, relation }));
  const types = state.kind.split("|").map((type) => type.trim()).filter(Boolean);
  const entities = isNew ? [{ label: given, name: state.name, description: state.about, types, triples }] : [];
  return { [state.side]: given, relation: state.relation, k, entities, also };
}

async function explore(state, k, also, signal) {
  const got = await post("/explore", body(state, Math.min(k, MOST), also), signal);
  return { ...got, k, standsFor: info.stands_for };
}

// Answers as far as the page goes, or until there are no more.
async function enough(state, signal) {
  const need = state.page * answers.SIZE + 1;
  let k = state.type || state.min ? FILTERED : Math.max(need, 3 * answers.SIZE);
  let got = asked === question(state) && found !== null ? found : null;
  for (;;) {
    if (got === null || got.k < k) got = await explore(state, k, got?.also.map((a) => a.entity) ?? [], signal);
    const last = got.predictions.length < got.k || got.k >= MOST;
    if (last || answers.asked(got.predictions, state).length >= need) return got;
    k = Math.max(need, got.k * 4);
  }
}

const among = (got, label) => [...got.predictions, ...got.also].find((a) => a.entity === label);

async function update(state) {
  const mine = ++turn;
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  byId("found").setAttribute("aria-busy", "true");
  try {
    const first = await ask.know(state);
    if (mine !== turn) return;
    const isStart = !state.relation && !state.entity && !state.name;
    if (!state.relation && first && !isStart) {
      go({ relation: first }, { replace: true });
      return;
    }
    const isKnown = asked === question(state);
    ask.show(state, isKnown ? found : null);
    keep.show(state);
    if (!isKnown) ask.showHole(null);
    byId("error").hidden = true;
    const isBare = state.name && !state.about && !state.kind && !state.given.length;
    fill(
      byId("hint"),
      !isStart && !state.entity && !state.name && "Choose an entity, or ask about a new one.",
      isBare && "Nothing is known of this but its name; a description, a type or a triple would say more.",
    );
    if (isStart || !(state.entity || state.name)) {
      nothing();
      document.title = "kgmlm";
      await start.show(isStart ? info : null);
      return;
    }
    await start.show(null);
    let got = await enough(state, signal);
    const missing = [state.why, state.vs].filter((label) => label && !among(got, label));
    if (missing.length) {
      const more = await explore(state, got.k, missing, signal);
      got = { ...got, also: [...got.also, ...more.also] };
    }
    if (mine !== turn) return;
    found = got;
    asked = question(state);
    show(state);
  } catch (error) {
    if (error.name === "AbortError" || mine !== turn) return;
    if (asked !== question(state)) nothing(); // answers of another question would stand under this one
    fail(error.message, await ask.alike(state).catch(() => []));
  } finally {
    if (mine === turn) byId("found").removeAttribute("aria-busy");
  }
}

function nothing() {
  byId("found").hidden = true;
  byId("around").hidden = true;
  ask.showHole(null);
}

function show(state) {
  byId("found").hidden = false;
  byId("around").hidden = false;
  const left = answers.asked(found.predictions, state);
  const known = state.page === 1 ? answers.given(found.predictions, state) : [];
  const shown = left.slice((state.page - 1) * answers.SIZE, state.page * answers.SIZE);
  rows = [...known, ...shown].sort((a, b) => a.rank - b.rank);
  const chosen = state.why ? among(found, state.why) : (shown[0] ?? known[0]);
  const second = state.vs && state.vs !== chosen?.entity ? among(found, state.vs) : null;
  ask.show(state, found);
  ask.showHole(chosen);
  const focused = document.activeElement?.dataset?.entity;
  answers.show(found, shown, known, chosen?.entity, left.length > state.page * answers.SIZE);
  if (focused) byId("list").querySelector(`[data-entity="${CSS.escape(focused)}"]`)?.focus();
  why.show(found, chosen, second);
  if (drawn !== asked) {
    drawn = asked;
    around.show(found);
    say(`${many(shown.length, "answer")}. First: ${shown[0]?.name ?? "none"}.`);
  }
  const [head, tail] = found.target === "tail" ? [found.entity.name, "?"] : ["?", found.entity.name];
  document.title = `${head.slice(0, 60)} ${found.relation.name.slice(0, 60)} ${tail.slice(0, 60)} · kgmlm`;
}

function fail(message, instead = []) {
  fill(byId("error"), el("span", {}, message), instead);
  byId("error").hidden = false;
}

function askToken(wrong) {
  const form = byId("token");
  form.hidden = false;
  byId("page").hidden = true;
  byId("token-wrong").textContent = wrong ? "That is not it." : "";
  byId("token-field").focus();
  return new Promise((done) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      const token = byId("token-field").value.trim();
      if (!/^[\x21-\x7e]+$/.test(token)) {
        byId("token-wrong").textContent = "That is not it."; // and no header could hold it
        return;
      }
      form.hidden = true;
      byId("page").hidden = info === null;
      done(token);
      byId("token-field").value = "";
    };
  });
}

async function begin() {
  let pending = null;
  onToken((wrong) => (pending ??= askToken(wrong).finally(() => (pending = null))));
  document.addEventListener("failed", (event) => fail(event.detail));
  byId("below").addEventListener("click", (event) => {
    const kind = event.target.closest("[data-save]")?.dataset.save;
    if (kind) save(kind, found, rows);
  });
  try {
    info = await get("/info");
  } catch (error) {
    byId("page").hidden = false;
    fail(error.message);
    return;
  }
  ask.build(info);
  await judge.begin(info.judging).catch(() => {});
  keep.begin(info.updating);
  const { entities, relations, triples } = info.graph;
  const all = Object.values(triples).reduce((a, b) => a + b, 0);
  fill(
    byId("run"),
    el("strong", {}, name(info.run)),
    ` ${info.graph.name === info.run ? "" : `on ${info.graph.name}: `}${many(entities, "entity", "entities")}, ${many(relations, "relation")}, ${many(all, "triple")}`,
  );
  if (info.folder !== "as opened") {
    const what = info.folder === "gone" ? "is gone" : "has changed";
    byId("run").append(el("span", { class: "old" }, ` The run's folder ${what} since it was opened; answers are by what was opened.`));
  }
  if (navigator.clipboard) {
    byId("copy").hidden = false;
    byId("copy").onclick = async () => {
      await navigator.clipboard.writeText(location.href).catch(() => {});
      byId("copy").textContent = "Copied";
      setTimeout(() => (byId("copy").textContent = "Copy link"), 1500);
    };
  }
  byId("page").hidden = false;
  onChange(update);
  update(now());
}

begin();
