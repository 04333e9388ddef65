"""Update a run to a graph that has grown: new entities are read and counts made again; nothing is trained."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from kgmlm.core import digests, files
from kgmlm.core.config import Settings
from kgmlm.core.errors import (
    ConfigError,
    DataError,
    NoProbabilitiesError,
    RunError,
    check_numbers,
    counted,
    quoted,
)
from kgmlm.core.files import as_path
from kgmlm.core.options import takes
from kgmlm.core.processes import in_several_processes
from kgmlm.core.progress import Watcher, quiet_transformers, watcher_of
from kgmlm.core.results import Outcome
from kgmlm.core.tables import ENDS
from kgmlm.graphs.changes import Change, Place, changed, place_of
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.given import GivenTriples, labeled_entities
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import write_graph
from kgmlm.importing.new_entities import read_new_entities
from kgmlm.prediction.calibration import (
    drop_calibration,
    fitted,
    save_calibration,
)
from kgmlm.ranking.retrieval import (
    FOLDER,
    Retriever,
    cells_of,
    entity_part,
    open_index,
    searched,
    vectors_fingerprint,
)
from kgmlm.runs.feedback import FEEDBACK_FILE, read_judgments
from kgmlm.runs.folder import TRAINED, RunFolder
from kgmlm.runs.models import NAMES, save_names
from kgmlm.runs.opened import open_folder, tuned_ranker, untuned_ranker
from kgmlm.runs.options import BATCH_SIZE
from kgmlm.runs.provenance import command_line
from kgmlm.runs.run import Run, path_if, path_of, writes_run
from kgmlm.runs.writing import save_tuned, write_record, writing
from kgmlm.signals import is_beside
from kgmlm.signals.vector import Vector
from kgmlm.training.options import FeedbackOptions, UpdateOptions
from kgmlm.training.tune import choose
from kgmlm.training.weights import Refit, refit

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.ranking.probability import Calibration
    from kgmlm.ranking.ranker import Ranker

# Files and folders of a run that an update writes itself, or drops since they are of the old graph.
LEFT_OUT = (
    "run.json", "graph", "index", "checkpoints", "ranks", "new-facts.parquet", "new-facts.parquet.parts",
)  # fmt: skip


@writes_run
@takes(UpdateOptions)
def update(run: Run | str | Path, options: UpdateOptions) -> Outcome:
    """Update a run to a graph that has grown or shrunk, in seconds and without training.

    New entities are read: their names, their vectors, and their places in the index. Types, linked pairs and
    the confidence of rules are counted again, and ComplEx gets embeddings for what is new, fitted to its
    triples while all others stay. Then a sample of validation says whether the weights still suit and whether
    the probabilities still hold; those that do not are chosen again. Text encoders stay as they were trained.

    The run is replaced when all of it is written; until then the old one can be used.

    Returns:
        How many entities, relations and triples are new or removed; ``alike``: new labels that are nearly
            alike to others; the seconds that it took, validation MRR of a sample, and what was chosen again.

    Raises:
        DataError: for an entity that exists already, or a file that cannot be read.
        QueryError: for a name that several entities have.
        RunError: when the run is not trained, or the output exists.

    Example:
        >>> kgmlm.update("runs/demo", [("takoyaki", "comes from", "Japan")])  # doctest: +SKIP
    """
    given = [GivenTriples.of(part) for part in (options.triples, options.remove, options.false)]
    watch = watcher_of(options.progress)
    for note in chain.from_iterable(part.unread_notes() for part in given):
        watch.tell(note)
    new, removed, wrong = given
    return _updated(
        run,
        lambda folder: changed(
            folder.graph, new, _entities(options.entities, folder, watch), removed, wrong,
            match_names=options.match_names,
        ),
        options.output, BATCH_SIZE, options.device, watch,
    )  # fmt: skip


def _updated(
    run: Run | str | Path,
    change_of: Callable[[RunFolder], Change],
    output: str | Path | None,
    batch_size: int,
    device: str | None,
    watch: Watcher,
    **record: Any,
) -> Outcome:
    """Update a run to its graph after a change.

    Args:
        change_of: the change of the graph of an opened run.
        record: further keys of ``run.json``.
    """
    check_numbers(batch_size=(batch_size, 1))
    if in_several_processes():
        raise RunError("`kgmlm update` runs in one process, not under torchrun")
    if isinstance(run, Run) and run.extended_graph is not None:
        raise RunError("the run has entities from with_entities; give them to update as entities= instead")
    began, started = datetime.now(UTC), time.monotonic()
    path, target = path_of(run), path_if(output, "the updated run")
    _check_place(path, target)
    folder = open_folder(path)
    _check_trained(folder)
    change = change_of(folder)
    _tell_alike(change, watch)
    counts = change.counts()
    if not change and target is None:
        watch.tell("nothing is new: the run stays as it is")
        return Outcome({**counts, "seconds": 0.0})
    quiet_transformers()
    place = target or path
    with writing(place, "update"), _taking_place(folder, place) as new:
        grown = _written(folder, change, new, device, batch_size, watch)
        checked = _checked(folder, grown, device, batch_size, watch)
        seconds = round(time.monotonic() - started, 1)
        done = {"at": began.isoformat(timespec="seconds"), **counts, "seconds": seconds, **checked}
        updates = [*folder.record.get("updates", []), {**done, "command": command_line()}]
        write_record(grown, updates=updates, **record)
    return Outcome({"output": str(place), **counts, "seconds": seconds, **checked})


_ALIKE_SHOWN = 10


def _tell_alike(change: Change, watch: Watcher) -> None:
    """Name the new labels that nearly match others."""
    if not change.alike:
        return
    watch.tell(
        f"{counted(len(change.alike), 'new label')} nearly matching another (--match-names makes them one):"
    )
    for pair in change.alike[:_ALIKE_SHOWN]:
        watch.tell(f"  {pair.what} '{pair.new}' is new; '{pair.known}' is another")
    if (more := len(change.alike) - _ALIKE_SHOWN) > 0:
        watch.tell(f"  and {more:,} more")


@writes_run
@takes(FeedbackOptions)
def apply_feedback(run: Run | str | Path, options: FeedbackOptions) -> Outcome:
    """Update a run by the judgments that people gave of its answers.

    Accepted triples become training triples. Rejected ones are known to be false: they are not ranked or
    listed again. Both are the answers to chosen questions, so neither takes part in what is measured or in
    fitting probabilities. A judgment that was applied and has been taken back since is undone: its triple
    goes back to where it was.

    Returns:
        As of :func:`update`, and ``accepted``, ``rejected``, ``taken_back``, and ``passed``: judgments of
        entities or relations that the graph does not have.

    Raises:
        DataError: when the run has no judgments to apply or to undo.
        RunError: as of :func:`update`.

    Example:
        >>> kgmlm.apply_feedback("runs/demo")  # doctest: +SKIP
    """
    folder = open_folder(path_of(run))
    latest = read_judgments(folder.path / FEEDBACK_FILE).latest()
    judgments = [judgment for judgment in latest.values() if judgment.label is not None]
    applied = {
        (x.head, x.relation, x.tail): x for x in map(Applied.model_validate, folder.record.get(JUDGED, []))
    }
    graph = folder.graph
    taken_back = {
        triple: past.before
        for triple, past in applied.items()
        if triple in latest and latest[triple].label is None and past.stands(graph)
    }
    if not judgments and not taken_back:
        raise DataError(
            f"{folder.path} has no judgments; the page of `kgmlm serve {quoted(folder.path)}` takes them"
        )
    known = [x for x in judgments if graph.has_labels(*x.triple)]
    of: dict[bool, list[tuple[str, str, str]]] = {
        label: [x.triple for x in known if bool(x.label) == label] for label in (True, False)
    }
    now = {triple: past for triple, past in applied.items() if triple in latest and triple not in taken_back}
    for judgment in known:
        past = now.get(judgment.triple)
        before = past.before if past is not None and past.stands(graph) else place_in(graph, judgment.triple)
        now[judgment.triple] = Applied.of(judgment.triple, bool(judgment.label), before)
    record = {JUDGED: [past.model_dump() for past in now.values()]}
    updated = _updated(
        folder.path,
        lambda folder: changed(
            folder.graph, GivenTriples(of[True]), false=GivenTriples(of[False]), restore=taken_back
        ),
        options.output, BATCH_SIZE, options.device, watcher_of(options.progress), **record,
    )  # fmt: skip
    counts = {
        "accepted": len(of[True]),
        "rejected": len(of[False]),
        "taken_back": len(taken_back),
        "passed": len(judgments) - len(known),
    }
    return Outcome({**updated, **counts})


JUDGED = "judged"  # key of run.json: the judgments that were applied


class Applied(BaseModel):
    """A judgment that was applied to a run's graph.

    Attributes:
        true: whether the triple was accepted.
        before: where the graph had it before it was judged.
    """

    model_config = ConfigDict(frozen=True)

    head: str
    relation: str
    tail: str
    true: bool
    before: Place

    @classmethod
    def of(cls, triple: tuple[str, str, str], true: bool, before: Place) -> Applied:
        """The record of a triple."""
        return cls(**dict(zip(ENDS, triple, strict=True)), true=true, before=before)

    def stands(self, graph: KnowledgeGraph) -> bool:
        """Return whether the graph still has the triple as the judgment left it."""
        triple = self.head, self.relation, self.tail
        return graph.has_labels(*triple) and place_in(graph, triple) == ("train" if self.true else "false")


def place_in(graph: KnowledgeGraph, triple: tuple[str, str, str]) -> Place:
    """Where a graph has a triple of known labels."""
    head, tail = graph.entities.find(triple[0]), graph.entities.find(triple[2])
    assert head is not None
    assert tail is not None
    return place_of(graph, (head, graph.relations.index[triple[1]], tail))


@contextmanager
def _taking_place(run: RunFolder, place: Path) -> Iterator[Path]:
    """Yield a folder for the updated run; it replaces ``place`` when the block ends without an error."""
    judging = FileLock(run.path / f".{FEEDBACK_FILE}.lock")
    try:
        with files.atomic_folder(place.resolve()) as new:
            yield new
            if (run.path / FEEDBACK_FILE).is_file():  # a service may have written some since
                judging.acquire()
                shutil.copy2(run.path / FEEDBACK_FILE, new / FEEDBACK_FILE)
    finally:
        judging.release()


def _check_place(path: Path, target: Path | None) -> None:
    """See that the updated run can be written.

    Raises:
        DataError: when something is there already.
        RunError: when that is within the run, or the run cannot be replaced.
    """
    if target is None:
        if path.resolve().is_mount():
            raise RunError(f"{path} is a mount point, which cannot be replaced; give an --output")
        return
    files.check_new_folder(target)
    if target.resolve().is_relative_to(path.resolve()):
        raise RunError(f"{target} is within the run that is updated; choose another --output")


def _check_trained(run: RunFolder) -> None:
    """Refuse a run that is not ready to rank.

    Raises:
        RunError: saying what is missing.
    """
    path = run.path
    if run.record["status"] not in TRAINED or not run.has_weights:
        raise RunError(
            f"{path} is not trained to the end; `kgmlm train --output {quoted(path)} --resume` goes on"
        )
    run.tuned.check(run.fingerprints, path)


def _entities(
    given: EntityTable | pd.DataFrame | str | Path | None, folder: RunFolder, watch: Watcher
) -> EntityTable | None:
    """New entities, as they were given."""
    if given is None or isinstance(given, EntityTable):
        return given
    if isinstance(given, str | Path):
        return read_new_entities(as_path(given, "the file of entities"), folder.graph, watch)
    return labeled_entities(given)


def _written(
    run: RunFolder,
    change: Change,
    new: Path,
    device: str | None,
    batch_size: int,
    watch: Watcher,
) -> RunFolder:
    """Write the run with its updated graph and its old weights into a folder; its index grows, too."""
    graph = change.graph
    before = untuned_ranker(run, device).weighed_by(run.tuned.mixture)
    ranker = before.for_graph(graph.context)
    for name, signal in ranker.signals.items():
        ranker = ranker.with_signal(signal.updated(graph, _settings(run, name)))
    with watch:
        for vectors in ranker.counted_vectors:
            vectors.read(batch_size, partial(watch, "reading entities", total=vectors.unread))
    shutil.copytree(run.path, new, dirs_exist_ok=True, ignore=_left_out(run.path))
    write_graph(graph, new / "graph")
    save_names(ranker.reader.names, new / NAMES)
    known = digests.read_manifest(new / "model")
    for signal in ranker.signals.values():
        if is_beside(signal.name) or isinstance(signal, Vector):
            (new / signal.file).parent.mkdir(exist_ok=True)
            signal.save(new / signal.file)
    if known is not None and (new / Vector.file).is_file():
        known[Path(Vector.file).name] = [digests.Digest.of(new / Vector.file)]
        digests.write_manifest(new / "model", known)
    record = {**run.record, "files": _digests(run, new)}
    if record["status"] == "max steps":  # its checkpoint is of the graph before
        record["status"] = "stopped early"
    files.write_json(new / "run.json", record)
    grown = RunFolder(new, graph, run.settings, record).now()
    grown = save_tuned(grown, replace(run.tuned, mixture=ranker.mixture))
    return _grow_index(run, grown, before, ranker, watch) if (run.path / FOLDER).is_dir() else grown


def _settings(run: RunFolder, name: str) -> Settings:
    """The settings of a run, those of a signal as it was trained."""
    made = (run.record.get("signals", {}).get(name) or {}).get("settings")
    own = getattr(run.settings, name, None)
    if not made or own is None:
        return run.settings
    return run.settings.model_copy(update={name: type(own).model_validate(made, strict=False)})


def _left_out(run: Path) -> Callable[[str, list[str]], list[str]]:
    """The entries of a run's folder that are not copied, as :func:`shutil.copytree` asks."""
    return lambda folder, names: [x for x in names if Path(folder) == run and x in LEFT_OUT]


