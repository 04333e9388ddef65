"""A run folder: write, open, verify; hands out a ready ranker.

::

    RUN/
    ├── run.json          format, versions, seed, dataset and its checksums, frozen vocabulary, progress
    ├── config.toml       the expanded settings
    ├── graph/            texts and triples of all splits (Parquet): the candidates and the filter; and the
    │                     tokens of the entities' names
    ├── model/            an ordinary Hugging Face folder: weights, tokenizer and, where the run has them,
    │                     entity_vectors.safetensors
    ├── structure.safetensors   a structural model and its weights, where `kgmlm fuse` has made one
    ├── teacher.safetensors     the structural model that taught the text model, where one did
    ├── rescorer/         a run of its own that rescores this one, where `kgmlm rescore` has trained one
    ├── checkpoints/      the last resumable state, until training ends
    └── metrics.jsonl     losses and validations
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm import digests, files
from kgmlm.config import Settings, dump_settings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import KgmlmError, RunError
from kgmlm.provenance import began_from, command, hardware, run_of, versions
from kgmlm.records import (
    FORMAT,
    accepted,
    check_files,
    read_graph,
    read_record,
    read_settings,
    write_graph,
)
from kgmlm.saving import load_names, load_vectors, save_model, save_names, save_vectors
from kgmlm.upkeep import RESCORER, check_output, recover

if TYPE_CHECKING:
    import torch

    from kgmlm.ranker import Ranker
    from kgmlm.reranking import Reranking
    from kgmlm.rescoring import Rescorer
    from kgmlm.signals.structure import Structure
    from kgmlm.tokenization import Candidates
    from kgmlm.vocabulary import Vocabulary

VECTORS = "entity_vectors.safetensors"
STRUCTURE = "structure.safetensors"
TEACHER = "teacher.safetensors"
NAMES = "graph/name_tokens.safetensors"


@dataclass(frozen=True, eq=False)
class Run:
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
        return Vocabulary(
            int(self.record["span_length"]), None if tokens is None else np.array(tokens, np.int64)
        )

    @property
    def model_folder(self) -> Path:
        """The best model so far."""
        return self.path / "model"

    def past(self, rescored: bool) -> tuple[list[KnowledgeGraph], list[str]]:
        """The graphs of the runs that this one began from, and datasets of those that are no longer there.

        Args:
            rescored: the runs that its rescorer began from, too.
        """
        graphs: dict[Path, KnowledgeGraph] = {}
        gone = []
        records = [self.record, self.record.get("rescoring") or {}] if rescored else [self.record]
        for record in records:
            model, older = record.get("model"), record.get("began_from")
            while older:
                folder = run_of(str(model))
                try:
                    there = read_record(folder).get("command") == older.get("command")
                    if there and folder not in graphs:
                        graphs[folder] = read_graph(folder / "graph", str(older.get("dataset")), {})
                except KgmlmError:
                    there = False  # or damaged
                if not there and older.get("command") != self.record.get("command"):
                    gone.append(str(older.get("dataset")))  # not this run itself, as a rescorer's is
                model, older = older["model"], older.get("began_from")
        return list(graphs.values()), list(dict.fromkeys(gone))

    def update(self, **values: Any) -> Run:
        """Write values into ``run.json``, beside what others wrote since; the run that has them."""
        record = {**read_record(self.path), **values}
        files.write_json(self.path / "run.json", record)
        return replace(self, record=record)

    def save_model(self, ranker: Ranker) -> None:
        """Replace ``model/`` at once: the old one stays until the new one is whole.

        What was chosen for the old one is outdated from then on.
        """
        self._outdate()  # before, so that no kill can leave it beside scores that it was not chosen for
        with files.atomic_folder(self.model_folder) as folder:
            if self.settings.vector.enabled:
                save_vectors(ranker, folder / VECTORS)
            save_model(ranker.reader.model, ranker.reader.tokenizer, folder)

    def save_weights(self, ranker: Ranker, **values: Any) -> Run:
        """Keep other weights of the vectors; ``values`` go into the record.

        What was chosen for the scores of before is outdated from then on.
        """
        self._outdate()
        folder = self.model_folder
        keep = partial(digests.write_manifest, folder)
        with digests.replacing(folder / VECTORS, digests.read_manifest(folder), keep) as temporary:
            save_vectors(ranker, temporary)
        return self.update(weighing=values)

    def _outdate(self) -> None:
        """Leave out of the record what was chosen for other scores: rescoring and weights of vectors are not
        used any more; weights of structure still are, and are marked.
        """
        record = read_record(self.path)  # others may have written since
        if structure := record.get("structure"):
            structure = {**structure, "outdated": True}
        if structure or record.get("rescoring") or record.get("weighing"):
            self.update(rescoring=None, weighing=None, structure=structure)

    def save_structure(self, structure: Structure, weights_R2: torch.Tensor, **values: Any) -> Run:
        """Keep a structural model beside the text model, and its weights; ``values`` go into the record.

        A rescoring that was chosen for the earlier scores is left out from then on.
        """
        from kgmlm.signals.structure import save_structure

        self.update(rescoring=None)

        def keep(known: digests.Accepted) -> None:
            self.update(files=digests.as_json(known))

        known = accepted(read_record(self.path))
        with digests.replacing(self.path / STRUCTURE, known, keep) as temporary:
            save_structure(structure, weights_R2, temporary)
        return self.update(structure=values)

    def lend_structure(self, graph: KnowledgeGraph) -> tuple[Structure, dict[str, Any]]:
        """This run's structural model, else its teacher, and how that was trained, for another run.

        Raises:
            RunError: when it has neither, or is a run of another graph.
        """
        from kgmlm.signals.structure import load_structure

        self._check(STRUCTURE, TEACHER)
        there = [name for name in (STRUCTURE, TEACHER) if (self.path / name).is_file()]
        if not there:
            raise RunError(f"{self.path} has no structural model; `kgmlm fuse {self.path}` trains one")
        if not self.graph.same(graph):
            raise RunError(f"{self.path} is a run of another graph")
        structure, _ = load_structure(self.path / there[0], self.graph)
        record = self.record.get("structure" if there[0] == STRUCTURE else "teacher") or {}
        keys = ("settings", "minutes", "versions", "hardware", "command")
        return structure, {k: record.get(k) for k in keys}

    def teacher(self, device: torch.device) -> Structure | None:
        """The structural model that teaches this run's, if its settings have one.

        Raises:
            RunError: when it is missing or damaged.
        """
        from kgmlm.signals.structure import load_structure

        if not self.settings.training.teaching:
            return None
        self._check(TEACHER)
        return load_structure(self.path / TEACHER, self.graph)[0].to(device)

    def _check(self, *names: str) -> None:
        """See that single files are as they were written."""
        again = f"restore it from a copy, or make it again with `kgmlm fuse {self.path} --overwrite`"
        for name in names:
            remedy = again if name == STRUCTURE else digests.RESTORE
            check_files(self.path, read_record(self.path), name, remedy=remedy)

    def verify(self) -> None:
        """Read all files of the run and see that they are as they were written.

        Raises:
            RunError: naming the first that is not; or when an older version kept no digests.
        """
        if not self.record.get("files"):
            raise RunError(f"{self.path} cannot be verified: an older kgmlm wrote it, which kept no digests")
        check_files(self.path, self.record, *self.record["files"], contents=True)
        if self.model_folder.is_dir():
            digests.check_folder(self.model_folder, contents=True)
        for index in (self.path / "index").glob("*"):
            digests.check_folder(index, contents=True, remedy="build it again with `kgmlm index`")
        if self.record.get("rescoring"):
            open_run(self.rescorer_folder, verify=True)

    def ranker(
        self,
        device: str | None = None,
        folder: Path | None = None,
        graph: KnowledgeGraph | None = None,
        rescorer: bool = True,
        structure: bool = True,
    ) -> Ranker:
        """A ready ranker with the run's best model.

        Args:
            graph: other texts and candidates than the run's own; nothing is trained.
            folder: another model of this run, such as a checkpoint's.
            device: such as "cpu" or "cuda"; None takes a GPU where there is one.
            rescorer, structure: False leaves the run's rescorer or structural model on disk, if it has one.

        Raises:
            RunError: when training has left no model yet.
        """
        folder = folder or self.model_folder
        digests.check_folder(folder)
        if not (folder / "config.json").is_file():
            raise RunError(
                f"{self.path} has no trained model yet; `kgmlm train --output {self.path} --resume` goes on"
            )
        import torch

        from kgmlm.modeling import check_vocabulary, load_model
        from kgmlm.ranker import Ranker
        from kgmlm.signals.structure import load_structure
        from kgmlm.tokenizer_sources import load_tokenizer

        if self.record.get("files") and not (folder / digests.MANIFEST).is_file():
            raise RunError(f"{folder / digests.MANIFEST} is missing; {digests.RESTORE}")
        model = load_model(folder)
        tokens = self.vocabulary.softmax_tokens
        if tokens is not None and tokens[-1] >= len(model.decoder[0]):
            raise RunError(
                f"{self.path / 'run.json'} is damaged: 'softmax_tokens' has {tokens[-1]}, the model only "
                f"{len(model.decoder[0]):,} tokens; {digests.RESTORE}"
            )
        try:
            torch.zeros(1, device=device).item()  # "meta" is a device that holds nothing
            model.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
        except (RuntimeError, AssertionError) as error:
            raise RunError(f"the device '{device}' cannot be used: {str(error).splitlines()[0]}") from None
        tokenizer = load_tokenizer(folder)
        ranker = Ranker.fresh(self.graph.context, tokenizer, model, self.settings, self.vocabulary)
        check_vocabulary(model, tokenizer, folder)
        if (folder / VECTORS).is_file() and not self.settings.vector.enabled:
            raise RunError(
                f"{self.path / 'config.toml'} is damaged: 'vector.enabled' is false, yet there are vectors; "
                f"{digests.RESTORE}"
            )
        names = load_names(
            self.path / NAMES,
            len(self.graph.entities),
            self.vocabulary.span_length,
            len(tokenizer.tokenizer),
        )
        if names is not None:
            ranker.reader.adopt_names(names)
        if self.settings.vector.enabled and folder == self.model_folder and not (folder / VECTORS).is_file():
            raise RunError(f"{folder / VECTORS} is missing; it belongs to the model beside it")
        if (folder / VECTORS).is_file():
            load_vectors(ranker, folder / VECTORS)
        if structure and folder == self.model_folder:
            self._check(STRUCTURE)
        if structure and folder == self.model_folder and (self.path / STRUCTURE).is_file():
            found, weights_R2 = load_structure(self.path / STRUCTURE, self.graph)
            ranker.signals["structure"] = found.to(model.device)
            ranker.mixture = ranker.mixture.weighed("structure", weights_R2, float(weights_R2.mean()))
        if rescorer and folder == self.model_folder and self.record.get("rescoring"):
            ranker.reranking = self.reranking(model.device)
        return ranker if graph is None or graph is self.graph else ranker.over(graph.context)

    def copy_rescorer(self, other: Run) -> None:
        """Give another run of the same graph this one's rescorer."""
        mine = self.rescorer_folder
        files.refuse_link(other.path / RESCORER)
        other.update(rescoring=None)
        with files.atomic_folder(other.path / RESCORER) as folder:
            shutil.copytree(mine, folder, dirs_exist_ok=True)

    @property
    def rescorer_folder(self) -> Path:
        """The run folder of the trained rescorer of this run.

        Raises:
            RunError: when there is none.
        """
        folder = self.path / RESCORER
        if not (folder / "model" / "config.json").is_file():
            further = (
                "--resume` goes on with its training" if (folder / "run.json").is_file() else "` trains one"
            )
            raise RunError(f"{self.path} has no trained rescorer; `kgmlm rescore {self.path} {further}")
        return folder

    def rescorer(self, device: torch.device) -> Rescorer:
        """The trained rescorer of this run.

        Raises:
            RunError: when it is missing or damaged.
        """
        from kgmlm.modeling import check_vocabulary, load_model
        from kgmlm.rescoring import Rescorer
        from kgmlm.tokenizer_sources import load_tokenizer

        folder = self.rescorer_folder
        check_files(folder, read_record(folder), "config.toml")
        model, tokenizer = load_model(folder / "model"), load_tokenizer(folder / "model")
        check_vocabulary(model, tokenizer, folder / "model")
        return Rescorer(self.graph.context, tokenizer, model.to(device), read_settings(folder))

    def reranking(self, device: torch.device) -> Reranking:
        """The rescorer of this run, used as was chosen on validation, or not yet.

        Raises:
            RunError: when it is missing or damaged.
        """
        from kgmlm.ranker import unit
        from kgmlm.reranking import Reranking
        from kgmlm.rescoring import Use

        use = self.record.get("rescoring") or {"k": 0, "weight": 0.0}
        how = Use(int(use["k"]), float(use["weight"]))
        return Reranking(self.rescorer(device), how, unit("vector", self.settings))


