"""Query states to a shortlist of entities, through FAISS; knows no answers and scores nothing for good.

Two kinds of index. A *likelihood* index holds what the decoder says of the entities' names. The mean
log-likelihood of a name of k tokens is an inner product and a constant that all names of k tokens share,

    1/k sum_i (g_i . E[t_i] + b[t_i])  -  1/k sum_i log Z_i,

so there is one FAISS index for each k, over ``(E[t_1], b[t_1], ..., E[t_k], b[t_k]) / k``, and the constants
are added to what they find, never quantized. Names can be held in fewer dimensions a token: those that lose
least on the states of real queries. An *entity* index holds entity vectors.

Shortlists are reranked exactly by the ranker.

Shapes: B queries, K shortlist, N entities, L span, D decoder width, V vocabulary, d dimensions a token.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kgmlm import digests, files
from kgmlm.faiss_parts import (
    Floats,
    Part,
    build_part,
    cause,
    flat_part,
    read_index,
    require_faiss,
    search_part,
    unwrapped,
)
from kgmlm.kg import ConfigError, IntArray, RunError, first_line
from kgmlm.tokenization import Candidates

Kind = Literal["likelihood", "entity"]
KINDS: tuple[Kind, ...] = ("likelihood", "entity")
FORMAT = 1
FLAT_BELOW = 50_000  # entities of one length: an exact search of so few is quick


class Shortlist(NamedTuple):
    """The K best of an index for each of B queries; where there are fewer, ids are -1 and scores -inf."""

    ids_BK: IntArray
    scores_BK: Floats


@dataclass(frozen=True)
class Reduction:
    """A linear map of token rows ``(E[t], b[t])`` and query states ``(g, 1)`` to d dimensions.

    Attributes:
        tokens_Vd: reduced token rows.
        state_Dd: ``(g, 1) @ state_Dd`` is a reduced state.
        kept: share of the mean squared logit that the dimensions keep, on the states it was made for.
    """

    tokens_Vd: Floats
    state_Dd: Floats
    kept: float

    @property
    def whole(self) -> bool:
        """Whether it reduces nothing: then it is the decoder itself, and is not saved."""
        return bool(self.state_Dd.shape[0] == self.state_Dd.shape[1])

    @classmethod
    def none(cls, weight_VD: torch.Tensor, bias_V: torch.Tensor) -> Reduction:
        """All dimensions: inner products are the logits themselves."""
        rows = torch.cat([weight_VD, bias_V[:, None]], 1).detach().float().cpu().numpy()
        return cls(rows, np.eye(rows.shape[1], dtype=np.float32), 1.0)

    @classmethod
    def of(
        cls,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor,
        states_SD: torch.Tensor,
        counts_V: IntArray,
        dimensions: int,
    ) -> Reduction:
        """The d dimensions that lose least of the logits of some states on tokens as frequent as in names.

        With C the second moment of the states, the mean of ``(g . (t - t'))^2`` is ``|C^1/2 (t - t')|^2``, so
        the best subspace is that of the first singular vectors of ``tokens @ C^1/2``.

        Args:
            states_SD: decoder inputs at the span positions of real queries.
            counts_V: how often each token occurs in a name.
        """
        rows = torch.cat([weight_VD, bias_V[:, None]], 1).detach().double().cpu()
        states = torch.cat([states_SD, torch.ones(len(states_SD), 1)], 1).double()
        moment = states.T @ states / len(states)
        values, basis = torch.linalg.eigh(moment)
        values = values.clamp_min(1e-9 * values.max()).sqrt()
        root, inverse = (basis * values) @ basis.T, (basis / values) @ basis.T
        used = np.flatnonzero(counts_V)
        seen = rows[used] @ root
        weighted = seen * torch.from_numpy(counts_V[used].astype(float))[:, None].sqrt()
        energy, axes = torch.linalg.eigh(weighted.T @ weighted)
        axes = axes.flip(1)[:, :dimensions]
        kept = float(energy.flip(0)[:dimensions].sum() / energy.sum())
        tokens = (rows @ (root @ axes)).float().numpy()
        return cls(np.ascontiguousarray(tokens), (inverse @ axes).float().numpy(), kept)


def automatic_factory(kind: Kind, count: int) -> str:
    """A FAISS factory string for so many vectors, inner product.

    Few are searched exhaustively. More entity vectors go into cells, held as one bit per dimension of
    their difference to the cell's center and two floats (RaBitQ: Gao and Long, 2024): no codebook to train,
    about 70 bytes for 384 dimensions, and faster than codes of as many bytes at the same recall. Names that
    score alike are not in one region, and what tells them apart is finer than a bit: so likelihoods get no
    cells and a byte per dimension.
    """
    if count < FLAT_BELOW:
        return "Flat"
    return "SQ8" if kind == "likelihood" else f"IVF{2 ** round(math.log2(2 * math.sqrt(count)))},RaBitQ"


@dataclass
class Retriever:
    """An index of either kind, with entities added and removed since it was built.

    What is built never changes: added entities stand beside it in lists that are searched exhaustively, and
    removed ones are skipped, so any factory can do both.

    Attributes:
        kind: "likelihood" or "entity".
        parts: for a likelihood index one for each number of tokens, from 1; for an entity index one.
        reduction: of a likelihood index.
        record: kind, factory, effort, FAISS version, fingerprint, and what was measured.
        added: parts like ``parts``, of entities added since.
        removed: ids that the index was built with and does not find any more.
    """

    kind: Kind
    parts: list[Part]
    reduction: Reduction | None
    record: Mapping[str, Any]
    added: list[Part] = field(default_factory=list)
    removed: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(len(p.ids) for p in (*self.parts, *self.added)) - len(self.removed)

    @property
    def exact(self) -> bool:
        """Whether it finds by vectors as they are, among all, so that nothing is to be looked at again."""
        faiss = require_faiss()
        made = [part.index for part in (*self.parts, *self.added) if part.index is not None]
        return all(isinstance(faiss.downcast_index(index), faiss.IndexFlat) for index in made)

    @property
    def effort(self) -> int:
        """Cells visited, or width of a graph search, unless a search sets another."""
        return int(self.record["effort"])

    def search(
        self,
        queries: Sequence[Floats],
        constants_BL: Floats,
        k: int,
        effort: int | None = None,
    ) -> Shortlist:
        """The k best entities of B queries.

        Args:
            queries: a matrix a part, as :func:`likelihood_queries` or :func:`entity_queries` make them.
            constants_BL: added to the scores of each part.
            effort: of this search alone; None is the index's own.

        Raises:
            ConfigError: when k is not positive, or a query is not finite.
        """
        if k < 1:
            raise ConfigError(f"a shortlist has 1 entity or more, not {k}")
        if not all(np.isfinite(q).all() for q in queries):
            raise ConfigError("a query's vector is not finite")
        found_ids, found_scores = [], []
        for i, query_Bw in enumerate(queries):
            for parts, hidden in ((self.parts, self.removed), (self.added, frozenset())):
                if i < len(parts) and parts[i].index is not None:
                    tried = self.effort if effort is None else effort
                    ids, scores = search_part(parts[i], query_Bw, k, tried, hidden)
                    found_ids.append(ids)
                    found_scores.append(scores + constants_BL[:, i : i + 1])
        count = len(constants_BL)
        blank = np.full((count, k), -1), np.full((count, k), -np.inf, np.float32)
        ids_BM = np.concatenate([*found_ids, blank[0]], 1)
        scores_BM = np.concatenate([*found_scores, blank[1]], 1)
        best = np.argsort(-scores_BM, axis=1, kind="stable")[:, :k]
        rows = np.arange(count)[:, None]
        return Shortlist(ids_BM[rows, best], scores_BM[rows, best])

    def _built(self, ids: IntArray) -> IntArray:
        """Those of some ids that the index was built with."""
        return np.unique(np.concatenate([ids[:0], *(p.ids[np.isin(p.ids, ids)] for p in self.parts)]))

    def without(self, ids: IntArray) -> Retriever:
        """This index with some entities removed; nothing is rebuilt."""
        added = [
            part if part.index is None else flat_part(part.width, [(part, ~np.isin(part.ids, ids))])
            for part in self.added
        ]
        return replace(self, added=added, removed=self.removed | set(self._built(ids).tolist()))

    def with_parts(self, added: list[Part]) -> Retriever:
        """This index with further entities, in flat parts like its own; nothing is rebuilt.

        Raises:
            ConfigError: when an entity is in the index already; it can be removed, then added again.
        """
        new = np.concatenate([part.ids for part in added])
        there = set(self._built(new).tolist()) - self.removed
        there |= {int(i) for part in self.added for i in part.ids[np.isin(part.ids, new)]}
        if there:
            raise ConfigError(f"entity {min(there)} is in the index already")
        joined = []
        for i, part in enumerate(added):
            olds = [old for old in self.added[i : i + 1] if old.index is not None]
            pieces = [*olds, *([part] if part.index is not None else [])]
            joined.append(flat_part(part.width, [(p, np.ones(len(p.ids), np.bool_)) for p in pieces]))
        return replace(self, added=joined)

    def on_gpu(self) -> Retriever:
        """This index on all GPUs that FAISS has; what FAISS has on CPUs only (RaBitQ, graphs) stays.

        Raises:
            ConfigError: when a GPU cannot take it for another reason, such as its memory.
        """
        faiss = require_faiss()
        if not getattr(faiss, "get_num_gpus", int)():
            return self

        def moved(part: Part) -> Part:
            if part.index is None:
                return part
            inner = unwrapped(part.index)
            if isinstance(inner, faiss.IndexIVF):
                inner.nprobe = min(self.effort, inner.nlist)  # copies on several GPUs take no parameters
            try:
                return replace(part, index=faiss.index_cpu_to_all_gpus(part.index))
            except RuntimeError as error:
                if "not implemented" in str(error):
                    return part
                raise ConfigError(f"FAISS cannot search this index on a GPU: {cause(error)}") from None

        return replace(self, parts=[moved(part) for part in self.parts])

    def save(self, folder: Path) -> Retriever:
        """Write the index as a folder, whole or not at all; what is returned has its ``bytes`` on record.

        Raises:
            RunError: when entities were added or removed since: what is saved belongs to a run's own graph.
        """
        faiss = require_faiss()
        if self.added or self.removed:
            raise RunError("an index with added or removed entities is not saved; build it again")
        with files.atomic_folder(folder) as temporary:
            for i, part in enumerate(self.parts):
                np.save(temporary / f"ids-{i}.npy", part.ids)
                if part.index is not None:
                    _write(faiss, part.index, temporary / f"part-{i}.faiss")
            if self.reduction is not None and not self.reduction.whole:
                np.savez(
                    temporary / "reduction.npz",
                    tokens=self.reduction.tokens_Vd,
                    state=self.reduction.state_Dd,
                    kept=self.reduction.kept,
                )
            widths = [p.width for p in self.parts]
            size = sum(path.stat().st_size for path in temporary.iterdir())
            record = {**self.record, "format": FORMAT, "kind": self.kind, "widths": widths, "bytes": size}
            files.write_json(temporary / "index.json", record)
            digests.write_manifest(temporary)
        return replace(self, record=record)

    @classmethod
    def load(cls, folder: Path) -> Retriever:
        """Open a saved index; vectors stay on disk until they are searched, where FAISS can.

        Raises:
            RunError: when it is missing or damaged.
            ConfigError: when FAISS is not installed.
        """
        if not (folder / "index.json").is_file():
            raise RunError(f"{folder.parent.parent} has no {folder.name} index; `kgmlm index` makes one")
        faiss = require_faiss()
        digests.check_folder(folder, remedy="build it again with `kgmlm index`")
        try:
            record = files.parse_json((folder / "index.json").read_bytes())
            if record["format"] > FORMAT:
                raise RunError(f"{folder} was written by a newer kgmlm; build it again with `kgmlm index`")
            parts = []
            for i, width in enumerate(record["widths"]):
                ids = np.load(folder / f"ids-{i}.npy", mmap_mode="r")
                if ids.ndim != 1 or ids.dtype != np.int64 or (ids < 0).any():
                    raise ValueError(f"part {i} has no list of entities")
                index = None
                if len(ids):
                    index = read_index(faiss, folder / f"part-{i}.faiss")
                    if index.ntotal != len(ids) or index.d != width:
                        raise ValueError(f"part {i} has {index.ntotal} vectors for {len(ids)} entities")
                parts.append(Part(int(width), ids, index))
            reduction = None
            if (folder / "reduction.npz").is_file():
                with (folder / "reduction.npz").open("rb") as file, np.load(file) as saved:
                    reduction = Reduction(saved["tokens"], saved["state"], float(saved["kept"]))
                if reduction.tokens_Vd.ndim != 2 or reduction.state_Dd.ndim != 2:
                    raise ValueError("its reduction is none")
            counts = [
                record["format"],
                record["effort"],
                *(record.get(n, 1) for n in ("entities", "looked_at")),
            ]
            whole = all(type(count) is int and count >= 1 for count in counts)
            if record["kind"] not in KINDS or not parts or not whole:
                raise ValueError("its record is not that of an index")
        except RunError:
            raise
        except Exception as error:  # whatever damaged files make the libraries raise
            why = first_line(error)[:120]
            raise RunError(f"{folder} is damaged ({why}); build it again with `kgmlm index`") from None
        return cls(record["kind"], parts, reduction, record)


def likelihood_parts(
    candidates: Candidates,
    ids: IntArray,
    reduction: Reduction,
    span_length: int,
    normalization: Literal["mean", "sum"],
    factory: str,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Part]:
    """Parts of a likelihood index: names of 1 token, of 2, up to the span."""
    dimensions = reduction.tokens_Vd.shape[1]
    lengths = candidates.lengths_N[ids]
    parts = []
    for k in range(1, span_length + 1):
        members = ids[lengths == k]
        scale = np.float32(1 / k if normalization == "mean" else 1)

        def make(
            rows: IntArray, members: IntArray = members, scale: np.float32 = scale, k: int = k
        ) -> Floats:
            tokens = candidates.token_ids[candidates.offsets[members[rows], None] + np.arange(k)]
            vectors = reduction.tokens_Vd[tokens].reshape(len(rows), k * dimensions)
            vectors *= scale
            return np.ascontiguousarray(vectors)

        chosen = automatic_factory("likelihood", len(members)) if factory == "auto" else factory
        parts.append(build_part(members, k * dimensions, make, chosen, seed, advance))
    return parts


def entity_parts(
    vectors_ND: Floats,
    ids: IntArray,
    factory: str,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Part]:
    """The one part of an entity index.

    Raises:
        ConfigError: when a vector is not finite.
    """

    def make(rows: IntArray) -> Floats:
        vectors = np.ascontiguousarray(vectors_ND[rows])
        if not np.isfinite(vectors).all():
            raise ConfigError("an entity's vector is not finite")
        return vectors

    chosen = automatic_factory("entity", len(ids)) if factory == "auto" else factory
    return [build_part(ids, vectors_ND.shape[1], make, chosen, seed, advance)]


def likelihood_queries(
    hidden_BLD: torch.Tensor,
    log_normalizer_BL: torch.Tensor,
    reduction: Reduction,
    normalization: Literal["mean", "sum"],
) -> tuple[list[Floats], Floats]:
    """Query vectors for names of 1, 2, ... L tokens, and the constants of each."""
    count, length, _ = hidden_BLD.shape
    states = np.concatenate([hidden_BLD.cpu().numpy(), np.ones((count, length, 1), np.float32)], 2)
    reduced_BLd = (states @ reduction.state_Dd).astype(np.float32)
    queries = [np.ascontiguousarray(reduced_BLd[:, :k].reshape(count, -1)) for k in range(1, length + 1)]
    constants = -log_normalizer_BL.cpu().numpy().astype(np.float64).cumsum(1)
    if normalization == "mean":
        constants /= np.arange(1, length + 1)
    return queries, constants.astype(np.float32)


def entity_queries(vector_BD: torch.Tensor) -> tuple[list[Floats], Floats]:
    """Query vectors of an entity index; the constants are 0."""
    return [vector_BD.cpu().numpy()], np.zeros((len(vector_BD), 1), np.float32)


def fingerprint(*arrays: npt.NDArray[Any]) -> str:
    """A checksum of what an index was made from."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write(faiss: Any, index: Any, path: Path) -> None:
    """Write an index of FAISS, which says with a RuntimeError of its own that a disk is full."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise files.disk_error(RuntimeError(cause(error)), path) from None
