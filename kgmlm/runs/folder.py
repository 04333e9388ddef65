"""A run folder: its files, made, opened and verified; hands out a ready ranker.

::

    RUN/
    ├── run.json          format, versions, seed, dataset and its checksums, frozen vocabulary, progress
    ├── config.toml       the expanded settings
    ├── graph/            texts and triples of all splits (Arrow): the candidates and the filter; and the
    │                     tokens of the entities' names
    ├── model/            an ordinary Hugging Face folder: weights, tokenizer and, where the run has them,
    │                     entity_vectors.safetensors; mixture.json: the tuned weights of all signals
    ├── signals/          signals trained beside the model, such as kge.safetensors (`kgmlm tune --add kge`)
    ├── checkpoints/      the last resumable state, until training ends
    └── metrics.jsonl     losses and validations
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from kgmlm.core import digests, files
from kgmlm.core.config import Settings, dump_settings
from kgmlm.core.errors import RunError, first_line, quoted
from kgmlm.core.files import as_path
from kgmlm.graphs.cards import card_names
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import read_graph, write_graph
from kgmlm.ranking.likely import ListCalibration
from kgmlm.ranking.ranker import Ranker, SecondStage
from kgmlm.ranking.second_stage import Conditional, ReverseScoring
from kgmlm.ranking.trees import Trees
from kgmlm.runs.models import NAMES, open_text, save_model, save_names
from kgmlm.runs.packs import SUFFIX, find_pack, unpack
from kgmlm.runs.record import (
    CONDITIONAL,
    FORMAT,
    REVERSE,
    TREES,
    TREES_FILE,
    WEIGHTS,
    TunedWeights,
    accepted,
    began_from,
    check_files,
    check_output,
    command_line,
    earlier,
    fingerprints,
    hardware,
    of_weights,
    read_record,
    read_settings,
    recover,
    versions,
)
from kgmlm.text.tokenization import Candidates, Vocabulary

if TYPE_CHECKING:
    from kgmlm.ranking.ranker import Use
    from kgmlm.signals.base import Signal

MIXTURE = "model/mixture.json"
PROBABILITIES = "model/probabilities.json"
HOW = ("settings", "done", "minutes", "versions", "hardware", "command")  # of a signal: how it was trained


@dataclass(eq=False)
class RunFolder:
    """A run folder as it was when it was opened, each part read once, when first asked for.

    Its own writes are seen at once; :meth:`now` sees those of other processes.

    Attributes:
        record: the contents of ``run.json``.
    """

    path: Path
    graph: KnowledgeGraph
    settings: Settings
    record: Mapping[str, Any]

    def now(self) -> RunFolder:
        """The run as it is now. Its settings never change, its graph by :func:`kgmlm.update` alone.

        Raises:
            RunError: when ``run.json`` is gone or damaged.
        """
        record = read_record(self.path)
        if graph_digests(record) != graph_digests(self.record):
            return open_folder(self.path)
        return replace(self, record=record)

    def _changed(self) -> None:
        """Forget the parts that this process has just written."""
        for name in ("tuned", "fingerprints", "scores_digest", "lists"):
            vars(self).pop(name, None)

    @cached_property
    def tuned(self) -> TunedWeights:
        """The weights of the run's signals, chosen on validation.

        Raises:
            RunError: when they are missing or damaged.
        """
        return TunedWeights.open(self.path / MIXTURE, len(self.graph.relations))

    @property
    def has_weights(self) -> bool:
        """Return whether training has saved a model, with its weights."""
        return (self.path / MIXTURE).is_file()

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """SHA-256 of each signal's file, and of the trees, by name."""
        return fingerprints(self.path)

    @property
    def text_fingerprint(self) -> str:
        """SHA-256 of the model that an index is made of."""
        return self.fingerprints.get("vector") or self.fingerprints.get("likelihood", "")

    @cached_property
    def scores_digest(self) -> str:
        """A digest of the weights and, through them, of all that the run's scores go by."""
        path = self.path / MIXTURE
        if not path.is_file():
            return ""
        graph = json.dumps(graph_digests(self.record), sort_keys=True).encode()
        return hashlib.sha256(path.read_bytes() + graph).hexdigest()[:16]

    @property
    def scored_by(self) -> dict[str, str]:
        """Digests of the run's signals and of their weights, by which its probabilities are fitted."""
        return {**self.fingerprints, WEIGHTS: of_weights(self.path)}

    @cached_property
    def lists(self) -> tuple[ListCalibration, ...]:
        """The probabilities of candidate lists; none where none were fitted to what the run is now.

        Raises:
            RunError: when they are damaged.
        """
        path = self.path / PROBABILITIES
        if not path.is_file():
            return ()
        try:
            kept = digests.without_retired(files.parse_json(path.read_bytes()))
            found = tuple(
                ListCalibration.model_validate(x, strict=False, extra="forbid") for x in kept.get("lists", ())
            )
        except (ValueError, AttributeError, TypeError) as error:
            why = digests.fault(error) if isinstance(error, ValidationError) else first_line(error)
            raise RunError(
                f"{path} is damaged: {why}; `kgmlm calibrate {quoted(self.path)}` makes it again"
            ) from None
        return found if kept.get("chosen_for") == self.scored_by else ()

    @property
    def vocabulary(self) -> Vocabulary:
        """Span length and softmax tokens, frozen when the run began."""

        tokens = self.record["softmax_tokens"]
        softmax = None if tokens is None else np.array(tokens, np.int64)
        return Vocabulary(int(self.record["span_length"]), softmax)

    @property
    def model_folder(self) -> Path:
        """The folder of the best model so far."""
        return self.path / "model"

    def past(self) -> tuple[list[KnowledgeGraph], list[str]]:
        """Graphs of the runs that this one began from, and datasets of those that are gone; a built-in
        dataset that is the run's own is not missed.
        """
        graphs, gone = earlier([self.record], self.record.get("command"))
        return graphs, [name for name in gone if name != self.record["dataset"] or name not in card_names()]

    def update(self, **values: Any) -> RunFolder:
        """Write values into ``run.json``, beside what others wrote since."""
        self.record = {**read_record(self.path), **values}
        files.write_json(self.path / "run.json", self.record)
        self._changed()
        return self

    def save_model(self, ranker: Ranker, entities: bool = True) -> None:
        """Replace ``model/`` at once: the old one stays until the new one is whole.

        The mixture that is saved with it is of the signals that come with the model. What is beside it, such
        as KGE, is not used until `kgmlm tune` has chosen how much it counts.
        """

        from kgmlm.signals import is_beside

        beside = [name for name in (*ranker.signals, *ranker.mixture.tables) if is_beside(name)]
        elsewhere = beside if entities else [*beside, "vector"]
        own = [s for s in ranker.signals.values() if s.name not in elsewhere]
        with files.atomic_folder(self.model_folder) as folder:
            for signal in own:
                signal.save(folder / Path(signal.file).name)
            save_model(ranker.reader.model, ranker.reader.tokenizer, folder)
            known = digests.of_folder(folder)
            of = {signal.name: digests.sha(known, Path(signal.file).name, folder) for signal in own}
            mixture = folder / Path(MIXTURE).name
            TunedWeights(ranker.mixture.without(*beside), of=of).save(mixture)
            digests.write_manifest(folder, {**known, mixture.name: [digests.Digest.of(mixture)]})
        self._changed()

    def save_tuned(self, tuned: TunedWeights, trees: Trees | None = None) -> None:
        """Keep the weights that were chosen for the signals that there are now, and the trees with them.

        Args:
            trees: the trees to write; None keeps the file that is there if these weights use trees.
        """
        folder, file = self.model_folder, self.path / TREES_FILE
        keep = partial(digests.write_manifest, folder)
        if trees is not None:
            with digests.replacing(file, digests.read_manifest(folder), keep) as temporary:
                trees.save(temporary)
        elif TREES not in tuned.uses and file.is_file():
            known = digests.read_manifest(folder) or {}
            keep({name: digest for name, digest in known.items() if name != file.name})
            file.unlink()
        self._changed()
        whole = replace(tuned, of=self.fingerprints)
        with digests.replacing(self.path / MIXTURE, digests.read_manifest(folder), keep) as temporary:
            whole.save(temporary)
        self._changed()

    def save_signal(self, signal: Signal, **how: Any) -> RunFolder:
        """Keep a signal beside the model; ``how`` it was trained goes into the record.

        It counts nothing until `kgmlm tune` has chosen how much.
        """

        with self.beside_signal(signal.file) as temporary:
            signal.save(temporary)
        self._drop_file(structure_beside(signal.file))
        return self.update(signals={**self.record.get("signals", {}), signal.name: how})

    @contextmanager
    def beside_signal(self, file: str) -> Iterator[Path]:
        """Write a file of a signal, at once; yields where to."""

        def keep(known: digests.Accepted) -> None:
            self.update(files=digests.as_json(known))

        known = accepted(self.now().record)
        with digests.replacing(self.path / file, known, keep, below=self.path) as temporary:
            yield temporary

    def _drop_file(self, file: str) -> None:
        """Remove a file that the record has a digest of."""
        known = {k: v for k, v in (self.now().record.get("files") or {}).items() if k != file}
        self.update(files=known or None)
        (self.path / file).unlink(missing_ok=True)

    def has_signal(self, name: str) -> bool:
        """Return whether there is such a signal beside the model, or there was and its file is gone."""
        file = file_of(name)
        return (self.path / file).is_file() or file in (self.record.get("files") or {})

    def drop_signal(self, name: str) -> RunFolder:
        """Remove a signal that is beside the model."""
        file = file_of(name)
        how = {k: v for k, v in self.now().record.get("signals", {}).items() if k != name}
        self.update(signals=how)
        for one in (structure_beside(file), file):
            self._drop_file(one)
        self._changed()
        return self

    def lend(self, name: str, graph: KnowledgeGraph) -> tuple[Signal, dict[str, Any]]:
        """A signal that is beside this run's model, and how that was trained, for another run.

        Raises:
            RunError: when it has none, or is a run of another graph.
        """
        from kgmlm.signals import beside

        kind = beside()[name]
        file, how = kind.file, self.record.get("signals", {}).get(name)
        self.check(file)
        if not (self.path / file).is_file():
            raise RunError(
                f"{self.path} has no signal '{name}'; `kgmlm tune {quoted(self.path)} --add {name}` trains "
                "one"
            )
        if not self.graph.same(graph):
            raise RunError(f"{self.path} is a run of another graph")
        return kind.open(self.path / file, self.graph), {key: (how or {}).get(key) for key in HOW}

    def check(self, *names: str) -> None:
        """See that single files are as they were written.

        Raises:
            RunError: naming the first that is not.
        """
        for name in names:
            again = f"`kgmlm tune {quoted(self.path)} --add {Path(name).stem} --overwrite`"
            remedy = f"restore it from a copy, or make it again: {again}"
            check_files(self.path, self.record, name, remedy=remedy)

    def verify(self) -> None:
        """Read all files of the run and see that they are as they were written.

        Raises:
            RunError: naming the first that is not; or when no digests were kept.
        """
        if not self.record.get("files"):
            raise RunError(f"{self.path} cannot be verified: its run.json has no digests")
        check_files(self.path, self.record, *self.record["files"], contents=True)
        if self.model_folder.is_dir():
            digests.check_folder(self.model_folder, contents=True)
        for index in (self.path / "index").glob("*"):
            digests.check_folder(index, contents=True, remedy="build it again with `kgmlm index`")

    def text_ranker(self, device: str | None = None, folder: Path | None = None) -> Ranker:
        """A ranker by the text of a model alone, each signal as confident as in training.

        Args:
            folder: another model of this run than its best, such as a checkpoint's.

        Raises:
            RunError: when training has left no model yet.
        """

        return open_text(self.path, folder or self.model_folder, self.graph, self.vocabulary, device)

    def untuned(self, device: str | None = None, but: tuple[str, ...] = ()) -> Ranker:
        """Every signal of the run, whatever weights were chosen for, and no second stage.

        Args:
            but: signals to leave on disk.
        """
        from kgmlm.signals import SIGNALS

        ranker = self.text_ranker(device)
        for name, kind in SIGNALS.items():
            self.check(kind.file)
            if name not in but and (self.path / kind.file).is_file():
                ranker = ranker.with_signal(kind.open(self.path / kind.file, self.graph, ranker.reader))
            elif name in ranker.signals and name not in but:
                raise _missing(self, kind.file)
        return ranker

    def ranker(
        self,
        device: str | None = None,
        graph: KnowledgeGraph | None = None,
        scores: str = "all",
        rerank: bool = True,
    ) -> Ranker:
        """A ready ranker with the run's best model.

        Args:
            device: such as "cpu" or "cuda"; None takes a GPU where there is one.
            graph: other texts and candidates than the run's own; nothing is trained.
            scores: what to rank by, as :meth:`kgmlm.ranking.ranker.Ranker.by` has it.
            rerank: False leaves the second stages out.

        Raises:
            RunError: when training has left no model yet, or the run has signals that its weights were not
                chosen for.
            ConfigError: when the run has no such scores.
        """
        from kgmlm.signals import beside

        others = tuple(name for name in beside() if scores not in ("all", name))
        ranker, tuned = self.untuned(device, others), self.tuned
        ranker = ranker.replace(mixture=tuned.mixture)
        ranker = ranker.by(scores)
        if scores in ("all", "text"):
            but = others if rerank else (*others, TREES)
            tuned.check(self.fingerprints, self.path, but if scores == "all" else (*but, TREES))
            if rerank:
                ranker = self.staged(ranker, tuned.uses, () if scores == "all" else (TREES,))
        return ranker if graph is None or graph is self.graph else ranker.over(graph.context)

    def staged(self, ranker: Ranker, uses: Mapping[str, Use], but: tuple[str, ...] = ()) -> Ranker:
        """A ranker with those second stages of the run that score any candidates."""
        makes: dict[str, Callable[[Use], SecondStage]] = {
            REVERSE: ReverseScoring,
            CONDITIONAL: Conditional,
            TREES: self.trees,
        }
        staged = ranker
        for name, make in makes.items():
            if name in uses and uses[name].k and name not in but:
                staged = staged.with_stage(make(uses[name]))
        return staged

    def trees(self, use: Use) -> Trees:
        """The trees of this run, with this use.

        Raises:
            RunError: when they are missing or damaged.
        """
        if not (self.path / TREES_FILE).is_file():
            raise _missing(self, TREES_FILE)
        return Trees.open(self.path / TREES_FILE, use)


