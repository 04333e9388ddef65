"""A run opened: its folder, or that of a pack; and a ranker as the options say.

Readers take no lock. All that is opened is from one point in time: if a writer replaces files meanwhile, it
is opened again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kgmlm.core import files, machine
from kgmlm.core.arrays import BoolArray
from kgmlm.core.errors import ConfigError, ModelError, RunError, quoted
from kgmlm.core.files import as_path
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.constraints import Constraint, Functional, Listed, Typed, Unlinked
from kgmlm.ranking.ranker import Ranker, SecondStage, StageWeight
from kgmlm.ranking.second_stage import ReverseScoring
from kgmlm.ranking.trees import Trees
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import PAUSE, TRIES, RunFolder, interrupted, read_as_one, read_folder
from kgmlm.runs.models import ONNX, open_text
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.packs import SUFFIX, find_pack, unpack
from kgmlm.runs.tuned import REVERSE, SECOND, TREES, TREES_FILE
from kgmlm.signals import SIGNALS, beside, rows_of
from kgmlm.signals.linked import Linked
from kgmlm.signals.types import EntityTypes, Types
from kgmlm.text.onnx_model import ONNX_FILE

if TYPE_CHECKING:
    from kgmlm.ranking.predictor import Predictor
    from kgmlm.ranking.probability import Calibration, TripleClassifier
    from kgmlm.ranking.retrieval import Retrieval
    from kgmlm.signals.base import Signal


def open_folder(path: str | Path, *, verify: bool = False) -> RunFolder:
    """Open a run folder, or a pack; it may have been moved here from another machine.

    Args:
        verify: read all its files and see that they are as they were written; else only sizes are checked.

    Raises:
        RunError: when it is no run, is damaged, or is of a newer format.
    """
    path = as_path(path, "the run", RunError)
    if (pack := find_pack(path)) is not None:
        path = unpack(pack)
    for _ in range(TRIES):
        if (path / "run.json").is_file() or not files.is_unsettled(path):
            break
        time.sleep(PAUSE)  # another run is taking its place
    if not (path / "run.json").is_file():
        raise _no_run(path)
    return read_folder(path, verify=verify)


def _no_run(path: Path) -> RunError:
    """The error of a path that is no run, with the command that makes one."""
    if files.is_unsettled(path):
        return interrupted(path, path)
    if any(path.glob("train.*")):
        how = f"`kgmlm train --dataset {quoted(path)} --model minilm --output runs/{path.name}`"
        return RunError(f"{path} is a dataset, not a run; {how} makes one")
    if len(path.parts) == 1 and not path.exists():
        return RunError(
            f"{path} does not exist, neither as a run folder nor as {path}.kgmlm in models/ of the "
            "repository or in KGMLM_MODELS; `kgmlm train --dataset DATASET --model minilm --output "
            f"{quoted(path)}` makes a run"
        )
    if path.is_file():
        return RunError(f"{path} is a file, but no pack by its name, which would end in {SUFFIX}")
    what = "is not a run folder (it has no run.json)" if path.is_dir() else "does not exist"
    return RunError(
        f"{path} {what}; `kgmlm train --dataset DATASET --model minilm --output {quoted(path)}` makes one"
    )


def open_predictor(
    run: RunFolder,
    options: RankingOptions,
    further: KnowledgeGraph | None,
    watch: Watcher,
    batch_size: int = 64,
) -> tuple[RunFolder, Predictor]:
    """Open a run's model to rank for people, reading the missing entity vectors.

    Args:
        further: the run's graph with further entities; None where there are none.

    Returns:
        The run as it was when its model was opened, too.

    Raises:
        RunError: when training has left no model yet, or weights do not fit the signals.
    """
    from kgmlm.ranking.predictor import Predictor

    def read(now: RunFolder) -> OpenedRun:
        return _opened(now, options, answering(now, further or now.graph), watch.tell, shortlist=True)

    opened = read_as_one(run, read)
    ranker = opened.ranker.allowing_self() if options.allow_self else opened.ranker
    read_vectors(ranker, watch, batch_size)
    classifier = classifier_of(opened, options, watch.tell)
    return opened.folder, Predictor(opened.graph, ranker, opened.retrieval, classifier)


def classifier_of(
    opened: OpenedRun, options: RankingOptions, tell: Callable[[str], None] = lambda message: None
) -> TripleClassifier | None:
    """The classifier of triples; None where the run has no probabilities, or where they or all signals are
    not asked for.

    Args:
        tell: called with the reason why the run's probabilities cannot be shown.
    """
    if options.scores != "all" or not options.probabilities:
        return None
    try:
        calibration = opened.folder.calibration
    except RunError as error:
        tell(f"no probabilities: {error}")
        return None
    return None if calibration is None else classifier_by(opened, calibration)


def classifier_by(opened: OpenedRun, calibration: Calibration) -> TripleClassifier:
    """The classifier of triples of an opened run's graph, whatever second stages were asked for."""
    from kgmlm.ranking.probability import TripleClassifier

    run, graph, ranker = opened.folder, opened.graph, opened.ranker
    if tuple(run.tuned.active) == (TREES,):
        ranker = ranker.with_stage(second_stage(run, TREES, run.tuned.active[TREES]))
    rows = None
    if graph.relations is not run.graph.relations:
        numbers = run.graph.relations.index
        rows = np.array([numbers.get(relation.label, -1) for relation in graph.relations], np.int64)
    validation = graph.splits.get("valid", np.zeros((0, 3), np.int64))
    return TripleClassifier.of(ranker, calibration, rows, seen_by(run, graph), validation)


