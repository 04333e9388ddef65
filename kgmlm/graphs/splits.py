"""Splits of a graph's triples: at random, by entities that training has not, and by date.

Knows no files; the card of what was split is made here and written elsewhere.

Shapes: n triples.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.errors import DataError, counted
from kgmlm.graphs.cards import Card, Counts, find_card
from kgmlm.graphs.dates import Dates, Period, day
from kgmlm.graphs.graph import KnowledgeGraph, Validation
from kgmlm.graphs.queries import SPLITS, distinct_triples, triple_keys

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
    drawn: Validation | None = "random" if "valid" in wanted else graph.validation
    return replace(graph, splits=ordered, validation=drawn)


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

    If a tenth is less than :data:`FITTED`, that many are held out, but no more than a quarter.

    >>> held_out_share(300), held_out_share(100), held_out_share(600)
    (0.2, 0.25, None)
    """
    return None if 0.1 * triples >= FITTED else min(0.25, FITTED / triples)


def _dealt(count: int, sizes: Sequence[int]) -> list[int]:
    """Divide fewer triples than were asked for in the ratio asked for; each split gets at least one.

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
    """Say what new splits lack: triples, if fewer could leave training, and relations.

    Args:
        shares: of the distinct triples, as asked for each split; None is a tenth; empty if no share of the
            triples was asked for.
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


def split_entities(graph: KnowledgeGraph, share: float, seed: int = 0) -> KnowledgeGraph:
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
    wanted = 2 * int(share * len(np.unique(triples[:, [0, 2]])))
    held = list(islice(_withdrawn(triples, len(graph.relations), seed), wanted))
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
    name = f"{graph.name}-unseen"
    return replace(graph, name=name, splits=splits, negatives=negatives, links=None, validation="entities")


