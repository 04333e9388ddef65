"""The table at the end of a training: each signal, all and counting on validation; and what comes next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol, Side
from kgmlm.core.errors import QueryError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.metrics import half_interval
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import Queries, distinct_triples
from kgmlm.graphs.splits import New
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs.folder import RunFolder
from kgmlm.signals import SIGNALS, is_signed

COUNTING = "counting answers in training"
COUNT_BATCH = 2**22  # counts looked up together


class Counting(PlainScorer):
    """Ranks entities by how often training has them on the side of the relation that is asked for."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        train = distinct_triples(graph.splits["train"])
        row_n = np.concatenate([2 * train[:, 1], 2 * train[:, 1] + 1])
        column_n = np.concatenate([train[:, 0], train[:, 2]])
        shape = (2 * len(graph.relations), self.entities)
        self.counts = sp.csr_array((np.ones(len(row_n), np.float32), (row_n, column_n)), shape)

    def score(self, queries: Queries) -> Floats:
        """Counts ``(B, N)``."""
        counts_BN: Floats = self.counts[2 * queries.relation_B + queries.tail_B].toarray()
        return counts_BN


class Figure(NamedTuple):
    """An MRR by name, and half of its 95 % interval; None where no record has it."""

    name: str
    mrr: float
    half: float | None


def counted(graph: KnowledgeGraph, triples: int = 0, split: str = "valid", side: Side = "both") -> Figure:
    """The MRR of counting on a seeded sample of a split; 0 is all of it."""
    asked = Protocol(split=split, max_triples=triples, side=side)
    evaluation = evaluate(
        Counting(graph), graph, asked, batch_size=max(1, COUNT_BATCH // len(graph.entities))
    )
    reciprocal_B = 1 / evaluation.ranks.of_type("realistic")
    return Figure(COUNTING, float(reciprocal_B.mean()), half_interval(reciprocal_B))


def compared(figures: Mapping[str, Mapping[str, float]], counting: Figure) -> list[Figure]:
    """All signals together, each alone, the best first, and counting.

    Args:
        figures: by stage, as of :func:`kgmlm.training.weights.weigh`.
    """
    first = {stage: of for stage, of in figures.items() if stage == "text" or stage in SIGNALS}
    alone: dict[str, Figure] = {}
    for stage, of in first.items():
        known = [name for name in dict.fromkeys((*SIGNALS, *first)) if name != "text"]
        names = [name for name in known if f"mrr_{name}" in of and not is_signed(name)]
        own = [Figure(name, of[f"mrr_{name}"], of.get(f"half_{name}")) for name in names]
        only = Figure("likelihood" if stage == "text" else stage, of["mrr"], of.get("half"))
        alone |= {figure.name: figure for figure in own or ([] if is_signed(stage) else [only])}
    last = [*first.values()][-1]
    rows = sorted(alone.values(), key=lambda figure: -figure.mrr)
    return [Figure("all signals", last["mrr"], last.get("half")), *rows, counting]


def summary(figures: Mapping[str, Mapping[str, float]], triples: int, counting: Figure) -> list[str]:
    """The lines of a table: validation MRR with its 95 % interval, the best signal first; and a hint where
    the masked LM ranks no better than counting.

    Args:
        figures: by stage, as of :func:`kgmlm.training.weights.weigh`.
        triples: the number of validation triples that they were measured on.
        counting: as of :func:`counted`.
    """
    rows = compared(figures, counting)
    width = max(len(row.name) for row in rows)
    lines = [
        f"validation MRR of {triples:,} triples, with 95 % intervals:",
        *(
            f"  {name:<{width}}  {mrr:.3f}" + ("" if half is None else f" ± {half:.3f}")
            for name, mrr, half in rows
        ),
    ]
    if "text" in figures and figures["text"]["mrr"] <= counting.mrr:
        lines.append(
            "the masked LM ranks no better than counting: it needs more time (--minutes) or a pretrained "
            "model (--model)"
        )
    return lines


DRAWN = {
    "random": ", drawn at random",
    "newest": ", the newest before test",
    "entities": ", drawn by entities that training has not",
}


def stood_for(graph: KnowledgeGraph) -> str:
    """Say which kind of question validation stood for."""
    new = New.of(graph, "valid")
    count, about = new.one + new.both, "all"
    if count:
        about = f"{new.known:,}"
    line = f"validation was {len(graph.splits['valid']):,} triples{DRAWN.get(graph.validation or '', '')}: "
    line += f"{about} between known entities"
    return f"{line}, {count:,} with a new one" if count else line


def following(run: RunFolder) -> list[str]:
    """Commands that come next, about the first validation triple."""
    path, graph = shlex.quote(str(run.path)), run.graph
    find, (h, r, _) = Resolver(graph), graph.splits["valid"][0].tolist()

    def called(name: str, label: str, resolve: Callable[[str], int]) -> str:
        try:
            return shlex.quote(name if resolve(name) == resolve(label) else label)
        except QueryError:  # an ambiguous name
            return shlex.quote(label)

    entity, relation = graph.entities[h], graph.relations[r]
    head = called(entity.surface, entity.label, find.entity)
    asked = called(relation.name, relation.label, find.relation)
    more = "" if graph.has("test") else " --split valid"
    return [
        f"next: kgmlm rank {path} --head {head} --relation {asked} --explain",
        f"      kgmlm complete {path} --output new.csv --explain",
        f"      kgmlm evaluate {path}{more}",
    ]
