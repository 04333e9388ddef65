// An entity's neighborhood as a drawing: known edges solid, predicted ones dashed. A list says the same.

import { get } from "./api.js";
import { byId, el, fill, name, svg } from "./dom.js";
import { row } from "./fact.js";
import { OF_GRAPH, link } from "./state.js";
import { many, percent } from "./words.js";

const KNOWN = 12;
const PREDICTED = 5;
const LEAST = 0.01; // the probability below which no prediction is drawn
const ROW = 46;
const NARROW = 620;
const SIMILAR = 8;
const MISSING = 5;

let edges = [];
let center = null;
let drawn = 0;

// Some triples: of each relation and side in turn, those of the asked relation first.
function chosen(triples, entity, relation) {
  const groups = new Map();
  for (const t of triples) {
    const out = t.head.label === entity;
    const key = `${out} ${t.relation.label}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push({ out, other: out ? t.tail : t.head, relation: t.relation, known: true, self: t.head.label === t.tail.label });
  }
  const order = [...groups.values()].sort((a, b) => (b[0].relation.label === relation) - (a[0].relation.label === relation));
  const found = [];
  for (let turn = 0; found.length < KNOWN && order.some((g) => g.length > turn); turn += 1)
    for (const group of order) if (group[turn] && found.length < KNOWN) found.push(group[turn]);
  return found.filter((edge) => !edge.self);
}

function predicted(found) {
  const enough = (a) => !found.standsFor || (a.probability ?? 0) >= LEAST; // `standsFor`: where there are probabilities
  const rows = found.predictions.filter((a) => !a.known && a.possible && enough(a)).slice(0, PREDICTED);
  const [best, worst] = [rows[0]?.score ?? 0, rows.at(-1)?.score ?? 0];
  return rows.map((a) => ({
    out: found.target === "tail",
    other: { label: a.entity, name: a.name },
    relation: found.relation,
    known: false,
    sure: a.probability !== null ? Math.sqrt(a.probability) : 0.3 + (0.7 * (a.score - worst)) / (best - worst || 1),
    said: a.probability === null ? "predicted" : percent(a.probability),
  }));
}

const walk = (edge) => link({ ...OF_GRAPH, side: "head", entity: edge.other.label, relation: "" });

const cut = (text, width, letter = 7.4) => {
  const most = Math.max(4, Math.floor(width / letter));
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
};

function node(edge, x, y, width, anchor) {
  const words = edge.out ? edge.relation.name : anchor === "end" ? `${edge.relation.name} →` : `← ${edge.relation.name}`;
  const said = edge.known ? "" : ` · ${edge.said}`;
  const shift = anchor === "end" ? -10 : 10;
  return svg(
    "a",
    { ...walk(edge), tabindex: "-1", class: edge.known ? "node" : "node is-predicted" },
    svg("title", {}, `${edge.other.name} (${edge.relation.name}${said})`),
    svg("rect", { x: anchor === "end" ? x - width : x, y: y - ROW / 2, width, height: ROW, class: "hit" }),
    svg("circle", { cx: x, cy: y, r: 4 }),
    svg("text", { x: x + shift, y: y - 3, "text-anchor": anchor, class: "who" }, cut(edge.other.name, width - 12)),
    svg("text", { x: x + shift, y: y + 13, "text-anchor": anchor, class: "how" }, cut(words, width - 12 - 6.2 * said.length, 6.2) + said),
  );
}

const path = (edge, d) =>
  svg("path", { d, class: edge.known ? "edge" : "edge is-predicted", vars: { "--sure": edge.known ? 1 : Math.max(0.35, edge.sure) } });

// Wide: what points to the entity on the left, what it points to on the right.
function wide(width) {
  const sides = [edges.filter((e) => !e.out), edges.filter((e) => e.out)];
  if (!sides[0].length || !sides[1].length) {
    const all = sides.flat();
    sides[0] = all.filter((_, i) => i % 2);
    sides[1] = all.filter((_, i) => !(i % 2));
  }
  const height = Math.max(sides[0].length, sides[1].length, 2) * ROW + 10;
  const [cx, cy] = [width / 2, height / 2];
  const column = Math.min(270, width * 0.3);
  const parts = [];
  for (const [i, side] of sides.entries()) {
    const left = i === 0;
    const x = left ? column : width - column;
    side.forEach((edge, n) => {
      const y = cy + (n - (side.length - 1) / 2) * ROW;
      const from = cx + (left ? -1 : 1) * 8;
      const bend = (x + from) / 2;
      parts.push(path(edge, `M${from} ${cy}C${bend} ${cy} ${bend} ${y} ${x} ${y}`));
      parts.push(node(edge, x, y, column, left ? "end" : "start"));
    });
  }
  return [height, parts, cx, cy];
}

// Narrow: a trunk with branches.
function narrow(width) {
  const top = 34;
  const parts = [];
  edges.forEach((edge, n) => {
    const y = top + (n + 1) * ROW;
    parts.push(path(edge, `M14 ${n ? y - ROW : top}V${y - 12}Q14 ${y} 26 ${y}H36`));
    parts.push(node(edge, 40, y, width - 44, "start"));
  });
  return [top + (edges.length + 0.6) * ROW, parts, 14, top];
}

function draw(place) {
  const width = place.clientWidth;
  if (!width || !edges.length) return;
  drawn = width;
  const small = width < NARROW;
  const [height, parts, cx, cy] = small ? narrow(width) : wide(width);
  const label = cut(center.name, small ? width - 40 : width * 0.3, 8.5);
  const half = Math.min(width * 0.18, 8.5 * [...label].length * 0.55 + 16);
  fill(
    place,
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
      parts,
      !small && svg("rect", { x: cx - half, y: cy - 17, width: 2 * half, height: 34, rx: 17, class: "center" }),
      small && svg("circle", { cx, cy: cy - 6, r: 6, class: "dot" }),
      svg("text", { x: small ? 30 : cx, y: small ? cy : cy + 5, "text-anchor": small ? "start" : "middle", class: small ? "who is-center" : "is-center in" }, label),
    ),
  );
}

const sentence = (edge) => {
  const [head, tail] = edge.out ? [center, edge.other] : [edge.other, center];
  const who = (entity) => (entity === center ? name(entity.name) : el("a", walk(edge), name(entity.name)));
  return el("li", {}, who(head), " ", name(edge.relation.name), " ", who(tail), edge.known ? " (known)" : ` (${edge.said})`);
};

const watcher = new ResizeObserver(([entry]) => {
  if (Math.abs(entry.contentRect.width - drawn) > 1) draw(entry.target);
});

let turn = 0;

export async function show(found) {
  const mine = ++turn;
  center = found.entity;
  const known = found.entity.of_graph
    ? await get(`/entity/${encodeURIComponent(center.label)}`, { limit: 400 }).catch(() => ({ total: 0, triples: [] }))
    : { total: 0, triples: [] };
  if (mine !== turn) return;
  const guessed = predicted(found);
  const given = found.entity.given.map((t) => ({ out: t.target === "tail", other: t.entity, relation: t.relation, known: true }));
  edges = [...given.slice(0, KNOWN), ...chosen(known.triples, center.label, found.relation.label), ...guessed];
  const place = el("div", { class: "drawing" });
  watcher.disconnect();
  const open = byId("around").querySelector("details")?.open ?? false;
  fill(
    byId("around"),
    el(
      "div",
      { class: "head" },
      el("h2", { id: "around-title" }, "Around ", name(center.name)),
      el("p", { class: "dim" }, found.entity.of_graph ? `${many(known.total, "triple")} in the graph` : `${many(given.length, "triple")} given`),
      el("p", { class: "key" }, el("i", { class: "solid" }), "known", el("i", { class: "dashed" }), "predicted"),
    ),
    edges.length ? place : el("p", { class: "dim" }, "Nothing is known around it, and nothing is predicted."),
    edges.length > 0 && el("details", { open }, el("summary", {}, "The same as a list"), el("ul", { class: "plain" }, edges.map(sentence))),
  );
  if (edges.length) {
    draw(place);
    watcher.observe(place);
  }
  if (!found.entity.of_graph) return;
  const { results } = await get("/missing", { entity: center.label, k: MISSING }).catch(() => ({ results: [] }));
  if (mine !== turn) return;
  if (results.length) {
    byId("around").append(
      el("h3", { id: "missing-title" }, "What ", name(center.name), " probably lacks"),
      el("ol", { class: "facts", "aria-labelledby": "missing-title" }, results.map(row)),
    );
  }
  const like = await get("/similar", { entity: center.label, k: SIMILAR }).catch(() => ({ results: [] }));
  if (mine !== turn || !like.results.length) return;
  const links = like.results.flatMap((e) => [" · ", el("a", walk({ other: e }), name(e.name))]).slice(1);
  byId("around").append(el("p", { class: "similar" }, el("b", {}, "Most similar: "), links));
}