def create_run(
    path: Path,
    graph: KnowledgeGraph,
    settings: Settings,
    model_name: str,
    vocabulary: Vocabulary,
    *,
    names: Candidates | None = None,
    overwrite: bool = False,
    teacher: tuple[Structure, Mapping[str, Any]] | None = None,
) -> Run:
    """Lay a run folder: graph, settings, record; no model yet. Whole or not at all.

    Args:
        names: the tokens of all entities, so that opening the run need not tokenize them again.
        teacher: a structural model that is to teach the run's, and how it was trained.
    """
    import torch

    from kgmlm.signals.structure import save_structure

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
        "teacher": dict(teacher[1]) if teacher else None,
        "status": "started",
        "step": 0,
        "minutes": 0.0,
    }
    with files.atomic_folder(path, follow=True) as folder:
        write_graph(graph, folder / "graph")
        if names is not None:
            save_names(names, folder / NAMES)
        files.write_atomic(folder / "config.toml", dump_settings(settings))
        if teacher:
            save_structure(teacher[0], torch.ones(len(graph.relations), 2), folder / TEACHER)
        record["files"] = digests.as_json(digests.of_folder(folder))
        files.write_json(folder / "run.json", record)
    return Run(path, graph, settings, record)


def open_run(path: str | Path, *, verify: bool = False) -> Run:
    """Open a run folder; it may have been moved here from another machine.

    Args:
        verify: read all its files and see that they are as they were written; else their sizes must do.

    Raises:
        RunError: when it is no run, is damaged, or is of a newer format.
    """
    path = Path(path)
    recover(path)
    if not (path / "run.json").is_file():
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
    run = Run(path, read_graph(path / "graph", record["dataset"], record["sources"]), settings, record)
    if verify:
        run.verify()
    return run
