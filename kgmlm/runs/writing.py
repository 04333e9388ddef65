"""The one writer of a run: its lock, what it puts in order, and what it writes.

Whatever is written is there whole or not at all: a kill at any point leaves the run as it was or as it is to
be, and the next writer removes what is half-written. Functions that write a run return it as it is then.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm.core import digests, files
from kgmlm.core.config import Settings, dump_settings
from kgmlm.core.errors import RunError
from kgmlm.core.files import locked
from kgmlm.core.processes import check_main_guard
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import write_graph
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.trees import Trees
from kgmlm.runs.folder import ENDED, FORMAT, RunFolder, kept_digests, read_record, structure_beside
from kgmlm.runs.models import NAMES, save_model_files, save_names
from kgmlm.runs.provenance import began_from, command_line, hardware, versions
from kgmlm.runs.tuned import MIXTURE, TREES, TREES_FILE, TunedWeights
from kgmlm.signals import SIGNALS, is_beside
from kgmlm.signals.vector import Vector
from kgmlm.text.tokenization import Candidates, Vocabulary

if TYPE_CHECKING:
    from kgmlm.signals.base import Signal

_HELD: set[tuple[Path, int]] = set()  # runs that this process writes, by thread


@contextmanager
def writing(path: Path, what: str) -> Iterator[None]:
    """Be the only writer of a run, and put in order what a kill has left of it.

    Args:
        path: where it is, or will be.
        what: what is being done, for the sentence that others get.

    Raises:
        RunError: when another process writes it, or this one is a worker that is still importing its parent's
            script.
    """
    check_main_guard()
    key = (path.resolve(), threading.get_ident())
    if key in _HELD:  # a job that another job of this thread does
        yield
        return
    with locked(key[0], what):
        _HELD.add(key)
        try:
            _put_in_order(path.resolve())
            yield
        finally:
            _HELD.discard(key)


def _put_in_order(path: Path) -> None:
    files.recover(path)
    try:
        ended = read_record(path)["status"] in ENDED
    except RunError:  # no run, or one that says nothing that could be relied on
        return
    for folder in (path, path / "model", path / "signals", path / "index", path / "checkpoints"):
        files.recover_in(folder)
    if ended and not (path / "checkpoints").is_symlink():
        discard_checkpoints(path)


def write_record(run: RunFolder, **values: Any) -> RunFolder:
    """Write values into ``run.json``, beside what others wrote since."""
    files.write_json(run.path / "run.json", {**read_record(run.path), **values})
    return run.now()


def leave_out(path: Path, stage: str) -> None:
    """Take a stage out of a run's recipe, so that `kgmlm train --resume` does not do it again."""
    record = read_record(path)
    recipe = record.get("recipe") or {"stages": []}
    if stage in recipe["stages"]:
        left = [other for other in recipe["stages"] if other != stage]
        files.write_json(path / "run.json", {**record, "recipe": {**recipe, "stages": left}})


@contextmanager
def replacing(run: Path, name: str) -> Iterator[Path]:
    """A path to write to, which takes the place of a file of a run whose digest is kept.

    Meanwhile the digests of the old and the new file are both accepted, so that a kill in the midst of it
    leaves a good run good.

    Args:
        name: of the file, below the run's folder.
    """
    path, known = run / name, _kept(run, name)
    new: list[digests.Digest | None] = []
    with files.atomic_file(path) as temporary:
        yield temporary
        if known is not None:
            new = [digests.Digest.of(temporary)]
            old = known.get(name) or [digests.Digest.of(path) if path.is_file() else None]
            _keep(run, name, {**known, name: [*old, *new]})
    if known is not None:
        _keep(run, name, {**known, name: new})


def remove_file(run: Path, name: str) -> None:
    """Remove a file of a run, if it is there, and its digest."""
    known = _kept(run, name)
    if known is not None and name in known:
        _keep(run, name, {other: of for other, of in known.items() if other != name})
    (run / name).unlink(missing_ok=True)


def _kept(run: Path, name: str) -> digests.Accepted | None:
    """The digests of the files of ``model/``, which its manifest has, or else those of ``run.json``."""
    if not name.startswith("model/"):
        return kept_digests(read_record(run))
    known = digests.read_manifest(run / "model")
    return None if known is None else {f"model/{file}": of for file, of in known.items()}


def _keep(run: Path, name: str, known: digests.Accepted) -> None:
    """Write the digests that :func:`_kept` read."""
    if name.startswith("model/"):
        digests.write_manifest(run / "model", {k.removeprefix("model/"): of for k, of in known.items()})
    else:
        files.write_json(run / "run.json", {**read_record(run), "files": digests.as_json(known) or None})


def save_model(run: RunFolder, ranker: Ranker, entities: bool = True) -> RunFolder:
    """Replace ``model/`` at once: the old one stays until the new one is whole.

    The mixture that is saved with it is of the signals that come with the model. What is beside it, such
    as KGE, is not used until `kgmlm tune` has chosen how much it counts.

    Args:
        entities: whether the vectors of all entities are saved with it.
    """
    beside = [name for name in (*ranker.signals, *ranker.mixture.tables) if is_beside(name)]
    elsewhere = beside if entities else [*beside, Vector.name]
    own = [s for s in ranker.signals.values() if s.name not in elsewhere]
    with files.atomic_folder(run.model_folder) as folder:
        for signal in own:
            signal.save(folder / Path(signal.file).name)
        save_model_files(ranker.reader.model, ranker.reader.tokenizer, folder)
        known = digests.of_folder(folder)
        of = {signal.name: digests.sha(known, Path(signal.file).name, folder) for signal in own}
        mixture = folder / Path(MIXTURE).name
        TunedWeights(ranker.mixture.without(*beside), of=of).save(mixture)
        digests.write_manifest(folder, {**known, mixture.name: [digests.Digest.of(mixture)]})
    return run.now()