def _digests(run: RunFolder, new: Path) -> dict[str, Any] | None:
    """The digests of the files of an updated run, where the run before it has some."""
    before = run.record.get("files")
    if before is None:
        return None
    graph = digests.of_folder(new / "graph")
    accepted: digests.Accepted = {f"graph/{name}": digest for name, digest in graph.items()}
    for name in before:
        if not name.startswith("graph/") and (new / name).is_file():
            accepted[name] = [digests.Digest.of(new / name)]
    return digests.as_json(accepted)


def _grow_index(
    run: RunFolder, grown: RunFolder, before: Ranker, ranker: Ranker, watch: Watcher
) -> RunFolder:
    """Add the new entities to the index of a run, and keep it with the updated one.

    Vectors of the bi-encoder depend on triples, so all of them are indexed again.
    """
    try:
        old, by = open_index(run.path, before, len(run.graph.entities)), searched(ranker)
    except (ConfigError, RunError) as error:
        watch.tell(f"the index is left out: {error}")
        return write_record(grown, shortlist=None)
    count = len(grown.graph.entities)
    new = np.arange(len(run.graph.entities), count)
    made_of = vectors_fingerprint(ranker, count, old.record.get("looked_at", len(run.graph.entities)))
    if ranker.vectors is None:
        ids, cells = np.arange(count), cells_of(count)
        part = entity_part(by.of(ids), ids, cells, old.record["seed"])
        index = Retriever(part, {**old.record, "cells": cells, "entities": count, "fingerprint": made_of})
    else:
        index = old.updated(run.path / FOLDER, new, by.of(new), made_of)
    index.save(grown.path / FOLDER)
    if run.shortlist is None:
        return grown
    return write_record(grown, shortlist={**run.record["shortlist"], "of": grown.text_fingerprint})