def seen_by(run: RunFolder, graph: KnowledgeGraph) -> BoolArray:
    """Return which entities of a graph a run was trained on, ``(N,)``, by their labels."""
    trained = run.graph
    if graph.entities is trained.entities:
        return trained.seen_N
    labels, count = trained.entities.table.column("label"), len(trained.entities)
    if graph.entities.table.column("label").slice(0, count).equals(labels):  # with further ones
        return np.append(trained.seen_N, np.zeros(len(graph.entities) - count, np.bool_))
    rows = np.array([trained.entities.index.get(label, -1) for label in graph.entities.column("label")])
    return np.where(rows >= 0, trained.seen_N[rows], False)


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run with its model open.

    Attributes:
        folder: the run as it was when its model was opened.
        graph: the graph that it ranks: the run's own, one with further entities, or another.
        retrieval: the index that proposes candidates; None where all are scored.
    """

    folder: RunFolder
    graph: KnowledgeGraph
    ranker: Ranker
    retrieval: Retrieval | None = None


def open_run_model(
    run: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    tell: Callable[[str], None] = lambda message: None,
) -> OpenedRun:
    """Open a run's model over a graph, all of it as it was at one time.

    Args:
        tell: called with a sentence where something else computes than was asked for.

    Raises:
        ConfigError: when the run has no such part, or no second stage to use.
        RunError: when training has left no model yet, weights do not fit the signals, or the run changes as
            often as it is read.
    """
    return read_as_one(run, lambda now: _opened(now, options, graph, tell))


def open_ranker(
    run: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    tell: Callable[[str], None] = lambda message: None,
) -> Ranker:
    """A run's ranker over a graph; see :func:`open_run_model`. An index that is asked for is not opened."""
    return open_run_model(run, replace(options, retrieve=0), graph, tell).ranker


def _opened(
    run: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    tell: Callable[[str], None],
    shortlist: bool = False,
) -> OpenedRun:
    """Open what the options ask for.

    Args:
        shortlist: retrieve as many candidates as the run's recipe says, where the options leave it open.
    """
    # 1. who can answer
    constraints = constraints_of(run, options, graph)
    # 2. the signals and second stages, by ONNX Runtime or by torch where that cannot read texts
    runtime, why = computed_by(run, options)
    if why:
        tell(why)
    device = ONNX if runtime == "onnx" else options.device
    try:
        ranker = tuned_ranker(run, device, options.scores, options.reranks)
    except ModelError as error:
        if runtime == "torch" or not machine.installed("torch"):
            raise
        tell(f"{error}; torch reads the texts")
        ranker = tuned_ranker(run, options.device, options.scores, options.reranks)
    # 3. further entities, or another graph
    if graph is not run.graph:
        ranker = ranker.for_graph(graph.context)
    # 4. how many of the best are reranked, how precisely, among whom
    if options.rerank:
        ranker = _reranking(run, options, ranker, options.rerank)
    ranker.reduce(options.precision == "bf16")
    ranker = ranker.constrained(*constraints)
    # 5. the index that proposes candidates
    k = options.retrieve
    if k is None and shortlist and options.scores == "all":
        k = run.shortlist
    return OpenedRun(run, graph, ranker, open_retrieval(run, ranker, k))


def tuned_ranker(
    run: RunFolder, device: str | None = None, scores: str = "all", rerank: bool = True
) -> Ranker:
    """A ranker with the run's best model, by the weights that validation chose.

    Args:
        device: such as "cpu" or "cuda"; None takes a GPU where there is one.
        scores: what to rank by, as :meth:`kgmlm.ranking.ranker.Ranker.by` has it.
        rerank: False leaves the second stages out.

    Raises:
        RunError: when training has left no model yet, or the run has signals that its weights were not
            chosen for.
        ConfigError: when the run has no such scores.
    """
    needed = SIGNALS[scores].needs if scores in SIGNALS else ""
    others = tuple(name for name in beside() if scores not in ("all", name) and name != needed)
    ranker = untuned_ranker(run, device, others).weighed_by(run.tuned.mixture).by(scores)
    if scores not in ("all", "text"):
        return ranker
    not_used = others if rerank and scores == "all" else (*others, TREES)
    run.tuned.check(run.fingerprints, run.path, not_used)
    if not rerank:
        return ranker
    stage_weights = run.tuned.stage_weights
    return with_stages(
        run, ranker, {name: stage_weights[name] for name in stage_weights if name not in not_used}
    )


