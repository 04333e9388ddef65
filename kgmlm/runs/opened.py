"""A run opened to rank, as its options say: runtime, signals, constraints, index, entity vectors.

Of a graph so large that training reads few of its entities, the vectors of all are read in parts. Each part
is a file in the run's folder until all are there; after a kill, reading continues with the next part.

Shapes: N entities, D width.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from kgmlm.core import digests, files, machine
from kgmlm.core.errors import ConfigError, ModelError, RunError, quoted
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.constraints import Constraint, Functional, Listed, Typed, Unlinked
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.folder import RunFolder, unread
from kgmlm.runs.models import ONNX
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.record import CONDITIONAL, REVERSE, TREES, steady
from kgmlm.signals import rows_of
from kgmlm.signals.linked import Linked
from kgmlm.signals.types import EntityTypes, Types
from kgmlm.signals.vector import Vector, read_together
from kgmlm.text.onnx_model import ONNX_FILE

if TYPE_CHECKING:
    from kgmlm.ranking.retrieval import Retrieval, Retriever


PARTS_FOLDER = "entities"  # in a run, while its entities are read
PART = 2**15  # entities


def read_entities(
    run: RunFolder,
    device: str | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    size: int = PART,
) -> None:
    """Read the entities of a run's model, and keep their vectors with it; nothing where that is done.

    Args:
        advance: called with (entities just read, all of them).
        size: of a part; another one reads all again.

    Raises:
        RunError: when the run has no model yet.
    """
    folder = run.path / PARTS_FOLDER
    files.refuse_link(folder)
    if unread(run):
        known = digests.read_manifest(run.model_folder) or {}
        of = {"model": digests.sha(known, "model.safetensors", run.model_folder), "size": size}
        vectors = run.text_ranker(device).vectors
        assert vectors is not None
        parts = vectors.in_parts(folder, of, size, batch_size, advance)
        file = run.path / Vector.file
        keep = partial(digests.write_manifest, run.model_folder)
        with digests.replacing(file, digests.read_manifest(run.model_folder), keep) as temporary:
            _join(parts, len(run.graph.entities), temporary)
    if folder.is_dir():
        shutil.rmtree(folder)


def _join(parts: Sequence[Path], count: int, path: Path) -> None:
    """Write parts as one tensor of safetensors, one part in memory at a time.

    Raises:
        RunError: when a part is damaged.
    """
    width, done = 0, 0
    with path.open("wb") as file:
        for part in parts:
            try:
                vectors_ND = np.load(part, allow_pickle=False)
                width = width or vectors_ND.shape[1]
                if vectors_ND.dtype != np.float32 or vectors_ND.shape != (len(vectors_ND), width):
                    raise ValueError("these are no vectors")
            except (OSError, ValueError, EOFError, IndexError):
                raise RunError(f"{part} is damaged; remove it, and the same command makes it again") from None
            if not done:
                file.write(files.tensors_header({"vectors": ("F32", (count, width))}))
            file.write(np.ascontiguousarray(vectors_ND).data)
            done += len(vectors_ND)
    if done != count:
        raise RunError(f"{parts[0].parent} has {done:,} of {count:,} entities; remove it to read them again")


FINGERPRINTED = 4096  # entities by whose vectors an index and a run are compared


def save_index(run: RunFolder, retriever: Retriever) -> Retriever:
    """Write the index into the run folder, in place of an older one; its record has its size."""
    from kgmlm.ranking.retrieval import FOLDER

    (run.path / FOLDER).parent.mkdir(exist_ok=True)
    return retriever.save(run.path / FOLDER)


def open_index(run: RunFolder, ranker: Ranker) -> Retriever:
    """The saved index of a run; entities that the ranker has beyond the run's own are added to it.

    Raises:
        RunError: when there is none, it is damaged, or it was made of another model or other entities.
    """
    from kgmlm.ranking.retrieval import FOLDER, Retriever, added, searched

    by = searched(ranker)
    retriever = Retriever.load(run.path / FOLDER)
    own, record, part = len(run.graph.entities), retriever.record, retriever.part
    fits = not (part.ids >= own).any() and part.width == by.width
    now = index_fingerprint(ranker, own, record.get("looked_at", own))
    if (record.get("entities"), record.get("fingerprint")) != (own, now) or not fits:
        raise RunError(
            f"{run.path / FOLDER} was made of another model or other entities than the run has now; build it "
            f"again with `kgmlm index {quoted(run.path)}`"
        )
    if ranker.reader.model.device.type == "cuda":
        retriever = retriever.on_gpu()
    new = np.arange(own, len(ranker.context.entities))
    return added(ranker, retriever, new) if len(new) else retriever


def open_retrieval(run: RunFolder, ranker: Ranker, k: int | None) -> Retrieval | None:
    """Shortlists of k entities by the run's index; None without a k.

    Raises:
        RunError: as :func:`open_index` says.
    """
    if k is None:
        return None
    from kgmlm.ranking.retrieval import Retrieval

    return Retrieval(open_index(run, ranker), k)


def index_fingerprint(ranker: Ranker, count: int, looked_at: int) -> str:
    """A digest of the vectors that an index of the first ``count`` entities is made from.

    Args:
        looked_at: so many of these entities' vectors, evenly spaced: of another model all are different.
    """
    from kgmlm.ranking.retrieval import fingerprint, searched

    rows = np.linspace(0, max(0, count - 1), looked_at).round().astype(np.int64)
    return fingerprint(searched(ranker).of(rows))


def computed_by(run: RunFolder, options: RankingOptions) -> tuple[Literal["torch", "onnx"], str]:
    """Choose what reads a run's texts, and say why it is not what was asked for.

    Raises:
        ConfigError: when that is torch, which is not installed.
    """
    if options.runtime == "torch":
        return "torch", ""
    lack = _lack(run, options)
    if not lack:
        gpu = (
            options.runtime == "auto"
            and options.device is None
            and machine.installed("torch")
            and machine.may_have_gpu()
        )
        return ("torch", "") if gpu else ("onnx", "")
    if not machine.installed("torch"):
        raise ConfigError(f"{lack}, and torch is not installed")
    return "torch", f"{lack}: torch reads the texts" if options.runtime == "onnx" else ""


def _lack(run: RunFolder, options: RankingOptions) -> str:
    """The reason why ONNX Runtime cannot read a run's texts; empty where it can."""
    if not (run.model_folder / ONNX_FILE).is_file():
        return f"{run.path} has no model/{ONNX_FILE} (`kgmlm onnx` writes one)"
    if not machine.installed("onnxruntime"):
        return "ONNX Runtime is not installed (pip install onnxruntime)"
    if options.precision != "fp32":
        return f"ONNX Runtime computes in fp32, not {options.precision}"
    if options.device not in (None, "cpu"):
        return f"ONNX Runtime computes on the CPU here, not on '{options.device}'"
    if options.reranks and CONDITIONAL in run.tuned.active:
        return "ONNX Runtime reads no names token by token (--rerank 0 leaves that out)"
    if options.retrieve or (options.retrieve is None and options.scores == "all" and shortlist_of(run)):
        return "ONNX Runtime asks no index"
    return ""


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run with its model open.

    Attributes:
        folder: the run as it was when its model was opened.
        retrieval: the index that proposes candidates; None where all are scored.
    """

    folder: RunFolder
    ranker: Ranker
    retrieval: Retrieval | None = None


def open_run_model(
    run: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    tell: Callable[[str], None] = lambda message: None,
    shortlist: bool = False,
) -> OpenedRun:
    """Open a run's model over a graph, all of it as it was at one time.

    Args:
        tell: called with a sentence where something else computes than was asked for.
        shortlist: retrieve as many candidates as the run's recipe says, where the options leave it open.

    Raises:
        ConfigError: when the run has no such part, or no second stage to use.
        RunError: when training has left no model yet, or weights do not fit the signals.
    """

    def read() -> OpenedRun:
        now = run.now()
        ranker = _opened(now, options, graph, tell)
        if options.rerank:
            ranker = _reranking(now, options, ranker, options.rerank)
        ranker.reduce(options.precision == "bf16")
        ranker = ranker.constrained(*constraints_of(now, options, graph))
        return OpenedRun(
            now, ranker, retrieval_of(now, options, ranker, shortlist_of(now) if shortlist else None)
        )

    return steady(run.path, read)


def answering(run: RunFolder, graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph by which a run answers people: of a small one, held-out triples are given back to training.

    All that is fitted to these triples or measured on them opens the run's own graph, which has them in
    validation alone. Triples that files give as validation are never given back.

    Args:
        graph: of the run, perhaps with further entities.
    """
    if not run.record.get("given_back") or not run.graph.has("valid"):
        return graph
    return graph.with_context(run.graph.triples("valid"))