def save_tuned(run: RunFolder, tuned: TunedWeights, trees: Trees | None = None) -> RunFolder:
    """Keep the weights that were chosen for the signals that there are now, and the trees with them.

    Args:
        trees: the trees to write; None keeps the file that is there if these weights use trees.
    """
    if trees is not None:
        with replacing(run.path, TREES_FILE) as temporary:
            trees.save(temporary)
    elif TREES not in tuned.stage_weights:
        remove_file(run.path, TREES_FILE)
    with replacing(run.path, MIXTURE) as temporary:
        replace(tuned, of=run.now().fingerprints).save(temporary)
    return run.now()


def save_signal(run: RunFolder, signal: Signal, **how: Any) -> RunFolder:
    """Keep a signal beside the model; ``how`` it was trained goes into the record.

    It has no weight until `kgmlm tune` has chosen one.
    """
    with replacing(run.path, signal.file) as temporary:
        signal.save(temporary)
    remove_file(run.path, structure_beside(signal.file))
    signals = read_record(run.path).get("signals", {})
    return write_record(run, signals={**signals, signal.name: how})


def drop_signal(run: RunFolder, name: str) -> RunFolder:
    """Remove a signal that is beside the model."""
    signals = read_record(run.path).get("signals", {})
    write_record(run, signals={other: how for other, how in signals.items() if other != name})
    for file in (structure_beside(SIGNALS[name].file), SIGNALS[name].file):
        remove_file(run.path, file)
    return run.now()


def create_run(
    path: Path,
    graph: KnowledgeGraph,
    settings: Settings,
    model_name: str,
    vocabulary: Vocabulary,
    *,
    names: Candidates | None = None,
    overwrite: bool = False,
    recipe: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    marks: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Create a run folder with graph, settings and record, but no model yet; whole or not at all.

    Args:
        names: the tokens of all entities, so that opening the run need not tokenize them again.
        recipe: what ``settings`` are from, for the record.
        notes: comments of ``config.toml``.
        marks: more for the record.
    """
    check_output(path, overwrite)
    tokens = vocabulary.softmax_tokens
    record = {
        "format": FORMAT,
        "dataset": graph.name,
        "sources": dict(graph.sources),
        **({} if graph.validation is None else {"validation": graph.validation}),
        "model": model_name,
        "began_from": began_from(model_name),
        "seed": settings.training.seed,
        "span_length": vocabulary.span_length,
        "softmax_tokens": None if tokens is None else tokens.tolist(),
        "versions": versions(),
        "hardware": hardware(),
        "command": command_line(),
        "recipe": recipe,
        "status": "started",
        "step": 0,
        "minutes": 0.0,
        **(marks or {}),
    }
    with files.atomic_folder(path, follow=True) as folder:
        write_graph(graph, folder / "graph")
        if names is not None:
            save_names(names, folder / NAMES)
        files.write_atomic(folder / "config.toml", dump_settings(settings, notes))
        record["files"] = digests.as_json(digests.of_folder(folder))
        files.write_json(folder / "run.json", record)
    return RunFolder(path, graph, settings, record).now()


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse to write over what is not a run, or, unless asked to, over a run that has learned something.

    Raises:
        RunError: saying which option to use.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "run.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another --output")
    if not overwrite and not is_blank(path):
        raise RunError(f"{path} is a run already; use --resume to continue, --overwrite to start again")


def is_blank(path: Path) -> bool:
    """Return whether a run was created but has learned nothing, as when its training was refused."""
    laid = {"run.json", "config.toml", "graph", "checkpoints", "metrics.jsonl", "logs"}
    if not (path / "run.json").is_file() or not {p.name for p in path.iterdir()} <= laid:
        return False
    try:
        started = read_record(path)["status"] == "started"
    except RunError:
        return False
    states = list((path / "checkpoints").iterdir()) if (path / "checkpoints").is_dir() else []
    return started and all(p in checkpoints(path) and not _step(p) for p in states)


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what else is in the folder is not its own.

    Raises:
        RunError: when the folder is a link.
    """
    folder = path / "checkpoints"
    files.refuse_link(folder)
    own = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))
    return sorted((p for p in own if p.is_dir() and not p.is_symlink()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def discard_checkpoints(path: Path, but: str = "") -> None:
    """Remove the resumable states of a run, all but one, and nothing else."""
    for folder in checkpoints(path):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)
    if not but:
        with suppress(OSError):  # not there, or with something in it that is not a checkpoint
            (path / "checkpoints").rmdir()


_OWN = {
    "run.json", "config.toml", "metrics.jsonl", "feedback.jsonl", "graph", "model",
    "signals", "checkpoints", "index",
}  # fmt: skip


def check_result(path: Path) -> None:
    """Check, before long work, that results can be written to a path, and that no run owns that file.

    Raises:
        DataError: when it cannot be written.
        RunError: when a run has its own files there.
    """
    files.check_writable(path)
    whole = path.resolve()
    for folder in whole.parents:
        if (folder / "run.json").is_file() and whole.relative_to(folder).parts[0] in _OWN:
            raise RunError(f"{path} belongs to the run {folder}; choose another --output")
