"""Scores of an open ranker to the probabilities of triples.

Shapes: n triples, F features of a side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm.calibration import FEATURES, SIDES, Calibration
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, FloatArray, IntArray
from kgmlm.plausibility import features
from kgmlm.probabilities import temperature_of
from kgmlm.ranker import Ranker

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Classified:
    """What a run says of n triples.

    Attributes:
        graph: whose ids they have.
        triples: ``(n, 3)``.
        known: ``(n,)`` which of them training has: they are true, and what the run says of them proves
            nothing.
        features: ``(n, 2, F)``, not a number for known ones.
        relations: ``(n,)`` as the calibration counts them, -1 for new ones.
        probabilities: ``(n,)``, not a number for known ones.
        decided: ``(n,)`` which of them are called true.
        labels: ``(n,)`` which of them are, where a file says so.
        prior: the share of true triples that was assumed.
        calibration: what the probabilities go by.
    """

    graph: KnowledgeGraph
    triples: IntArray
    known: BoolArray
    features: FloatArray
    relations: IntArray
    probabilities: FloatArray
    decided: BoolArray
    labels: BoolArray | None
    prior: float
    calibration: Calibration

    def __len__(self) -> int:
        return len(self.triples)

    def __getitem__(self, rows: IntArray) -> Classified:
        arrays: dict[str, Any] = {
            key: value for key, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **{key: value[rows] for key, value in arrays.items()})

    def to_frame(self) -> pd.DataFrame:
        """A row per triple: its labels, ``probability``, ``true`` (what is decided), ``known``, and ``label``
        where a file had one.
        """
        import pandas as pd

        table = pd.DataFrame(self.graph.labeled(self.triples), columns=["head", "relation", "tail"])
        table = table.assign(probability=self.probabilities, true=self.decided, known=self.known)
        return table if self.labels is None else table.assign(label=self.labels)

    def explained(self) -> list[dict[str, Any] | None]:
        """What each probability is made of, None for known triples: for each side its features and what they
        add to the log odds; what is added for the relation, and in all before it is calibrated.
        """
        model = self.calibration.model
        adds = model.parts(self.features.reshape(len(self), -1)).reshape(self.features.shape)
        offsets = model.offset(self.relations)
        found: list[dict[str, Any] | None] = []
        for n in range(len(self)):
            if self.known[n]:
                found.append(None)
                continue
            sides = {
                side: {
                    "score": float(self.features[n, i, FEATURES.index("score")]),
                    "rank": float(1 / self.features[n, i, FEATURES.index("reciprocal_rank")]),
                    "margin": float(self.features[n, i, FEATURES.index("margin")]),
                    "softmax": float(np.exp(self.features[n, i, FEATURES.index("log_softmax")])),
                    "adds": float(adds[n, i].sum()),
                }
                for i, side in enumerate(SIDES)
            }
            sums = model.intercept + adds[n].sum() + offsets[n]
            found.append({**sides, "relation": {"adds": float(offsets[n])}, "sum": float(sums)})
        return found

    def as_json(self, explain: bool = False) -> list[dict[str, Any]]:
        """The objects that ``kgmlm classify --json`` prints."""
        parts = self.explained() if explain else [None] * len(self)
        rows = []
        for n, (head, relation, tail) in enumerate(self.graph.labeled(self.triples)):
            known = bool(self.known[n])
            row: dict[str, Any] = {
                "head": head,
                "relation": relation,
                "tail": tail,
                "probability": None if known else float(self.probabilities[n]),
                "true": bool(self.decided[n]),
                "known": known,
            }
            if self.labels is not None:
                row["label"] = bool(self.labels[n])
            rows.append(row if parts[n] is None else row | {"parts": parts[n]})
        return rows

    @property
    def measured(self) -> dict[str, Any] | None:
        """How the probabilities compare with labels, where there are any: as of
        :func:`kgmlm.reliability.measured`, by the triples that training has not.
        """
        if self.labels is None or self.known.all():
            return None
        from kgmlm.reliability import measured

        new = ~self.known
        labels = self.labels[new]
        found = measured(labels, self.probabilities[new], np.ones(len(labels)))
        return found | {
            "accuracy": float((self.decided[new] == labels).mean()),
            "known": int(self.known.sum()),
        }

    def _repr_html_(self) -> str:
        table: str = self.to_frame().to_html(index=False, float_format="{:.4f}".format)
        return table


def judged(
    calibration: Calibration,
    ranker: Ranker,
    graph: KnowledgeGraph,
    asked: Sequence[tuple[IntArray, float, bool]],
    *,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> list[Classified]:
    """The probabilities of several lists of triples at once; they share forward passes.

    Args:
        ranker: the run's first stage over the graph, as it was when the calibration was fitted.
        asked: of each list the triples ``(n, 3)``, the prior, and whether relations have thresholds.
    """
    ids = np.concatenate([np.zeros((0, 3), np.int64), *(triples for triples, _, _ in asked)])
    known, features = features_of(ranker, graph, ids, batch_size, advance)
    ends = np.cumsum([len(triples) for triples, _, _ in asked]).tolist()
    parts = [slice(end - len(triples), end) for end, (triples, _, _) in zip(ends, asked, strict=True)]
    return [
        said(calibration, graph, triples, known[rows], features[rows], prior, by_relation)
        for rows, (triples, prior, by_relation) in zip(parts, asked, strict=True)
    ]


def said(
    calibration: Calibration,
    graph: KnowledgeGraph,
    ids: IntArray,
    known: BoolArray,
    features: FloatArray,
    prior: float,
    relation_thresholds: bool = False,
    labels: BoolArray | None = None,
    numbers: IntArray | None = None,
) -> Classified:
    """Features to probabilities, and what is decided.

    Args:
        numbers: what number the calibration has for each relation of the graph, or -1; None is the same.
    """
    relations = ids[:, 1] if numbers is None else numbers[ids[:, 1]]
    relations = np.where(relations < len(calibration.thresholds), relations, -1)
    probabilities = np.full(len(ids), np.nan)
    if not known.all():
        probabilities[~known] = calibration.probability(features[~known], relations[~known], prior=prior)
    decided = known | calibration.decided(probabilities, relations, relation_thresholds)
    return Classified(
        graph, ids, known, features, relations, probabilities, decided, labels, prior, calibration
    )


def features_of(
    ranker: Ranker,
    graph: KnowledgeGraph,
    triples: IntArray,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> tuple[BoolArray, FloatArray]:
    """Which triples training has, and the features of the others."""
    answers = graph.context.answers
    known = answers.has(triples)
    found = np.full((len(triples), len(SIDES), len(FEATURES)), np.nan)
    if not known.all():
        found[~known] = features(
            ranker,
            triples[~known],
            answers,
            temperature=temperature_of(ranker),
            batch_size=batch_size,
            advance=advance,
        )
    return known, found