def open_ranker(
    run: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    tell: Callable[[str], None] = lambda message: None,
) -> Ranker:
    """A run's ranker over a graph; see :func:`open_run_model`. An index that is asked for is not opened."""
    return open_run_model(run, options.given(retrieve=0), graph, tell).ranker


def _reranking(run: RunFolder, options: RankingOptions, ranker: Ranker, k: int) -> Ranker:
    """One that reranks so many of the best.

    Raises:
        ConfigError: when there is nothing to rerank with.
    """
    if not options.reranks:
        raise ConfigError(f"--rerank goes with --scores all or text, not {options.scores}")
    if not ranker.reranks and REVERSE not in run.tuned.uses:
        raise ConfigError(
            f"{run.path} has no second stage; `kgmlm tune {quoted(run.path)} --add reverse` adds one"
        )
    if not ranker.reranks:
        raise ConfigError(
            f"{run.path}: validation chose not to rerank, so there is no weight to rerank with; "
            f"`kgmlm tune {quoted(run.path)}` chooses again"
        )
    stages = {
        name: stage if name == TREES else stage.used(replace(stage.use, k=k))  # trees were fitted to so many
        for name, stage in ranker.stages.items()
    }
    return ranker.replace(stages=stages)


def _opened(
    run: RunFolder, options: RankingOptions, graph: KnowledgeGraph, tell: Callable[[str], None]
) -> Ranker:
    """By the runtime that was asked for, or by torch where that cannot."""
    runtime, why = computed_by(run, options)
    if why:
        tell(why)
    try:
        device = ONNX if runtime == "onnx" else options.device
        return run.ranker(device, graph, options.scores, options.reranks)
    except ModelError as error:
        if runtime == "torch" or not machine.installed("torch"):
            raise
        tell(f"{error}; torch reads the texts")
    return run.ranker(options.device, graph, options.scores, options.reranks)


