"""What all signals have in common, and what they score: a pool of candidates.

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import Settings
from kgmlm.core.errors import RunError, first_line
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Query
from kgmlm.text.reader import Reader, Reading


@dataclass(frozen=True, eq=False)
class Pool:
    """The candidates of some queries.

    Attributes:
        count: how many entities the graph has.
        ids: None for all of them, ``(N,)`` for some, or ``(B, K)`` for each query's own, -1 where a query has
            fewer than K.
    """

    count: int
    ids: IntArray | None = None

    @property
    def width(self) -> int:
        """How many candidates a query has at most."""
        return self.count if self.ids is None else self.ids.shape[-1]

    @property
    def own(self) -> bool:
        """Whether each query has candidates of its own."""
        return self.ids is not None and self.ids.ndim == 2

    @cached_property
    def there(self) -> BoolArray:
        """The mask of candidates that are there: the shape of ``ids``."""
        return np.ones(self.count, np.bool_) if self.ids is None else self.ids >= 0

    @cached_property
    def filled(self) -> IntArray:
        """``ids`` with 0 in the places of ``-1``; mask what is scored there by :attr:`there`."""
        return np.arange(self.count) if self.ids is None else np.maximum(self.ids, 0)


class Reason(NamedTuple):
    """Why a candidate scores: a rule and what it rests on.

    Attributes:
        path, constant: the number of the path rule, or of the rule with constants; the other is -1.
        predicted, correct: how often the rule predicts, and how often rightly.
        triples: training triples (head, relation, tail) that make its body true.
    """

    path: int
    constant: int
    predicted: int
    correct: int
    triples: tuple[tuple[int, int, int], ...]


def spoken(context: ContextGraph, triples: Iterable[tuple[int, int, int]]) -> str:
    """Triples by the names of their entities and relations."""
    surfaces, names = context.surfaces, context.relation_names
    return " and ".join(f"{surfaces[h]} {names[r]} {surfaces[t]}" for h, r, t in triples)


def sentences(context: ContextGraph, reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Reasons in words: the triples that each rests on, and how often its rule is right; only the first of
    rules that rest on the same triples.
    """
    first: dict[tuple[tuple[int, int, int], ...], Reason] = {}
    for reason in reasons:
        first.setdefault(reason.triples, reason)
    return tuple(
        f"{spoken(context, triples)} ({reason.correct:,} of {reason.predicted:,})"
        for triples, reason in first.items()
    )


class OtherGraphError(ValueError):
    """A file of a signal is of another graph."""


class Signal(ABC):
    """What scores candidates, on a scale of its own.

    What a signal keeps is a file of tensors: :meth:`tensors` and :meth:`from_tensors` are all that most need.

    Attributes:
        name: in tables of weights, in reports and in explanations; also that of its section of the settings,
            if it has one.
        title: its name in sentences such as "the run has no linked pairs".
        about: what its scores say, to readers of a report.
        file: where a run keeps it, below the run's folder: ``signals/NAME.safetensors``, or in ``model/``
            where it comes with the model.
        reads: whether it needs the states of the query's text: else it costs no forward pass.
        signed: whether its weights may be negative.
        transductive: whether it tells entities apart by training triples alone, and so says nothing of one
            that has none.
        needs: the signal that a run must have beside it; empty for none.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    file: ClassVar[str]
    reads: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    transductive: ClassVar[bool] = False
    needs: ClassVar[str] = ""

    @abstractmethod
    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Float32 scores of shape ``(B, N)`` or ``(B, K)``. Padding may hold any finite value."""

    @abstractmethod
    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Self:
        """A copy for another graph.

        Args:
            reader: reads that graph.
            entity_rows, relation_rows: which entity or relation of this graph each of the other's is, or -1.
        """

    @classmethod
    def initial(cls, reader: Reader) -> Self | None:
        """The signal that comes with a reader's model; None for a signal that is trained separately."""
        return None

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Self:
        """A copy for a run that has vectors of all entities, which are read when they are asked for."""
        return self

    def with_texts(self, texts_ND: Callable[[], Floats]) -> Self:
        """Take the bi-encoder's text vectors ``(N, D)`` of all entities, computed when first called."""
        return self

    def updated(self, graph: KnowledgeGraph, settings: Settings) -> Self:
        """The signal of a graph that has grown: after :meth:`for_graph`, counted again, or with embeddings of
        what is new. Nothing is trained again.

        Args:
            settings: of the run.
        """
        return self

    def reasons(self, query: Query, candidate: int) -> list[Reason]:
        """The best rules that predict a candidate, best first, each with triples that it rests on."""
        return []

    def because(self, context: ContextGraph, query: Query, candidate: int, weight: float) -> tuple[str, ...]:
        """Sentences on why it scores a candidate as it does; none where it can say nothing in words.

        Args:
            context: names of entities and relations.
            weight: how much the signal counts for the query.
        """
        return sentences(context, self.reasons(query, candidate))

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """What a file keeps of it, by name."""
        raise NotImplementedError

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Self:
        """The signal whose file keeps these tensors.

        Raises:
            OtherGraphError: when it is of another graph.
            Exception: when they are invalid; the first line says why.
        """
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write what it keeps as safetensors."""
        arrays = self.tensors().items()
        files.write_tensors(path, {name: np.ascontiguousarray(array) for name, array in arrays})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Self:
        """Open what :meth:`save` wrote in a run of a graph.

        Args:
            reader: of the run; a signal that is trained beside the text model needs none.

        Raises:
            RunError: when the file is damaged, or of another graph or model.
        """
        from safetensors.numpy import load_file

        with cls.reading(path):
            return cls.from_tensors(load_file(path), graph, reader)

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[None]:
        """Turn any error of reading a file inside it into one sentence.

        Raises:
            RunError: naming the file, and the command that helps where it is of another graph.
        """
        try:
            yield
        except OtherGraphError:
            again = f"`kgmlm tune RUN --add {cls.name}` makes another"
            raise RunError(f"{path} is of another graph; {again}") from None
        except Exception as error:
            raise RunError(f"{path} cannot be read: {first_line(error)}") from None


class TrainableSignal(Signal):
    """A signal that is trained beside the text model, by `kgmlm tune RUN --add NAME`."""

    @classmethod
    @abstractmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: Any,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Self:
        """Train on the training triples alone.

        Args:
            settings: the section of the settings that has its name; None where there is none.
            advance: called with (steps that were just done, all steps).
            device: a GPU's name, where it can use one; None is its own choice.
            kept: a file for the state of unfinished training, from which the next call continues; what takes
                seconds needs none.
        """


class CountedSignal(TrainableSignal):
    """A signal that follows from the training triples of a graph: nothing is trained.

    Attributes:
        context: the graph's texts and training triples.
    """

    def __init__(self, context: ContextGraph) -> None:
        self.context = context

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: Any = None,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Self:
        """Take a graph's training triples."""
        return cls(graph.context)

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Self:
        """Count the training triples of another graph."""
        return type(self)(reader.context)
