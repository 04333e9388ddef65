"""Mentions: a candidate whose name stands in the description of the query's entity, or the other way round.

A description often names what an entity is linked to: "made by Baxter", "used by APT28". A text encoder
makes one vector of all of it, in which a rare name hardly counts.

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.graphs.entities import EntityTable, folded, split_cell
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Query
from kgmlm.signals.base import OtherGraphError, Pool, TrainableSignal
from kgmlm.text.reader import Reader, Reading

SHORTEST = 4  # letters and digits of a name that is looked for: shorter ones stand in too many texts
MAX_WORDS = 8  # of a name that is looked for
FEW_ENTITIES = 100  # with at most this many new entities, only they are searched
MAX_NAME_LENGTH = 20  # entities that share a name; a name that more share is a common word
_WORD = re.compile(r"[^\W_]+")


class Mentions(TrainableSignal):
    """Which entities' descriptions name which others.

    A name counts as a whole, without regard to case and punctuation, and not within a longer one; so do
    aliases. A name that several entities have counts for each of them by its share.
    """

    name: ClassVar[str] = "mentions"
    title: ClassVar[str] = "mentions"
    about: ClassVar[str] = "whether the description of one entity names the other"
    file: ClassVar[str] = "signals/mentions.safetensors"

    def __init__(self, entities: EntityTable, pairs: sp.csr_array) -> None:
        self.entities = entities
        self.pairs = pairs

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: Any = None,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Mentions:
        """Look for the names of a graph's entities in their descriptions."""
        return cls.of(graph.entities)

    @classmethod
    def of(cls, entities: EntityTable) -> Mentions:
        """Look for the names of entities in their descriptions."""
        every = np.arange(len(entities))
        return cls(entities, _symmetric(*_mentions(entities, every, _names(entities)), len(entities)))

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Mentions:
        """A copy for the entities of another graph. Where few are new, what is known of the others stays, and
        only what new ones name and who names them is looked for.
        """
        entities, count = reader.context.entities, len(entity_rows)
        new = np.flatnonzero(entity_rows < 0)
        if not len(new) and count == len(self.entities) and (entity_rows == np.arange(count)).all():
            return self
        if len(new) > FEW_ENTITIES:
            return Mentions.of(entities)
        # 1) What is known of the others.
        row_N = np.full(len(self.entities), -1)
        row_N[entity_rows[entity_rows >= 0]] = np.flatnonzero(entity_rows >= 0)
        old = sp.coo_array(self.pairs)
        rows, columns = row_N[old.coords[0]], row_N[old.coords[1]]
        mask = (rows >= 0) & (columns >= 0)
        known = sp.coo_array((old.data[mask], (rows[mask], columns[mask])), (count, count))
        # 2) The names in new descriptions, and the new names in all.
        names, is_new = _names(entities), np.zeros(count, np.bool_)
        is_new[new] = True
        new_names = {words: of for words, of in names.items() if is_new[of].any()}
        about = np.setdiff1d(_with_words(entities, new_names), new)
        named = [_mentions(entities, ids, names) for ids in (new, about)]
        shares, rows, columns = (np.concatenate(parts) for parts in zip(*named, strict=True))
        own = is_new[rows] | is_new[columns]
        more = _symmetric(shares[own], rows[own], columns[own], count)
        return Mentions(entities, _sorted(sp.csr_array(known) + more))

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The pairs of which one names the other, each once, and how much."""
        half = sp.coo_array(sp.triu(self.pairs))
        pairs = np.stack(half.coords, 1).astype(np.int64)
        return {"pairs": pairs, "shares": half.data, "entities": np.array([len(self.entities)], np.int64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Mentions:
        """See :class:`~kgmlm.signals.base.Signal`."""
        pairs, shares, (count,) = tensors["pairs"], tensors["shares"], tensors["entities"].tolist()
        if count != len(graph.entities):
            raise OtherGraphError
        if pairs.shape != (len(shares), 2) or (len(pairs) and not 0 <= pairs.min() <= pairs.max() < count):
            raise ValueError("a pair is not of its entities")
        half = sp.coo_array((shares.astype(np.float32), (pairs[:, 0], pairs[:, 1])), (count, count))
        return cls(graph.entities, _sorted(sp.csr_array(half + half.T)))

    def coverage(self, triples: IntArray) -> float:
        """The share of triples ``(n, 3)`` of which one entity's description names the other."""
        return float((self.pairs[triples[:, 0], triples[:, 2]] > 0).mean()) if len(triples) else 0.0

    def named(self, one: int, other: int) -> list[tuple[int, int]]:
        """Which of two entities' descriptions names the other: (describing, named)."""
        if not self.pairs[one, other]:
            return []
        pairs = []
        for describing, entity in ((one, other), (other, one)):
            words = _words(self.entities[describing].description)
            names = _names(EntityTable.of(self.entities.table.slice(entity, 1), check=False))
            if any(tuple(words[at : at + len(x)]) == x for x in names for at in range(len(words))):
                pairs.append((describing, entity))
        return pairs

    def because(self, context: ContextGraph, query: Query, candidate: int, weight: float) -> tuple[str, ...]:
        """Which description names whom."""
        surfaces, named = context.surfaces, self.named(query.entity, candidate)
        return tuple(f"the description of {surfaces[a]} names {surfaces[b]}" for a, b in named)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """How much each candidate and the query's entity name each other, ``(B, N)`` or ``(B, K)``; 0 for
        nearly all.
        """
        entity_B = reading.queries.entity_B
        if not pool.own:
            scores_BN: Floats = self.pairs[entity_B].toarray()
            return scores_BN if pool.ids is None else scores_BN[:, pool.filled]
        of_BK = np.zeros(pool.filled.shape, np.float32)
        for row, entity in enumerate(entity_B.tolist()):
            begin, end = self.pairs.indptr[entity : entity + 2]
            others = self.pairs.indices[begin:end]
            if len(others):
                place = np.minimum(np.searchsorted(others, pool.filled[row]), len(others) - 1)
                mask = others[place] == pool.filled[row]
                of_BK[row] = np.where(mask, self.pairs.data[begin:end][place], 0)
        return of_BK


