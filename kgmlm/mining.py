"""Rules mined from training triples alone: which there are by sampling, how often they are right by products.

Shapes: N entities, S directed relations, K pairs of entity and directed relation, M rules, T sampled triples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.sparse as sp

from kgmlm.config import RuleSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.grounding import Links, Tree, blocks, expanded, ground
from kgmlm.kg import BoolArray, IntArray
from kgmlm.rules import LONGEST, NONE, ConstantRules, Floats, PathRules, RuleSet, confidence

SAMPLED = 20_000  # triples of a relation whose ends are looked at for paths between them
SEEN = 2  # of these, those that a body of several steps leads through at least
STARTS = 2_000  # entities from which a path is counted
EDGES = 500  # of a hub, drawn by chance
LONG_EDGES = 30  # the same for paths of three steps
DENSE = 20  # links of an entity on average, above which paths of three steps are left out
LEAST = 1e-3  # the least confidence of a rule
PER_LINK = 5  # rules that are kept of those with the same body for the same relation, and ...
PER_ANSWER = 10  # ... of those with the same head; whatever is kept for either stays
AT_ONCE = 2**24  # steps of a product
Random = np.random.Generator


def mine(
    graph: KnowledgeGraph, settings: RuleSettings, advance: Callable[[int, int], None] = lambda n, total: None
) -> RuleSet:
    """Rules over a graph.

    Args:
        advance: called with (steps that were just done, all steps).

    Paths of at most two steps come first, then rules with constants, then longer paths, while there is time.
    """
    started = time.process_time()
    relations = len(graph.relations)
    links = Links(graph.splits["train"], len(graph.entities), relations)
    dense = len(links.others) > DENSE * int(graph.seen_N.sum())
    longest = settings.length if settings.length != "auto" else 2 if dense else LONGEST
    total = relations * (2 if longest == LONGEST else 1) + 1
    paths = []
    for relation in range(relations):
        paths.append(_paths(links, relation, min(longest, 2), settings.seed))
        advance(1, total)
    constants = _constants(links, settings.support) if settings.constants else RuleSet.empty().constants
    advance(1, total)
    if longest == LONGEST:
        for relation in range(relations):
            if time.process_time() - started < settings.seconds:
                paths.append(_paths(links, relation, LONGEST, settings.seed))
            advance(1, total)
    found = RuleSet.empty().paths
    for more in paths:
        found = found.joined(more)
    return RuleSet(found, constants)


def _paths(links: Links, relation: int, steps: int, seed: int) -> PathRules:
    """The path rules of a relation: those of three steps, or all shorter ones."""
    rng = np.random.default_rng([seed, relation, steps])
    row = links.rows_of(2 * relation)
    of, within = expanded(links.counts[row])
    x, y = links.keys[row][of] // links.directed, links.others[links.offsets[row][of] + within]
    if not len(x):
        return RuleSet.empty().paths
    chosen = rng.permutation(len(x))[:SAMPLED]
    x, y = x[chosen], y[chosen]
    found = list(
        _long(links, x, y, rng) if steps == LONGEST else _short(links, x, y, 2 * relation, steps, rng)
    )
    codes, triples = (np.concatenate(column) for column in zip(*found, strict=True))
    base = links.directed + 1
    # In how many triples a body was seen, each once.
    codes, places = np.unique(codes, return_inverse=True)
    counts = np.bincount(np.unique(places * len(x) + triples) // len(x), minlength=len(codes))
    bodies = np.stack([codes // base**2, codes // base % base, codes % base], 1) - 1
    often = np.flatnonzero((counts >= SEEN) | (bodies[:, 1] < 0))
    rules = _counted(links, relation, bodies[often], rng)
    return rules.take((rules.correct >= 1) & (confidence(rules.predicted, rules.correct) >= LEAST))


def _edges(links: Links, entities: IntArray, most: int, rng: Random) -> tuple[IntArray, IntArray, IntArray]:
    """The links of some entities, at most so many of each, as (place in ``entities``, relation, other)."""
    begin = links.offsets[links.begins]
    counts = begin[entities + 1] - begin[entities]
    of, place = expanded(np.minimum(counts, most))
    drawn = (rng.random(len(of)) * counts[of]).astype(np.int64)
    place = begin[entities][of] + np.where(counts[of] > most, drawn, place)
    return of, links.relation_of[place], links.others[place]


def _meeting(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of places where two arrays are equal."""
    order = np.argsort(right, kind="stable")
    begin = np.searchsorted(right[order], left)
    of, within = expanded(np.searchsorted(right[order], left, "right") - begin)
    return of, order[begin[of] + within]


Seen = tuple[IntArray, IntArray]  # of bodies: their codes, and the triples that they lead through


def _code(links: Links, *steps: IntArray) -> IntArray:
    """One integer for each body."""
    base = links.directed + 1
    code = np.zeros_like(steps[0])
    for step in steps:
        code = code * base + step + 1
    code *= base ** (LONGEST - len(steps))
    return code


