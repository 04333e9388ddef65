"""What an entity lacks: the facts (x, ?, ?) and (?, ?, x) that are most probably missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import counted, printable
from kgmlm.core.options import takes
from kgmlm.core.progress import watcher_of
from kgmlm.core.results import Result
from kgmlm.core.tables import ENDS
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.prediction.candidates import Completer
from kgmlm.prediction.listing import Listed, by_margin, by_probability, features_of
from kgmlm.prediction.options import MissingOptions
from kgmlm.ranking.probability import plain
from kgmlm.ranking.reasons import Reasons
from kgmlm.runs.opened import constraints_of
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.run import Run, open_run

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.ranking.predictor import Predictor

TOP = 10  # answers of each question
LOOKED_AT = 50  # facts, for each that is shown, that are asked for from both sides at most
SHOWN = 10


@dataclass(frozen=True, eq=False)
class Missing(Result):
    """The facts that entities probably lack, the most probable first.

    Attributes:
        graph: the graph that the ids refer to.
        listed: the facts.
        reasons: evidence for each; empty where none is known.
        stands_for: what a probability stands for, as a sentence; empty without probabilities.
    """

    graph: KnowledgeGraph
    listed: Listed
    reasons: tuple[str, ...]
    stands_for: str

    def __len__(self) -> int:
        return len(self.listed)

    def __repr__(self) -> str:
        lines = [f"<{counted(len(self), 'fact')} that may be missing>"]
        for row in self.as_json()[:SHOWN]:
            triple = " | ".join(row[f"{end}_name"] for end in ENDS)
            sure = row["probability"]
            lines.append(printable(triple if sure is None else f"{sure:6.1%}  {triple}"))
        return "\n".join(lines)

    def as_json(self) -> list[dict[str, Any]]:
        """The facts: labels, ``..._name`` of each, ``probability`` (None without any) and ``because``."""
        rows = []
        texts = zip(
            self.graph.labeled(self.listed.triples), self.graph.named(self.listed.triples), strict=True
        )
        for n, (labels, names) in enumerate(texts):
            row: dict[str, Any] = dict(zip(ENDS, labels, strict=True))
            row |= {f"{end}_name": name for end, name in zip(ENDS, names, strict=True)}
            probability = float(self.listed.probability[n])
            row["probability"] = None if probability != probability else probability
            row["because"] = self.reasons[n]
            rows.append(row)
        return rows

    def to_frame(self) -> pd.DataFrame:
        """A row per fact: names, ``probability``, ``because``, and labels."""
        import pandas as pd

        names = [f"{end}_name" for end in ENDS]
        return pd.DataFrame(self.as_json(), columns=[*names, "probability", "because", *ENDS])


@takes(MissingOptions)
def missing(run: Run | str | Path, options: MissingOptions) -> Missing:
    """The k facts that an entity, or some, most probably lack, over all relations.

    All relations and sides that the types of the entity suggest are asked, except what training already has
    for relations with one answer per entity. Triples of any split are not listed. Without probabilities
    (:func:`kgmlm.calibrate`) the clearest answers come first.

    Example:
        >>> kgmlm.open_run("runs/demo").missing("Kenya", k=3)  # doctest: +SKIP

    Raises:
        QueryError: for an unknown or ambiguous entity.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    names = [options.entity] if isinstance(options.entity, str) else list(options.entity)
    ids = np.array([opened.resolver.entity(name) for name in names], np.int64)
    with watcher_of(options.progress) as watch:
        return missing_of(opened, opened.open(watch), ids, options.k)


def missing_of(run: Run, predictor: Predictor, ids: IntArray, k: int = SHOWN) -> Missing:
    """As :func:`missing`, of an opened run's predictor.

    Args:
        predictor: the run's, perhaps with further entities.
        ids: of the entities.
    """
    graph, classifier = predictor.graph, predictor.classifier
    # 1. the questions that types suggest
    options = RankingOptions(typed=True, functional=True)
    ranker = plain(predictor.ranker).constrained(*constraints_of(run.folder, options, graph))
    queries = _questions(ranker.possible.askable, np.unique(ids), graph)
    # 2. their best answers
    completer = Completer(ranker, graph.context.answers, _known(graph), TOP)
    candidates = [features_of(completer.part(queries))]
    # 3. the most probable of these
    if classifier is None:
        best, stands_for = by_margin(candidates), ""
    else:
        looked_at = min(LOOKED_AT, 5 * k)
        best = by_probability(candidates, classifier, 1.0, k, looked_at=looked_at)
        stands_for = classifier.calibration.stands_for(graph.validation)
    best, why = best[np.arange(min(k, len(best)))], Reasons.of(predictor.ranker)
    reasons = tuple(why((h, r, t)) for h, r, t in best.triples.tolist())
    return Missing(graph, best, reasons, stands_for)


def _questions(askable: Any, ids: IntArray, graph: KnowledgeGraph) -> Queries:
    """The questions about entities, of each relation and side that they can be asked for."""
    parts = [(ids[:0], ids[:0], ids[:0] > 0)]
    for relation in range(len(graph.relations)):
        for tails in (False, True):
            own = ids[askable(relation, tails, len(graph.entities))[ids]]
            parts.append((own, np.full(len(own), relation), np.full(len(own), tails)))
    return Queries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _known(graph: KnowledgeGraph) -> FilterIndex:
    """What is never listed: true in any split, or known to be false."""
    return FilterIndex(
        [graph.context.train, *graph.splits.values(), *graph.negatives.values()], len(graph.entities)
    )
