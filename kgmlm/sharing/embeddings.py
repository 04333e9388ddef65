"""Embeddings of a run's entities as arrays and files, and the entities that are most alike by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgmlm.core import files
from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.errors import ConfigError, QueryError
from kgmlm.core.options import takes
from kgmlm.core.progress import watcher_of
from kgmlm.runs.options import BATCH_SIZE
from kgmlm.runs.run import Run, open_run
from kgmlm.sharing.options import EmbeddingsOptions, SimilarOptions
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.kge import KGE
from kgmlm.signals.vector import Vector

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.ranking.ranker import Ranker

ENTITY_BATCH = 2**15  # entities compared in one product
KINDS = (Biencoder.name, Vector.name, KGE.name)  # the first that a run has is the default


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of some entities, or of relations.

    Attributes:
        of: the name of the signal.
        labels, names: of each row.
        vectors: ``(n, D)``, float32.
    """

    of: str
    labels: list[str]
    names: list[str]
    vectors: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<{len(self):,} embeddings of {self.of}, {self.vectors.shape[1]} numbers each>"

    def save(self, path: str | Path) -> Path:
        """Write them in the format that the file's name ends in.

        ``.parquet`` has the columns label, name and vector; ``.npz`` the arrays labels, names and vectors;
        ``.txt`` is the text format of word2vec, which gensim reads, with labels whose spaces are underscores.

        Raises:
            ConfigError: when the name ends in none of these.
            DataError: when the file cannot be written.
        """
        target = files.as_path(path, "the file of embeddings")
        write = WRITERS.get(target.suffix)
        if write is None:
            raise ConfigError(
                f"embeddings are written to a file that ends in {', '.join(WRITERS)}, not {target}"
            )
        files.check_writable(target)
        with files.atomic_file(target, follow=True) as temporary:
            write(self, temporary)
        return target


