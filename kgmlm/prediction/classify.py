"""Triple classification: how probable triples, or the relations of a pair, are.

Shapes: n triples, F features of a side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.errors import ConfigError, QueryError, check_numbers, check_whole
from kgmlm.core.files import as_path
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.core.results import Outcome, Result
from kgmlm.core.tables import ENDS
from kgmlm.graphs.cards import card_names
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.given import GivenTriples, labeled_triples
from kgmlm.graphs.graph import Dataset, KnowledgeGraph
from kgmlm.prediction.calibration import LACKING, SIDES, TRIPLES, Calibration
from kgmlm.prediction.features import FEATURES, features
from kgmlm.ranking.likely import temperature_of
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.opened import open_folder, open_ranker
from kgmlm.runs.options import ComputeKeywords, RankingOptions
from kgmlm.runs.run import Run, open_run, path_of, writes_run

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.graphs.given import Triples


@dataclass(frozen=True, eq=False)
class Classified(Result):
    """Probabilities of n triples.

    Attributes:
        graph: the graph that the ids refer to.
        triples: ``(n, 3)``.
        known: ``(n,)`` which of them training has: they are true, and what the run says of them proves
            nothing.
        features: ``(n, 2, F)``, not a number for known ones.
        relations: ``(n,)`` ids of relations in the calibration, -1 for new ones.
        probabilities: ``(n,)``, not a number for known ones.
        decided: ``(n,)`` which of them are called true.
        labels: ``(n,)`` which of them a file says are true; None without such a file.
        prior: the share of true triples that was assumed.
        calibration: the fitted model that gives the probabilities.
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

    def __repr__(self) -> str:
        return f"<{len(self):,} triples classified, {int(self.decided.sum()):,} of them as true>"

    def __getitem__(self, rows: IntArray) -> Classified:
        arrays: dict[str, Any] = {
            key: value for key, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **{key: value[rows] for key, value in arrays.items()})

    def to_frame(self) -> pd.DataFrame:
        """A row per triple: names, ``probability``, ``true`` (what is decided), ``known``, ``label`` where a
        file had one, and labels.
        """
        import pandas as pd

        names = pd.DataFrame(self.graph.named(self.triples), columns=[f"{end}_name" for end in ENDS])
        table = names.assign(probability=self.probabilities, true=self.decided, known=self.known)
        if self.labels is not None:
            table["label"] = self.labels
        return table.join(pd.DataFrame(self.graph.labeled(self.triples), columns=list(ENDS)))

    def explained(self) -> list[dict[str, Any] | None]:
        """The parts of each probability, None for known triples: for each side its features and what they
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
        names = self.graph.named(self.triples)
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
                "head_name": names[n][0],
                "relation_name": names[n][1],
                "tail_name": names[n][2],
            }
            if self.labels is not None:
                row["label"] = bool(self.labels[n])
            rows.append(row if parts[n] is None else row | {"parts": parts[n]})
        return rows

    @property
    def measured(self) -> dict[str, Any] | None:
        """The figures of the probabilities against labels, where there are any: as of
        :func:`kgmlm.evaluation.metrics.measured`, by the triples that training has not.
        """
        if self.labels is None or self.known.all():
            return None
        from kgmlm.evaluation.metrics import measured

        new = ~self.known
        labels = self.labels[new]
        found = measured(labels, self.probabilities[new], np.ones(len(labels)))
        return found | {
            "accuracy": float((self.decided[new] == labels).mean()),
            "known": int(self.known.sum()),
        }


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
        as_classified(calibration, graph, triples, known[rows], features[rows], prior, by_relation)
        for rows, (triples, prior, by_relation) in zip(parts, asked, strict=True)
    ]


def as_classified(
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
        numbers: the id of each relation of the graph in the calibration, or -1; None: ids are the same.
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
    """Return which triples training has, and the features of the others."""
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


@writes_run
def calibrate(
    run: Run | str | Path,
    *,
    max_triples: int = TRIPLES,
    lacking: float = LACKING,
    seed: int = 0,
    precision: Literal["fp32", "bf16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> Outcome:
    """Fit probabilities to a run's scores on validation, and keep them with the run.

    Two kinds: that a given triple is true, where as many are true as false (:func:`classify`); and that a
    candidate of a ranked list is found in a further hidden set (:meth:`Run.rank <kgmlm.Run.rank>` and the
    explorer), with the second stages of the run and without.

    Args:
        max_triples: a seeded sample of validation triples, and of queries that validation answers; 0 is all
            triples and 10,000 queries.
        lacking: how many true triples neither training nor validation has, per validation triple: the hidden
            set of which the probabilities of ranked answers are shares. 0 calls every corrupted triple false,
            and gives ranked answers none.
        seed: of the sample, and of the negatives.

    Returns:
        The figures on validation, as of :func:`~kgmlm.evaluation.metrics.measured`, by two-fold
        cross-fitting; and ``lists``, of each way of ranking how many answers were expected and found, by
        four-fold cross-fitting.

    Raises:
        RunError: when there are too few validation triples.
    """
    check_numbers(max_triples=(max_triples, 0), seed=(seed, 0), batch_size=(batch_size, 1))
    if not 0 <= lacking < float("inf"):
        raise ConfigError(f"--lacking is a number from 0 on, not {lacking:g}")
    folder = open_folder(path_of(run))
    watch = watcher_of(progress)
    from kgmlm.prediction.calibration import fitted, save_calibration

    found, figures = fitted(
        folder, most=max_triples, lacking=lacking, seed=seed, precision=precision,
        batch_size=batch_size, device=device, watch=watch,
    )  # fmt: skip
    save_calibration(folder, found)
    return Outcome({**figures, "lists": [{"stages": list(x.stages), **x.valid} for x in found.lists]})


def measure_probabilities(
    run: Run | str | Path,
    *,
    split: str = "test",
    graph: Dataset | None = None,
    allow_seen_entities: bool = False,
    allow_new_relations: bool = False,
    skip_header: bool = False,
    max_triples: int = TRIPLES,
    seed: int = 0,
    precision: Literal["fp32", "bf16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> Outcome:
    """Measure a run's probabilities on triples that they were not fitted to.

    Measures what :func:`calibrate` has kept, and runs it first if needed.

    Args:
        split: the split to measure on, with fresh negatives.
        graph: another dataset or folder, whose entities the run has never seen; its training triples are
            context, and it is refused as :func:`~kgmlm.evaluate` refuses it.
        allow_seen_entities, allow_new_relations: lift checks of ``graph``.
        skip_header: leave out the first line of each of the graph's files of triples.
        max_triples: a seeded sample of the split; 0 is all.

    Returns:
        The figures, as of :func:`kgmlm.evaluation.metrics.measured`, with ``graph`` and ``split``.

    Raises:
        ConfigError: for options that do not go together, and for the split that was fitted to.
        DataError: when the graph has no such split, or the run knows its answers.
    """
    check_numbers(max_triples=(max_triples, 0), seed=(seed, 0), batch_size=(batch_size, 1))
    if graph is None and (allow_seen_entities or allow_new_relations or skip_header):
        raise ConfigError("--allow-seen-entities, --allow-new-relations and --skip-header go with --graph")
    if graph is None and split in ("train", "valid"):
        raise ConfigError(
            f"probabilities are fitted to validation, so {split} says nothing of them; name test"
        )
    folder = open_folder(path_of(run))
    watch = watcher_of(progress)
    allowed = {"allow_seen_entities": allow_seen_entities, "allow_new_relations": allow_new_relations}
    asked = folder.graph
    if graph is not None:
        from kgmlm.core.config import Protocol
        from kgmlm.evaluation.evaluate import scope_of

        other, protocol = (
            load_graph(graph, skip_header=skip_header),
            Protocol(split=split, candidates="graph"),
        )
        asked = scope_of(folder, asked, other, protocol, allowed, watch)[0].graph
    asked.triples(split)  # is there, or this says so before the heavy work
    calibration = _calibration(folder, precision, batch_size, device, watch)
    from kgmlm.prediction.calibration import measured_on

    options = RankingOptions(rerank=0, retrieve=0, device=device, precision=precision, runtime="torch")
    with watch:
        ranker = _ranker(folder, options, asked, batch_size, watch)
        found = measured_on(
            calibration, ranker, asked, split, _numbers(folder.graph, asked),
            most=max_triples, seed=seed, batch_size=batch_size, advance=watch,
        )  # fmt: skip
    return Outcome(found)


def classify(
    run: Run | str | Path,
    triples: Triples | str | Path,
    *,
    graph: Dataset | None = None,
    entities: EntityTable | pd.DataFrame | str | Path | None = None,
    entity_triples: Triples | str | Path = (),
    allow_new_relations: bool = False,
    prior: float = 0.5,
    relation_thresholds: bool = False,
    skip_header: bool = False,
    batch_size: int = 64,
    progress: bool | Watcher | Advance = True,
    **keywords: Unpack[ComputeKeywords],
) -> Classified:
    """The probability that triples are true.

    Uses the run's scores from both sides, without second stages; runs :func:`calibrate` first if needed.

    Args:
        triples: (head, relation, tail) by label or name, a list or a DataFrame; or a file of them without a
            header. A fourth column, ``label`` in a DataFrame, may have 1 for true and -1 or 0 for false, to
            compare with.
        graph: another dataset or folder, whose entities compete; its training triples, too, count as known.
        entities, entity_triples: further entities that triples may have, and what is known of them, as of
            :meth:`kgmlm.runs.run.Run.with_entities`.
        allow_new_relations: read relations that the run does not have from their names.
        prior: the share of true triples among those that are asked about.
        relation_thresholds: decide by a threshold of each relation, chosen on validation, instead of by .5.
        skip_header: leave out the first line of the file.
        keywords: ``precision``, ``device`` and ``runtime``, as of
            :class:`~kgmlm.runs.options.RankingOptions`; by default as the run was opened, in fp32.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
        DataError: when the file is no such table.
        RunError: when nothing is fitted and there is nothing to fit to.
    """
    _check_asked(prior, batch_size)
    given, watch = _read(triples, skip_header), watcher_of(progress)
    for note in given.unread_notes():
        watch.tell(note)
    opened = run if isinstance(run, Run) else open_run(run)
    folder = opened.folder
    opened = opened if graph is None else Run(folder, opened.options, _other(graph, skip_header))
    if entities is not None:
        opened = opened.with_entities(entities, entity_triples, progress=watch)
    elif isinstance(entity_triples, str | Path) or len(labeled_triples(entity_triples)):
        raise ConfigError("--entity-triples goes with --entities")
    asked, ids = _resolved(opened, given, allow_new_relations)
    numbers = _numbers(folder.graph, asked)
    if not allow_new_relations:
        _check_relations(asked, ids, numbers, given)
    options = _options(opened, **keywords)
    calibration = _calibration(folder, options.precision, batch_size, keywords.get("device"), watch)
    learned = np.zeros(len(ids), np.bool_) if graph is None else _learned(folder.graph, asked, ids)
    known, features = _features(folder, options, asked, ids, batch_size, watch, learned)
    return as_classified(
        calibration, asked, ids, known, features, prior, relation_thresholds, given.true, numbers
    )


def _other(graph: Dataset, skip_header: bool) -> KnowledgeGraph:
    """Another graph; a built-in one has no headers."""
    is_file = isinstance(graph, str | Path) and str(graph) not in card_names()
    return load_graph(graph, skip_header=skip_header and is_file)


def _numbers(trained: KnowledgeGraph, graph: KnowledgeGraph) -> IntArray:
    """The number that each relation of a graph has in a run's graph; -1 where it has none."""
    return np.array([trained.relations.index.get(r.label, -1) for r in graph.relations], np.int64)


