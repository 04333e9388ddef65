"""List the triples that a graph lacks, best first; in parts that any number of processes make."""

from __future__ import annotations

import hashlib
import html
import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm.core import digests
from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import (
    ConfigError,
    DataError,
    NoProbabilitiesError,
    RunError,
    counted,
    printable,
)
from kgmlm.core.files import as_path, locked
from kgmlm.core.options import takes
from kgmlm.core.progress import Watcher, quiet_transformers, watcher_of
from kgmlm.core.results import Outcome, names_first
from kgmlm.core.tables import ENDS
from kgmlm.core.workers import Make, Workers
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.prediction.candidates import MANIFEST, Completer, Parts, Shard, asked_queries, sampled
from kgmlm.prediction.classify import classifier_for
from kgmlm.prediction.export import write_export
from kgmlm.prediction.listing import (
    Earlier,
    Listed,
    by_margin,
    by_probability,
    candidates_of,
    check_table,
    diverse,
    measured,
    read_list,
    write_list,
)
from kgmlm.prediction.options import CompleteOptions
from kgmlm.ranking.probability import TripleClassifier, plain
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.reasons import Reasons
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import RunFolder, graph_digests
from kgmlm.runs.opened import answering, constraints_of, open_folder, open_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.packs import find_pack
from kgmlm.runs.run import Run, path_of
from kgmlm.runs.tuned import MIXTURE, TREES
from kgmlm.runs.writing import check_result

if TYPE_CHECKING:
    import pandas as pd

MANY_QUERIES = 100_000  # queries above which fewer are proposed
MIN_PROBABILITY = 0.1  # the probability from which on triples are listed
SHOWN = 10  # the best triples, which are returned with their names and reasons
TABLES = {".csv": "csv", ".tsv": "tsv"}  # suffixes of lists that are not Parquet


