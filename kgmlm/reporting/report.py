"""Report a run on one page of HTML: what it is, what it has learned, and how well it ranks.

Texts of graphs are data: the template escapes whatever it is given. The page runs its own script and style,
known by their digests, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kgmlm import __version__
from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError, KgmlmError, RunError, counted, quoted
from kgmlm.core.files import as_path
from kgmlm.core.options import takes
from kgmlm.core.progress import Watcher, watcher_of
from kgmlm.evaluation.compare import compare_ranks
from kgmlm.evaluation.evaluate import evaluate, ranks_name
from kgmlm.evaluation.metrics import find_ranks, read_ranks, scores_digest
from kgmlm.graphs.checks import check_graph, lines_of
from kgmlm.prediction.new_facts import FILE, NewFacts
from kgmlm.reporting.charts import Cell, Chart, Table
from kgmlm.reporting.figures import Ranked, ShownQuestion
from kgmlm.reporting.options import ReportOptions
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.options import BATCH_SIZE
from kgmlm.runs.provenance import past_graphs
from kgmlm.runs.run import Run, open_run, path_if
from kgmlm.runs.writing import check_result
from kgmlm.training.summary import compared
from kgmlm.training.summary import counted as counted_of

if TYPE_CHECKING:
    from markupsafe import Markup

    from kgmlm.ranking.ranker import Ranker
    from kgmlm.reporting.figures import Question

_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Result:
    """The metrics of an evaluation, as tables and charts.

    Attributes:
        asked, candidates: how many of what, in words.
        keys: name, value and note of the figures that are seen first.
        unseen: None where training has all entities.
    """

    asked: str
    candidates: str
    keys: Sequence[tuple[str, str, str]]
    sides: Table
    distribution: Chart
    answers: Chart
    unseen: Table | None
    relations: Table


@dataclass(frozen=True)
class Probabilities:
    """What probabilities stand for, how they come true on validation, and how well they decide."""

    stands_for: str
    chart: Chart | None
    table: Table | None


@dataclass(frozen=True)
class Compared:
    """Another run beside this one: its name, the differences, and what both are."""

    name: str
    chart: Chart
    facts: Table


@dataclass(frozen=True)
class Contents:
    """All that a page shows. Parts that are None or empty are left out, and sentences say why.

    Attributes:
        unranked, uncalibrated: why there is no result, and no measured probabilities.
        signals: the MRR of each signal alone on validation, beside counting.
        came_true: how many of the new facts the test split has, as a sentence.
        example: a question that the introduction shows.
        moved: a sentence if answers now rank elsewhere than when they were evaluated.
    """

    name: str
    graph: str
    made: str
    version: str
    command: str
    facts: Sequence[tuple[str, Sequence[str]]]
    stages: Table
    curves: Sequence[Chart]
    validated: bool
    weights: Sequence[Table]
    audit: Sequence[tuple[str, Sequence[str]]]
    result: Result | None = None
    unranked: str = ""
    signals: Table | None = None
    new_facts: Table | None = None
    came_true: str = ""
    new_facts_chart: Chart | None = None
    measured: Probabilities | None = None
    uncalibrated: str = ""
    reranked: str = ""
    worst: Sequence[ShownQuestion] = ()
    typical: Sequence[ShownQuestion] = ()
    example: ShownQuestion | None = None
    moved: str = ""
    compared: Compared | None = None
    entities: Chart | None = None

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The headings of the page, by their anchors."""
        sections = [
            ("metrics", "Ranking", self.result),
            ("signals", "Signals", self.signals or self.weights),
            ("compared", "Another run", self.compared),
            ("relations", "Relations", self.result),
            ("new-facts", "New facts", self.new_facts),
            ("entities", "Entities", self.entities),
            ("probabilities", "Probabilities", self.measured),
            ("questions", "Questions", self.result),
            ("made", "Training", True),
            ("curves", "Learning curves", self.curves),
            ("audit", "The graph", True),
            ("words", "Terms", True),
        ]
        return [(anchor, title) for anchor, title, shown in sections if shown]


def render(contents: Contents) -> str:
    """The page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    style, script = ((_FOLDER / name).read_text("utf-8") for name in ("style.css", "sort.js"))
    page = environment.get_template("page.html").render(
        c=contents,
        style=Markup(style),
        script=Markup(script),
        style_hash=_digest(style),
        script_hash=_digest(script),
    )
    return page + "\n"


def _with_code(sentence: str) -> Markup:
    """A sentence of ours, in which commands stand between backticks, as HTML."""
    from markupsafe import Markup

    parts = sentence.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def _digest(text: str) -> str:
    """The digest by which a content security policy knows a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


