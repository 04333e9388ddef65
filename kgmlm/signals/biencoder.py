"""A bi-encoder on the texts of entities, read once by a text encoder that is never trained.

A query's vector comes from the text of its entity, from the relation and from the entity's training triples;
a candidate's from its text and its training triples. Their cosine is the score. What is trained is a head of
some hundred thousand numbers, which takes minutes of a CPU. Nearest relatives are BLP (Daza et al., 2021) and
StATIK (Markowitz et al., 2022), which train the encoder, too.

An entity never seen costs one pass of the encoder. A relation never seen is known by its text.

Shapes: B queries, N candidates or entities of the graph, E edges, R relations, K kinds of edges (two per
relation), D width of the text vectors, M of the relation embeddings, W of what is compared.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from kgmlm.core import files
from kgmlm.core.arrays import Floats, HostTable, IntArray, Table, products_of_own, unit
from kgmlm.core.config import BiencoderSettings
from kgmlm.core.errors import ModelError, RunError
from kgmlm.core.progress import expected
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Links, Queries
from kgmlm.signals.base import OtherGraphError, Pool, TrainableSignal
from kgmlm.signals.text_vectors import EncoderSource, TextVectors, keep, read_all, read_texts
from kgmlm.signals.vector import EntityVectors
from kgmlm.text.encoder import ENCODER, TextEncoder
from kgmlm.text.onnx_model import OnnxModel
from kgmlm.text.reader import Reader, Reading
from kgmlm.text.vector_cache import VectorCache

EDGES_AT_ONCE = 2**17  # whose text vectors are in memory: 200 MB of width 384
CANDIDATES_AT_ONCE = 2**14
CUT = "cut"  # a tensor of the file: entities whose texts were not read as a whole, for lack of time
CANDIDATES = "candidates"  # a tensor of the file that follows from the others; packs leave it out
PARAMETERS = (
    "relation_text.weight", "relation", "query.weight", "query.bias", "neighbor.weight", "edge.weight",
    "asked.weight", "scale.weight", "scale.bias", "shift.weight", "shift.bias", "inner.weight", "inner.bias",
    "outer.weight", "outer.bias", "candidate.weight", "candidate.bias", "candidate_neighbor.weight",
    "candidate_edge.weight", "sharpness",
)  # fmt: skip


def profile_of(links: Links, entities: int, kinds: int) -> sp.csr_array:
    """Count the edges of each kind for each entity: ``(N, K)``."""
    row_E, kind_E, _ = links.edges(np.arange(entities))
    counts = sp.coo_array((np.ones(len(row_E), np.float32), (row_E, kind_E)), shape=(entities, kinds))
    return sp.csr_array(counts)


def weighted_sums(
    weight_E: Floats, row_E: IntArray, other_E: IntArray, rows: int, vectors: Callable[[IntArray], Floats]
) -> Floats:
    """Sums ``(rows, D)`` of the vectors at the other ends of edges; some edges are in memory at a time."""
    sums: Floats | None = None
    for start in range(0, max(1, len(row_E)), EDGES_AT_ONCE):
        part = slice(start, start + EDGES_AT_ONCE)
        others, at_E = np.unique(other_E[part], return_inverse=True)
        adding = sp.csr_array(
            (weight_E[part], (row_E[part], at_E)), shape=(rows, len(others)), dtype=np.float32
        )
        summed: Floats = adding @ np.asarray(vectors(others), np.float32)
        sums = summed if sums is None else sums + summed
    assert sums is not None
    return sums


class Biencoder(TrainableSignal):
    """The bi-encoder over a graph.

    Attributes:
        vectors: of the texts of its entities.
        relation_texts_RD: of its relations.
        relation_rows: which learned relation each of them is; -1 for those that training did not have.
        cut: entities whose texts were not read as a whole, for lack of time.
        shares: whether the encoder is the run's model as it is, whose weights are not saved twice.
    """

    name: ClassVar[str] = "biencoder"
    title: ClassVar[str] = "bi-encoder"
    about: ClassVar[str] = (
        "how well the texts and neighbors of both entities fit the relation, by a frozen encoder"
    )
    file: ClassVar[str] = "signals/biencoder.safetensors"
    structure: ClassVar[str] = "signals/biencoder.onnx"  # of the encoder, for ONNX Runtime

    def __init__(
        self,
        head: Mapping[str, Floats],
        context: ContextGraph,
        vectors: EntityVectors,
        relation_texts_RD: Floats,
        relation_rows: IntArray,
        encoder: TextEncoder,
        reader: Reader | None = None,
    ) -> None:
        self.head, self.context, self.vectors, self.encoder = head, context, vectors, encoder
        self.relation_texts_RD, self.relation_rows = relation_texts_RD, relation_rows
        self.reader = reader
        self.shares = False
        self.cut = np.zeros(0, np.int64)
        self._candidates_NW: Floats | None = None
        self._table: Table | None = None  # of these
        self._changed = np.zeros(0, np.int64)  # entities whose vectors in it are out of date

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: BiencoderSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Biencoder:
        """Read the texts of all entities, and train the head on the training triples.

        Args:
            kept: a folder for the vectors of the texts that were read, until all are.

        Raises:
            ModelError: when the encoder cannot be loaded.
            RunError: when the loss is no longer a number.
        """
        from kgmlm.signals.biencoder_training import Training

        source = cls.source(graph, settings, device)
        relation_texts_RD = read_all(source.encoder, [r.name for r in graph.relations])
        training = Training(graph, relation_texts_RD, settings, device)
        count = len(graph.entities)

        # 1) Texts; those that were read before are there.
        vectors_ND, cut = read_texts(graph, source, kept)
        vectors = EntityVectors(source)
        vectors.adopt(graph.entities, vectors_ND)
        # 2) What entities are known by: their texts, their neighbors' texts, and their kinds of edges.
        texts_ND, links = vectors_ND.astype(np.float32), graph.context.links
        row_E, _, other_E = links.edges(np.arange(count))
        ones_E = np.ones(len(row_E), np.float32)
        sums_ND = weighted_sums(ones_E, row_E, other_E, count, texts_ND.__getitem__)
        profile = profile_of(links, count, 2 * len(graph.relations))
        # 3) The head.
        began, done = time.monotonic(), 0

        def trained(n: int) -> None:
            nonlocal done
            done += n
            advance(n, expected(done, began, settings.seconds, settings.steps))

        head = training.run(texts_ND, sums_ND, profile, trained, settings.seconds)
        if kept is not None:
            shutil.rmtree(kept)
        rows = np.arange(len(graph.relations))
        rows[~np.isin(rows, graph.splits["train"][:, 1])] = -1
        made = cls(head, graph.context, vectors, relation_texts_RD, rows, source.encoder)
        made.cut = cut
        return made

    @staticmethod
    def source(
        graph: KnowledgeGraph,
        settings: BiencoderSettings,
        device: str | None = None,
        cache: VectorCache | None = None,
    ) -> EncoderSource:
        """The texts of a graph's entities, as the encoder of the settings reads them.

        Args:
            cache: of texts that other runs have read.

        Raises:
            ModelError: when it cannot be loaded.
        """
        encoder = TextEncoder.load(settings.encoder, settings.max_length)
        return EncoderSource(graph.entities, encoder, settings.precision, device, cache)

    @staticmethod
    def keep_texts(path: Path, graph: KnowledgeGraph, kept: Path) -> None:
        """Put the text vectors of an older signal where :meth:`fit` finds them, if it has the same encoder,
        can be opened and has read all texts.
        """
        if kept.is_dir():
            return  # of a training that was interrupted
        try:
            old = Biencoder.open(path, graph)
            vectors_ND = old.vectors.all.astype(np.float16)
        except (RunError, ModelError):
            return
        if not len(old.cut):
            source = EncoderSource(graph.entities, old.encoder)
            keep(kept, source, TextVectors(vectors_ND, old.cut))

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Biencoder:
        """A copy for another graph: its texts and training triples."""
        context = reader.context
        vectors = self.vectors.for_graph(EncoderSource(context.entities, self.encoder, device=_gpu(reader)))
        new = np.flatnonzero(relation_rows < 0)
        relation_texts_RD = np.append(self.relation_texts_RD, self.relation_texts_RD[:1], 0)[relation_rows]
        if len(new):
            relation_texts_RD[new] = read_all(self.encoder, [context.relations[i].name for i in new.tolist()])
        rows = np.append(self.relation_rows, -1)[relation_rows]
        twin = Biencoder(self.head, context, vectors, relation_texts_RD, rows, self.encoder, reader)
        twin.shares = self.shares
        twin.cut = np.flatnonzero(np.isin(entity_rows, self.cut))
        if self._candidates_NW is not None and self._begins(context, entity_rows, relation_rows):
            further = context.train[len(self.context.train) :]
            new_ids = np.arange(len(self._candidates_NW), len(entity_rows))
            twin._candidates_NW = self._candidates_NW
            twin._changed = np.unique(np.concatenate([further[:, 0], further[:, 2], new_ids, self._changed]))
        return twin

    def _begins(self, context: ContextGraph, entity_rows: IntArray, relation_rows: IntArray) -> bool:
        """Return whether another graph is this one and what was added to it."""
        mine = self.context
        ids = ((entity_rows, len(mine.entities)), (relation_rows, len(mine.relations)))
        if any(len(rows) < n or (rows[:n] != np.arange(n)).any() for rows, n in ids):
            return False
        return np.array_equal(context.train[: len(mine.train)], mine.train)

    @cached_property
    def _kinds_KM(self) -> Floats:
        """Embeddings of the kinds of edges: from the relation's text, and what was learned beside it."""
        learned_KM = self.head["relation"]
        rank = learned_KM.shape[1]
        by_text_KM = (self.relation_texts_RD @ self.head["relation_text.weight"].T).reshape(-1, rank)
        padded_R2M = np.append(learned_KM.reshape(-1, 2, rank), np.zeros((1, 2, rank), np.float32), 0)
        kinds_KM: Floats = by_text_KM + padded_R2M[self.relation_rows].reshape(-1, rank)
        return kinds_KM

    def _linear(self, name: str, x: Floats) -> Floats:
        product: Floats = x @ self.head[f"{name}.weight"].T
        if f"{name}.bias" in self.head:
            product += self.head[f"{name}.bias"]
        return product

    @cached_property
    def texts_ND(self) -> Floats:
        """Unit vectors of the texts of all entities; those not read yet are read now."""
        return np.asarray(self.vectors.all, np.float32)

    def _vectors(self, ids: IntArray) -> Floats:
        return np.asarray(self.vectors.of(ids), np.float32)

    def query_vectors(self, queries: Queries) -> Floats:
        """Unit vectors of queries ``(B, W)``.

        Edges that answer the query in training are left out, here as in training.
        """
        kinds_KM, kind_B = self._kinds_KM, queries.kind_B
        row_E, edge_kind_E, other_E = self.context.links.edges(queries.entity_B)
        keep_E = edge_kind_E != kind_B[row_E]
        row_E, edge_kind_E, other_E = row_E[keep_E], edge_kind_E[keep_E], other_E[keep_E]
        asked_BM = self._linear("asked", kinds_KM[kind_B])
        logit_E = np.einsum("em,em->e", asked_BM[row_E], kinds_KM[edge_kind_E])
        weight_E = np.exp(np.clip(logit_E, -10, 10))
        total_B = np.bincount(row_E, weight_E, minlength=len(kind_B)) + 1
        share_E = (weight_E / total_B[row_E]).astype(np.float32)
        around_BD = weighted_sums(share_E, row_E, other_E, len(kind_B), self._vectors)
        edges_BM = weighted_sums(share_E, row_E, edge_kind_E, len(kind_B), kinds_KM.__getitem__)
        z_BW = self._linear("query", self._vectors(queries.entity_B))
        z_BW += self._linear("neighbor", around_BD) + self._linear("edge", edges_BM)
        kind_BM = kinds_KM[kind_B]
        z_BW = z_BW * (1 + self._linear("scale", kind_BM)) + self._linear("shift", kind_BM)
        inner = self._linear("inner", z_BW)
        z_BW += self._linear("outer", inner / (1 + np.exp(-np.maximum(inner, -80))))
        return unit(z_BW)

    def candidate_vectors(self, ids: IntArray) -> Floats:
        """Unit vectors of some entities as candidates ``(N, W)``."""
        parts = [ids[i : i + CANDIDATES_AT_ONCE] for i in range(0, len(ids), CANDIDATES_AT_ONCE)]
        vectors = [self._candidates(part) for part in parts]
        return np.concatenate([np.zeros((0, len(self.head["candidate.bias"])), np.float32), *vectors])

    def _candidates(self, ids: IntArray) -> Floats:
        row_E, kind_E, other_E = self.context.links.edges(ids)
        count_N = np.maximum(np.bincount(row_E, minlength=len(ids)), 1).astype(np.float32)
        share_E = np.float32(1) / count_N[row_E]
        around_ND = weighted_sums(share_E, row_E, other_E, len(ids), self._vectors)
        edges_NM = weighted_sums(share_E, row_E, kind_E, len(ids), self._kinds_KM.__getitem__)
        found_NW = self._linear("candidate", self._vectors(ids))
        found_NW += self._linear("candidate_neighbor", around_ND) + self._linear("candidate_edge", edges_NM)
        return unit(found_NW)

    @property
    def candidates_NW(self) -> Floats:
        """Unit vectors of all entities as candidates, computed when first asked for."""
        count = len(self.context.entities)
        if self._candidates_NW is None:
            self._candidates_NW = self.candidate_vectors(np.arange(count))
        elif len(self._changed):
            known_MW = self._candidates_NW
            new_NW = np.zeros((count - len(known_MW), known_MW.shape[1]), np.float32)
            whole_NW = np.concatenate([known_MW, new_NW])
            whole_NW[self._changed] = self.candidate_vectors(self._changed)
            self._candidates_NW, self._changed, self._table = whole_NW, self._changed[:0], None
        return self._candidates_NW

    def _products(self, query_BW: Floats) -> Floats:
        """Cosines ``(B, N)`` of unit vectors and all entities as candidates."""
        candidates_NW = self.candidates_NW
        if self._table is None:
            place = HostTable if self.reader is None else self.reader.model.table
            self._table = place(candidates_NW)
        return self._table.products(query_BW)

    @property
    def width(self) -> int:
        """Return W."""
        return len(self.head["candidate.bias"])

    def vectors_of(self, ids: IntArray) -> Floats:
        """Unit vectors ``(N, W)`` of some entities as candidates, as an index has them."""
        return self.candidates_NW[ids]

    def asked(self, reading: Reading) -> Floats:
        """Unit vectors ``(B, W)`` of the queries of a reading."""
        return self.query_vectors(reading.queries)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Cosines ``(B, N)`` or ``(B, K)``."""
        query_BW = self.query_vectors(reading.queries)
        if pool.ids is None:
            return self._products(query_BW)
        chosen = self.candidates_NW[pool.filled]
        return products_of_own(query_BW, chosen) if pool.own else query_BW @ chosen.T

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """Head, vectors and encoder."""
        head: dict[str, Any] = {f"head.{name}": x for name, x in self.head.items()}
        return (
            head
            | self.encoder.as_tensors(weights=not self.shares)
            | {
                "texts": self.vectors.all.astype(np.float16, copy=False),
                CANDIDATES: self.candidates_NW,
                "relations": self.relation_texts_RD,
                "rows": self.relation_rows,
            }
            | ({CUT: self.cut} if len(self.cut) else {})
        )

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Biencoder:
        """Open what :meth:`save` wrote for a graph; the vectors of entities stay in the file, mapped.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors import safe_open

        def read(name: str) -> npt.NDArray[Any]:
            with safe_open(path, "numpy") as file:
                tensor: npt.NDArray[Any] = file.get_tensor(name)
            return tensor

        with cls.reading(path):
            with safe_open(path, "numpy") as file:
                names = list(file.keys())
                head = {name: file.get_tensor(f"head.{name}") for name in PARAMETERS}
                relation_texts_RD, rows = file.get_tensor("relations"), file.get_tensor("rows")
                cut = file.get_tensor(CUT) if CUT in names else np.zeros(0, np.int64)
            texts_ND = files.map_tensor(path, "texts")
            candidates_NW = files.map_tensor(path, CANDIDATES) if CANDIDATES in names else None
            encoder = TextEncoder.of_tensors(names, read, path.parent.parent / "model" / "model.safetensors")
            if reader is not None and isinstance(reader.model, OnnxModel):
                encoder = encoder.by_onnx(path.with_suffix(".onnx"))
            _check(head, texts_ND, candidates_NW, relation_texts_RD, rows, encoder.width)
            if cut.dtype != np.int64 or not ((cut >= 0) & (cut < len(texts_ND))).all():
                raise ValueError("it names entities that it does not have")
            if (len(texts_ND), len(rows)) != (len(graph.entities), len(graph.relations)):
                raise OtherGraphError
        vectors = EntityVectors(EncoderSource(graph.entities, encoder, device=_gpu(reader)))
        vectors.adopt(graph.entities, texts_ND)
        made = cls(head, graph.context, vectors, relation_texts_RD, rows, encoder, reader)
        made._candidates_NW, made.cut = candidates_NW, cut
        made.shares = not any(name.startswith(ENCODER) for name in names)
        return made