def _checked(
    run: RunFolder, grown: RunFolder, device: str | None, batch_size: int, watch: Watcher
) -> dict[str, Any]:
    """Choose the weights and the probabilities again where validation says so.

    Returns:
        ``mrr``: validation MRR of a sample by the old weights; ``half`` of its 95 % interval; and ``chosen``:
        "weights" and "probabilities", where these were chosen again.
    """
    if not grown.graph.has("valid"):
        return {"chosen": []}
    chosen = []
    refitted = refit(tuned_ranker(grown, device, rerank=False), grown, batch_size, watch)
    if refitted.gain > refitted.least:
        new = refitted.mrr + refitted.gain
        watch.tell(f"the weights are chosen again: validation MRR {refitted.mrr:.4f}, {new:.4f} by new ones")
        choose(grown, None, None, "fp32", batch_size, device, watch)
        grown = grown.now()
        chosen.append("weights")
    return _probable(run, grown, refitted, chosen, device, batch_size, watch)


def _probable(
    run: RunFolder,
    grown: RunFolder,
    refitted: Refit,
    chosen: list[str],
    device: str | None,
    batch_size: int,
    watch: Watcher,
) -> dict[str, Any]:
    """Fit the probabilities again where the weights were chosen again, or there are new relations.

    Returns:
        As of :func:`_checked`.
    """
    if (calibration := _calibration(run)) is not None:
        kept = calibration.model_copy(update={"chosen_for": grown.scored_by})
        more = len(grown.graph.relations) > len(run.graph.relations)  # whose probabilities were never fitted
        try:
            if chosen or more:
                asked = {key: kept.chosen_by[key] for key in ("seed", "precision") if key in kept.chosen_by}
                compute: dict[str, Any] = {"batch_size": batch_size, "device": device, "watch": watch}
                kept = fitted(grown, lacking=kept.lacking, **asked, **compute)
                chosen.append("probabilities")
            save_calibration(grown, kept)
        except NoProbabilitiesError as error:  # too few validation triples are left
            watch.tell(f"the probabilities are left out: {error}")
            drop_calibration(grown)
    return {"mrr": refitted.mrr, "half": refitted.half, "chosen": chosen}


def _calibration(run: RunFolder) -> Calibration | None:
    """The probabilities of a run, if it has any that still hold."""
    try:
        return run.calibration
    except RunError:
        return None