def constraints_of(run: RunFolder, options: RankingOptions, graph: KnowledgeGraph) -> list[Constraint]:
    """The constraints that the options ask for, learned from a run's training, over a graph."""
    learned: list[Constraint] = []
    if options.typed:
        learned.append(Typed(types_of(run)))
    if options.functional:
        learned.append(Functional.learn(run.graph.context))
    if options.unlinked:
        learned.append(Unlinked(Linked(run.graph.context)))
    listed = [] if options.candidates is None else [Listed.read(Path(options.candidates), graph)]
    if not learned:
        return [*listed]
    _, relation_rows = rows_of(graph.context, run.graph.context)
    return [*(constraint.over(graph.context, relation_rows) for constraint in learned), *listed]


def retrieval_of(
    run: RunFolder, options: RankingOptions, ranker: Ranker, default: int | None = None
) -> Retrieval | None:
    """The index that finds candidates, where only some are to be scored.

    Args:
        default: how many, where it was not said; 0 of ``retrieve`` is all.
    """
    k = default if options.retrieve is None and options.scores == "all" else options.retrieve
    return open_retrieval(run, ranker, k or None)


def shortlist_of(run: RunFolder) -> int | None:
    """The number of entities that are scored by default; None is all.

    A recipe indexes a large graph; once the model has changed, that index no longer counts.
    """
    kept = run.record.get("shortlist")
    return kept["entities"] if kept and kept["of"] == run.text_fingerprint else None


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
    for vectors in ranker.counted_vectors:
        if unread := vectors.unread:
            told = partial(watch, "reading entities", total=unread)
            read_together(vectors, batch_size, told)
