"""Signals: each scores candidates on a scale of its own, and is a line in :data:`SIGNALS`.

A :class:`~kgmlm.ranking.ranker.Mixture` weighs them by relation and side; the weighted sum ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import ContextGraph
from kgmlm.signals.base import Signal, TrainableSignal
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.kge import KGE
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.linked import Linked
from kgmlm.signals.mentions import Mentions
from kgmlm.signals.rules import Rules
from kgmlm.signals.similar import SimilarAnswers, SimilarEntities
from kgmlm.signals.types import Types
from kgmlm.signals.unseen import Unseen
from kgmlm.signals.vector import Vector

SIGNALS: dict[str, type[Signal]] = {
    s.name: s
    for s in (
        Likelihood,
        Vector,
        KGE,
        Rules,
        Types,
        Biencoder,
        Linked,
        Mentions,
        SimilarEntities,
        SimilarAnswers,
        Unseen,
    )
}


def kinds_in(run: Path) -> dict[str, type[Signal]]:
    """The signals whose files a run has, by name."""
    return {name: kind for name, kind in SIGNALS.items() if (run / kind.file).is_file()}


def is_signed(name: str) -> bool:
    """Return whether the weights of a signal may be negative; those of the others are positive."""
    return name in SIGNALS and SIGNALS[name].signed


def beside() -> dict[str, type[TrainableSignal]]:
    """The signals that are trained beside the text model, by name."""
    return {name: kind for name, kind in SIGNALS.items() if issubclass(kind, TrainableSignal)}


def is_beside(name: str) -> bool:
    """Return whether a signal stands beside the text model: whether `kgmlm tune` adds and drops it."""
    return name in beside()


def check_scores(scores: str) -> None:
    """See that candidates can be ranked by these.

    Raises:
        ConfigError: when they are neither "all", "text" nor a signal.
    """
    if scores not in (known := ("all", "text", *SIGNALS)):
        raise ConfigError(f"scores are {', '.join(known[:-1])} or {known[-1]}, not '{scores}'")


def rows_of(context: ContextGraph, before: ContextGraph) -> tuple[IntArray, IntArray]:
    """The rows of a graph's entities and of its relations in ``before``; -1 for labels that it has not."""
    mine = before.relations.index
    relation_rows = np.array([mine.get(r.label, -1) for r in context.relations], np.int64)
    return context.entities.rows_in(before.entities), relation_rows