def _words(text: str) -> list[str]:
    """The words of a text, as they are compared.

    >>> _words("Agent Tesla (S0331)!")
    ['agent', 'tesla', 's0331']
    """
    return _WORD.findall(folded(text))


def _names(entities: EntityTable) -> dict[tuple[str, ...], list[int]]:
    """The entities of each name or alias that is looked for."""
    owners: dict[tuple[str, ...], list[int]] = defaultdict(list)
    table = entities.table
    aliases = table.column("aliases").to_pylist() if "aliases" in table.column_names else []
    for entity, name in enumerate(table.column("name").to_pylist()):
        for each in (name, *(split_cell(aliases[entity]) if aliases else ())):
            words = tuple(_words(each))
            if len(words) <= MAX_WORDS and sum(map(len, words)) >= SHORTEST and entity not in owners[words]:
                owners[words].append(entity)
    return {words: of for words, of in owners.items() if 0 < len(of) <= MAX_NAME_LENGTH}


def _mentions(
    entities: EntityTable, ids: IntArray, names: Mapping[tuple[str, ...], list[int]]
) -> tuple[Floats, IntArray, IntArray]:
    """How much the descriptions of some entities name others, and which (describing, named) pairs these are.

    Args:
        names: those that are looked for, with their entities.
    """
    lengths = defaultdict[str, set[int]](set)  # of names, by their first word
    for words in names:
        lengths[words[0]].add(len(words))
    rows, columns, shares = list[int](), list[int](), list[float]()
    descriptions = entities.table.column("description").take(pa.array(ids.tolist(), pa.int64())).to_pylist()
    for entity, description in zip(ids.tolist(), descriptions, strict=True):
        named: dict[int, float] = {}
        for words in _names_in(_words(description), names, lengths):
            for other in names[words]:
                if other != entity:
                    named[other] = max(named.get(other, 0.0), 1 / len(names[words]))
        rows += [entity] * len(named)
        columns += named.keys()
        shares += named.values()
    return np.array(shares, np.float32), np.array(rows, np.int64), np.array(columns, np.int64)


def _with_words(entities: EntityTable, names: Mapping[tuple[str, ...], list[int]]) -> IntArray:
    """Entities in whose descriptions the first word of one of the names stands, perhaps within a word."""
    mask = np.zeros(len(entities), np.bool_)
    column = entities.table.column("description")
    for word in {words[0] for words in names}:
        if word.isascii():
            mask |= np.array(pc.match_substring(column, word, ignore_case=True).to_pylist(), np.bool_)
        else:  # whose case Arrow folds otherwise
            return np.arange(len(entities))
    return np.flatnonzero(mask)


def _symmetric(shares: Floats, rows: IntArray, columns: IntArray, count: int) -> sp.csr_array:
    """Mentions in both directions ``(N, N)``."""
    named = sp.coo_array((shares, (rows, columns)), (count, count))
    return _sorted(sp.csr_array(named + named.T))


def _sorted(pairs: sp.csr_array) -> sp.csr_array:
    pairs.sum_duplicates()
    pairs.sort_indices()
    return pairs


def _names_in(
    words: list[str], names: Mapping[tuple[str, ...], list[int]], lengths: Mapping[str, set[int]]
) -> Iterator[tuple[str, ...]]:
    """The names in a text: at each place the longest, and none within another one.

    Args:
        lengths: of names, by their first word.
    """
    at = 0
    while at < len(words):
        runs = (tuple(words[at : at + n]) for n in sorted(lengths.get(words[at], ()), reverse=True))
        name = next((run for run in runs if run in names), None)
        if name is not None:
            yield name
        at += 1 if name is None else len(name)