def _withdrawn(triples: IntArray, relations: int, seed: int) -> Iterator[tuple[int, set[int]]]:
    """Take out entities in random order, by the procedure of :func:`split_entities`.

    Yields:
        An entity, and the places of the triples that leave with it.
    """
    left = np.bincount(triples[:, 1], minlength=relations)
    least = np.minimum(100, -(-left // 2))
    touching: dict[int, set[int]] = defaultdict(set)
    neighbors: dict[int, Counter[int]] = defaultdict(Counter)
    for i, (h, _, t) in enumerate(triples.tolist()):
        for entity, other in {(h, t), (t, h)}:
            touching[entity].add(i)
            neighbors[entity][other] += 1
    # Removal only lowers the counts that forbid it, so one refused once is refused for good: one pass.
    for entity in np.random.default_rng(seed).permutation(sorted(touching)).tolist():
        removed = np.bincount(triples[list(touching[entity]), 1], minlength=len(left))
        others = [n for n in neighbors[entity] if n != entity]
        if any(len(neighbors[n]) <= 2 for n in others) or ((left - removed < least) & (removed > 0)).any():
            continue
        left -= removed
        yield entity, set(touching[entity])
        for n in others:
            touching[n] -= touching[entity]
            del neighbors[n][entity]


SHARE = 0.1  # of triples, for validation


class DatedTriples(NamedTuple):
    """Distinct triples ``(n, 3)``, and when each was made ``(n,)``: the earliest of its dates."""

    triples: IntArray
    dates: Dates

    @classmethod
    def of(cls, triples: IntArray, dates: Dates) -> DatedTriples:
        """Triples that may be there several times."""
        triples = triples.reshape(-1, 3)
        unknown = np.isnat(dates)
        order = np.lexsort((dates, unknown, *triples.T[::-1]))
        triples, dates = triples[order], dates[order]
        first = np.ones(len(triples), np.bool_)
        first[1:] = (triples[1:] != triples[:-1]).any(1)
        return cls(triples[first], dates[first])

    def take(self, of_n: BoolArray) -> DatedTriples:
        """Take some of the triples."""
        return DatedTriples(self.triples[of_n], self.dates[of_n])

    @property
    def moments(self) -> int:
        """The number of different dates."""
        return len(np.unique(self.dates[~np.isnat(self.dates)]))

    def newest(self, share: float) -> BoolArray:
        """The mask of the newest triples: about this share of those with a date. Equal dates stay together.

        Raises:
            DataError: when no two have different dates.
        """
        known = self.dates[~np.isnat(self.dates)]
        moments, counts = np.unique(known, return_counts=True)
        if len(moments) < 2:
            raise DataError("the newest triples cannot be determined: there are fewer than two dates")
        from_on = counts[::-1].cumsum()[::-1][1:]  # triples from each moment on, but the first
        cut = moments[1:][np.argmin(np.abs(from_on - share * len(known)))]
        newest: BoolArray = self.dates >= cut  # never of what has no date
        return newest


class DatedSplit(NamedTuple):
    """A graph that was split, and when the triples of each split were made.

    Attributes:
        later: triples that are in no split, as they are later than what was asked for.
    """

    graph: KnowledgeGraph
    dates: Mapping[str, Dates]
    later: int = 0


def split_dated(
    graph: KnowledgeGraph,
    dates: Mapping[str, Dates],
    *,
    newest: float | None = None,
    after: Period | None = None,
    until: Period | None = None,
    validation: Validation = "newest",
    share: float = SHARE,
    seed: int = 0,
) -> DatedSplit:
    """A split by date: test is what was added last, and validation what was added before that.

    The triples of all splits are split again. Triples of one moment stay together, and what has no date stays
    in training.

    Args:
        dates: of the triples of each split.
        newest: test is about this share of the triples that have a date; or
        after: test is what was made after the end of this time, and
        until: not after the end of this one; later triples are left out.
        validation: what validation is drawn by, from the triples that are not in test.
        share: of these, for validation.

    Raises:
        DataError: when a split would be empty.
    """
    every = np.concatenate([dates[split] for split in graph.splits])
    dated = DatedTriples.of(graph.all_triples, every)
    late = np.zeros(len(dated.dates), np.bool_)
    if after is not None:
        test = dated.dates >= after.end
        if until is not None:
            late = dated.dates >= until.end
            test &= ~late
    else:
        check_share(newest, "--newest")
        test = dated.newest(newest or SHARE)
    if not test.any():
        raise DataError(f"'{graph.name}' has no triples of this time{_range(dated.dates)}")
    if (test | late).all():
        raise DataError(f"'{graph.name}' has no earlier triples to train on{_range(dated.dates)}")
    held = hold_out(graph, dated.take(~test & ~late), validation, share, seed)
    of_test = dated.take(test)
    splits = {**held.graph.splits, "test": of_test.triples}
    split = replace(held.graph, name=f"{graph.name}-later", splits=splits, negatives={}, links=None)
    return DatedSplit(split, {**held.dates, "test": of_test.dates}, int(late.sum()))


def _range(dates: Dates) -> str:
    """Say what period the dates cover."""
    known = dates[~np.isnat(dates)]
    return f": they are of {day(known.min())} to {day(known.max())}" if len(known) else ": none has a date"


def hold_out(
    graph: KnowledgeGraph, dated: DatedTriples, validation: Validation, share: float = SHARE, seed: int = 0
) -> DatedSplit:
    """A graph with these triples for training and, of them, for validation.

    Args:
        validation: the newest triples, those of entities that training then has not, or any.
        share: of the triples.

    Raises:
        DataError: when no triple can leave training.
    """
    check_share(share, "--valid")
    triples, dates = dated
    if validation == "newest":
        if dated.moments < 2:
            raise DataError(
                "validation cannot be the newest triples: there are fewer than two dates; --valid entities "
                "or --valid random draws it otherwise"
            )
        valid = dated.newest(share)
    elif validation == "entities":
        valid = np.zeros(len(triples), np.bool_)
        for _, rows in _withdrawn(triples, len(graph.relations), seed):
            valid[[*rows]] = True
            if valid.sum() >= share * len(triples):
                break
        if not valid.any():
            raise DataError(f"'{graph.name}' is too small or too sparse to hold out entities")
    else:
        kept = {"train": triples, "test": triples[:0]}
        made = split_random(replace(graph, splits=kept, links=None), share, seed=seed).splits["valid"]
        sizes = len(graph.entities), len(graph.relations)
        valid = np.isin(triple_keys(triples, *sizes), triple_keys(made, *sizes))
    splits = {"train": triples[~valid], "valid": triples[valid]}
    held = replace(graph, splits=splits, links=None, validation=validation)
    return DatedSplit(held, {"train": dates[~valid], "valid": dates[valid]})


def check_share(share: float | None, option: str) -> None:
    """Refuse a share that is none.

    Raises:
        DataError: naming the option.
    """
    if share is not None and not 0 < share < 1:  # no NaN either
        raise DataError(f"{option} is a share above 0 and below 1, not {share}")


class New(NamedTuple):
    """The triples of a split by what training knows of their ends.

    Attributes:
        known: triples between entities that training has.
        head, tail, both: triples of which only the head, only the tail or both are new.
        entities: new ones.
        relations: those that training has not.
    """

    known: int
    head: int
    tail: int
    both: int
    entities: int
    relations: int

    @classmethod
    def of(cls, graph: KnowledgeGraph, split: str) -> New:
        """Count in one split."""
        triples = graph.splits[split]
        ends = triples[:, [0, 2]]
        new = ~graph.seen_N[ends]
        head, tail = new.T
        relations = np.setdiff1d(triples[:, 1], graph.splits["train"][:, 1])
        counts = (~head & ~tail, head & ~tail, tail & ~head, head & tail)
        known, heads, tails, both = (int(x.sum()) for x in counts)
        return cls(known, heads, tails, both, len(np.unique(ends[new])), len(relations))

    @property
    def one(self) -> int:
        """Triples with one new end."""
        return self.head + self.tail

    def __str__(self) -> str:
        """What a split asks for, in words."""
        one = f"{self.one:,} with a new end ({self.head:,} the head, {self.tail:,} the tail)"
        of = f" (of {counted(self.entities, 'new entity')})" if self.entities else ""
        more = f", {counted(self.relations, 'new relation')}" if self.relations else ""
        return (
            f"{counted(self.known, 'triple')} between known entities, {one}, {self.both:,} with two{of}{more}"
        )


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
        validation=graph.validation,
    )