SHOWN = 20  # worst questions, and as many typical ones
UNRANKED = (
    "No triples of the graph were kept back from training, so nothing says how well this run ranks; "
    "`kgmlm data split` keeps some back."
)
NOTES = {
    "test": "which training has not seen,",
    "valid": "by which the run was chosen, so figures are a little too good,",
    "train": "which the run has learned, so figures are too good,",
}


@takes(ReportOptions)
def report(run: Run | str | Path, options: ReportOptions) -> Path:
    """Write a report of a run that anybody can read: one HTML file that loads nothing.

    It shows metrics by side, relation, unseen entities and known answers; each signal alone; facts that the
    graph probably lacks; how probabilities come true; the worst and the typical questions; training; and what
    `kgmlm data check` says of the graph. Ranks that `evaluate` has kept of the run as it is now are used;
    else the run is evaluated first. The list of new facts is kept in the run.

    Returns:
        The path of the page.

    Raises:
        RunError: when training has left no model yet, or ranks are of other weights than the run has.
        DataError: when the ranks are of another graph, or the other run is.
    """
    output, given = as_path(options.output, "the output"), path_if(options.ranks, "a file of ranks")
    if given is not None and (options.split or options.max_triples):
        raise DataError("--ranks says which triples were asked; it goes without --split and --max-triples")
    check_result(output)
    if output.suffix.casefold() not in ("", ".html", ".htm"):
        raise DataError(f"{output}: a report is a page of HTML, so its name ends in .html")
    opened = _opened(run, options.device)
    other = None if options.compare is None else _opened(options.compare, options.device)
    if other is not None and not opened.graph.same(other.graph):
        raise DataError(
            f"{opened.path} and {other.path} are runs of different graphs ('{opened.graph.name}' and "
            f"'{other.graph.name}'), whose ranks do not compare"
        )
    watch = watcher_of(options.progress)
    work = _Work(opened, options.max_triples, BATCH_SIZE, watch)
    with TemporaryDirectory() as folder:
        asked = options.split or next((s for s in ("test", "valid") if opened.graph.has(s)), None)
        ranks = None
        if asked is not None or given is not None:
            ranks = work.ranks(opened, given, asked or "", Path(folder) / "a.parquet")
        with watch:
            contents = work.contents(ranks)
        if other is not None:
            contents = replace(contents, compared=work.compared(ranks, other, Path(folder) / "b.parquet"))

    files.write_atomic(output, render(contents), follow=True)
    return output


def _opened(run: Run | str | Path, device: str | None) -> Run:
    if not isinstance(run, Run):
        return open_run(run, device=device, runtime="torch")
    options = replace(run.options, device=device or run.options.device, runtime="torch")
    return run if options == run.options else Run(run.folder, options, run.graph)


