"""Triple classification: how probable triples, or the relations of a pair, are.

Shapes: n triples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.errors import ConfigError, NoProbabilitiesError, QueryError
from kgmlm.core.files import as_path
from kgmlm.core.options import takes
from kgmlm.core.progress import Watcher, watcher_of
from kgmlm.core.results import Outcome, Result
from kgmlm.core.tables import ENDS
from kgmlm.graphs.cards import card_names
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.given import GivenTriples, labeled_triples
from kgmlm.graphs.graph import Dataset, KnowledgeGraph
from kgmlm.prediction.options import CalibrateOptions, ClassifyOptions, RankRelationsOptions
from kgmlm.ranking.probability import (
    FEATURES,
    SIDES,
    STATES,
    AskedTriples,
    Calibration,
    TripleClassifier,
)
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.opened import answering, classifier_by, open_folder, open_run_model
from kgmlm.runs.options import BATCH_SIZE, RankingOptions
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
        asked: what the run says of each, from both sides; not a number for known ones.
        probabilities: ``(n,)`` the share of such triples in a further hidden set; not a number for known
            ones, nor for new entities where validation had too few of these.
        if_half_true: ``(n,)`` the same in a list of which half, or ``prior``, is true.
        labels: ``(n,)`` which of them a file says are true; None without such a file.
        prior: the share of true triples in the list.
        calibration: the fitted model that gives the probabilities.
    """

    graph: KnowledgeGraph
    triples: IntArray
    known: BoolArray
    asked: AskedTriples
    probabilities: FloatArray
    if_half_true: FloatArray
    labels: BoolArray | None
    prior: float
    calibration: Calibration

    @property
    def decided(self) -> BoolArray:
        """The triples that are classified as true: known ones, and those with .5 or more if half are true."""
        decided: BoolArray = self.known | (self.if_half_true >= 0.5)
        return decided

    def __len__(self) -> int:
        return len(self.triples)

    def __repr__(self) -> str:
        return f"<{len(self):,} triples classified, {int(self.decided.sum()):,} of them as true>"

    def __getitem__(self, rows: IntArray) -> Classified:
        parts = ("triples", "known", "asked", "probabilities", "if_half_true")
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, **{name: getattr(self, name)[rows] for name in parts}, labels=labels)

    def to_frame(self) -> pd.DataFrame:
        """A row per triple: names, ``probability``, ``probability_if_half_true``, ``true`` (what is decided),
        ``known``, ``label`` where a file had one, and labels.
        """
        import pandas as pd

        names = pd.DataFrame(self.graph.named(self.triples), columns=[f"{end}_name" for end in ENDS])
        table = names.assign(
            probability=self.probabilities,
            probability_if_half_true=self.if_half_true,
            true=self.decided,
            known=self.known,
        )
        if self.labels is not None:
            table["label"] = self.labels
        return table.join(pd.DataFrame(self.graph.labeled(self.triples), columns=list(ENDS)))

    def explained(self) -> list[dict[str, Any] | None]:
        """The parts of each probability, None for known triples: for each side its score, rank, margin and
        softmax, its state, and what it adds to the log odds of being true; what is added for the relation
        and both states, and by beta calibration.
        """
        regression = self.calibration.regression
        (intercepts, added), log_odds = regression.parts(self.asked), regression.log_odds(self.asked)
        adds = added.reshape(self.asked.features.shape).sum(2)
        explained: list[dict[str, Any] | None] = []
        for n in range(len(self)):
            if self.known[n]:
                explained.append(None)
                continue
            sides = {}
            for i, side in enumerate(SIDES):
                values = dict(zip(FEATURES, self.asked.features[n, i].tolist(), strict=True))
                sides[side] = {
                    "score": values["score"],
                    "rank": 1 / values["reciprocal_rank"],
                    "margin": values["margin"],
                    "softmax": float(np.exp(values["log_softmax"])),
                    "state": STATES[self.asked.states[n, i]],
                    "adds": float(adds[n, i]),
                }
            scaled = float(log_odds[n] - intercepts[n] - adds[n].sum())
            explained.append(
                {
                    **sides,
                    "relation": {"adds": float(intercepts[n])},
                    "calibration": {"adds": scaled},
                    "log_odds": float(log_odds[n]),
                }
            )
        return explained

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
                "probability": _number(self.probabilities[n]),
                "probability_if_half_true": _number(self.if_half_true[n]),
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
        return measured(labels, self.if_half_true[new], np.ones(len(labels))) | {
            "accuracy": float((self.decided[new] == labels).mean()),
            "known": int(self.known.sum()),
        }