def _gpu(reader: Reader | None) -> str | None:
    """The GPU that the text model of a reader computes on, where there is one."""
    return None if reader is None else reader.model.gpu


def _check(
    head: Mapping[str, Floats],
    texts_ND: npt.NDArray[Any],
    candidates_NW: npt.NDArray[Any] | None,
    relations_RD: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    width: int,
) -> None:
    """See that the parts of a file are of one size.

    Raises:
        ValueError: when they are not.
    """
    inner, kinds = len(head["candidate.bias"]), head["relation"]
    shapes = {
        "query.weight": (inner, width), "candidate.weight": (inner, width), "neighbor.weight": (inner, width),
        "candidate_neighbor.weight": (inner, width), "edge.weight": (inner, kinds.shape[1]),
        "candidate_edge.weight": (inner, kinds.shape[1]), "asked.weight": (kinds.shape[1],) * 2,
        "scale.weight": (inner, kinds.shape[1]), "shift.weight": (inner, kinds.shape[1]),
        "relation_text.weight": (2 * kinds.shape[1], width), "inner.weight": (len(head["inner.bias"]), inner),
        "outer.weight": (inner, len(head["inner.bias"])),
    }  # fmt: skip
    if any(head[name].shape != shape for name, shape in shapes.items()):
        raise ValueError("the sizes of its parts do not match")
    if any(x.dtype != np.float32 or not np.isfinite(x).all() for x in head.values()):
        raise ValueError("its head has impossible numbers")
    shape = (len(texts_ND), inner)
    if texts_ND.shape[1:] != (width,) or (candidates_NW is not None and candidates_NW.shape != shape):
        raise ValueError("it has vectors of another size")
    learned = len(kinds) // 2  # relations; a run that was updated may have more
    if relations_RD.shape != (len(rows), width) or len(kinds) != 2 * learned or learned > len(rows):
        raise ValueError("it has relations of another size")
    if rows.dtype != np.int64 or not ((rows >= -1) & (rows < len(rows))).all():
        raise ValueError("it names relations that it does not have")