@dataclass(frozen=True, eq=False)
class _Work:
    """The making of a report: the run, its options, and the parts of the page."""

    run: Run
    max_triples: int | None
    batch_size: int
    watch: Watcher

    def ranks(self, run: Run, given: Path | None, split: str, spare: Path) -> Path:
        """A file of ranks of a run: one that is given, or kept in it, or made now.

        Args:
            spare: where it is written if it is made; the run may be read-only.

        Raises:
            RunError: when a given file is of other weights than the run has.
        """
        now = run.folder.now().scores_digest
        if given is not None:
            file = find_ranks(given)
            read_ranks(file)  # says what is wrong with it, first
            if (weights := scores_digest(file)) and weights != now:
                raise RunError(
                    f"{file} has ranks of other weights than {run.path} has now; "
                    f"`kgmlm evaluate {quoted(run.path)}` makes them again"
                )
            return file
        kept = run.path / "ranks" / ranks_name(run.options, split, max_triples=self.max_triples)
        own = run.extended_graph is None
        if own and now and kept.is_file() and self._is_of(kept, now):
            self.watch.tell(f"ranks: {kept}, which `kgmlm evaluate` has kept")
            return kept
        evaluated = evaluate(
            run,
            split=split,
            side="both",
            max_triples=self.max_triples,
            batch_size=self.batch_size,
            progress=self.watch,
        )
        evaluated.evaluation.write_ranks(spare, now)
        return spare

    def _is_of(self, kept: Path, weights: str) -> bool:
        """Return whether kept ranks belong to these weights; damaged ones do not, and are reported."""
        try:
            return scores_digest(kept) == weights
        except DataError as error:
            self.watch.tell(f"{error}; they are made again")
            return False

    def contents(self, ranks: Path | None) -> Contents:
        """All that the page shows of this run."""
        from kgmlm.reporting import charts, figures
        from kgmlm.reporting.charts import clipped
        from kgmlm.reporting.figures import questions
        from kgmlm.runs.provenance import command_line

        run, graph = self.run, self.run.graph
        ranked = None if ranks is None else Ranked.read(ranks, graph)
        ranker = run.open(self.watch, self.batch_size).ranker
        curves = charts.curves(run.folder)
        more: dict[str, Any] = {"unranked": UNRANKED}
        if ranked is not None:
            chosen = (ranked.worst(SHOWN), ranked.typical(SHOWN))
            worst, typical = (questions(ranked, ranker, at) for at in chosen)
            shown = figures.shown(graph, typical)
            more = {
                "result": self._result(ranked),
                "worst": figures.shown(graph, worst),
                "typical": shown,
                "example": next((q for q in shown if q.head is not None), shown[0]),
                "moved": _moved([*worst, *typical]),
            }
        probabilities = self._probabilities()
        more["uncalibrated" if isinstance(probabilities, str) else "measured"] = probabilities
        more["signals"] = self._signals()
        more |= self._new_facts()
        with suppress(ConfigError):  # a run without embeddings
            more["entities"] = figures.entity_map(ranker, graph)
        return Contents(
            name=clipped(_name(run)),
            graph=clipped(graph.name),
            made=date.today().isoformat(),
            version=__version__,
            command=command_line(),
            facts=charts.facts(run.folder),
            stages=charts.stages(run.folder),
            curves=curves,
            validated=any(chart.title.startswith("Validation") for chart in curves),
            weights=figures.weight_tables(ranker.mixture, run.folder.graph),
            reranked=_reranked(ranker),
            audit=[
                (name, [clipped(line, 400) for line in lines])
                for name, lines in lines_of(check_graph(run.folder.graph)).items()
            ],
            **more,
        )

    def _signals(self) -> Table | None:
        """Each signal alone on validation, as training or `kgmlm tune` has measured it."""
        from kgmlm.reporting import figures

        run = self.run.folder
        chosen = run.tuned.by or {}
        if not chosen.get("valid") or not run.graph.has("valid"):
            return None
        triples = chosen.get("triples", len(run.graph.splits["valid"]))
        return figures.signal_table(compared(chosen["valid"], counted_of(run.graph, triples)), triples)

    def _new_facts(self) -> dict[str, Any]:
        """The most probable facts that the graph lacks; nothing where no probability can be estimated."""
        from kgmlm.reporting import figures

        run, folder = self.run, self.run.folder
        keep = not folder.is_unpacked and os.access(folder.path, os.W_OK)
        if run.extended_graph is not None or not folder.graph.has("valid"):
            return {}
        with TemporaryDirectory() as spare:
            try:
                facts = NewFacts.of(run, (folder.path if keep else Path(spare)) / FILE, self.watch)
            except KgmlmError as error:
                self.watch.tell(f"no new facts: {error}")
                return {}
        if facts is None or not len(facts.table):
            return {}
        made = {"new_facts": figures.fact_table(facts, run.graph), "came_true": figures.came_true(facts)}
        return made if facts.report is None else made | {"new_facts_chart": figures.list_chart(facts.report)}

    def _result(self, ranked: Ranked) -> Result:
        """The sections that are made from ranks."""
        from kgmlm.evaluation.task import Scope
        from kgmlm.reporting import figures

        run = self.run
        counting = counted_of(run.graph, self.max_triples or 0, ranked.split)
        scope = Scope.of(run.graph, past_graphs(run.folder)[0])
        return Result(
            asked=_asked(ranked),
            candidates=f"up to {counted(int(ranked.ranks.candidates_B.max()), 'entity')}",
            keys=figures.key_figures(ranked, counting, run.folder.settings.training.side),
            sides=figures.side_table(ranked),
            distribution=figures.rank_chart(ranked),
            answers=figures.answers_chart(ranked),
            unseen=figures.unseen_table(ranked, scope),
            relations=figures.relation_table(ranked),
        )

    def _probabilities(self) -> Probabilities | str:
        """The run's probabilities, or why there are none."""
        from kgmlm.reporting import figures

        folder = self.run.folder
        try:
            calibration = folder.calibration
        except RunError as error:
            return str(error)
        if calibration is None:
            return _how_to_calibrate(folder)
        chart, table = figures.calibration_chart(calibration), figures.decision_table(calibration)
        return Probabilities(calibration.stands_for(folder.graph.validation), chart, table)

    def compared(self, own: Path | None, other: Run, spare: Path) -> Compared:
        """Another run beside this one.

        Raises:
            DataError: when there is nothing to compare them on.
        """
        from kgmlm.reporting import figures
        from kgmlm.reporting.charts import clipped

        if own is None:
            raise DataError(f"{self.run.path} has no triples kept back from training to compare runs on")
        split = Ranked.read(own, self.run.graph).split
        path = self.ranks(other, None, split, spare)
        tables = (read_ranks(p) for p in (path, own))
        differences = compare_ranks(*tables, sides=("tail", "head", "both"))
        return Compared(clipped(_name(other)), figures.difference_chart(differences), _both(self.run, other))