def made_of(run: RunFolder) -> str:
    """A digest of the models, weights and graph of a run, as lists of its new triples have it."""
    weights = hashlib.sha256(run.contents[MIXTURE]).hexdigest()
    made = {**run.fingerprints, "weights": weights, "graph": graph_digests(run.record)}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """The queries of a completion and their options; the same plan has the same parts in any process.

    Attributes:
        run: the run's folder, or its pack.
        folder: where parts go.
        relations: labels of those that are asked about; None is all.
        known: the splits that are never listed.
        part_size: queries of a part.
        sample: so many queries, of each relation its share; 0 is all.
    """

    run: Path
    folder: Path
    options: RankingOptions
    top: int
    known: tuple[str, ...]
    relations: tuple[str, ...] | None
    batch_size: int
    part_size: int
    sample: int = 0

    @cached_property
    def opened(self) -> RunFolder:
        """The run."""
        return open_folder(self.run)

    @property
    def graph(self) -> KnowledgeGraph:
        """Its graph."""
        return self.opened.graph

    @cached_property
    def asked(self) -> IntArray:
        """Ids of the relations that are asked about."""
        if self.relations is None:
            return np.arange(len(self.graph.relations))
        return np.array(sorted(self.graph.relations.index[label] for label in self.relations), np.int64)

    @cached_property
    def queries(self) -> Queries:
        """All queries, in the order of the parts."""
        from kgmlm.ranking.constraints import Possible

        train, count = self.graph.splits["train"], len(self.graph.entities)
        possible = Possible.anything(len(self.graph.relations))
        possible = possible.met(*constraints_of(self.opened, self.options, self.graph))
        queries = asked_queries(
            train,
            count,
            self.asked,
            lambda relation, tails: possible.askable(relation, tails, count),
            self.options.typed,
        )
        return queries[sampled(queries, self.sample)] if self.sample else queries

    @cached_property
    def parts(self) -> Parts:
        """The folder of parts, laid where it is not there yet."""
        count = -(-len(self.queries) // self.part_size)
        return Parts.open(self.folder, count, self.about())

    def about(self) -> dict[str, Any]:
        """The values that parts depend on."""
        graph, listed = self.graph, self.options.candidates
        digest = hashlib.sha256()
        for split in dict.fromkeys(("train", "valid", *self.known)):
            digest.update(np.ascontiguousarray(graph.triples(split)).tobytes())
        for label in (*graph.entities.column("label"), *(r.label for r in graph.relations)):
            digest.update(label.encode() + b"\0")
        return {
            "kgmlm": "parts of a completion, format 2",
            "run": made_of(self.opened),
            "graph": digest.hexdigest(),
            "relations": None if self.relations is None else sorted(self.relations),
            "known": list(self.known),
            "top": self.top,
            **self.options.of_scores(),
            "candidates": None if listed is None else digests.sha256(Path(listed)),
            "batch_size": self.batch_size,
            "queries": len(self.queries),
            "part_size": self.part_size,
            **({"trees": True} if self.has_trees else {}),
            **({"sample": self.sample} if self.sample else {}),
            **({"given_back": True} if self.opened.record.get("given_back") else {}),
        }

    @property
    def has_trees(self) -> bool:
        """Whether trees rank the best candidates again."""
        return self.options.reranks and TREES in self.opened.tuned.stage_weights

    def of(self, number: int) -> Queries:
        """The queries of a part."""
        return self.queries[slice(number * self.part_size, (number + 1) * self.part_size)]

    def completer(self, watch: Watcher) -> Completer:
        """The opened model."""

        quiet_transformers()
        graph = answering(self.opened, self.graph)
        ranker = open_ranker(self.opened, self.options, graph)
        read_vectors(ranker, watch, self.batch_size)
        false = [graph.negatives[split] for split in self.known if split in graph.negatives]
        known = np.concatenate([*(graph.triples(split) for split in self.known), *false])  # true, or not
        index = FilterIndex(known, len(graph.entities))
        return Completer(
            plain(ranker, constrained=True), graph.context.answers, index, self.top, self.batch_size
        )

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return self.options.on_gpu

    def size(self, number: int) -> int:
        """Return how many queries a part has."""
        return min(self.part_size, len(self.queries) - number * self.part_size)

    def begin(self, watch: Watcher) -> Make[int]:
        """Return the function that makes missing parts; it returns their number of queries.

        Raises:
            RunError: when the folder of the parts is not seen here.
        """
        if not (self.folder / MANIFEST).is_file():
            raise RunError(
                f"{self.folder} is not seen on {platform.node()}: workers need the run and the output at the "
                "same paths, on storage that all machines share"
            )
        parts, completer = self.parts, self.completer(watch)

        def make(number: int, advance: Callable[[int], None]) -> int:
            queries = self.of(number)
            if not parts.path(number).is_file():
                parts.write(number, completer.part(queries, advance))
            return len(queries)

        return make

    def sent(self) -> Plan:
        """A copy for workers; :meth:`kgmlm.core.workers.Work.sent`."""
        folder, options = self.folder.absolute(), self.options.sent()
        return replace(self, run=self.run.absolute(), folder=folder, options=options)


class Completion(Outcome):
    """The manifest of what :func:`complete` listed, and the list in the file that it wrote.

    Prints as the file, the number of its triples, and the ten best.
    """

    def to_frame(self) -> pd.DataFrame:
        """All triples of the list, names first, as the file has them now.

        Raises:
            DataError: when the file is gone or no list.
        """
        return names_first(read_list(Path(self["output"]))[0].to_pandas())

    def __repr__(self) -> str:
        lines = [self._header()]
        for row in self["best"]:
            triple, sure = " | ".join(row[f"{end}_name"] for end in ENDS), row["probability"]
            lines.append(printable(triple if sure is None else f"{sure:6.1%}  {triple}"))
        return "\n".join(lines)

    def _header(self) -> str:
        return printable(f"<{counted(self['listed'], 'new triple')} in {self['output']}>")

    def _repr_html_(self) -> str:
        import pandas as pd

        best = names_first(pd.DataFrame(self["best"])).to_html(float_format="{:.4f}".format)
        return f"<p>{html.escape(self._header())}</p>{best}"


@takes(CompleteOptions)
def complete(run: Run | str | Path, options: CompleteOptions) -> Outcome:
    """List the triples that a run's graph lacks, the most probable first.

    It asks every (entity, relation, side) that the types of entities suggest, except those that training
    already answers for a relation with one answer per entity (``typed=False`` asks what training has,
    ``functional=False`` all of it). Parts are kept in ``OUTPUT.parts``: the same call resumes from them.
    Probabilities are those of :func:`kgmlm.calibrate`, which runs first if needed. If validation has too few
    triples to fit any, the best answer of each question is listed, by its margin above the second.

    Returns:
        The manifest, as a dict: settings, counts, what probabilities stand for, the highest one, the report;
        and ``best``, which is its table: the ten most probable triples with names and reasons.

    Raises:
        RunError: when the parts of another run or of other settings are there, a process was killed, or no
            cluster answers.
        ConfigError: for splits that do not go together.
        DataError: when the graph has no validation triples.
    """
    target, crew = as_path(options.output, "the output"), Workers(options.ray, options.workers)
    check_result(target)
    _check_replaced(target)
    part = Shard() if options.shard is None else Shard.parse(options.shard)
    folder = open_folder(path_of(run))
    ranking = replace(RankingOptions.of(options), runtime="torch")
    if tuple(folder.tuned.stage_weights) != (TREES,):
        ranking = replace(ranking, rerank=0)  # others would read each candidate
    plan = Plan(
        run=find_pack(path_of(run)) or folder.path,
        folder=target.with_name(f"{target.name}.parts"),
        options=ranking,
        top=options.top,
        known=_known(folder.graph, _listed(options.known), options.report),
        relations=_labels(folder.graph, options.relations),
        batch_size=options.batch_size,
        part_size=options.part_size,
        sample=options.sample,
    )
    earlier = _earlier(options.since, target, folder.graph, _least(options))
    lock = locked(target, "complete") if options.shard is None else nullcontext()
    with watcher_of(options.progress) as watch, lock:
        seconds, scored = _score(plan, part, crew, watch)
        made = {"queries_scored": scored, "seconds": round(seconds, 1)}
        if options.shard is None:
            plan.parts.sweep()
            return Completion(_list(plan, target, options, earlier, watch) | made)
        parts = {"parts": plan.parts.count, "missing": len(plan.parts.missing())}
        return Outcome({"shard": options.shard, **parts, **made})


def _listed(names: Sequence[str] | str | None) -> list[str] | None:
    """Names, one by one or between commas."""
    if names is None:
        return None
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _check_replaced(target: Path) -> None:
    """Refuse to replace a file that is no list of new triples, and names of other formats."""
    if target.is_file() and target.stat().st_size:
        try:
            if target.suffix in TABLES:
                check_table(target)
            else:
                read_list(target)
        except DataError:
            raise RunError(
                f"{target} exists and is no list of new triples; choose another --output"
            ) from None
    if target.suffix not in ("", ".parquet", *TABLES) and (target.is_file() or not target.exists()):
        raise ConfigError(
            f"{target} does not end in .parquet, .csv or .tsv; `kgmlm export` makes other formats of Parquet"
        )


def _known(graph: KnowledgeGraph, known: Sequence[str] | None, report: str | None) -> tuple[str, ...]:
    """The splits that are never listed, in the graph's order."""
    graph.triples("valid")  # says how to make one
    splits = set(graph.splits if known is None else ("train", *known))
    for split in (*splits, *([report] if report else [])):
        graph.triples(split)
    if report in splits:
        how = (
            "name the others: --known train,valid"
            if known is None
            else f"leave it out of --known for {report}"
        )
        raise ConfigError(f"{report} is known, so nothing of it can be listed; {how}")
    return tuple(split for split in graph.splits if split in splits)


def _labels(graph: KnowledgeGraph, relations: Sequence[str] | str) -> tuple[str, ...] | None:
    """Labels of some relations, each once, by labels or names; None of all."""
    if not relations:
        return None
    find = Resolver(graph)
    relations = [relations] if isinstance(relations, str) else relations
    return tuple(graph.relations[r].label for r in sorted({find.relation(name) for name in relations}))


def _score(plan: Plan, shard: Shard, workers: Workers, watch: Watcher) -> tuple[float, int]:
    """Make the missing parts of a shard; return how long it took and how many queries were asked."""
    missing = plan.parts.missing(shard)
    whole = [n for n in range(plan.parts.count) if shard.has(n)]
    total, scored = (sum(plan.size(n) for n in numbers) for numbers in (whole, missing))
    if scored < total:
        watch("asking queries", total - scored, total)
        done = len(whole) - len(missing)
        watch.tell(
            f"{done:,} of {len(whole):,} parts are there; continuing" if missing else "all parts are there"
        )
    if scored > MANY_QUERIES and plan.options.typed and plan.options.candidates is None:
        watch.tell(
            f"{scored:,} queries: `--no-typed` asks only those that training has, `--sample 2000` some, to "
            "see how long all take"
        )
    began = time.monotonic()
    if missing:
        with closing(workers.made(plan, missing, watch, lambda n: watch("asking queries", n, total))) as made:
            for _ in made:
                pass
    return time.monotonic() - began, scored


def _least(wanted: CompleteOptions) -> float:
    """The probability from which on triples are listed."""
    return MIN_PROBABILITY if wanted.min_probability is None else wanted.min_probability


def _list(
    plan: Plan, target: Path, wanted: CompleteOptions, earlier: Earlier | None, watch: Watcher
) -> dict[str, Any]:
    """Merge all parts and write the list; return its manifest."""
    graph = plan.graph
    candidates = candidates_of(plan.parts)
    least = _least(wanted)
    always = SHOWN if wanted.min_probability is None and earlier is None else 0
    ranker, classifier, why = _opened(plan, watch)
    if classifier is None:
        watch.tell(f"{why}: the best answer of each question is listed, by its margin above the second best")
        best = by_margin(candidates)
        probabilities: dict[str, Any] = {"fitted": False}
    else:
        advance = partial(watch, "asking from both sides")
        best = by_probability(candidates, classifier, least, always, plan.batch_size, advance)
        stands_for = classifier.calibration.stands_for(graph.validation)
        probabilities = {"fitted": True, "stands_for": stands_for, "lacking": classifier.calibration.lacking}
    manifest: dict[str, Any] = {
        **plan.about(),
        "made_by": str(plan.run),
        "min_probability": least,
        "listed": len(best),
        "highest": best.highest,
        "probabilities": probabilities,
    }
    if earlier is not None:
        known = np.concatenate([graph.triples(split) for split in plan.known])
        manifest["since"] = earlier.became(best, graph, known)
        best = best[earlier.new(best, graph)]
        manifest["listed"] = len(best)
    if wanted.diverse:
        best = diverse(best)
        manifest["diverse"] = True
    if wanted.report is not None:
        manifest["report"] = measured(best, graph, wanted.report, plan.asked)
    because = Reasons.of(ranker)
    as_table = target.suffix in TABLES
    file = plan.folder / "list.parquet" if as_table else target
    write_list(
        file, graph, best, manifest, because if wanted.explain else None,
        lambda n: watch("writing triples", n, len(best)),
    )  # fmt: skip
    if as_table:
        write_export(read_list(file)[0], target, TABLES[target.suffix])
        file.unlink()
    return {"output": str(target), **manifest, "best": _best(graph, best, because)}


def _earlier(
    given: Sequence[str | Path] | str | Path, target: Path, graph: KnowledgeGraph, least: float
) -> Earlier | None:
    """What earlier lists have, but for the one that is written now; None where none are given."""
    paths = [
        as_path(path, "an earlier list") for path in ([given] if isinstance(given, str | Path) else given)
    ]
    if not paths:
        return None
    lists = list[Path]()
    for path in paths:
        if not path.is_dir():
            lists.append(path)
            continue
        some = (p for p in path.iterdir() if p.suffix in (".parquet", *TABLES) and p.name[0] != ".")
        lists += sorted(p for p in some if p.resolve() != target.resolve())
    return Earlier.of((read_list(path)[0] for path in lists), graph, least)


def _opened(plan: Plan, watch: Watcher) -> tuple[Ranker, TripleClassifier | None, str]:
    """The run's ranker and its triple classifier; None and the reason if validation has too few triples."""
    options, graph = RankingOptions(device=plan.options.device).plain(), answering(plan.opened, plan.graph)
    try:
        classifier = classifier_for(plan.opened, options, graph, plan.batch_size, watch)
    except NoProbabilitiesError as error:
        ranker = open_ranker(plan.opened, options, graph)
        read_vectors(ranker, watch, plan.batch_size)
        return ranker, None, str(error)
    classifier = classifier if "valid" in plan.known else classifier.without_validation()
    return classifier.ranker, classifier, ""


def _best(graph: KnowledgeGraph, best: Listed, because: Reasons) -> list[dict[str, Any]]:
    """The best triples, with names and reasons."""
    some = best[np.arange(min(SHOWN, len(best)))]
    rows = []
    texts = zip(graph.labeled(some.triples), graph.named(some.triples), strict=True)
    for n, (labels, names) in enumerate(texts):
        row: dict[str, Any] = dict(zip(ENDS, labels, strict=True))
        row |= {f"{end}_name": name for end, name in zip(ENDS, names, strict=True)}
        row["probability"] = float(some.probability[n]) if best.has_probabilities else None
        row["because"] = because(tuple(some.triples[n].tolist()))
        rows.append(row)
    return rows