def _as_parquet(embeddings: Embeddings, path: Path) -> None:
    """Write the columns label, name and vector."""
    flat = pa.array(np.ascontiguousarray(embeddings.vectors).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(flat, embeddings.vectors.shape[1])
    table = pa.table({"label": embeddings.labels, "name": embeddings.names, "vector": vectors})
    pq.write_table(table, path)


def _as_arrays(embeddings: Embeddings, path: Path) -> None:
    """Write arrays of NumPy; texts are arrays of letters, so that no pickle is needed."""
    with path.open("wb") as file:
        np.savez(
            file,
            labels=np.array(embeddings.labels),
            names=np.array(embeddings.names),
            vectors=embeddings.vectors,
        )


def _as_word2vec(embeddings: Embeddings, path: Path) -> None:
    """Write a line of numbers for each label."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(embeddings)} {embeddings.vectors.shape[1]}\n")
        for label, vector in zip(embeddings.labels, embeddings.vectors, strict=True):
            word = "_".join(label.split()) or "_"
            file.write(f"{word} {' '.join(f'{x:.6g}' for x in vector.tolist())}\n")


WRITERS: Mapping[str, Callable[[Embeddings, Path], None]] = {
    ".parquet": _as_parquet,
    ".npz": _as_arrays,
    ".txt": _as_word2vec,
}


@takes(EmbeddingsOptions)
def embeddings(run: Run | str | Path, options: EmbeddingsOptions) -> Embeddings:
    """The embeddings of a run's entities, by one of its signals.

    Raises:
        ConfigError: when the run has no such embeddings.

    Example:
        >>> kgmlm.embeddings("runs/demo").vectors.shape  # doctest: +SKIP
        (375, 256)
    """
    opened, watch = run if isinstance(run, Run) else open_run(run), watcher_of(options.progress)
    ranker = opened.open(watch, BATCH_SIZE).ranker
    of = kind_among(ranker, options.of)
    if options.relations:
        return _of_relations(ranker, of)
    with watch:
        for vectors in ranker.counted_vectors:
            vectors.read(BATCH_SIZE, partial(watch, "reading entities", total=vectors.unread))
    ids = embedded(ranker, of)
    entities = ranker.reader.context.entities.take(ids)
    vectors_ND = embeddings_of(ranker, of, ids)
    return Embeddings(of, entities.column("label"), entities.column("name"), vectors_ND)


def kind_among(ranker: Ranker, of: str | None) -> str:
    """The signal whose embeddings are meant; None takes the first that the run has.

    Raises:
        ConfigError: when the run has none such.
    """
    available = [name for name in KINDS if name in ranker.signals]
    if of is None and available:
        return available[0]
    if of not in available:
        known = f"; it has those of {', '.join(available)}" if available else ""
        raise ConfigError(f"the run has no embeddings{'' if of is None else f' of {of!r}'}{known}")
    return of


def embedded(ranker: Ranker, of: str) -> IntArray:
    """Ids of the entities that have embeddings by a signal."""
    signal = ranker.signals[of]
    if isinstance(signal, KGE):
        return np.flatnonzero(signal.rows_N >= 0)
    return np.arange(len(ranker.reader.context.entities))


def embeddings_of(ranker: Ranker, of: str, ids: IntArray) -> Floats:
    """Embeddings ``(n, D)`` of some of these entities."""
    signal = ranker.signals[of]
    if isinstance(signal, KGE):
        return signal.entities_SD[signal.rows_N[ids]]
    if isinstance(signal, Biencoder):
        return signal.vectors_of(ids)
    assert ranker.vectors is not None
    return ranker.vectors.of(ids)


def _of_relations(ranker: Ranker, of: str) -> Embeddings:
    """Embeddings of the relations that ComplEx knows, then those of their inverses.

    Raises:
        ConfigError: when the signal has none.
    """
    signal = ranker.signals[of]
    if not isinstance(signal, KGE):
        raise ConfigError(f"the run has no embeddings of relations by {of}; `--of kge` has them")
    known = [r for r, row in enumerate(signal.relation_rows.tolist()) if row >= 0]
    rows = signal.relation_rows[known]
    of_both = np.concatenate([2 * rows, 2 * rows + 1])
    names = [ranker.reader.context.relations[r] for r in known]
    return Embeddings(
        of,
        [r.label for r in names] + [f"{r.label} (inverse)" for r in names],
        [r.name for r in names] + [f"{r.name} (inverse)" for r in names],
        signal.relations_RD[of_both],
    )


@takes(SimilarOptions)
def similar(run: Run | str | Path, options: SimilarOptions) -> pd.DataFrame:
    """The entities whose embeddings are most like an entity's.

    Returns:
        A DataFrame with the columns entity, name and cosine, best first.

    Raises:
        ConfigError: when the run has no such embeddings.
        QueryError: for an unknown or ambiguous name, or an entity that has no embedding.

    Example:
        >>> kgmlm.similar("runs/demo", "Italy", k=3)  # doctest: +SKIP
    """
    import pandas as pd

    opened, watch = run if isinstance(run, Run) else open_run(run), watcher_of(options.progress)
    ranker = opened.open(watch, BATCH_SIZE).ranker
    with watch:
        ids, cosines = nearest(ranker, options.of, opened.resolver.entity(options.entity), options.k)
    entities = opened.graph.entities.take(ids)
    columns = {"entity": entities.column("label"), "name": entities.column("name"), "cosine": cosines}
    return pd.DataFrame(columns)


def nearest(ranker: Ranker, of: str | None, entity: int, k: int) -> tuple[IntArray, Floats]:
    """Ids of the k entities nearest to one by the cosine of their embeddings, best first, and the cosines.

    Raises:
        QueryError: when the entity has no embedding.
    """
    of = kind_among(ranker, of)
    ids = embedded(ranker, of)
    if entity not in ids:
        raise QueryError(f"the entity has no embedding by {of}, since it is in no training triple")
    asked_D = _unit(embeddings_of(ranker, of, np.array([entity])))[0]
    parts = (ids[start : start + ENTITY_BATCH] for start in range(0, len(ids), ENTITY_BATCH))
    cosine_N = np.concatenate([_unit(embeddings_of(ranker, of, part)) @ asked_D for part in parts])
    cosine_N[ids == entity] = -np.inf
    best = np.argsort(-cosine_N, kind="stable")[: min(k, len(ids) - 1)]
    return ids[best], cosine_N[best]


def _unit(vectors_ND: Floats) -> Floats:
    """The vectors at length 1."""
    unit_ND: Floats = vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)
    return unit_ND
