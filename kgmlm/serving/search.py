"""Search as you type over labels and names of entities; typing errors are forgiven.

Beginnings are found in a sorted list. For the rest, texts are bags of pairs of neighboring bytes: those that
share most with what was typed, by the Dice coefficient, are compared with it letter by letter (RapidFuzz).

Shapes: n texts, T pairs of bytes in all texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz

from kgmlm.kg import EntityTable, IntArray

COMPARED = 200  # texts that are compared letter by letter
LEAST = 60.0  # of 100, for a text that does not begin as what was typed
SCANNED = 2_000_000  # pairs that are counted for one search; the rarest go first
_PAIRS = 2**16


class Hit(NamedTuple):
    """An entity, and how well it matches, from 0 to 100."""

    entity: int
    match: float


class Search:
    """Texts of entities, indexed.

    Args:
        first: the id of the first entity of the table.
    """

    def __init__(self, entities: EntityTable, first: int = 0) -> None:
        texts: list[str] = []
        owners: list[int] = []
        columns = zip(*(entities.column(c) for c in ("name", "surface", "label")), strict=True)
        for entity, row in enumerate(columns, first):
            for text in dict.fromkeys(_plain(x) for x in row):
                texts.append(text)
                owners.append(entity)
        order = sorted(range(len(texts)), key=texts.__getitem__)  # equal texts stay in the order of ids
        self.texts = [texts[i] for i in order]
        self.owners = np.array([owners[i] for i in order], np.int64)
        self.offsets, self.postings, self.sizes = _index(self.texts)

    def find(self, typed: str, k: int) -> list[Hit]:
        """The k best entities for what was typed: those that are called so, those whose label or name begins
        so (the shortest first), then those that are like it.
        """
        typed = _plain(typed)
        found: dict[int, float] = {}
        for row in self._beginning(typed, k):
            found.setdefault(int(self.owners[row]), 100.0)
        if len(found) < k:
            likes = sorted(
                ((match, -len(self.texts[row]), -row) for row, match in self._like(typed)), reverse=True
            )
            for match, _, row in likes:
                found.setdefault(int(self.owners[-row]), round(match, 1))
        return [Hit(*pair) for pair in list(found.items())[:k]]

    def _beginning(self, typed: str, k: int) -> list[int]:
        """Rows of texts that begin so, shortest first; of very many those that come first."""
        start = bisect_left(self.texts, typed)
        stop = bisect_left(self.texts, typed + chr(0x10FFFF), start)
        rows = range(start, min(stop, start + 100 * k))
        return sorted(rows, key=lambda row: (len(self.texts[row]), row))[: 3 * k]

    def _like(self, typed: str) -> list[tuple[int, float]]:
        """Rows of texts that share most pairs of bytes, with how alike they are letter by letter."""
        pairs = np.unique(_pairs(typed.encode()))
        lengths = self.offsets[pairs + 1] - self.offsets[pairs]
        pairs = pairs[np.argsort(lengths, kind="stable")]
        scanned = np.cumsum(np.sort(lengths, kind="stable"))
        used = pairs[: max(1, int(np.searchsorted(scanned, SCANNED, "right")))]
        parts = [self.postings[self.offsets[p] : self.offsets[p + 1]] for p in used]
        if not any(len(part) for part in parts):
            return []
        shared = np.zeros(len(self.texts), np.uint16)
        for part in parts:  # a text has each pair once, so no index repeats
            shared[part] += 1
        rows = np.flatnonzero(shared >= max(1, int(shared.max()) // 2))
        # As if a text ended where what was typed ends: who types is not done yet.
        sizes = np.minimum(self.sizes[rows], len(pairs) + 2)
        dice = 2 * shared[rows] / (sizes + len(pairs))
        if len(rows) > COMPARED:
            rows = rows[np.argpartition(-dice, COMPARED)[:COMPARED]]
        scored = ((int(row), _alike(typed, self.texts[row])) for row in rows)
        return [(row, match) for row, match in scored if match >= LEAST]


def _alike(typed: str, text: str) -> float:
    """From 0 to 99: how like the whole text, its beginning, or one of its words is."""
    found = max(fuzz.ratio(typed, text), 0.95 * fuzz.ratio(typed, text[: len(typed)]))
    if len(text) > len(typed):
        found = max(found, 0.9 * fuzz.partial_ratio(typed, text))
    return min(99.0, float(found))


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("_", " ").split())


def _pairs(text: bytes) -> IntArray:
    """Codes of pairs of neighboring bytes, the beginning of the text counting as one."""
    bytes_n = np.frombuffer(b"\0" + text, np.uint8).astype(np.int64)
    found: IntArray = bytes_n[:-1] * 256 + bytes_n[1:]
    return found


def _index(texts: Sequence[str]) -> tuple[IntArray, IntArray, IntArray]:
    """Which texts have each pair (offsets into postings), and how many pairs each text has.

    Texts are taken a block at a time, so that codes and rows of all are never held at once unsorted.
    """
    blocks = [_block(texts[start : start + 100_000], start) for start in range(0, len(texts), 100_000)]
    counts = np.sum([c for c, _, _ in blocks], axis=0) if blocks else np.zeros(_PAIRS, np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    postings = np.empty(offsets[-1], np.int32)
    at = offsets[:-1].copy()
    for counts_p, rows, _ in blocks:  # each block is sorted by pair: copied behind what is there of each
        starts = np.repeat(at - np.concatenate([[0], np.cumsum(counts_p)[:-1]]), counts_p)
        postings[starts + np.arange(len(rows))] = rows
        at += counts_p
    sizes = np.concatenate([s for _, _, s in blocks]) if blocks else np.zeros(0, np.int64)
    return offsets, postings, sizes


def _block(texts: Sequence[str], first: int) -> tuple[IntArray, IntArray, IntArray]:
    """Counts by pair, rows sorted by pair, and pairs by text, of some texts."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(x) for x in encoded], np.int64)
    joined = np.frombuffer(b"\0" + b"\0".join(encoded), np.uint8).astype(np.int64)
    rows = np.repeat(np.arange(len(texts)), lengths + 1)  # the zero before a text is its own
    codes = joined[:-1] * 256 + joined[1:]
    inside = rows[:-1] == rows[1:]
    keys = np.unique(codes[inside] * len(texts) + rows[:-1][inside])
    pairs, rows = np.divmod(keys, max(1, len(texts)))
    counts = np.bincount(pairs, minlength=_PAIRS)
    return counts, (rows + first).astype(np.int32), np.bincount(rows, minlength=len(texts))
