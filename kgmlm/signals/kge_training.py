"""Training of the KGE model: ComplEx, by a softmax over all entities.

Shapes: B queries, S entities seen in training, C of them scored, R relations, D real numbers per entity, T
answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.nn.functional import cross_entropy, embedding

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import KGESettings
from kgmlm.core.errors import RunError
from kgmlm.core.files import write_tensors
from kgmlm.core.machine import bound_memory, keep_memory, reduced
from kgmlm.core.progress import expected
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import GroupedAnswers

DIVERGED = 1e10  # the product of three such embeddings is near the end of float32
KEPT_EVERY = 120.0  # seconds between saved states of training, at least; and at least ...
KEPT_SHARE = 20  # ... this many times as long as writing one takes
INITIAL = 1e-3  # standard deviation of fresh embeddings (Lacroix et al., 2018)


class Embeddings(NamedTuple):
    """ComplEx embeddings: real parts, then imaginary parts.

    Attributes:
        entities_SD: of the entities that training has seen.
        relations_RD: rows 2r for (head, r, ?) and 2r + 1, the reciprocal relation, for (?, r, tail).
        rows_N: where each entity of the graph is in ``entities_SD``; -1 where training has not seen it.
    """

    entities_SD: Floats
    relations_RD: Floats
    rows_N: IntArray


def train_complex(
    graph: KnowledgeGraph,
    settings: KGESettings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: str | None = None,
    kept: Path | None = None,
) -> Embeddings:
    """Train ComplEx with reciprocal relations on the training triples.

    The loss of each triple and side is the cross-entropy of a softmax over all entities seen in training, so
    no other entity is ever a negative, plus the third powers of the moduli of its three embeddings (N3; both
    from Lacroix et al., 2018), unless ``settings.penalty`` says otherwise. An epoch
    asks each distinct query once, with all of its answers, in a new order.

    Args:
        advance: called with (steps that were just done, all steps).
        kept: a file of the state of unfinished training, written every few minutes and removed at the end.
            Training that finds one of its own, by the same settings but for how long, continues from there.

    Raises:
        RunError: when the loss is no longer a number.
    """
    keep_memory()
    torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns of what it does by default
    seen = np.flatnonzero(graph.seen_N)
    asked = _TrainingQueries.of(graph, seen)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    generator = torch.Generator().manual_seed(settings.seed)

    def fresh(count: int) -> torch.Tensor:
        table = INITIAL * torch.randn(count, 2 * settings.dimension, generator=generator)
        return table.to(place).requires_grad_()

    entities_SD, relations_RD = fresh(len(seen)), fresh(2 * len(graph.relations))
    optimizer = torch.optim.Adagrad([entities_SD, relations_RD], lr=settings.learning_rate)
    steps = settings.epochs * math.ceil(len(asked.queries_U2) / settings.batch_size)
    steps = min(steps, settings.max_steps or steps)
    state = None if kept is None else _Kept(kept, _fingerprint(graph, settings))
    begin = 0 if state is None else state.restore(optimizer, steps)
    began = time.monotonic()
    if begin:
        advance(begin, steps)
    for step, chosen in islice(enumerate(asked.order(settings)), begin, steps):
        queries_B2, answers_T, rows_T = (part.to(place) for part in asked.batch(chosen))
        weight_T = torch.full((len(rows_T),), asked.weight, device=place)
        table_SD, pool = entities_SD, None
        if 0 < settings.candidates < len(seen):
            drawn = _drawn(settings, step, len(seen)).to(place)
            ids, pool, queries_B2, answers_T = _among(drawn, queries_B2, answers_T, len(seen))
            table_SD = embedding(ids, entities_SD, sparse=True)  # a dense gradient would be as large as it
        parts = (queries_B2, answers_T, rows_T, weight_T)
        loss = kge_loss(table_SD, relations_RD, *parts, settings, pool)
        if not loss.isfinite():
            raise RunError("the KGE model's loss is no longer a number; lower kge.learning_rate")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bound_memory()
        total = begin + expected(step + 1 - begin, began, settings.seconds, steps - begin)
        advance(1, total)
        if total == step + 1:
            break
        if state is not None:
            state.keep(optimizer, step + 1)
    if state is not None:
        state.remove()
    entities, relations = (x.detach().cpu().numpy() for x in (entities_SD, relations_RD))
    if not all(np.abs(x).max() < DIVERGED for x in (entities, relations)):  # NaN is not less either
        raise RunError("the KGE model has diverged; lower kge.learning_rate")
    rows_N = np.full(len(graph.entities), -1)
    rows_N[seen] = np.arange(len(seen))
    return Embeddings(entities, relations, rows_N)


class Sample(NamedTuple):
    """The entities that a step scores: rows of its embeddings, and log of how many entities each stands for.

    Attributes:
        at_T: where the answers are among them.
    """

    rows_C: torch.Tensor
    log_weight_C: torch.Tensor
    at_T: torch.Tensor


def _drawn(settings: KGESettings, step: int, entities: int) -> torch.Tensor:
    """The random sample of a step, the same in a training that is continued."""
    rng = np.random.default_rng((settings.seed, step, 1))
    return torch.from_numpy(rng.choice(entities, settings.candidates, replace=False))


def _among(
    drawn: torch.Tensor,
    queries_B2: torch.Tensor,
    answers_T: torch.Tensor,
    entities: int,
    always: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Sample, torch.Tensor, torch.Tensor]:
    """The ids of the entities that a step reads, those that it scores, and its queries and answers as rows of
    these ids. Answers stand for themselves, and so do those of ``always``; the others for all entities that
    are neither.
    """
    own = answers_T if always is None else torch.cat([answers_T, always])
    answered, at = own.unique(return_inverse=True)
    at_T = at[: len(answers_T)]
    others = drawn[~torch.isin(drawn, answered)]
    scored = torch.cat([answered, others])
    ids, rows = torch.cat([queries_B2[:, 0], scored]).unique(return_inverse=True)
    own_B, rows_C = rows.split([len(queries_B2), len(scored)])
    log_weight_C = torch.zeros(len(scored), device=ids.device)
    if len(others):
        log_weight_C[len(answered) :] = math.log(max(1, entities - len(answered)) / len(others))
    queries_B2 = torch.stack([own_B, queries_B2[:, 1]], 1)
    return ids, Sample(rows_C, log_weight_C, at_T), queries_B2, rows_C[at_T]


class _TrainingQueries(NamedTuple):
    """The distinct queries of the training triples, their answers, and the weight of each answer."""

    queries_U2: IntArray
    answers: GroupedAnswers
    weight: float

    @classmethod
    def of(cls, graph: KnowledgeGraph, seen: IntArray) -> _TrainingQueries:
        """The queries of a graph; entities are counted among those that are seen."""
        queries, answers = graph.unique_queries("train")
        columns = (np.searchsorted(seen, queries.entity_B), 2 * queries.relation_B + queries.side_B)
        counts_U = np.diff(answers.offsets)
        # By the average number of answers, not by a batch's own, so that all triples count alike.
        answers = GroupedAnswers(answers.offsets, np.searchsorted(seen, answers.ids))
        return cls(np.stack(columns, 1), answers, 1 / float(counts_U.mean()))

    def order(self, settings: KGESettings) -> Iterator[IntArray]:
        """The queries of each batch, epoch after epoch without end, each epoch in an order of its own."""
        for epoch in count():
            order_U = np.random.default_rng((settings.seed, epoch)).permutation(len(self.queries_U2))
            for start in range(0, len(order_U), settings.batch_size):
                yield order_U[start : start + settings.batch_size]

    def batch(self, chosen: IntArray) -> list[torch.Tensor]:
        """Some queries, their answers, which query each answer is of, and how much it counts."""
        rows_T, places_T = self.answers.places(chosen)
        parts = (self.queries_U2[chosen], self.answers.ids[places_T], rows_T)
        return [torch.from_numpy(x) for x in parts]


def _fingerprint(graph: KnowledgeGraph, settings: KGESettings) -> str:
    """A digest of all that a step depends on, but not of the number of steps."""
    as_json = settings.model_dump_json(exclude={"epochs", "max_steps", "seconds"})
    counts = np.array([len(graph.entities), len(graph.relations)], np.int64)
    digest = sha256(as_json.encode() + counts.tobytes())
    digest.update(np.ascontiguousarray(graph.triples("train")).data)
    return digest.hexdigest()


FITTED_STEPS = 100  # of a fit of new rows
OTHERS = 3.0  # weight of queries that are not about what is new (eval/LOG.md)
FITTED_AT_ONCE = 256  # queries about what is new in a step, and as many of others
FITTED_AMONG = 4096  # entities that these are scored among, beside new ones and answers


def fit_new(
    old: Embeddings, relation_rows: IntArray, graph: KnowledgeGraph, settings: KGESettings
) -> Embeddings:
    """Embeddings for the entities and relations of a graph that are new in training; the others stay.

    The loss is that of training, over the queries of triples that have something new, and as many queries of
    others, which say what the new entities do not answer.

    Args:
        old: of the graph, as of :meth:`kgmlm.signals.kge.KGE.for_graph`.
        relation_rows: which relation each of the graph's is among ``old``; -1 for a new one.
    """
    known_SD, known_RD = (torch.from_numpy(np.ascontiguousarray(x)) for x in old[:2])
    known_N = old.rows_N >= 0
    fresh = np.flatnonzero(graph.seen_N & ~known_N)
    train = graph.splits["train"]
    new_R = (relation_rows < 0) & np.isin(np.arange(len(relation_rows)), train[:, 1])
    width, begin = known_SD.shape[1], len(known_SD)
    generator = torch.Generator().manual_seed(settings.seed)
    rows_N = old.rows_N.copy()
    rows_N[fresh] = begin + np.arange(len(fresh))
    relations_RD = torch.zeros(2 * len(relation_rows), width)
    known = torch.from_numpy(np.flatnonzero(relation_rows >= 0))
    from_there = torch.from_numpy(relation_rows[relation_rows >= 0])
    for side in (0, 1):
        relations_RD[2 * known + side] = known_RD[2 * from_there + side]
    of_new = np.zeros(len(graph.entities), np.bool_)
    of_new[fresh] = True
    own_n = of_new[train[:, 0]] | of_new[train[:, 2]] | new_R[train[:, 1]]
    if not own_n.any():
        return Embeddings(old.entities_SD, relations_RD.numpy(), rows_N)
    new_ED = (INITIAL * torch.randn(len(fresh), width, generator=generator)).requires_grad_()
    directed = np.flatnonzero(np.repeat(new_R, 2))
    new_QD = (INITIAL * torch.randn(len(directed), width, generator=generator)).requires_grad_()
    optimizer = torch.optim.Adagrad([new_ED, new_QD], lr=settings.learning_rate)
    rng = np.random.default_rng(settings.seed)
    parts = [_asked(train[of], rows_N) for of in (own_n, ~own_n)]
    many = max(1, len(fresh) // FITTED_AMONG)
    for _ in range(FITTED_STEPS * many):
        drawn = torch.from_numpy(rng.choice(begin, min(begin, FITTED_AMONG), replace=False))
        some = rng.permutation(len(fresh))[:FITTED_AMONG]
        always = torch.from_numpy(begin + np.sort(some))
        batch = np.concatenate([of[rng.integers(0, len(of), FITTED_AT_ONCE)] for of in parts if len(of)])
        queries_B2, answers_B = torch.from_numpy(batch[:, :2]), torch.from_numpy(batch[:, 2])
        ids, sample, queries_B2, answers_B = _among(drawn, queries_B2, answers_B, begin + len(fresh), always)
        entities_SD = _rows_of(known_SD, new_ED, ids)
        table_RD = relations_RD.index_copy(0, torch.from_numpy(directed), new_QD)
        row_B = torch.arange(len(batch))
        weight_B = torch.ones(len(batch))
        weight_B[-FITTED_AT_ONCE:] = OTHERS if parts[1].size else 1.0
        loss = kge_loss(entities_SD, table_RD, queries_B2, answers_B, row_B, weight_B, settings, sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    relations_RD[torch.from_numpy(directed)] = new_QD.detach()
    return Embeddings(torch.cat([known_SD, new_ED.detach()]).numpy(), relations_RD.numpy(), rows_N)


def _asked(triples: IntArray, rows_N: IntArray) -> IntArray:
    """Both queries of triples ``(2n, 3)``: row of the entity, directed relation, row of the answer."""
    h, r, t = triples.T
    return np.concatenate(
        [np.stack([rows_N[h], 2 * r, rows_N[t]], 1), np.stack([rows_N[t], 2 * r + 1, rows_N[h]], 1)]
    )


def _rows_of(old_SD: torch.Tensor, new_ED: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of two tables, one below the other, of increasing ids."""
    at = int(torch.searchsorted(ids, len(old_SD)))
    return torch.cat([old_SD[ids[:at]], new_ED[ids[at:] - len(old_SD)]])