def graph_digests(record: Mapping[str, Any]) -> dict[str, Any]:
    """The digests that a record has of the files of its graph."""
    return {name: of for name, of in (record.get("files") or {}).items() if name.startswith("graph/")}


def structure_beside(file: str) -> str:
    """Where the structure for ONNX Runtime of a signal's text model is, if it has one."""
    return str(PurePosixPath(file).with_suffix(".onnx"))


def unread(run: RunFolder) -> bool:
    """Return whether the model's entities are still to be read, since training does not read all of them."""
    from kgmlm.signals.vector import Vector

    known = digests.read_manifest(run.model_folder)
    left = known is not None and Path(Vector.file).name not in known
    return left and run.settings.vector.enabled and not (run.path / Vector.file).is_file()


def _missing(run: RunFolder, file: str) -> RunError:
    """The error of a signal that comes with the model: not read yet, or lost."""
    if unread(run):
        return RunError(
            f"{run.path}: its entities are not read yet; `kgmlm tune {quoted(run.path)}` reads them"
        )
    return RunError(f"{run.path / file} is missing; it belongs to the model beside it")


def file_of(name: str) -> str:
    """The file of a signal in a run."""
    from kgmlm.signals import SIGNALS

    return SIGNALS[name].file


def unfinished(run: RunFolder) -> bool:
    """Return whether a model that was validated among few entities is still to be measured among all."""
    from kgmlm.signals.vector import Vector

    few = run.settings.training.validated(len(run.graph.entities))
    if not few or not run.has_weights:
        return False
    stale = run.tuned.of.get(Vector.name) != run.fingerprints.get(Vector.name)
    return unread(run) or stale or (run.graph.has("valid") and not run.tuned.by)


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
) -> RunFolder:
    """Create a run folder with graph, settings and record, but no model yet; whole or not at all.

    Args:
        names: the tokens of all entities, so that opening the run need not tokenize them again.
        recipe: what ``settings`` are from, for the record.
        notes: comments of ``config.toml``.
    """

    check_output(path, overwrite)
    tokens = vocabulary.softmax_tokens
    record = {
        "format": FORMAT,
        "dataset": graph.name,
        "sources": dict(graph.sources),
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
    }
    with files.atomic_folder(path, follow=True) as folder:
        write_graph(graph, folder / "graph")
        if names is not None:
            save_names(names, folder / NAMES)
        files.write_atomic(folder / "config.toml", dump_settings(settings, notes))
        record["files"] = digests.as_json(digests.of_folder(folder))
        files.write_json(folder / "run.json", record)
    return RunFolder(path, graph, settings, record)