def _name(run: Run) -> str:
    """The name of a run: its folder's, or that of the pack that it is from."""
    name = run.path.resolve().name
    return name.rpartition("-")[0] if run.folder.is_unpacked else name


def _how_to_calibrate(folder: RunFolder) -> str:
    """A sentence on how to get probabilities."""
    if not folder.graph.has("valid"):
        return "This run has no probabilities: they are fitted on validation triples, and the graph has none."
    path = folder.path
    if folder.is_unpacked:
        return (
            "This pack has no probabilities: `kgmlm pack PACK --calibrate --output NEW` fits them to what it "
            "scores, and this section then shows how well they come true."
        )
    return (
        f"This run has no probabilities yet: `kgmlm calibrate {quoted(path)}` fits them on validation, and "
        "this section then shows how well they come true."
    )


def _reranked(ranker: Ranker) -> str:
    """Describe the second stages in sentences; nothing where there is none."""
    sentences, weights = [], ranker.stage_weights
    if reverse := weights.get("reverse"):
        sentences.append(
            f"Then the {reverse.k:,} best answers are scored in reverse: how probable the entity of the "
            f"question is as their answer is added with a weight of {reverse.weight:.3g}."
        )
    if trees := weights.get("trees"):
        sentences.append(
            f"Last, decision trees rank the {trees.k:,} best answers again, by the scores of all signals and "
            f"by how each answer is linked to the rest of the graph, with a weight of {trees.weight:.3g}."
        )
    limited = [weight for weight in weights.values() if weight.k and not all(weight.states)]
    if limited:
        sentences.append(
            "Answers of a kind that validation does not ask about, or that lose by them, keep their places."
        )
    return " ".join(sentences)


def _asked(ranked: Ranked) -> str:
    """Name the triples that were asked, as the subject of a sentence."""
    of, count = len(ranked.graph.splits[ranked.split]), len(ranked.triples)
    sample = f"a sample of {count:,} of the " if count < of else "the "
    return f"{sample}{counted(of, f'{ranked.split} triple')}, {NOTES[ranked.split]}"


def _moved(asked: Sequence[Question]) -> str:
    moved = sum(q.moved for q in asked)
    if not moved:
        return ""
    return (
        f"{moved:,} of the {len(asked):,} answers below rank elsewhere when they are asked again: the ranks "
        "are from an evaluation with options other than the run's defaults."
    )


def _both(own: Run, other: Run) -> Any:
    """A table of two runs side by side."""
    from kgmlm.reporting import charts
    from kgmlm.reporting.charts import clipped, number

    def column(run: Run) -> list[Cell]:
        record, chosen = run.folder.record, run.folder.tuned
        recipe = record.get("recipe") or {}
        return [
            Cell(clipped(str(record["model"]))),
            Cell(str(recipe.get("preset", "none"))),
            Cell(", ".join(chosen.mixture.signals)),
            Cell(f"{record['step']:,}"),
            number(charts.minutes(run.folder), 1),
            number(record.get("best_valid_mrr")),
        ]

    names = ("began with", "preset", "signals", "steps", "minutes", "best validation MRR")
    rows = [(Cell(n), a, b) for n, a, b in zip(names, column(own), column(other), strict=True)]
    return Table.of(
        f"This run, {clipped(_name(own))}, and the other, {clipped(_name(other))}",
        ("what", "this run", "the other"),
        rows,
    )