def _short(links: Links, x: IntArray, y: IntArray, asked: int, steps: int, rng: Random) -> Iterator[Seen]:
    """Bodies of one and two steps that lead from x to y."""
    for part in blocks(np.ones_like(x), 4096):
        of1, s1, a = _edges(links, x[part], EDGES, rng)
        direct = (a == y[part][of1]) & (s1 != asked)
        yield _code(links, s1[direct]), of1[direct] + part.start
        if steps > 1:
            of2, s2, b = _edges(links, y[part], EDGES, rng)
            left, right = _meeting(of1 * links.entities + a, of2 * links.entities + b)
            yield _code(links, s1[left], s2[right] ^ 1), of1[left] + part.start


def _long(links: Links, x: IntArray, y: IntArray, rng: Random) -> Iterator[Seen]:
    """Bodies of three steps that lead from x to y and visit nothing twice."""
    for part in blocks(np.ones_like(x), 512):
        of1, s1, a = _edges(links, x[part], LONG_EDGES, rng)
        of3, s3, c = _edges(links, y[part], EDGES, rng)
        away, back = a != y[part][of1], c != x[part][of3]
        of1, s1, a, of3, s3, c = of1[away], s1[away], a[away], of3[back], s3[back], c[back]
        of2, s2, b = _edges(links, a, LONG_EDGES, rng)
        on = (b != x[part][of1[of2]]) & (b != y[part][of1[of2]])
        of2, s2, b = of2[on], s2[on], b[on]
        left, right = _meeting(of1[of2] * links.entities + b, of3 * links.entities + c)
        yield _code(links, s1[of2[left]], s2[left], s3[right] ^ 1), of1[of2[left]] + part.start


def _counted(links: Links, relation: int, bodies: IntArray, rng: Random) -> PathRules:
    """Bodies with what they predict from a sample of the entities that their first step leads from."""
    first, root = np.unique(bodies[:, 0], return_inverse=True)
    tree = Tree(root, bodies, len(first), links.directed)
    predicted, correct = np.zeros(len(bodies), np.int64), np.zeros(len(bodies), np.int64)
    of_relation = [links.rows_of(s) for s in first.tolist()]
    rows = [rng.permutation(r)[:STARTS] if len(r) > STARTS else r for r in of_relation]
    entity = links.keys[np.concatenate([*rows, np.zeros(0, np.int64)])] // links.directed
    of = np.repeat(np.arange(len(first)), [len(r) for r in rows])
    answers = links.rows(entity, np.full(len(entity), 2 * relation))
    for part in blocks(np.ones_like(of), 2048):
        for query, node, reached in ground(links, tree, entity[part], of[part]):
            line = np.repeat(np.arange(len(query)), np.diff(reached.indptr))
            right = links.has(answers[part][query][line], reached.indices)
            rule = tree.rule[node]
            np.add.at(predicted, rule, np.diff(reached.indptr))
            np.add.at(correct, rule, np.bincount(line[right], minlength=len(query)))
    return PathRules(predicted, correct, np.full(len(bodies), relation), bodies)


def _constants(links: Links, support: int) -> ConstantRules:
    """Rules with constants: how many of those that a body holds for have the same answer.

    Those with some answer are a row of ``links.matrix``, and those that a body holds for another.
    """
    rows, entities = links.matrix.shape
    holder, linked = np.divmod(links.keys, links.directed)
    ones = np.ones(rows, np.float32)
    some = sp.csr_array((ones, (holder, linked)), (entities, links.directed))
    holds = sp.csr_array(sp.hstack([links.matrix.T, some], format="csr"))
    size = np.asarray(holds.sum(0)).astype(np.int64)
    if not rows:
        return RuleSet.empty().constants
    costs = np.asarray(links.matrix @ np.asarray(holds.sum(1))).astype(np.int64)  # whose sums are exact
    # A body with a given d is a row of d, by which d is reached; "any" is s itself.
    relation = np.concatenate([linked ^ 1, np.arange(links.directed)])
    value = np.concatenate([holder, np.full(links.directed, NONE)])
    kept: list[list[IntArray]] = []
    for part in blocks(costs, AT_ONCE):
        both = sp.csr_array(links.matrix[part] @ holds)
        row = np.repeat(np.arange(part.start, part.stop), np.diff(both.indptr))
        body, correct = both.indices.astype(np.int64), both.data.astype(np.int64)
        asked = linked[row] ^ 1
        own = (relation[body] == asked) & ((value[body] == holder[row]) | (value[body] == NONE))
        on = (correct >= support) & ~own & (confidence(size[body], correct) >= LEAST)
        kept.append([x[on] for x in (correct, row, body)])
    correct, row, body = (np.concatenate(column) for column in zip(*kept, strict=True))
    asked = linked[row] ^ 1
    rules = ConstantRules(size[body], correct, asked, holder[row], relation[body], value[body])
    sure = confidence(rules.predicted, rules.correct)
    best = _best(body * links.directed + asked, sure, PER_LINK) | _best(row, sure, PER_ANSWER)
    return rules.take(best)


def _best(group: IntArray, sure: Floats, most: int) -> BoolArray:
    """Which are among the best of their group."""
    order = np.lexsort((-sure, group))
    _, counts = np.unique(group[order], return_counts=True)
    best = np.zeros(len(group), np.bool_)
    best[order[expanded(counts)[1] < most]] = True
    return best
