"""Models of PyKEEN as signals: `kgmlm tune RUN --add pykeen --from FOLDER` takes one that is trained.

Several can stand side by side, named after their classes: "pykeen:rotate", "pykeen:tucker". Entities of the
run and of the model are matched by label. A candidate that the model does not know gets the mean score of the
others; all candidates of a query that it does not know score 0.

A run keeps the class, the arguments and the tensors of a model, never its pickle, and builds the model from
these. When a model is taken, the scores of the rebuilt one are compared with those of the original.

Shapes: B queries, N entities of a graph, M entities of the model, K candidates of each query's own.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core import files, machine
from kgmlm.core.arrays import Array, IntArray, numpy
from kgmlm.core.errors import ConfigError, RunError, first_line
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Reader, Reading

if TYPE_CHECKING:
    from pykeen.models import Model
    from pykeen.triples import CoreTriplesFactory, TriplesFactory

PREFIX = "pykeen:"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
FILE = re.compile(rf"pykeen-({NAME.pattern})\.safetensors")
AT_ONCE = 2**25  # scores per batch: 128 MB
COMPARED = 64  # queries on which the original and the rebuilt model must agree
# Classes that a run cannot rebuild: they read files, or need more than plain arguments and tensors.
OTHERS = re.compile("Inductive.*|.*NodePiece.*|ERModel|EvaluationOnlyModel|Fixed.*|Cooccurrence.*")
MODEL, TRIPLES = "trained_model.pkl", "training_triples"  # in a folder that PyKEEN's pipeline saved


@dataclass(frozen=True, eq=False)
class PyKEENModel:
    """A model of PyKEEN over a graph.

    Attributes:
        kind: the name of its class in PyKEEN, such as "RotatE".
        arguments: the arguments of its constructor, beside a triples factory.
        tensors: its parameters and buffers.
        entities, relations, inverse: of its triples factory.
        rows_N, relation_rows: its number of each entity and relation of the graph; -1 where it has none.
        triples: those of its triples factory, if the constructor needs them; else one placeholder triple.
    """

    name: ClassVar[str] = "pykeen"
    title: ClassVar[str] = "PyKEEN model"
    about: ClassVar[str] = "embeddings learned from the links of the graph alone, by a model of PyKEEN"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/pykeen.safetensors"

    kind: str
    arguments: Mapping[str, Any]
    tensors: Mapping[str, npt.NDArray[Any]]
    entities: int
    relations: int
    inverse: bool
    rows_N: IntArray
    relation_rows: IntArray
    triples: IntArray

    def over(self, reader: Reader | None, entity_rows: IntArray, relation_rows: IntArray) -> Self:
        """A copy for another graph; arguments as of :meth:`kgmlm.signals.base.Signal.over`."""
        rows_N, relations = np.append(self.rows_N, -1), np.append(self.relation_rows, -1)
        twin = replace(self, rows_N=rows_N[entity_rows], relation_rows=relations[relation_rows])
        vars(twin).update({"model": self.model} if "model" in vars(self) else {})
        return twin

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        """It does not come with the text model: it is taken from PyKEEN."""

    @cached_property
    def model(self) -> Model:
        """The model, made of its class, arguments and tensors.

        Raises:
            ConfigError: when PyKEEN is not installed.
            RunError: when it cannot be made of these.
        """
        if not machine.installed("pykeen"):
            raise ConfigError(f"the signal {self.name} needs PyKEEN, which is not installed")
        import torch

        try:
            made = _made(self.kind, self.arguments, self.factory())
            made.load_state_dict({key: torch.from_numpy(np.array(of)) for key, of in self.tensors.items()})
        except Exception as error:
            raise RunError(f"the model of {self.name} cannot be made: {first_line(error)}") from None
        return made.eval()

    def factory(self) -> CoreTriplesFactory:
        """A triples factory as that of the model."""
        import torch
        from pykeen.triples import CoreTriplesFactory

        return CoreTriplesFactory(
            torch.from_numpy(self.triples.astype(np.int64)),
            self.entities,
            self.relations,
            create_inverse_triples=self.inverse,
        )

    def score(self, reading: Reading, pool: Pool) -> Array:
        """Scores ``(B, N)`` or ``(B, K)``, NumPy's; those of a query that the model does not know are 0."""
        queries = reading.queries
        found = np.zeros((len(queries), pool.width), np.float32)
        entity_B, relation_B = self.rows_N[queries.entity_B], self.relation_rows[queries.relation_B]
        known_B = (entity_B >= 0) & (relation_B >= 0)
        rows = self.rows_N if pool.ids is None else self.rows_N[pool.filled]
        size = max(1, AT_ONCE // max(1, self.entities))
        for tail in (True, False):
            asked = np.flatnonzero(known_B & (queries.tail_B == tail))
            for start in range(0, len(asked), size):
                at = asked[start : start + size]
                scores_bM = self._scores(entity_B[at], relation_B[at], tail)
                mean_b1 = scores_bM.mean(1, keepdims=True)
                own = rows[at] if pool.own else rows
                filled = np.maximum(own, 0)
                of_own = np.take_along_axis(scores_bM, filled, 1) if pool.own else scores_bM[:, filled]
                found[at] = np.where(own < 0, mean_b1, of_own)
        return found

    def _scores(self, entity_b: IntArray, relation_b: IntArray, tail: bool) -> npt.NDArray[np.float32]:
        """The model's scores of all its entities ``(b, M)``."""
        import torch

        ends = (entity_b, relation_b) if tail else (relation_b, entity_b)
        batch = torch.from_numpy(np.stack(ends, 1))
        with torch.inference_mode():
            scores_bM = self.model.predict_t(batch) if tail else self.model.predict_h(batch)
        found: npt.NDArray[np.float32] = numpy(scores_bM.float())
        return found

    def save(self, path: Path) -> None:
        """Write class, arguments, tensors and rows as safetensors."""
        about = {
            "kind": self.kind,
            "arguments": dict(self.arguments),
            "entities": self.entities,
            "relations": self.relations,
            "inverse": self.inverse,
        }
        rows = {"rows": self.rows_N, "relation_rows": self.relation_rows, "triples": self.triples}
        tensors = {f"model.{key}": np.ascontiguousarray(of) for key, of in self.tensors.items()}
        told = np.frombuffer(json.dumps(about).encode(), np.uint8)
        files.write_tensors(path, {"about": told, **rows, **tensors})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Self:
        """Open what :meth:`save` wrote for a graph; the model is made when it is first asked.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors.numpy import load_file

        try:
            t = load_file(path)
            about = json.loads(t["about"].tobytes())
            numbers = [about["entities"], about["relations"]]
            rows_N, relation_rows, triples = t["rows"], t["relation_rows"], t["triples"]
            if not (isinstance(about["kind"], str) and isinstance(about["arguments"], dict)):
                raise ValueError("it names no model")
            counted = all(isinstance(n, int) and n > 0 for n in numbers)
            if not (counted and isinstance(about["inverse"], bool)):
                raise ValueError("it does not say how many entities its model has")
            for rows, most in ((rows_N, numbers[0]), (relation_rows, numbers[1])):
                if rows.dtype != np.int64 or rows.ndim != 1 or not ((rows >= -1) & (rows < most)).all():
                    raise ValueError("it names entities or relations that its model does not have")
            ends = triples[:, [0, 2]], triples[:, 1]
            if triples.dtype != np.int64 or any(
                x.size and not ((x >= 0) & (x < most)).all() for x, most in zip(ends, numbers, strict=True)
            ):
                raise ValueError("its triples are not of its model")
            tensors = {key.removeprefix("model."): of for key, of in t.items() if key.startswith("model.")}
        except Exception as error:
            raise RunError(f"{path} cannot be read: {first_line(error)}") from None
        if (len(rows_N), len(relation_rows)) != (len(graph.entities), len(graph.relations)):
            raise RunError(f"{path} is of another graph; `kgmlm tune RUN --add pykeen` takes another")
        entities, relations = numbers
        about_it = about["kind"], about["arguments"], tensors
        return cls(*about_it, entities, relations, about["inverse"], rows_N, relation_rows, triples)


@cache
def kind_named(name: str) -> type[PyKEENModel]:
    """The class of a signal of this name, such as "pykeen:rotate"."""
    own = name.removeprefix(PREFIX)
    file = f"signals/pykeen-{own}.safetensors"
    return type("PyKEENModel", (PyKEENModel,), {"name": name, "file": file})


def names_in(run: Path) -> list[str]:
    """The names of the models of PyKEEN that a run has."""
    return names_of(path.name for path in (run / "signals").glob("pykeen-*.safetensors") if path.is_file())


def names_of(files: Iterable[str]) -> list[str]:
    """The names of models of PyKEEN that are in files of these names."""
    found = (FILE.fullmatch(file) for file in files)
    return sorted(PREFIX + of[1] for of in found if of)


@dataclass(frozen=True)
class FromPyKEEN:
    """A model that PyKEEN has trained, to be a signal: ``kgmlm.tune(run, add="pykeen", source=...)``.

    Attributes:
        model: the model, or the folder that PyKEEN's pipeline saved it in.
        factory: the triples factory that the model was trained with; None for a folder.
        arguments: by which the model was made; None finds out its dimensions.
        trust_pickle: allow reading the pickle in the folder, which executes any code in it.

    Example:
        >>> result = pipeline(model="RotatE", ...)  # doctest: +SKIP
        >>> source = FromPyKEEN(result.model, result.training)  # doctest: +SKIP
        >>> kgmlm.tune("runs/mine", add="pykeen", source=source)  # doctest: +SKIP
    """

    model: Model | str | Path
    factory: TriplesFactory | None = None
    arguments: Mapping[str, Any] | None = None
    trust_pickle: bool = False

    def check(self, name: str) -> None:
        """Refuse what cannot be taken as a signal of a name.

        Raises:
            ConfigError: when PyKEEN is not installed, or the signal cannot be named so.
            RunError: when the pickle is not trusted.
        """
        own = name.removeprefix(PREFIX)
        if name != PyKEENModel.name and not NAME.fullmatch(own):
            raise ConfigError(f"names of PyKEEN's models are small letters, digits, - and _, not '{own}'")
        if not machine.installed("pykeen"):
            raise ConfigError("PyKEEN is not installed, which makes and scores its models")
        if isinstance(self.model, str | Path) and not self.trust_pickle:
            raise RunError(
                f"the model in {self.model} is a pickle, and reading one executes the code in it; "
                "--trust-pickle does so, if you trust whoever made it"
            )
        if not isinstance(self.model, str | Path) and self.factory is None:
            raise ConfigError("factory is missing: the triples factory that the model was trained with")

    def signal(self, name: str, graph: KnowledgeGraph) -> PyKEENModel:
        """The signal of the model."""
        if isinstance(self.model, str | Path):
            return taken(*load_pickled(Path(self.model)), graph, name, self.arguments)
        assert self.factory is not None
        return taken(self.model, self.factory, graph, name, self.arguments)

    @property
    def said(self) -> str:
        """The source of the model, for the record."""
        return str(self.model) if isinstance(self.model, str | Path) else "a model in Python"


def load_pickled(folder: Path) -> tuple[Model, TriplesFactory]:
    """The model and the triples factory in a folder of PyKEEN's pipeline; runs the code in the pickle.

    Raises:
        RunError: when there is none, or it cannot be read.
    """
    if not (folder / MODEL).is_file() or not (folder / TRIPLES).is_dir():
        raise RunError(
            f"{folder} has no {MODEL} beside {TRIPLES}/; PipelineResult.save_to_directory writes both"
        )
    import torch
    from pykeen.triples import TriplesFactory

    try:
        model = torch.load(folder / MODEL, map_location="cpu", weights_only=False)
        return model, TriplesFactory.from_path_binary(folder / TRIPLES)
    except Exception as error:
        raise RunError(f"{folder} cannot be read: {first_line(error)}") from None


def taken(
    model: Model,
    factory: TriplesFactory,
    graph: KnowledgeGraph,
    name: str = "pykeen",
    arguments: Mapping[str, Any] | None = None,
) -> PyKEENModel:
    """A signal of a model that PyKEEN has trained.

    Args:
        factory: the triples factory that it was trained with, whose labels are those of the graph.
        name: "pykeen" names it after its class.
        arguments: by which the model was made; None finds out its dimensions.

    Raises:
        ConfigError: when it is no model of PyKEEN, or cannot be made again.
        RunError: when it knows no entity or no relation of the graph.
    """
    import pykeen.models

    kind = type(model).__name__
    if not isinstance(model, pykeen.models.Model) or getattr(pykeen.models, kind, None) is not type(model):
        raise ConfigError(f"{kind} is no model of pykeen.models, so a run cannot make it again")
    name = PREFIX + kind.lower() if name == PyKEENModel.name else PREFIX + name.removeprefix(PREFIX)
    rows_N = _rows(graph.entities.column("label"), factory.entity_to_id)
    relation_rows = _rows([r.label for r in graph.relations], factory.relation_to_id)
    for what, rows in (("entity", rows_N), ("relation", relation_rows)):
        if (rows < 0).all():
            raise RunError(f"the model knows no {what} of {graph.name}: its factory has other labels")
    model = model.cpu().eval()
    tensors = {key: numpy(of) for key, of in model.state_dict().items()}
    if any(np.iscomplexobj(of) for of in tensors.values()):
        raise ConfigError(f"the parameters of {kind} are complex numbers, which a run cannot keep")
    blank = kind_named(name)(
        kind, {}, tensors, factory.num_entities, factory.real_num_relations,
        bool(factory.create_inverse_triples), rows_N, relation_rows, np.zeros((1, 3), np.int64),
    )  # fmt: skip
    whole = numpy(factory.mapped_triples).astype(np.int64)
    tried = [arguments] if arguments is not None else _guesses(model)
    for triples, how in itertools.product((blank.triples, whole), tried):
        found = replace(blank, arguments=dict(how), triples=triples)
        if _alike(found, model):
            return found
    more = "" if arguments is not None else "; give those that it was made with"
    raise ConfigError(f"{kind} cannot be made again with the arguments {_told(tried)}{more}")


def _rows(labels: list[str], ids: Mapping[Any, int]) -> IntArray:
    """The number of each label in a factory; -1 where it has none.

    PyKEEN's binary format makes integers of labels that are numbers: "00001740" is looked for as 1740, too.
    """
    known = {str(label): number for label, number in ids.items()}
    numbers = {label: number for label, number in ids.items() if isinstance(label, int | np.integer)}

    def row(label: str) -> int:
        if label in known:
            return known[label]
        return numbers.get(int(label), -1) if label.isascii() and label.isdigit() else -1

    return np.array([row(label) for label in labels], np.int64)


def _guesses(model: Model) -> list[dict[str, Any]]:
    """Arguments by which a model may have been made: none, or dimensions that its tensors may be of."""
    parts: list[Any] = [getattr(model, f"{of}_representations", None) or () for of in ("entity", "relation")]
    entity, relation = ([int(np.prod(found[0].shape))] if len(found) else [] for found in parts)
    sizes = dict.fromkeys(n for whole in entity for n in (whole, whole // 2, whole // 4, 2 * whole) if n)
    of_relations = dict.fromkeys(n for whole in relation for n in (whole, round(whole**0.5)) if n)
    alone = [{"embedding_dim": size} for size in sizes]
    both = [{"embedding_dim": one, "relation_dim": other} for one in sizes for other in of_relations]
    return [{}, *alone, *both]


def _alike(found: PyKEENModel, model: Model) -> bool:
    """Return whether a model that was made again says what the model says."""
    import torch

    rng = np.random.default_rng(0)
    entity_b, relation_b = (rng.integers(0, n, COMPARED) for n in (found.entities, found.relations))
    batch = torch.from_numpy(np.stack([entity_b, relation_b], 1))
    try:
        for tail in (True, False):
            asked = batch if tail else batch.flip(1)
            with torch.inference_mode():
                expected = model.predict_t(asked) if tail else model.predict_h(asked)
            again = found._scores(entity_b, relation_b, tail)
            if not np.allclose(again, numpy(expected.float()), 1e-3, 1e-3):
                return False
    except (RunError, TypeError, ValueError, RuntimeError, IndexError, KeyError):
        return False
    return True


def _made(kind: str, arguments: Mapping[str, Any], factory: CoreTriplesFactory) -> Model:
    """A model of PyKEEN with random parameters."""
    import pykeen.models

    made = getattr(pykeen.models, kind, None)
    if not (isinstance(made, type) and issubclass(made, pykeen.models.Model)) or OTHERS.fullmatch(kind):
        raise ValueError(f"PyKEEN has no model {kind} that can be made again")
    if not all(_is_plain(value) for value in arguments.values()):
        raise ValueError("arguments are numbers, yes or no, or short words: no others are made again")
    with _undisturbed():
        return made(triples_factory=factory, random_seed=0, **arguments)


def _is_plain(value: Any) -> bool:
    """Return whether an argument names no file, address or class: a pack may come from anybody."""
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z0-9_-]{1,40}", value) is not None
    return value is None or (isinstance(value, int | float) and abs(value) <= 2**16)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave all generators of random numbers as they were: PyKEEN's models seed them."""
    import random

    import torch

    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _told(tried: list[Any]) -> str:
    return " or ".join(json.dumps(dict(how), default=str) for how in tried[:3])
