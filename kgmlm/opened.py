"""A run opened as its options say: by which runtime, signals, constraints and index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from kgmlm import machine, onnx_model
from kgmlm.asking import Way
from kgmlm.chosen import text_fingerprint
from kgmlm.constraints import Constraint, Functional, Typed
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, ModelError
from kgmlm.mixture import Use
from kgmlm.opening import ONNX
from kgmlm.ranker import Ranker
from kgmlm.reading import read_together
from kgmlm.runs import RunFolder
from kgmlm.signals import rows_of
from kgmlm.signals.types import Types
from kgmlm.slots import EntityTypes
from kgmlm.upkeep import has_reranker
from kgmlm.watching import Watcher

if TYPE_CHECKING:
    from kgmlm.shortlisting import Retrieval


def computed_by(run: RunFolder, way: Way) -> tuple[Literal["torch", "onnx"], str]:
    """What reads a run's texts, and why that is not what was asked for.

    Raises:
        ConfigError: when that is torch, which is not installed.
    """
    if way.runtime == "torch":
        return "torch", ""
    lack = _lack(run, way)
    if not lack:
        gpu = (
            way.runtime == "auto"
            and way.device is None
            and machine.installed("torch")
            and machine.may_have_gpu()
        )
        return ("torch", "") if gpu else ("onnx", "")
    if not machine.installed("torch"):
        raise ConfigError(f"{lack}, and torch is not installed")
    return "torch", f"{lack}: torch reads the texts" if way.runtime == "onnx" else ""


def _lack(run: RunFolder, way: Way) -> str:
    """What keeps ONNX Runtime from reading a run's texts; nothing where it can."""
    if not (run.model_folder / onnx_model.FILE).is_file():
        return f"{run.path} has no model/{onnx_model.FILE} (`kgmlm onnx` writes one)"
    if not machine.installed("onnxruntime"):
        return "ONNX Runtime is not installed (pip install onnxruntime)"
    if way.precision != "fp32":
        return f"ONNX Runtime computes in fp32, not {way.precision}"
    if way.device not in (None, "cpu"):
        return f"ONNX Runtime computes on the CPU here, not on '{way.device}'"
    if way.reranks and has_reranker(run.path) and (run.chosen.use or Use(0, 0)).k:
        return "ONNX Runtime runs no reranker (--rerank 0 leaves it out)"
    if way.retrieve or (way.retrieve is None and way.scores == "all" and shortlist_of(run)):
        return "ONNX Runtime asks no index"
    return ""


def open_ranker(
    run: RunFolder, way: Way, graph: KnowledgeGraph, tell: Callable[[str], None] = lambda message: None
) -> Ranker:
    """A run's ranker over a graph, by the parts of the score that were asked for.

    Args:
        tell: called with a sentence where something else computes than was asked for.

    Raises:
        ConfigError: when the run has no such part, or nothing to rerank with.
    """
    ranker = _opened(run, way, graph, tell)
    if way.rerank:
        ranker = _reranking(run, way, ranker, way.rerank)
    ranker.reduce(way.precision == "bf16")
    return ranker.constrained(*constraints_of(run, way, graph))


def _reranking(run: RunFolder, way: Way, ranker: Ranker, k: int) -> Ranker:
    """One that reranks so many of the best.

    Raises:
        ConfigError: when there is nothing to rerank with.
    """
    if not way.reranks:
        raise ConfigError(f"--rerank goes with --scores all or text, not {way.scores}")
    if not ranker.reranks and not has_reranker(run.path) and run.chosen.reverse is None:
        raise ConfigError(
            f"{run.path} has no reranker; `kgmlm rerank {run.path}` trains one, and "
            f"`kgmlm tune {run.path} --add reverse` does without"
        )
    if not ranker.reranks:
        raise ConfigError(
            f"{run.path}: validation chose not to rerank, so there is no weight to rerank with; "
            f"`kgmlm tune {run.path}` chooses again"
        )
    again, reverse = ranker.reranking, ranker.reverse
    return ranker.but(
        reranking=again and replace(again, use=replace(again.use, k=k)),
        reverse=reverse and replace(reverse, k=k),
    )


def _opened(run: RunFolder, way: Way, graph: KnowledgeGraph, tell: Callable[[str], None]) -> Ranker:
    """By the runtime that was asked for, or by torch where that cannot."""
    runtime, why = computed_by(run, way)
    if why:
        tell(why)
    try:
        device = ONNX if runtime == "onnx" else way.device
        return run.ranker(device, graph, way.scores, way.reranks)
    except ModelError as error:
        if runtime == "torch" or not machine.installed("torch"):
            raise
        tell(f"{error}; torch reads the texts")
    return run.ranker(way.device, graph, way.scores, way.reranks)


def constraints_of(run: RunFolder, way: Way, graph: KnowledgeGraph) -> list[Constraint]:
    """What was asked for of a run's training, over a graph."""
    learned: list[Constraint] = []
    if way.typed:
        learned.append(Typed(types_of(run)))
    if way.functional:
        learned.append(Functional.learn(run.graph.context))
    if not learned:
        return []
    _, relation_rows = rows_of(graph.context, run.graph.context)
    return [constraint.over(graph.context, relation_rows) for constraint in learned]


def retrieval_of(run: RunFolder, way: Way, ranker: Ranker, default: int | None = None) -> Retrieval | None:
    """The index that finds candidates, where only some are to be scored.

    Args:
        default: how many, where it was not said; 0 of ``retrieve`` is all.
    """
    k = default if way.retrieve is None and way.scores == "all" else way.retrieve
    if not k and way.effort is None:
        return None
    from kgmlm.indexing import open_retrieval

    return open_retrieval(run, ranker, k or None, way.effort)


def shortlist_of(run: RunFolder) -> int | None:
    """How many entities are scored unless something else is asked for; None is all.

    A recipe indexes a large graph; once the model has changed, that index no longer counts.
    """
    kept = run.record.get("shortlist")
    return kept["entities"] if kept and kept["of"] == text_fingerprint(run.path) else None


def types_of(run: RunFolder) -> EntityTypes:
    """Types of a run's entities: as its signal knows them, where it has that, else counted by its settings.

    Raises:
        RunError: when the signal is damaged.
    """
    run.check(Types.file)
    file = run.path / Types.file
    return (Types.open(file, run.graph) if file.is_file() else Types.fit(run.graph, run.settings.types)).types


def read_vectors(ranker: Ranker, watch: Watcher, batch_size: int = 64) -> None:
    """Read the vectors that are missing and count, each in one of the processes that share the work."""
    if unread := ranker.unread:
        assert ranker.vectors is not None
        read_together(ranker.vectors, batch_size, lambda n: watch("reading entities", n, unread))