def open_folder(path: str | Path, *, verify: bool = False) -> RunFolder:
    """Open a run folder, or a pack; it may have been moved here from another machine.

    Args:
        verify: read all its files and see that they are as they were written; else their sizes must do.

    Raises:
        RunError: when it is no run, is damaged, or is of a newer format.
    """
    path = as_path(path, "the run", RunError)
    pack = find_pack(path)
    path = path if pack is None else unpack(pack)
    recover(path)
    if not (path / "run.json").is_file():
        if any(path.glob("train.*")):
            how = f"`kgmlm train --dataset {quoted(path)} --model minilm --output runs/{path.name}`"
            raise RunError(f"{path} is a dataset, not a run; {how} makes one")
        if len(path.parts) == 1 and not path.exists():
            raise RunError(
                f"{path} does not exist, neither as a run folder nor as {path}.kgmlm in models/ of the "
                "repository or in KGMLM_MODELS; `kgmlm train --dataset DATASET --model minilm --output "
                f"{quoted(path)}` makes a run"
            )
        if path.is_file():
            raise RunError(f"{path} is a file, but no pack by its name, which would end in {SUFFIX}")
        what = "is not a run folder (it has no run.json)" if path.is_dir() else "does not exist"
        raise RunError(
            f"{path} {what}; `kgmlm train --dataset DATASET --model minilm --output {quoted(path)}` makes one"
        )
    record = read_record(path)
    check_files(path, record, "config.toml", "graph/", contents=verify)
    settings = read_settings(path)
    if record["span_length"] >= settings.text.max_length:
        raise RunError(
            f"{path / 'run.json'} is damaged: 'span_length' is {record['span_length']}, a text has "
            f"{settings.text.max_length} tokens; {digests.RESTORE}"
        )
    run = RunFolder(path, read_graph(path / "graph", record["dataset"], record["sources"]), settings, record)
    if verify:
        run.verify()
    return run
