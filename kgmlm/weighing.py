"""Weights of all signals at once: those under which the answers of validation are most likely.

The weighted sum of what S signals say of a query's candidates goes through a softmax over those that no known
triple has. Weights are positive, so their logarithms are fitted: one for each signal, and what a relation and
side adds to it, drawn to nothing. Reciprocal ranks are steps, which say little on a few hundred queries;
likelihoods are smooth, and weights that maximize them rank better.

Shapes: B queries, C candidates (the answer and those that some signal ranks best), S signals, R relations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from kgmlm.arrays import spreads
from kgmlm.contest import Contest, Group
from kgmlm.first_stage import Said
from kgmlm.kg import BoolArray, FloatArray, IntArray, Queries
from kgmlm.mixture import BEST, Mixture
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker
from kgmlm.watching import Advance

SHRINK = 3.0  # how strongly a relation's weights are drawn to those of all, in nats per squared logarithm
LEAN = 1.0  # how strongly weights are drawn to those under which all signals vary alike
FAR = 10.0  # no weight is farther from that than this, as a logarithm

_CLOSELY = {"ftol": 1e-13, "gtol": 1e-7, "maxiter": 1000, "maxfun": 2000}
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Sample:
    """What signals say of the best candidates of some queries.

    Attributes:
        names: of the S signals.
        scores_BCS: the first candidate is the answer.
        there_BC: which candidates there are; none of a query whose answer is impossible.
        confident: by how much scores are divided in training, and weights multiplied here.
    """

    names: tuple[str, ...]
    queries: Queries
    scores_BCS: _Floats
    there_BC: BoolArray
    relations: int
    confident: float

    @classmethod
    def drawn(
        cls, ranker: Ranker, contest: Contest, names: Sequence[str], advance: Advance, batch_size: int = 64
    ) -> Sample:
        """Of a contest's queries, in one pass, which several processes share."""
        asked, pool, world = contest.asked, ranker.pool(contest.ids), sharing()
        share = asked.share(world)
        distinct = asked.distinct[share]
        tell = partial(advance, "choosing weights")
        found = []
        for own, _, said in ranker.said(distinct, pool, batch_size=batch_size, by=tuple(names)):
            groups = contest.groups(share[own])
            found += [(group.at, *_best(ranker, contest, group, said)) for group in groups]
            tell(len(own), len(distinct))
        parts = [part for of_one in world.gathered(found) for part in of_one]
        confident = ranker.reader.settings.training.temperature
        return cls.joined(names, asked.queries, parts, len(ranker.context.relations), confident)

    @classmethod
    def joined(
        cls,
        names: Sequence[str],
        queries: Queries,
        parts: Iterable[tuple[IntArray, _Floats, BoolArray]],
        relations: int,
        confident: float = 1.0,
    ) -> Sample:
        """Of parts: which queries, what signals say of their candidates, and which candidates there are."""
        parts = list(parts)
        width = max((there.shape[1] for _, _, there in parts), default=1)
        scores_BCS = np.zeros((len(queries), width, len(names)), np.float32)
        there_BC = np.zeros(scores_BCS.shape[:2], np.bool_)
        for at, scores_bCS, there_bC in parts:
            scores_BCS[at, : there_bC.shape[1]] = scores_bCS
            there_BC[at, : there_bC.shape[1]] = there_bC
        return cls(tuple(names), queries, scores_BCS, there_BC, relations, confident)

    def summed(self, name: str, parts: Mixture) -> Sample:
        """The same with one signal more, the weighted sum of others."""
        columns = [self.names.index(part) for part in parts.signals]
        weight_BS = np.stack([parts.of(part, self.queries) for part in parts.signals], 1)
        sum_BC = np.einsum("bcs,bs->bc", self.scores_BCS[:, :, columns], weight_BS)
        scores_BCS = np.concatenate([self.scores_BCS, sum_BC[:, :, None]], 2)
        return replace(self, names=(*self.names, name), scores_BCS=scores_BCS)

    def fitted(self, names: Sequence[str], of_B: BoolArray, *, by_relation: bool = True) -> Mixture:
        """The weights of some signals that make the answers of some queries most likely.

        Args:
            by_relation: else one weight per signal.
        """
        rows = np.flatnonzero(of_B & self.there_BC[:, 0])
        queries = self.queries[rows]
        kinds_G, kind_B = np.unique(2 * queries.relation_B + queries.side_B, return_inverse=True)
        columns = [self.names.index(name) for name in names]
        scores_BCS, there_BC = self.scores_BCS[rows][:, :, columns], self.there_BC[rows]
        spread_S = spreads(scores_BCS[there_BC])
        log_S, own_GS = _most_likely(
            (scores_BCS / spread_S).astype(np.float32), there_BC, kind_B, len(kinds_G) if by_relation else 0
        )
        average_S = self.confident * np.exp(log_S) / spread_S
        table_R2S = np.broadcast_to(average_S, (self.relations, 2, len(names))).copy()
        if by_relation:
            table_R2S[kinds_G // 2, kinds_G % 2] *= np.exp(own_GS)
        tables = {name: table_R2S[:, :, s].astype(np.float32) for s, name in enumerate(names)}
        return Mixture(tables, {name: float(average_S[s]) for s, name in enumerate(names)})


def _best(ranker: Ranker, contest: Contest, group: Group, said: Said) -> tuple[_Floats, BoolArray]:
    """What signals say ``(b, C, S)`` of the answers and of the best other candidates, and which there are."""
    device = ranker.reader.model.device
    source, answer_b1, rows, columns = (
        torch.from_numpy(x).to(device)
        for x in (group.group, group.answers[:, None], *group.known)
    )  # fmt: skip
    queries = contest.asked.queries[group.at]
    said_SbN = [torch.as_tensor(x, device=device)[source].float() for x in said.values()]
    blocked_bN = ranker.possible.applied(torch.zeros_like(said_SbN[0]), queries, contest.ids) < 0
    if contest.ids is None:
        blocked_bN |= torch.from_numpy(~contest.member_N).to(device)
    impossible_b1 = blocked_bN.gather(1, answer_b1)
    blocked_bN[rows, columns] = True
    blocked_bN.scatter_(1, answer_b1, True)
    most = min(BEST, blocked_bN.shape[1])
    best_bC = torch.cat([x.masked_fill(blocked_bN, -torch.inf).topk(most).indices for x in said_SbN], 1)
    best_bC = best_bC.sort(1).values
    there_bC = ~blocked_bN.gather(1, best_bC)
    there_bC[:, 1:] &= best_bC[:, 1:] != best_bC[:, :-1]
    there_bC = torch.cat([torch.ones_like(impossible_b1), there_bC], 1) & ~impossible_b1
    best_bC = torch.cat([answer_b1, best_bC], 1)
    scores_bCS = torch.stack([x.gather(1, best_bC) for x in said_SbN], 2)
    return scores_bCS.masked_fill(~there_bC[..., None], 0.0).cpu().numpy(), there_bC.cpu().numpy()


def _most_likely(
    scores_BCS: _Floats, there_BC: BoolArray, kind_B: IntArray, kinds: int
) -> tuple[FloatArray, FloatArray]:
    """Logarithms of weights ``(S,)`` and what each of G kinds of queries adds ``(G, S)``, by L-BFGS.

    Args:
        kinds: how many there are; 0 is one weight for all.
    """
    from scipy.optimize import minimize

    signals = scores_BCS.shape[2]
    # By kind, so that one block of candidates has the same weights; without those that are not there.
    order_B = np.argsort(kind_B, kind="stable") if kinds else np.arange(len(kind_B))
    if not len(order_B):
        return np.zeros(signals), np.zeros((kinds, signals))
    there_BC = there_BC[order_B]
    scores_TS = scores_BCS[order_B][there_BC].astype(np.float64)
    count_B = there_BC.sum(1)
    first_B = np.cumsum(count_B) - count_B  # the answers
    starts = np.searchsorted(kind_B[order_B], np.arange(kinds)) if kinds else np.zeros(1, np.int64)
    bounds = [*first_B[starts].tolist(), len(scores_TS)]
    blocks = [slice(*bound) for bound in itertools.pairwise(bounds)]

    def cost(flat: FloatArray) -> tuple[float, FloatArray]:
        log_S, own_GS = flat[:signals], flat[signals:].reshape(kinds, signals)
        weight_GS = np.exp(log_S + own_GS if kinds else log_S[None])
        logits_T = np.concatenate([scores_TS[at] @ w_S for at, w_S in zip(blocks, weight_GS, strict=True)])
        top_B = np.maximum.reduceat(logits_T, first_B)
        share_T = np.exp(logits_T - np.repeat(top_B, count_B))
        sum_B = np.add.reduceat(share_T, first_B)
        value = SHRINK * (own_GS**2).sum() + LEAN * (log_S**2).sum()
        value += float((np.log(sum_B) + top_B - logits_T[first_B]).sum())
        share_T /= np.repeat(sum_B, count_B)
        share_T[first_B] -= 1
        slope_GS = weight_GS * np.stack([share_T[at] @ scores_TS[at] for at in blocks])
        own_slope_GS = 2 * SHRINK * own_GS + (slope_GS if kinds else 0)
        return value, np.concatenate([slope_GS.sum(0) + 2 * LEAN * log_S, own_slope_GS.ravel()])

    count = signals * (1 + kinds)
    # To the end, so that the weights hardly depend on how queries were batched.
    found = minimize(
        cost, np.zeros(count), jac=True, method="L-BFGS-B", bounds=[(-FAR, FAR)] * count, options=_CLOSELY
    )
    return found.x[:signals], found.x[signals:].reshape(kinds, signals)