def untuned_ranker(run: RunFolder, device: str | None = None, but: tuple[str, ...] = ()) -> Ranker:
    """Every signal of the run, each as confident as in training, and no second stage.

    Args:
        but: signals to leave on disk.

    Raises:
        RunError: when training has left no model yet, or a signal is missing or damaged.
    """
    ranker = open_text(run, device)
    for name, kind in SIGNALS.items():
        run.check(kind.file)
        if name not in but and (run.path / kind.file).is_file():
            ranker = ranker.with_signal(kind.open(run.path / kind.file, run.graph, ranker.reader))
        elif name in ranker.signals and name not in but:
            raise _missing(run, kind.file)
    return ranker


def with_stages(run: RunFolder, ranker: Ranker, stage_weights: Mapping[str, StageWeight]) -> Ranker:
    """A ranker with those second stages of the run that score any candidates.

    Raises:
        RunError: when the trees are missing or damaged.
    """
    for name in SECOND:
        if name in stage_weights and stage_weights[name].k:
            ranker = ranker.with_stage(second_stage(run, name, stage_weights[name]))
    return ranker


def second_stage(run: RunFolder, name: str, stage_weight: StageWeight) -> SecondStage:
    """A second stage of a run by its name, as of :data:`~kgmlm.runs.tuned.SECOND`."""
    if name != TREES:
        return ReverseScoring(stage_weight)
    if not (run.path / TREES_FILE).is_file():
        raise _missing(run, TREES_FILE)
    return Trees.open(run.path / TREES_FILE, stage_weight)


def _missing(run: RunFolder, file: str) -> RunError:
    """The error of a signal that comes with the model: not read yet, or lost."""
    if run.vectors_unread:
        return RunError(
            f"{run.path}: its entities are not read yet; `kgmlm tune {quoted(run.path)}` reads them"
        )
    return RunError(f"{run.path / file} is missing; it belongs to the model beside it")


def _reranking(run: RunFolder, options: RankingOptions, ranker: Ranker, k: int) -> Ranker:
    """A copy that reranks the ``k`` best.

    Raises:
        ConfigError: when there is nothing to rerank with.
    """
    if not options.reranks:
        raise ConfigError(f"--rerank goes with --scores all or text, not {options.scores}")
    if not ranker.reranks and REVERSE not in run.tuned.stage_weights:
        raise ConfigError(
            f"{run.path} has no second stage; `kgmlm tune {quoted(run.path)} --add reverse` adds one"
        )
    if not ranker.reranks:
        raise ConfigError(
            f"{run.path}: validation chose not to rerank, so there is no weight to rerank with; "
            f"`kgmlm tune {quoted(run.path)}` chooses again"
        )
    stages = {
        name: stage
        if name == TREES
        else stage.with_weight(replace(stage.stage_weight, k=k))  # trees were fitted to so many
        for name, stage in ranker.stages.items()
    }
    return ranker.replace(stages=stages)


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
    if options.retrieve or (options.retrieve is None and options.scores == "all" and run.shortlist):
        return "ONNX Runtime asks no index"
    return ""


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
    return [*(constraint.for_graph(graph.context, relation_rows) for constraint in learned), *listed]


def types_of(run: RunFolder) -> EntityTypes:
    """Types of a run's entities: as its signal knows them, where it has that, else counted by its settings.

    Raises:
        RunError: when the signal is damaged.
    """
    run.check(Types.file)
    file = run.path / Types.file
    return (Types.open(file, run.graph) if file.is_file() else Types.fit(run.graph, run.settings.types)).types


def open_retrieval(run: RunFolder, ranker: Ranker, k: int | None) -> Retrieval | None:
    """Shortlists of k entities by the run's index; None without a k.

    Raises:
        RunError: as of :func:`~kgmlm.ranking.retrieval.open_index`.
    """
    if not k:
        return None
    from kgmlm.ranking.retrieval import Retrieval, open_index

    return Retrieval(open_index(run.path, ranker, len(run.graph.entities)), k)


def answering(run: RunFolder, graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph that a run answers people with; in a small one, held-out triples return to training.

    All that is fitted to these triples or measured on them opens the run's own graph, which has them in
    validation alone. Triples that files give as validation are never given back.

    Args:
        graph: of the run, perhaps with further entities.
    """
    if not run.record.get("given_back") or not run.graph.has("valid"):
        return graph
    return graph.with_context(run.graph.triples("valid"))


# How a signal was trained, as `run.json` has it of each.
_MADE = ("settings", "done", "minutes", "versions", "hardware", "command")


def lend(run: RunFolder, name: str, graph: KnowledgeGraph) -> tuple[Signal, dict[str, Any]]:
    """A signal that is beside a run's model, and how that was trained, for another run of the same graph.

    Raises:
        RunError: when the run has none, or is a run of another graph.
    """
    kind = beside()[name]
    run.check(kind.file)
    if not (run.path / kind.file).is_file():
        raise RunError(
            f"{run.path} has no signal '{name}'; `kgmlm tune {quoted(run.path)} --add {name}` trains one"
        )
    if not run.graph.same(graph):
        raise RunError(f"{run.path} is a run of another graph")
    made = run.record.get("signals", {}).get(name) or {}
    return kind.open(run.path / kind.file, run.graph), {key: made.get(key) for key in _MADE}
