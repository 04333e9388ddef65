"""Evaluate a run on its own or another graph, in this process or by several workers."""

from __future__ import annotations

import errno
import html
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kgmlm.core import files
from kgmlm.core.config import CandidateSet, Protocol, Side, load_protocol
from kgmlm.core.errors import ConfigError, RunError, counted
from kgmlm.core.options import takes
from kgmlm.core.processes import ProcessGroup, join, shared_by
from kgmlm.core.progress import Watcher, quiet_transformers, watcher_of
from kgmlm.core.results import Result
from kgmlm.core.workers import Make, Workers
from kgmlm.evaluation.evaluator import Ranking
from kgmlm.evaluation.options import EvaluateOptions
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.datasets import load_graph, tell_unread
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import TRAINING, check_dataset, check_run
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.opened import OpenedRun, computed_by, open_folder, open_run_model
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.packs import find_pack
from kgmlm.runs.provenance import command_line, hardware, past_graphs, versions
from kgmlm.runs.run import Run, path_if, path_of
from kgmlm.runs.tuned import SECOND
from kgmlm.runs.writing import check_result

if TYPE_CHECKING:
    import pandas as pd
    from pykeen.evaluation import RankBasedMetricResults

    from kgmlm.evaluation.evaluator import Evaluation, Found
    from kgmlm.ranking.ranker import Ranker


def scope_of(
    run: RunFolder,
    own: KnowledgeGraph,
    other: KnowledgeGraph | None,
    protocol: Protocol,
    allowed: Mapping[str, bool],
    watch: Watcher,
) -> tuple[Scope, list[str]]:
    """The scope of an evaluation, and the datasets of earlier runs that are gone and not checked for leaks.

    Args:
        own: the run's graph, with further entities where there are any.
        other: another graph, which is asked about instead.
        allowed: as of :meth:`~kgmlm.evaluation.task.Scope.inductive`.
    """
    earlier, gone = past_graphs(run)
    if gone:
        watch.tell(
            f"began with models of {', '.join(gone)} that are gone: leaks from their training are not checked"
        )
    if other is None:
        return Scope.of(own, earlier), gone
    return Scope.inductive(run.graph, other, protocol, earlier=earlier, **allowed), gone


def open_scorer(
    run: Run | None, folder: RunFolder, scope: Scope, options: RankingOptions, watch: Watcher, batch_size: int
) -> OpenedRun:
    """Open a run's model; a :class:`Run` keeps its model loaded until its weights on disk change."""
    graph = scope.graph
    if run is None or not (run.is_open or graph is run.graph):
        return open_run_model(folder, options, graph, watch.tell)
    if run.is_open and not run.folder.is_current():
        run.reopen()
    predictor = run.open(watch, batch_size)
    ranker = predictor.ranker if graph is run.graph else predictor.ranker.for_graph(graph.context)
    # All are scored, unless an index is asked for.
    retrieval = predictor.retrieval if options.retrieve else None
    return OpenedRun(run.folder, graph, ranker, retrieval)


@dataclass(frozen=True, eq=False)
class EvaluationWork:
    """The pieces of an evaluation for workers, each of which opens the run.

    Attributes:
        run: the run's folder, or its pack.
        graph: what is not in the run's folder: its graph with further entities, or another one.
        other: whether ``graph`` is another dataset.
        scores_digest: the digest of the weights that all workers must have.
        digest: the digest of the queries and answers that all workers must have.
        sizes: the number of ranks of each piece.
    """

    run: Path
    options: RankingOptions
    protocol: Protocol
    batch_size: int
    graph: KnowledgeGraph | None
    other: bool
    allowed: Mapping[str, bool]
    scores_digest: str = ""
    digest: str = ""
    sizes: tuple[int, ...] = ()

    def of(self, ranking: Ranking, scores_digest: str) -> EvaluationWork:
        """A copy for the ranking that is asked for, by the weights that all workers must have."""
        sizes = tuple(ranking.sizes.tolist())
        return replace(self, scores_digest=scores_digest, digest=ranking.task.digest, sizes=sizes)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return self.options.on_gpu

    def size(self, number: int) -> int:
        """Return how many ranks a piece has."""
        return self.sizes[number]

    def begin(self, watch: Watcher) -> Make[Found]:
        """Open the run, and read what vectors are missing.

        Raises:
            RunError: when this worker sees other weights or triples than the process that asks it.
        """

        quiet_transformers()
        folder = open_folder(self.run)
        own = folder.graph if self.graph is None or self.other else self.graph
        other = self.graph if self.other else None
        scope, _ = scope_of(folder, own, other, self.protocol, self.allowed, watch)
        opened = open_run_model(folder, self.options, scope.graph)
        ranking = Ranking.of(scope, self.protocol, opened.retrieval is not None, self.batch_size)
        if (opened.folder.scores_digest, ranking.task.digest) != (self.scores_digest, self.digest):
            raise RunError(
                f"{self.run} has other weights or triples on {platform.node()}; workers need the run at the "
                "same path, and nobody may change it meanwhile"
            )
        read_vectors(opened.ranker, watch, self.batch_size)
        return ranking.maker(opened.ranker, opened.retrieval)

    def sent(self) -> EvaluationWork:
        """A copy for workers; :meth:`kgmlm.core.workers.Work.sent`."""
        graph = None if self.graph is None else replace(self.graph)  # without what is computed of it
        return replace(self, graph=graph, run=self.run.absolute(), options=self.options.sent())