def _check_relations(graph: KnowledgeGraph, ids: IntArray, numbers: IntArray, given: GivenTriples) -> None:
    """Refuse triples of a relation that the run was not trained on."""
    if (unknown := np.flatnonzero(numbers[ids[:, 1]] < 0)).size:
        relation = graph.relations[int(ids[unknown[0], 1])].label
        raise QueryError(
            f"{given.where}{given.start + int(unknown[0])}: the run was not trained on the relation "
            f"'{relation}'; --allow-new-relations reads it from its name"
        )


def _learned(trained: KnowledgeGraph, graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Return which triples of a graph a run's training has, by their labels."""
    from kgmlm.evaluation.task import held

    return held(graph.labels(triples), (trained,), "train")


def rank_relations(
    run: Run | str | Path,
    head: str,
    tail: str,
    *,
    k: int = 10,
    novel: bool = False,
    prior: float = 0.5,
    precision: Literal["fp32", "bf16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> Classified:
    """The k most probable relations of a head and a tail; those that training has go first.

    Args:
        novel: leave out triples that the graph has in any split.

    Raises:
        QueryError: for an unknown or ambiguous entity.
        RunError: as of :func:`classify`.
    """

    _check_asked(prior, batch_size)
    check_whole("k", k, 1)
    opened = run if isinstance(run, Run) else open_run(run)
    find, graph = opened.resolver, opened.graph
    count = len(graph.relations)
    ids = np.stack(
        [np.full(count, find.entity(head)), np.arange(count), np.full(count, find.entity(tail))], 1
    )
    if novel:
        ids = ids[~graph.filter_index.has(ids)]
    watch = watcher_of(progress)
    calibration = _calibration(opened.folder, precision, batch_size, device, watch)
    options = _options(opened, precision=precision, device=device)
    known, features = _features(opened.folder, options, graph, ids, batch_size, watch)
    found = as_classified(calibration, graph, ids, known, features, prior)
    return found[np.argsort(-np.where(known, 2.0, found.probabilities), kind="stable")[:k]]


def _calibration(
    folder: RunFolder, precision: str, batch_size: int, device: str | None, watch: Watcher
) -> Calibration:
    """The calibration of a run: read, or fitted now and kept where the run can be written."""
    from kgmlm.prediction.calibration import fitted, read_calibration

    found = read_calibration(folder)
    if found is not None:
        return found
    path = folder.path
    if folder.is_unpacked or not os.access(path / "model", os.W_OK):
        how = "`kgmlm calibrate RUN` keeps them, for a pack `kgmlm pack PACK --calibrate --output NEW`"
        watch.tell(f"{path} cannot be written, so its probabilities are fitted now and not kept; {how}")
        return fitted(
            folder, precision=precision, batch_size=batch_size, device=device, lists=False, watch=watch
        )[0]
    watch.tell(f"{path} has no probabilities yet: fitting them on validation, as `kgmlm calibrate` does")
    precise: Literal["fp32", "bf16"] = "bf16" if precision == "bf16" else "fp32"
    calibrate(path, precision=precise, batch_size=batch_size, device=device, progress=watch)
    made = read_calibration(open_folder(path))
    assert made is not None
    return made


def _options(run: Run, **keywords: Unpack[ComputeKeywords]) -> RankingOptions:
    """The options of the plain first stage, which probabilities go by."""
    plain = run.options.plain()
    return plain.given(**keywords)


def _ranker(
    folder: RunFolder, options: RankingOptions, graph: KnowledgeGraph, batch_size: int, watch: Watcher
) -> Ranker:
    """The opened model over a graph, all entities read."""
    ranker = open_ranker(folder, options, graph, watch.tell)
    read_vectors(ranker, watch, batch_size)
    return ranker


def _features(
    folder: RunFolder,
    options: RankingOptions,
    graph: KnowledgeGraph,
    triples: IntArray,
    batch_size: int,
    watch: Watcher,
    learned: BoolArray | None = None,
) -> tuple[BoolArray, FloatArray]:
    """Return which triples training has, and the features of the others.

    Args:
        learned: which of them the run has learned on another graph.
    """

    known = graph.context.answers.has(triples)
    known = known if learned is None else known | learned
    found = np.full((len(triples), len(SIDES), len(FEATURES)), np.nan)
    if not known.all():
        with watch:
            ranker = _ranker(folder, options, graph, batch_size, watch)
            advance = partial(watch, "classifying")
            _, found[~known] = features_of(ranker, graph, triples[~known], batch_size, advance)
    return known, found


def _check_asked(prior: float, batch_size: int) -> None:
    check_numbers(batch_size=(batch_size, 1))
    if not isinstance(prior, int | float) or not 0 < prior < 1:
        raise ConfigError(f"--prior is a share above 0 and below 1, not {prior}")


def _read(triples: Triples | str | Path, skip_header: bool) -> GivenTriples:
    """Triples as they were given; a file of them has no header, but where one is to be skipped."""
    if not isinstance(triples, str | Path):
        return GivenTriples.of(triples)
    from kgmlm.graphs.datasets import read_labeled

    table, true = read_labeled(as_path(triples, "the file of triples"), skip_header=skip_header)
    return GivenTriples.of_table(table, str(triples), true)


def _resolved(run: Run, given: GivenTriples, allow_new_relations: bool) -> tuple[KnowledgeGraph, IntArray]:
    """Ids of triples in a run's graph, which has the new relations if that is allowed."""
    graph, find = run.graph, run.resolver
    entities, relations = graph.entities.index, dict(graph.relations.index)
    ids = np.empty((len(given.rows), 3), np.int64)
    new: list[str] = []
    for n, (where, (head, relation, tail)) in enumerate(given.numbered()):
        try:
            for at, text in ((0, head), (2, tail)):
                ids[n, at] = entities[text] if text in entities else find.entity(text)
            if relation not in relations:
                following = len(graph.relations) + len(new)
                relations[relation] = _relation(find, relation, following, allow_new_relations)
                if relations[relation] == following:
                    new.append(relation)
            ids[n, 1] = relations[relation]
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
    return (graph.with_relations(new) if new else graph), ids


def _relation(find: Any, text: str, new: int, allow_new: bool) -> int:
    """The number of a relation by its name, or the next one for one that is new."""
    try:
        found: int = find.relation(text)
        return found
    except QueryError as error:
        if allow_new:
            return new
        raise QueryError(f"{error}; --allow-new-relations reads it from its name") from None
