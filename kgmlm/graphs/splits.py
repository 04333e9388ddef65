"""Splits of a graph's triples: at random, and by entities that training has not.

Knows no files; the card of what was split is made here and written elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import DataError
from kgmlm.graphs.cards import Card, Counts, find_card
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import SPLITS, distinct_triples

NAMED = 5  # relations that a message names


def split_random(
    graph: KnowledgeGraph, valid: float | None = None, test: float | None = None, seed: int = 0
) -> KnowledgeGraph:
    """Make the missing splits from training triples, at random but seeded.

    A triple that holds the last training occurrence of an entity or a relation stays in training, so a
    small or sparse graph may get fewer than asked for.

    Args:
        valid: share of the training triples, for a graph that has no "valid"; None is a tenth.
        test: likewise for "test".

    Raises:
        DataError: when nothing is missing, a share is given of a split that is there, or the shares leave no
            training triples.
    """
    shares = {"valid": valid, "test": test}
    wanted = {s: 0.1 if share is None else share for s, share in shares.items() if s not in graph.splits}
    if not wanted:
        raise DataError(f"'{graph.name}' has all of train, valid and test already")
    for split, share in shares.items():
        if split in graph.splits and share is not None:
            raise DataError(f"'{graph.name}' has a {split} split already; leave out --{split}")
    if not (min(wanted.values()) > 0 and sum(wanted.values()) < 1):  # no share is NaN either
        raise DataError("the shares must be above 0 and leave something to train on")
    train = distinct_triples(graph.splits["train"])
    left_entities = np.bincount(train[:, [0, 2]].ravel(), minlength=len(graph.entities))
    left_relations = np.bincount(train[:, 1], minlength=len(graph.relations))
    rng = np.random.default_rng(seed)
    sizes = [max(1, round(share * len(train))) for share in wanted.values()]
    moved: list[int] = []
    for i in rng.permutation(len(train)).tolist():
        h, r, t = train[i]
        if min(left_entities[h], left_entities[t]) > 1 + (h == t) and left_relations[r] > 1:
            np.subtract.at(left_entities, [h, t], 1)
            left_relations[r] -= 1
            moved.append(i)
        if len(moved) == sum(sizes):
            break
    if len(moved) < len(sizes):
        raise DataError(
            f"the graph is too sparse to split: {len(moved):,} of {len(train):,} triples can leave training, "
            "which keeps a triple of each entity and relation"
        )
    if len(moved) < sum(sizes):  # the last ones are of the densest parts
        rng.shuffle(moved)
        sizes = _dealt(len(moved), sizes)
    where = np.zeros(len(train), np.int64)
    where[moved] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    splits = dict(graph.splits) | {"train": train[where == 0]}
    splits |= {s: train[where == number] for number, s in enumerate(wanted, 1)}
    ordered = {s: splits[s] for s in SPLITS if s in splits}
    return replace(graph, splits=ordered)


def with_validation(graph: KnowledgeGraph, seed: int = 0) -> KnowledgeGraph:
    """A graph that has no validation triples, with a tenth of its training triples held out for that; of a
    small graph more (:func:`held_out_share`).

    Raises:
        DataError: when no triple can leave training.
    """
    whole = {split: triples for split, triples in graph.splits.items() if split != "valid"}
    test = graph.splits.get("test", np.zeros((0, 3), np.int64))
    share = held_out_share(len(distinct_triples(graph.splits["train"])))
    made = split_random(replace(graph, splits={**whole, "test": test}), share, seed=seed)
    kept = {"valid", *graph.splits}
    return replace(made, splits={name: triples for name, triples in made.splits.items() if name in kept})


FITTED = 60  # triples that weights and probabilities should be fitted to


def held_out_share(triples: int) -> float | None:
    """The share of training triples that is held out for validation; None is a tenth.

    Where a tenth is less than :data:`FITTED`, so many are, but no more than a quarter.

    >>> held_out_share(300), held_out_share(100), held_out_share(600)
    (0.2, 0.25, None)
    """
    return None if 0.1 * triples >= FITTED else min(0.25, FITTED / triples)


def _dealt(count: int, sizes: Sequence[int]) -> list[int]:
    """Deal fewer triples than were asked for in the ratio of what was; each split gets one at least.

    >>> _dealt(39, [100, 100]), _dealt(10, [300, 100]), _dealt(2, [1000, 1])
    ([20, 19], [8, 2], [1, 1])
    """
    exact = [count * size / sum(sizes) for size in sizes]
    dealt = [max(1, int(x)) for x in exact]
    while sum(dealt) != count:
        step = 1 if sum(dealt) < count else -1
        over = [(x - n) * step if step > 0 or n > 1 else -math.inf for x, n in zip(exact, dealt, strict=True)]
        dealt[over.index(max(over))] += step
    return dealt


def lacking(graph: KnowledgeGraph, split: str) -> list[str]:
    """The labels of the relations that training has and a split lacks."""
    have = set(graph.splits[split][:, 1].tolist())
    return [
        graph.relations[r].label for r in np.unique(graph.splits["train"][:, 1]).tolist() if r not in have
    ]


def split_notes(
    graph: KnowledgeGraph, made: Sequence[str], shares: Mapping[str, float | None]
) -> Sequence[str]:
    """Say what splits that were made lack: triples, where fewer could leave training, and relations.

    Args:
        shares: of the distinct triples that were asked for each split; None is a tenth; empty where no share
            of the triples was.
    """
    notes = []
    made = [name for name in made if name != "train"]
    count = sum(len(graph.splits[name]) for name in ("train", *made))
    for name in made if shares else ():
        share = shares.get(name)
        asked = max(1, round((0.1 if share is None else share) * count))
        if len(graph.splits[name]) < asked:
            notes.append(
                f"{name} has {len(graph.splits[name]):,} of the {asked:,} triples asked for: training keeps "
                "a triple of each entity and relation"
            )
    for name in made:
        if lack := lacking(graph, name):
            more = f" and {len(lack) - NAMED:,} more" if len(lack) > NAMED else ""
            notes.append(f"{name} has no triple of {', '.join(lack[:NAMED])}{more}")
    return notes


def split_unseen(graph: KnowledgeGraph, share: float, seed: int = 0) -> KnowledgeGraph:
    """An entity-inductive split: validation and test have entities that training has not.

    The procedure of BLP (Daza et al., 2021), on the triples of all splits. Entities are taken out in random
    order, with their triples, as long as each neighbor has more than two neighbors, so that none is left
    alone, and each relation keeps 100 triples (half of its triples, if that is less). The first half of
    those taken out are the test entities, with all the triples that they had; the second half, which then
    have no triple with a test entity left, are the validation entities. An unseen entity may be the head,
    the tail, or both.

    A small or sparse graph may yield fewer entities than asked for.

    Args:
        share: of the entities, held out for test and as many for validation.

    Raises:
        DataError: when the share is out of range or no entity can be held out for each split.
    """
    if not 0 < share < 0.5:
        raise DataError(f"the share of unseen entities must be above 0 and below 0.5, not {share}")
    triples = distinct_triples(graph.all_triples)
    left = np.bincount(triples[:, 1], minlength=len(graph.relations))
    least = np.minimum(100, -(-left // 2))
    touching: dict[int, set[int]] = defaultdict(set)
    neighbors: dict[int, Counter[int]] = defaultdict(Counter)
    for i, (h, _, t) in enumerate(triples.tolist()):
        for entity, other in {(h, t), (t, h)}:
            touching[entity].add(i)
            neighbors[entity][other] += 1
    wanted = 2 * int(share * len(touching))
    held: list[tuple[int, set[int]]] = []
    # Removal only lowers the counts that forbid it, so who is refused once is refused for good: one pass.
    for entity in np.random.default_rng(seed).permutation(sorted(touching)).tolist():
        if len(held) == wanted:
            break
        removed = np.bincount(triples[list(touching[entity]), 1], minlength=len(left))
        others = [n for n in neighbors[entity] if n != entity]
        if any(len(neighbors[n]) <= 2 for n in others) or ((left - removed < least) & (removed > 0)).any():
            continue
        left -= removed
        held.append((entity, set(touching[entity])))
        for n in others:
            touching[n] -= touching[entity]
            del neighbors[n][entity]
    half = len(held) // 2
    if not half:
        raise DataError(f"'{graph.name}' is too small or too sparse to hold out entities")
    where = np.zeros(len(triples), np.int64)
    held_of = {"valid": held[half : 2 * half], "test": held[:half]}
    for number, part in enumerate(held_of.values(), 1):
        where[[i for _, rows in part for i in rows]] = number
    if len(held) % 2:  # the odd one out goes to neither split, nor may training keep it
        where[list(held[-1][1])] = -1
    splits = {s: triples[where == number] for number, s in enumerate(SPLITS)}
    negatives = _touching(graph.negatives, {s: [e for e, _ in part] for s, part in held_of.items()})
    return replace(graph, name=f"{graph.name}-unseen", splits=splits, negatives=negatives, links=None)


def _touching(negatives: Mapping[str, IntArray], held: Mapping[str, list[int]]) -> dict[str, IntArray]:
    """Return the known false triples that have entities of one split alone."""
    if not negatives:
        return {}
    false = distinct_triples(np.concatenate(list(negatives.values())))
    has = {split: np.isin(false[:, [0, 2]], entities).any(1) for split, entities in held.items()}
    alone = {split: false[of & (sum(has.values()) == 1)] for split, of in has.items()}
    return {split: triples for split, triples in alone.items() if len(triples)}


def describe_split(graph: KnowledgeGraph, origin: str | Path, how: str) -> Card:
    """A card for a graph that was split here; license and citation are the origin's, where it has a card."""
    source = find_card(origin)
    counts = {s: len(graph.splits.get(s, ())) for s in SPLITS}
    return Card(
        name=graph.name,
        title=f"{source.title if source else graph.name}, {how}",
        description=f"Made by kgmlm from {source.name if source else graph.name}: {how}.",
        license=source.license if source else "that of the original data",
        citation=source.citation if source else "",
        counts=Counts(
            entities=len(graph.entities),
            relations=len(graph.relations),
            unseen=int((~graph.seen_N).sum()),
            **counts,
        ),
    )
