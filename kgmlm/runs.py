"""A run folder: write, open, verify; hands out a ready ranker.

::

    RUN/
    ├── run.json          format, versions, seed, dataset and its checksums, frozen vocabulary, progress
    ├── config.toml       the expanded settings
    ├── graph/            texts and triples of all splits (Arrow): the candidates and the filter; and the
    │                     tokens of the entities' names
    ├── model/            an ordinary Hugging Face folder: weights, tokenizer and, where the run has them,
    │                     entity_vectors.safetensors; mixture.json: what validation chose for all signals
    ├── signals/          what is trained beside the model, such as kge.safetensors (`kgmlm tune --add kge`)
    ├── reranker/         a run of its own that reranks this one, where `kgmlm rerank` has trained one
    ├── checkpoints/      the last resumable state, until training ends
    └── metrics.jsonl     losses and validations
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm import digests, files
from kgmlm.cards import card_names
from kgmlm.config import Settings, dump_settings
from kgmlm.files import as_path
from kgmlm.graph import KnowledgeGraph
from kgmlm.graph_files import read_graph, write_graph
from kgmlm.kg import RunError
from kgmlm.packs import SUFFIX, find_pack, unpack
from kgmlm.provenance import began_from, command, earlier, hardware, versions
from kgmlm.records import (
    FORMAT,
    accepted,
    check_files,
    read_record,
    read_settings,
)
from kgmlm.upkeep import RERANKER, check_output, has_reranker, recover, steady

if TYPE_CHECKING:
    import torch

    from kgmlm.chosen import Chosen
    from kgmlm.mixture import Use
    from kgmlm.ranker import Ranker
    from kgmlm.reranking import Reranking
    from kgmlm.signals import Signal
    from kgmlm.tokenization import Candidates
    from kgmlm.vocabulary import Vocabulary

MIXTURE = "model/mixture.json"
PROBABILITIES = "model/probabilities.json"
HOW = ("settings", "minutes", "versions", "hardware", "command")  # of a signal: how it was trained


@dataclass(frozen=True, eq=False)
class RunFolder:
    """An opened run folder. ``record`` is what ``run.json`` says."""

    path: Path
    graph: KnowledgeGraph
    settings: Settings
    record: Mapping[str, Any]

    @property
    def vocabulary(self) -> Vocabulary:
        """Span length and softmax tokens, frozen when the run began."""
        from kgmlm.vocabulary import Vocabulary

        tokens = self.record["softmax_tokens"]
        softmax = None if tokens is None else np.array(tokens, np.int64)
        return Vocabulary(int(self.record["span_length"]), softmax)

    @property
    def model_folder(self) -> Path:
        """The best model so far."""
        return self.path / "model"

    @property
    def made_by(self) -> str:
        """A digest of all that the run's scores go by: another one, other scores."""
        path = self.path / MIXTURE
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""

    def past(self, reranked: bool) -> tuple[list[KnowledgeGraph], list[str]]:
        """Graphs of the runs that this one (``reranked``: or its reranker) began from, and datasets of those
        that are gone; a built-in dataset that is the run's own is not missed.
        """
        more = [read_record(self.path / RERANKER)] if reranked and has_reranker(self.path) else []
        graphs, gone = earlier([self.record, *more], self.record.get("command"))
        return graphs, [name for name in gone if name != self.record["dataset"] or name not in card_names()]

    def update(self, **values: Any) -> RunFolder:
        """Write values into ``run.json``, beside what others wrote since; the run that has them."""
        record = {**read_record(self.path), **values}
        files.write_json(self.path / "run.json", record)
        return replace(self, record=record)

    def save_model(self, ranker: Ranker, entities: bool = True) -> None:
        """Replace ``model/`` at once: the old one stays until the new one is whole.

        The mixture that is saved with it is of the signals that come with the model. What is beside it, KGE
        and reranker, is not used until `kgmlm tune` has chosen how much it counts.
        """
        from kgmlm.chosen import Chosen
        from kgmlm.saving import save_model

        own = [s for s in ranker.signals.values() if s.name not in _elsewhere(entities)]
        with files.atomic_folder(self.model_folder) as folder:
            for signal in own:
                signal.save(folder / Path(signal.file).name)
            save_model(ranker.reader.model, ranker.reader.tokenizer, folder)
            known = digests.of_folder(folder)
            of = {signal.name: digests.sha(known, Path(signal.file).name, folder) for signal in own}
            mixture = folder / Path(MIXTURE).name
            Chosen(ranker.mixture.without(*_elsewhere()), of=of).save(mixture)
            digests.write_manifest(folder, {**known, mixture.name: [digests.Digest.of(mixture)]})

    @property
    def chosen(self) -> Chosen:
        """What validation chose for the run's signals.

        Raises:
            RunError: when it is missing or damaged.
        """
        from kgmlm.chosen import Chosen

        return Chosen.open(self.path / MIXTURE, len(self.graph.relations))

    def save_chosen(self, chosen: Chosen) -> None:
        """Keep what was chosen for the signals that there are now."""
        from kgmlm.chosen import fingerprints

        whole = replace(chosen, of=fingerprints(self.path))
        folder = self.model_folder
        keep = partial(digests.write_manifest, folder)
        with digests.replacing(self.path / MIXTURE, digests.read_manifest(folder), keep) as temporary:
            whole.save(temporary)

    def save_signal(self, signal: Signal, **how: Any) -> RunFolder:
        """Keep a signal beside the model; ``how`` it was trained goes into the record.

        It counts nothing until `kgmlm tune` has chosen how much.
        """

        def keep(known: digests.Accepted) -> None:
            self.update(files=digests.as_json(known))

        known = accepted(read_record(self.path))
        with digests.replacing(self.path / signal.file, known, keep, below=self.path) as temporary:
            signal.save(temporary)
        return self.update(signals={**read_record(self.path).get("signals", {}), signal.name: how})

    def has_signal(self, name: str) -> bool:
        """Whether there is a signal of this name beside the model, or there was and its file is gone."""
        from kgmlm.signals import beside

        file = beside()[name].file
        return (self.path / file).is_file() or file in (read_record(self.path).get("files") or {})

    def drop_signal(self, name: str) -> RunFolder:
        """Remove a signal that is beside the model."""
        from kgmlm.signals import beside

        record = read_record(self.path)
        file = beside()[name].file
        known = {k: v for k, v in (record.get("files") or {}).items() if k != file}
        how = {k: v for k, v in record.get("signals", {}).items() if k != name}
        run = self.update(files=known or None, signals=how)
        (self.path / file).unlink(missing_ok=True)
        return run

    def lend(self, name: str, graph: KnowledgeGraph) -> tuple[Signal, dict[str, Any]]:
        """A signal that is beside this run's model, and how that was trained, for another run.

        Raises:
            RunError: when it has none, or is a run of another graph.
        """
        from kgmlm.signals import beside

        kind, how = beside()[name], self.record.get("signals", {}).get(name)
        file = kind.file
        self.check(file)
        if not (self.path / file).is_file():
            raise RunError(
                f"{self.path} has no signal '{name}'; `kgmlm tune {self.path} --add {name}` trains one"
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
            again = f"`kgmlm tune {self.path} --add {Path(name).stem} --overwrite`"
            remedy = f"restore it from a copy, or make it again: {again}"
            check_files(self.path, read_record(self.path), name, remedy=remedy)

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
        if has_reranker(self.path):
            open_run(self.path / RERANKER, verify=True)

    def text_ranker(self, device: str | None = None, folder: Path | None = None) -> Ranker:
        """What ranks by the text of a model alone, each signal as confident as in training.

        Args:
            folder: another model of this run than its best, such as a checkpoint's.

        Raises:
            RunError: when training has left no model yet.
        """
        from kgmlm.opening import open_text

        return open_text(self.path, folder or self.model_folder, self.graph, self.vocabulary, device)

    def untuned(self, device: str | None = None, but: tuple[str, ...] = ()) -> Ranker:
        """Every signal of the run, whatever weights were chosen for, and no reranker.

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
            scores: what to rank by, as :meth:`kgmlm.ranker.Ranker.by` has it.
            rerank: False leaves the second stage out, and the run's reranker on disk, if it has one.

        Raises:
            RunError: when training has left no model yet, or the run has signals that its weights were not
                chosen for.
            ConfigError: when the run has no such scores.
        """
        return steady(self.path, partial(self._ranker, device, graph, scores, rerank))

    def _ranker(self, device: str | None, graph: KnowledgeGraph | None, scores: str, rerank: bool) -> Ranker:
        from kgmlm.chosen import fingerprints
        from kgmlm.signals import beside

        others = tuple(name for name in beside() if scores not in ("all", name))
        ranker, chosen = self.untuned(device, others), self.chosen
        ranker = ranker.but(mixture=chosen.mixture, reverse=chosen.asked_back if rerank else None).by(scores)
        if scores in ("all", "text"):
            chosen.check(fingerprints(self.path), self.path, others if rerank else (*others, RERANKER))
        else:
            rerank = False
        if rerank and chosen.use is not None and chosen.use.k:
            ranker = ranker.but(reranking=self.reranking(chosen.use, ranker.reader.model.device))
        return ranker if graph is None or graph is self.graph else ranker.over(graph.context)

    def reranking(self, use: Use, device: torch.device) -> Reranking:
        """The reranker of this run, used so.

        Raises:
            RunError: when it is missing or damaged.
        """
        from kgmlm.first_stage import unit
        from kgmlm.opening import open_reranker
        from kgmlm.reranking import Reranking

        if not has_reranker(self.path):
            more = "--resume` continues its training" if (self.path / RERANKER).is_dir() else "` trains one"
            raise RunError(f"{self.path} has no trained reranker; `kgmlm rerank {self.path} {more}")
        reranker = open_reranker(self.path / RERANKER, self.graph.context, device)
        return Reranking(reranker, use, unit("vector", self.settings))


def unread(run: RunFolder) -> bool:
    """Whether the model's entities are still to be read, since training does not read all of them."""
    from kgmlm.signals.vector import Vector

    known = digests.read_manifest(run.model_folder)
    left = known is not None and Path(Vector.file).name not in known
    return left and run.settings.vector.enabled and not (run.path / Vector.file).is_file()


def _missing(run: RunFolder, file: str) -> RunError:
    """Of a signal that comes with the model: not read yet, or lost."""
    if unread(run):
        return RunError(f"{run.path}: its entities are not read yet; `kgmlm tune {run.path}` reads them")
    return RunError(f"{run.path / file} is missing; it belongs to the model beside it")


def _elsewhere(entities: bool = True) -> tuple[str, ...]:
    """Signals that are not saved with the model; False leaves out its entities' vectors, too."""
    from kgmlm.signals import beside

    return (*beside(), *(() if entities else ("vector",)))


def unfinished(run: RunFolder) -> bool:
    """Whether a model that was validated among few entities is still to be measured among all."""
    from kgmlm.chosen import fingerprints
    from kgmlm.signals.vector import Vector

    few = run.settings.training.validated(len(run.graph.entities))
    if not few or not (run.path / MIXTURE).is_file():
        return False
    chosen, now = run.chosen, fingerprints(run.path)
    stale = chosen.of.get(Vector.name) != now.get(Vector.name)
    return unread(run) or stale or (run.graph.has("valid") and not chosen.by)


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
    """Lay a run folder: graph, settings, record; no model yet. Whole or not at all.

    Args:
        names: the tokens of all entities, so that opening the run need not tokenize them again.
        recipe: what ``settings`` are from, for the record.
        notes: comments of ``config.toml``.
    """
    from kgmlm.saving import NAMES, save_names

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
        "command": command(),
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


def open_run(path: str | Path, *, verify: bool = False) -> RunFolder:
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
            how = f"`kgmlm train --dataset {path} --output runs/{path.name}`"
            raise RunError(f"{path} is a dataset, not a run; {how} makes one")
        if len(path.parts) == 1 and not path.exists():
            raise RunError(
                f"{path} does not exist, neither as a run folder nor as {path}.kgmlm in models/ of the "
                f"repository or in KGMLM_MODELS; `kgmlm train --output {path}` makes a run"
            )
        if path.is_file():
            raise RunError(f"{path} is a file, but no pack by its name, which would end in {SUFFIX}")
        what = "is not a run folder (it has no run.json)" if path.is_dir() else "does not exist"
        raise RunError(f"{path} {what}; `kgmlm train --output {path}` makes one")
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