class _Kept:
    """The state of unfinished training in a file; where it cannot be written, nothing is kept.

    Args:
        path: of the file.
        of: what the training is known by.
    """

    def __init__(self, path: Path, of: str) -> None:
        self.path, self.of = path, of
        self._next = time.monotonic() + KEPT_EVERY
        self._further = False  # the file has a later step of the same training, which stays

    def restore(self, optimizer: torch.optim.Optimizer, most: int) -> int:
        """Restore the saved state of this training, and return its step; 0 if there is none.

        Args:
            most: the last useful step; the state of a later one is not restored.
        """
        try:
            with safe_open(self.path, "torch") as opened:
                about = opened.metadata() or {}
                if about.get("of") != self.of or (step := int(about["step"])) <= 0:
                    return 0
                if step > most:
                    self._further = True
                    return 0
                tables = optimizer.param_groups[0]["params"]
                kept = [(opened.get_tensor(f"table {i}"), opened.get_tensor(f"sum {i}")) for i in range(2)]
        except (OSError, SafetensorError, KeyError, ValueError):
            return 0
        with torch.no_grad():
            for table, (values, sums) in zip(tables, kept, strict=True):
                table.copy_(values)
                optimizer.state[table]["sum"].copy_(sums)
                optimizer.state[table]["step"].fill_(step)
        return step

    def keep(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write the state, if it was last written long ago."""
        began = time.monotonic()
        if self._further or began < self._next:
            return
        tables = optimizer.param_groups[0]["params"]
        tensors = {f"table {i}": table.detach() for i, table in enumerate(tables)}
        tensors |= {f"sum {i}": optimizer.state[table]["sum"] for i, table in enumerate(tables)}
        with suppress(OSError):
            write_tensors(self.path, tensors, {"of": self.of, "step": str(step)})
        now = time.monotonic()
        self._next = now + max(KEPT_EVERY, KEPT_SHARE * (now - began))

    def remove(self) -> None:
        """Training is done."""
        if not self._further:
            self.path.unlink(missing_ok=True)


def kge_loss(
    entities_SD: torch.Tensor,
    relations_RD: torch.Tensor,
    queries_B2: torch.Tensor,
    answers_T: torch.Tensor,
    rows_T: torch.Tensor,
    weight_T: torch.Tensor,
    settings: KGESettings,
    sample: Sample | None = None,
) -> torch.Tensor:
    """Cross-entropy and penalty of the T answers of B queries, divided by B.

    With ``settings.relation_weight`` also the cross-entropy of the relation, given entity and answer (Chen et
    al., Relation Prediction as an Auxiliary Training Objective, 2021).

    Args:
        queries_B2: entity and relation of each query.
        rows_T: which query each answer is of.
        weight_T: how much each answer counts.
        sample: the entities that are scored, rows of ``entities_SD``; None is all of them.
    """
    # One look-up for both, since the gradient of each is as large as the table.
    rows = torch.cat([queries_B2[:, 0], answers_T])
    entity_BD, answer_TD = entities_SD[rows].split([len(queries_B2), len(answers_T)])
    relation_BD = relations_RD[queries_B2[:, 1]]
    scored_CD = entities_SD if sample is None else entities_SD[sample.rows_C]
    scores_BC = _products(_complex_product(entity_BD, relation_BD), scored_CD, settings)
    loss_T = -scores_BC[rows_T, answers_T if sample is None else sample.at_T]
    if sample is not None:
        scores_BC = scores_BC + sample.log_weight_C
    loss_T = loss_T + scores_BC.logsumexp(1)[rows_T]
    penalty = loss_T.new_zeros(())
    if settings.regularization and settings.penalty == "triples":
        query_B = _cubes(entity_BD) + _cubes(relation_BD)
        loss_T = loss_T + settings.regularization * (query_B[rows_T] + _cubes(answer_TD))
    elif settings.regularization:
        query_B = (entity_BD.abs() ** 3).sum(1) + (relation_BD.abs() ** 3).sum(1)
        loss_T = loss_T + settings.regularization * query_B[rows_T]
        penalty = settings.regularization * (scored_CD.abs() ** 3).sum(1).mean()
    if settings.relation_weight:
        pairs_TD = _complex_product(_conjugate(entity_BD)[rows_T], answer_TD)
        scores_TR = _products(pairs_TD, relations_RD, settings)
        asked_T = queries_B2[rows_T, 1]
        loss_T = loss_T + settings.relation_weight * cross_entropy(scores_TR, asked_T, reduction="none")
    loss: torch.Tensor = (weight_T * loss_T).sum() / len(queries_B2) + penalty
    return loss


def _products(some_BD: torch.Tensor, all_SD: torch.Tensor, settings: KGESettings) -> torch.Tensor:
    """Inner products ``(B, S)``, in the precision of the settings."""
    if reduced(settings.precision, all_SD.is_cuda):  # converted here, once: torch would do so in each product
        return (some_BD.bfloat16() @ all_SD.bfloat16().T).float()
    # This way round, since matrix libraries are slow where the number of columns is odd.
    return (all_SD @ some_BD.T).T


def _complex_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """:func:`kgmlm.core.arrays.complex_product` of tensors."""
    (a_real, a_imaginary), (b_real, b_imaginary) = (x.chunk(2, -1) for x in (a, b))
    real = a_real * b_real - a_imaginary * b_imaginary
    return torch.cat([real, a_real * b_imaginary + a_imaginary * b_real], -1)


def _cubes(embeddings: torch.Tensor) -> torch.Tensor:
    """Sum of the third powers of the moduli of complex embeddings ``(..., D)``: ``(...)``."""
    real, imaginary = embeddings.chunk(2, -1)
    # The square root has no slope at 0, where an embedding may begin.
    return (real.square() + imaginary.square() + 1e-20).pow(1.5).sum(-1)


def _conjugate(embeddings: torch.Tensor) -> torch.Tensor:
    """Complex conjugates ``(..., D)``."""
    real, imaginary = embeddings.chunk(2, -1)
    return torch.cat([real, -imaginary], -1)
