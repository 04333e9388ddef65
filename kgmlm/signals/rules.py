"""Rules as a signal: what the best rules that predict a candidate say of it.

Rules hold for the triples of whatever graph is asked, so they hold on an unseen graph; rules with constants
where it has the constants. What no rule predicts scores 0, or a trifle for how often it answers in training.

Shapes: B queries, N entities, S directed relations, M rules, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from kgmlm import files
from kgmlm.applying import Applied, Reason, asked_of
from kgmlm.arrays import Device
from kgmlm.config import RuleSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.grounding import blocks
from kgmlm.kg import IntArray, NoRulesError, Queries, Query, RunError, first_line
from kgmlm.mining import mine
from kgmlm.pool import Pool, Reading
from kgmlm.reader import Reader
from kgmlm.rules import UNSEEN, ConstantRules, Floats, PathRules, RuleFile, RuleSet

SCALE = 4.0  # of scores, so that weights of other signals suit them
BEST = 5  # rules that count for a candidate
CELLS = 2**22  # scores that are made at once
KINDS = ("path", "constant")
DISCOUNTS = {"maximum": 1e-3, "discounted": 0.7, "noisy-or": 1.0}  # each rule against the one before it
FREQUENCY = 1e-4  # weight of how often an entity answers: less than any rule


class _Best:
    """The strongest evidence for each cell of a table, best first."""

    def __init__(self, cells: int) -> None:
        self.table = np.zeros((BEST, cells), np.float32)
        self._last = np.empty(cells, np.int32)

    def add(self, cell: IntArray, evidence: Floats) -> None:
        """More evidence; a cell may come often."""
        order = np.argsort(evidence, kind="stable")
        cell, evidence = cell[order], evidence[order]
        for _ in range(BEST):
            if not len(cell):
                return
            place = np.arange(len(cell), dtype=np.int32)
            self._last[cell] = place  # of equal cells the last one, which is the strongest, stays
            best = self._last[cell] == place
            self._insert(cell[best], evidence[best])
            cell, evidence = cell[~best], evidence[~best]

    def _insert(self, cell: IntArray, evidence: Floats) -> None:
        """One piece of evidence for each of some different cells."""
        for row in self.table:
            before = row[cell]
            row[cell] = np.maximum(before, evidence)
            evidence = np.minimum(before, evidence)
            on = evidence > 0
            cell, evidence = cell[on], evidence[on]
            if not len(cell):
                return


@dataclass(frozen=True, eq=False)
class Rules:
    """Rules over a graph.

    Attributes:
        applied: what was mined, or read from a file, and the triples that it holds for.
        discount: what each further rule counts against the one before it.
    """

    name: ClassVar[str] = "rules"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/rules.safetensors"

    applied: Applied
    discount: float = DISCOUNTS["discounted"]

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        """It does not come with the model: it is mined beside it."""

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: RuleSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: Device = None,
        kept: Path | None = None,
    ) -> Rules:
        """Mine a graph's training triples, or read the rules of ``settings.file``.

        Raises:
            DataError: when that file cannot be read.
            NoRulesError: when there are no rules.
        """
        rules = cls.check(graph, settings) or mine(graph, settings, advance)
        if not rules:
            raise NoRulesError("no rules were found in the training triples")
        return cls.over_graph(rules, graph, DISCOUNTS[settings.aggregation])

    @staticmethod
    def check(graph: KnowledgeGraph, settings: RuleSettings) -> RuleSet | None:
        """The rules of a file that settings name; None where they are to be mined.

        Raises:
            DataError: when the file cannot be read.
            NoRulesError: when it has none about the graph.
        """
        if not settings.file:
            return None
        rules, _ = RuleFile(graph.entities, graph.relations).read(Path(settings.file))
        if not rules:
            raise NoRulesError(f"no rules were found in {settings.file}")
        return rules

    @classmethod
    def over_graph(cls, rules: RuleSet, graph: KnowledgeGraph, discount: float) -> Rules:
        """Rules over the training triples of their own graph."""
        applied = Applied(rules, graph.splits["train"], len(graph.entities), len(graph.relations))
        return cls(applied, discount)

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Rules:
        """The same for the training triples of another graph."""
        context = reader.context
        rules = self.applied.rules.over(entity_rows, relation_rows)
        applied = Applied(rules, context.train, len(context.entities), len(context.relations))
        return replace(self, applied=applied)

    def save(self, path: Path) -> None:
        """Write the rules as safetensors."""
        kinds = zip(KINDS, self.applied.rules, strict=True)
        tensors = {
            f"{kind}.{name}": np.ascontiguousarray(value, np.int32)
            for kind, rules in kinds
            for name, value in vars(rules).items()
        }
        sizes = np.array([self.applied.entities, self.applied.relations])
        discount = np.array([round(1000 * self.discount)])
        files.write_tensors(path, {**tensors, "sizes": sizes, "discount": discount})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Rules:
        """What :meth:`save` wrote for a graph.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors.numpy import load_file

        sizes = (len(graph.entities), len(graph.relations))
        try:
            t = load_file(path)
            found = tuple(t.pop("sizes").tolist())
            discount = float(t.pop("discount")[0]) / 1000
            of = {
                kind: {k.split(".")[1]: v.astype(np.int64) for k, v in t.items() if k.startswith(kind)}
                for kind in ("path", "constant")
            }
            rules = RuleSet(PathRules(**of["path"]), ConstantRules(**of["constant"]))
            if found == sizes:
                rules.check(*sizes)
        except Exception as error:
            why = first_line(error)
            raise RunError(f"{path} cannot be read: {why}") from None
        if found != sizes:
            raise RunError(f"{path} is of another graph; `kgmlm tune RUN --add rules` makes another")
        return cls.over_graph(rules, graph, discount)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``."""
        queries = reading.queries
        out = np.zeros((len(queries), pool.width), np.float32)
        width = pool.width if pool.own else self.applied.entities
        for part in blocks(np.full(len(queries), width), CELLS):
            if pool.own:
                out[part] = self._of_own(queries[part], pool.filled[part])
            else:
                scores_bN = self._of_all(queries[part])
                out[part] = scores_bN if pool.ids is None else scores_bN[:, pool.filled]
        return out

    def _of_all(self, queries: Queries) -> Floats:
        """Scores ``(B, N)`` of all entities."""
        best = _Best(len(queries) * self.applied.entities)
        for said in self.applied.said(queries):
            best.add(said.query * self.applied.entities + said.entity, said.evidence)
        often_BN = self.applied.frequencies[asked_of(queries)].toarray()
        return self._scored(best, often_BN, often_BN.sum(1, keepdims=True))

    def _of_own(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """Scores ``(B, K)`` of each query's own candidates, with no table of all entities."""
        rows, entities = np.arange(len(queries)), self.applied.entities
        cells, cell_BK = np.unique(rows[:, None] * entities + ids_BK, return_inverse=True)
        best = _Best(len(cells))
        for said in self.applied.said(queries):
            cell = said.query * entities + said.entity
            at = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
            on = cells[at] == cell
            best.add(at[on], said.evidence[on])
        often_BN = self.applied.frequencies[asked_of(queries)]
        row, entity = np.divmod(cells, entities)
        often, all_B = often_BN[row, entity], often_BN.sum(1)
        return self._scored(best, often, all_B[row])[cell_BK]

    def _scored(self, best: _Best, often: Floats, of: Floats) -> Floats:
        """Scores from the best rules and, a trifle, from how often each answers, out of so many answers."""
        scores = best.table[-1]
        for row in best.table[-2::-1]:
            scores = scores * np.float32(self.discount) + row
        evidence = scores.reshape(often.shape) + np.float32(FREQUENCY) * often / (of + UNSEEN)
        out: Floats = np.float32(SCALE) * np.sqrt(evidence)  # adds up better with log-likelihoods
        return out

    def reasons(self, query: Query, candidate: int, most: int = 3) -> list[Reason]:
        """The best rules that predict a candidate, as :meth:`kgmlm.applying.Applied.reasons` has them."""
        return self.applied.reasons(query, candidate, most)