_SHOWN = {
    "MRR": "inverse_harmonic_mean_rank", "Hits@1": "hits_at_1", "Hits@3": "hits_at_3",
    "Hits@10": "hits_at_10", "MR": "arithmetic_mean_rank", "ranks": "count",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Report(Result):
    """The ranks and metrics of an evaluation.

    Attributes:
        evaluation: the ranks of all queries.
        values: the report, as JSON has it: metrics, breakdown, protocol, run, versions, command.
    """

    evaluation: Evaluation
    values: Mapping[str, Any]

    @property
    def metrics(self) -> Mapping[str, float]:
        """``mrr``, and all metrics under PyKEEN's names, such as ``both.realistic.hits_at_10``."""
        metrics: Mapping[str, float] = self.values["metrics"]
        return metrics

    def to_frame(self) -> pd.DataFrame:
        """MRR, Hits@1, 3, 10 and MR of tails, heads and both, and the number of ranks."""
        import pandas as pd

        protocol = self.values["protocol"]
        expected = protocol["negatives"] and protocol["negatives_by"] == "expectation"
        kind = "expected" if expected else "realistic"
        rows = {
            side: {name: self.metrics.get(f"{side}.{kind}.{key}") for name, key in _SHOWN.items()}
            for side in ("tail", "head", "both")
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("queries")

    def to_pykeen(self) -> RankBasedMetricResults:
        """PyKEEN's own result object."""
        from kgmlm.evaluation.pykeen import to_pykeen

        return to_pykeen(self.evaluation.ranks, self.evaluation.tail_B)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON."""
        files.write_json(files.as_path(path, "the output"), dict(self.values), follow=True)

    def __repr__(self) -> str:
        values = self.values
        return f"<{values['dataset']} {values['split']}: MRR {self.metrics.get('mrr', float('nan')):.4f}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>{super()._repr_html_()}"


@takes(EvaluateOptions)
def evaluate(run: Run | str | Path, options: EvaluateOptions) -> Report:
    """Evaluate filtered MRR and Hits@k on a split, by side, and for seen and unseen entities.

    Several processes (``torchrun``) share the queries; all get the same report, and the main one writes it.

    Raises:
        RunError: when the run has no such part, workers end again and again, or no cluster answers.
        ConfigError, DataError: when options do not go together, or the split is not there.

    Example:
        >>> kgmlm.evaluate("runs/demo", split="valid", max_triples=500).metrics["mrr"]  # doctest: +SKIP
    """
    asked = _Request.of(run, options)
    world, watch = join(options.device), watcher_of(options.progress)
    to, kept = path_if(options.output, "the output"), path_if(options.ranks, "ranks")
    for path in (to, kept):
        if path is not None and world.main:
            check_result(path)
    if kept is None:
        files.refuse_link(path_of(run) / "ranks")
    folder = open_folder(path_of(run), verify=options.verify)
    if options.graph is None:
        check_run(folder.path, folder.graph, watch.tell)
    else:
        check_dataset(options.graph, TRAINING, watch.tell)
    other = None if options.graph is None else load_graph(options.graph, skip_header=options.skip_header)
    if other is not None:
        tell_unread(other, watch.tell)
    (other or folder.graph).triples(asked.protocol.split)  # says so before the heavy imports
    own, further = (run.graph, run.extended_graph) if isinstance(run, Run) else (folder.graph, None)
    scope, unchecked = scope_of(folder, own, other, asked.protocol, asked.allowed, watch)
    work = EvaluationWork(
        find_pack(path_of(run)) or folder.path, asked.ranking, asked.protocol, options.batch_size,
        other or further, other is not None, asked.allowed,
    )  # fmt: skip
    opened, result = _evaluate(run, folder, scope, work, asked, watch, world)
    report = Report(result, whole_report(folder, opened, result, options.precision, unchecked))
    if world.main and to is not None:
        report.save(to)
    if world.main and (kept is not None or len(own.entities) == len(folder.graph.entities)):
        _keep_ranks(folder, opened.folder.scores_digest, result, kept, asked.ranks_name(other), watch)
    world.wait()  # what is written can be read, whichever process asks
    _tell_caveats(report.values, other is not None or asked.protocol.split != "valid", watch)
    return report


@dataclass(frozen=True)
class _Request:
    """What an evaluation's options ask for.

    Attributes:
        named: the protocol's file and the set of candidates, as they were given.
        allowed: checks of another graph that are lifted.
    """

    ranking: RankingOptions
    protocol: Protocol
    workers: Workers
    named: tuple[Path | None, str | None]
    allowed: Mapping[str, bool]
    by_relation: bool

    @classmethod
    def of(cls, run: Run | str | Path, options: EvaluateOptions) -> _Request:
        """Read the options, and refuse those that do not go together.

        Raises:
            ConfigError: naming them.
        """
        opened = run.options if isinstance(run, Run) else RankingOptions()
        ranking = replace(opened.updated(options), runtime="torch")
        if options.candidates in get_args(CandidateSet):
            candidates = str(options.candidates)
            ranking = replace(ranking, candidates=opened.candidates)
        else:
            candidates = None
            _check_candidates(options.candidates)
        allowed = {
            "allow_seen_entities": options.allow_seen_entities,
            "allow_new_relations": options.allow_new_relations,
        }
        if options.graph is None and (options.skip_header or any(allowed.values())):
            raise ConfigError(
                "--allow-seen-entities, --allow-new-relations and --skip-header go with --graph"
            )
        if options.graph is not None and ranking.retrieve is not None:
            raise ConfigError("--retrieve asks an index of the run's own graph; it does not go with --graph")
        if options.pykeen and (options.graph is not None or ranking.retrieve is not None):
            raise ConfigError("--pykeen ranks all of the run's own graph: without --graph and --retrieve")
        file, side = path_if(options.protocol, "a protocol"), options.side
        if side is None and file is None:
            folder = run.folder if isinstance(run, Run) else open_folder(path_of(run))
            side = folder.settings.training.side
        protocol = load_protocol(
            file,
            candidates=candidates or (None if options.graph is None or file else "graph"),
            split=options.split,
            side=side,
            max_triples=options.max_triples,
            allow_self=ranking.allow_self or None,
            pykeen=options.pykeen or None,
        )
        workers = Workers(options.ray, options.workers)
        return cls(ranking, protocol, workers, (file, candidates), allowed, options.by_relation)

    def ranks_name(self, other: KnowledgeGraph | None) -> str:
        """The name of the file of ranks in the run."""
        asked = self.protocol
        return ranks_name(
            self.ranking, asked.split, other, *self.named, max_triples=asked.max_triples, side=asked.side
        )


def _evaluate(
    given: Run | str | Path,
    run: RunFolder,
    scope: Scope,
    work: EvaluationWork,
    asked: _Request,
    watch: Watcher,
    world: ProcessGroup,
) -> tuple[OpenedRun, Evaluation]:
    """Rank."""
    from kgmlm.evaluation.evaluator import evaluate as evaluate_ranker

    quiet_transformers()
    options, workers = asked.ranking, asked.workers
    same = given if isinstance(given, Run) and replace(given.options, runtime="torch") == options else None
    if same is not None and computed_by(run, same.options)[0] != "torch":
        same = None
    here = options if workers.here else replace(options, device="cpu")  # it scores nothing where workers do
    with watch, shared_by(world):
        opened = open_scorer(same, run, scope, here, watch, work.batch_size)
        world.agree(opened.folder.scores_digest, "weights")
        if workers.here:
            read_vectors(opened.ranker, watch, work.batch_size)
        return opened, evaluate_ranker(
            opened.ranker,
            scope,
            asked.protocol,
            retrieval=opened.retrieval,
            batch_size=work.batch_size,
            by_relation=asked.by_relation,
            advance=lambda n, total: watch(f"evaluating {asked.protocol.split}", n, total),
            crew=workers,
            sent=None if workers.here else lambda ranking: work.of(ranking, opened.folder.scores_digest),
            watch=watch,
        )


def whole_report(
    run: RunFolder,
    opened: OpenedRun,
    evaluation: Evaluation,
    precision: str,
    unchecked: Sequence[str] = (),
) -> dict[str, Any]:
    """The report of an evaluation, with all that its figures go by: run, parts of the score, versions.

    Args:
        unchecked: datasets of earlier runs that could not be checked for leaks.
    """
    from kgmlm.signals import SIGNALS

    ranker = opened.ranker
    counting = ranker.mixture.signals
    keys = ("model", "began_from", "seed", "step", "status", "minutes", "sources", "versions",
            "hardware", "command")  # fmt: skip
    return {
        **evaluation.report,
        "trained_on": run.graph.name,
        "unchecked": list(unchecked),
        "scores": {name: ranker.mixture.averages.get(name, 0.0) for name in SIGNALS},
        "signals": {k: v for k, v in run.record.get("signals", {}).items() if k in counting},
        "chosen_by": dict(opened.folder.tuned.by) if len(counting) > 1 or ranker.reranks else None,
        **{
            name: {"k": stage_weight.k, "weight": stage_weight.weight}
            if (stage_weight := ranker.stage_weights.get(name))
            else None
            for name in SECOND
        },
        **({"types_from": _types_from(ranker)} if "types" in counting else {}),
        "precision": precision,
        "run": {k: run.record.get(k) for k in keys} | {"settings": run.settings.model_dump(mode="json")},
        "versions": versions(),
        "hardware": hardware(),
        "command": command_line(),
    }


def _types_from(ranker: Ranker) -> dict[str, int]:
    """Count the candidates by the source of their types."""
    from kgmlm.signals.types import Types

    signal = ranker.signals["types"]
    assert isinstance(signal, Types)
    return signal.types.sources()


def _check_candidates(candidates: str | Path | None) -> None:
    """Refuse what is neither a set of candidates nor a table of them.

    Raises:
        ConfigError: naming the sets.
    """
    file = path_if(candidates, "the table of candidates")
    if file is not None and not file.is_file():
        raise ConfigError(
            f"--candidates is {', '.join(get_args(CandidateSet))} or a file, not '{candidates}'"
        )


def ranks_name(
    options: RankingOptions,
    split: str,
    other: KnowledgeGraph | None = None,
    protocol: Path | None = None,
    candidates: str | None = None,
    max_triples: int | None = None,
    side: Side = "both",
) -> str:
    """A distinct file name per kind of evaluation, so that `compare` by default compares like with like."""
    words = [
        *([] if other is None else [other.name]),
        split,
        *([] if protocol is None else [protocol.stem]),
        *([] if candidates in (None, "all" if other is None else "graph") else [str(candidates)]),
        *([] if side == "both" else [side]),
        *([] if not max_triples else [f"{max_triples}-triples"]),
        *options.words(),
    ]
    return f"{files.safe_name('.'.join(words))}.parquet"


def _keep_ranks(
    run: RunFolder, scores_digest: str, evaluation: Evaluation, path: Path | None, name: str, watch: Watcher
) -> None:
    """Write ranks where they are asked for, or into the run under a name, if it can be written."""
    try:
        evaluation.write_ranks(path or run.path / "ranks" / name, scores_digest, follow=path is not None)
    except OSError as error:
        if path is not None or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        watch.tell(f"ranks are not kept, {run.path} is read-only: --ranks FILE keeps them elsewhere")


def _tell_caveats(report: Mapping[str, Any], chosen_on: bool, watch: Watcher) -> None:
    """Tell how many evaluated triples the run was trained or chosen on, and how many names were cut.

    Args:
        chosen_on: whether to tell how many of the triples are validation triples.
    """
    known = {"training triples, too": report["triples_trained"]}
    if chosen_on:
        known["triples that the run was chosen on"] = report["triples_validated"]
    for what, count in known.items():
        if count:
            watch.tell(
                f"{count:,} of {counted(report['triples'], 'triple')} {'is' if count == 1 else 'are'} {what}"
            )
    truncated = report["candidates"]["names_truncated"]
    if truncated:
        were = "was" if truncated == 1 else "were"
        watch.tell(f"{counted(truncated, 'name')} longer than the span {were} cut to it")