def _number(value: float) -> float | None:
    """A number, or None for what is none."""
    return None if value != value else float(value)


def judged(
    classifier: TripleClassifier,
    graph: KnowledgeGraph,
    lists: Sequence[tuple[IntArray, float]],
    *,
    learned: BoolArray | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> list[Classified]:
    """The probabilities of several lists of triples at once; they share forward passes.

    Args:
        graph: the classifier's.
        lists: of each the triples ``(n, 3)`` and the prior.
        learned: which of all the triples the run has learned on another graph.
    """
    ids = np.concatenate([np.zeros((0, 3), np.int64), *(triples for triples, _ in lists)])
    known = classifier.ranker.context.answers.has(ids)
    known = known if learned is None else known | learned
    asked = AskedTriples.unasked(len(ids))
    if not known.all():
        asked = asked.replaced(~known, classifier.ask(ids[~known], batch_size, advance))
    ends = np.cumsum([len(triples) for triples, _ in lists]).tolist()
    made, calibration = [], classifier.calibration
    for end, (triples, prior) in zip(ends, lists, strict=True):
        rows = np.arange(end - len(triples), end)
        own = asked[rows]
        sure, in_list = classifier.probabilities(own), classifier.in_list(own, prior)
        made.append(Classified(graph, triples, known[rows], own, sure, in_list, None, prior, calibration))
    return made


@writes_run
@takes(CalibrateOptions)
def calibrate(run: Run | str | Path, options: CalibrateOptions) -> Outcome:
    """Fit the probabilities of triples to validation, and keep them with the run.

    Returns:
        The figures on validation, each quarter by a fit to the others: under ``held out`` how many triples
        were expected and found at or above each probability; under ``half`` the figures of
        :func:`~kgmlm.evaluation.metrics.measured` where half of the triples are true.

    Raises:
        RunError: when there are too few validation triples.
    """
    folder = open_folder(path_of(run))
    from kgmlm.prediction.calibration import fitted, save_calibration

    made = fitted(
        folder, most=options.max_triples, lacking=options.lacking, seed=options.seed,
        batch_size=BATCH_SIZE, device=options.device, watch=watcher_of(options.progress),
    )  # fmt: skip
    save_calibration(folder, made)
    return Outcome(made.chosen_by["valid"])


@takes(ClassifyOptions)
def classify(run: Run | str | Path, options: ClassifyOptions) -> Classified:
    """The probability that triples are true.

    Each is asked for from both sides, by the first stage and by trees where these are the only second stage.
    :func:`calibrate` runs first if needed.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
        DataError: when the file is no such table.
        RunError: when nothing is fitted and there is nothing to fit to.
    """
    given, watch = _read(options.triples, options.skip_header), watcher_of(options.progress)
    for note in given.unread_notes():
        watch.tell(note)
    opened = run if isinstance(run, Run) else open_run(run)
    folder = opened.folder
    if options.graph is not None:
        opened = Run(folder, opened.options, _other(options.graph, options.skip_header))
    if options.entities is not None:
        opened = opened.with_entities(options.entities, options.entity_triples, progress=watch)
    elif isinstance(options.entity_triples, str | Path) or len(labeled_triples(options.entity_triples)):
        raise ConfigError("--entity-triples goes with --entities")
    asked, ids = _resolved(opened, given, options.allow_new_relations)
    if not options.allow_new_relations:
        _check_relations(folder.graph, asked, ids, given)
    learned = None if options.graph is None else _learned(folder.graph, asked, ids)
    ranking = opened.options.updated(options).plain()
    asked = asked if options.graph is not None else answering(folder, asked)
    classifier = classifier_for(folder, ranking, asked, BATCH_SIZE, watch)
    if given.true is not None:  # what is known of validation would tell its true triples from the false ones
        watch.tell("the list has labels: probabilities use training alone, as if validation were unknown")
        classifier = classifier.without_validation()
    with watch:
        (classified,) = judged(
            classifier, asked, [(ids, options.prior)], learned=learned, batch_size=BATCH_SIZE,
            advance=partial(watch, "classifying"),
        )  # fmt: skip
    return replace(classified, labels=given.true)


def _other(graph: Dataset, skip_header: bool) -> KnowledgeGraph:
    """Another graph; a built-in one has no headers."""
    is_file = isinstance(graph, str | Path) and str(graph) not in card_names()
    return load_graph(graph, skip_header=skip_header and is_file)


def _check_relations(
    trained: KnowledgeGraph, graph: KnowledgeGraph, ids: IntArray, given: GivenTriples
) -> None:
    """Refuse triples of a relation that the run was not trained on."""
    for n, relation in enumerate(ids[:, 1].tolist()):
        label = graph.relations[relation].label
        if label not in trained.relations.index:
            raise QueryError(
                f"{given.where}{given.start + n}: the run was not trained on the relation '{label}'; "
                "--allow-new-relations reads it from its name"
            )


def _learned(trained: KnowledgeGraph, graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Return which triples of a graph a run's training has, by their labels."""
    from kgmlm.evaluation.task import held

    return held(graph.labels(triples), (trained,), "train")


@takes(RankRelationsOptions)
def rank_relations(run: Run | str | Path, options: RankRelationsOptions) -> Classified:
    """The k most probable relations of a head and a tail; those that training has go first.

    Raises:
        QueryError: for an unknown or ambiguous entity.
        RunError: as of :func:`classify`.
    """

    opened = run if isinstance(run, Run) else open_run(run)
    find, graph = opened.resolver, opened.graph
    count = len(graph.relations)
    head, tail = find.entity(options.head), find.entity(options.tail)
    ids = np.stack([np.full(count, head), np.arange(count), np.full(count, tail)], 1)
    if options.novel:
        ids = ids[~graph.filter_index.has(ids)]
    watch = watcher_of(options.progress)
    ranking = opened.options.updated(options).plain()
    graph = answering(opened.folder, graph)
    classifier = classifier_for(opened.folder, ranking, graph, BATCH_SIZE, watch)
    with watch:
        (classified,) = judged(
            classifier, graph, [(ids, options.prior)], batch_size=BATCH_SIZE,
            advance=partial(watch, "classifying"),
        )  # fmt: skip
    order = np.where(classified.known, 2.0, np.nan_to_num(classified.probabilities, nan=-1.0))
    return classified[np.argsort(-order, kind="stable")[: options.k]]


def classifier_for(
    folder: RunFolder, options: RankingOptions, graph: KnowledgeGraph, batch_size: int, watch: Watcher
) -> TripleClassifier:
    """The classifier of a graph's triples, with all entities read; fitted now if it was not yet.

    Raises:
        RunError: when nothing is fitted and there is nothing to fit to.
    """
    folder, calibration = _calibrated(folder, batch_size, options.device, watch)
    opened = open_run_model(folder, options, graph, watch.tell)
    read_vectors(opened.ranker, watch, batch_size)
    return classifier_by(opened, calibration)


def _calibrated(
    folder: RunFolder, batch_size: int, device: str | None, watch: Watcher
) -> tuple[RunFolder, Calibration]:
    """A run with its calibration: read, or fitted now and kept where the run can be written."""
    path = folder.path
    why = f"{path} has no probabilities yet"
    try:
        if (calibration := folder.calibration) is not None:
            return folder, calibration
    except NoProbabilitiesError as error:  # they are of another state of the run
        why = str(error).partition(";")[0]
    if folder.is_unpacked or not os.access(path / "model", os.W_OK):
        from kgmlm.prediction.calibration import fitted

        how = "`kgmlm calibrate RUN` keeps them, for a pack `kgmlm pack PACK --calibrate --output NEW`"
        watch.tell(f"{path} cannot be written, so its probabilities are fitted now and not kept; {how}")
        return folder, fitted(folder, batch_size=batch_size, device=device, watch=watch)
    watch.tell(f"{why}: fitting them on validation, as `kgmlm calibrate` does")
    calibrate(path, device=device, progress=watch)
    folder = open_folder(path)
    assert folder.calibration is not None
    return folder, folder.calibration


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
        relation: int = find.relation(text)
        return relation
    except QueryError as error:
        if allow_new:
            return new
        raise QueryError(f"{error}; --allow-new-relations reads it from its name") from None
