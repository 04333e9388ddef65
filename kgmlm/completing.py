"""The best candidates of many queries, with what the scores say of each: one part of completing a graph.

Two sets of candidates come from the same scores. *Open* ones are those that nothing known gives: they may
be listed. *Hidden* ones are those that training does not give: validation triples are among them, so what is
true of them can be counted.

Shapes: B queries, N entities, n candidates, K candidates of a query, F features of a side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from kgmlm.arrays import like, top
from kgmlm.constraints import MISSED
from kgmlm.filters import FilterIndex
from kgmlm.first_stage import MAX_SCORES
from kgmlm.kg import FloatArray, IntArray, Queries
from kgmlm.merging import FEATURES
from kgmlm.ranker import Ranker
from kgmlm.scorer import Scorer


@dataclass(frozen=True, eq=False)
class Completer:
    """Finds the best candidates of queries.

    Attributes:
        scorer: a run's ranker, or another scorer; rerankers take no part.
        train: what training triples give.
        known: what is never listed; training triples are among it.
        top: K, of each query.
        batch_size: queries per forward pass.
    """

    scorer: Scorer
    train: FilterIndex
    known: FilterIndex
    top: int
    batch_size: int = 64

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that a score is added up of, where that is known."""
        if not isinstance(self.scorer, Ranker):
            return ()
        return tuple(name for name in self.scorer.mixture.signals if name in self.scorer.signals)

    def schema(self) -> pa.Schema:
        """Of a part: ids, from which side, in which of the two sets, features, what each signal adds."""
        return pa.schema(
            [(name, pa.int32()) for name in ("head", "relation", "tail")]
            + [(name, pa.bool_()) for name in ("of_tail", "hidden", "open")]
            + [(name, pa.float32()) for name in (*FEATURES, *self.signals)]
        )

    def part(self, queries: Queries, advance: Callable[[int], None] = lambda n: None) -> pa.Table:
        """The candidates of some queries, by query, then by score, then by id."""
        found = [
            (rows, self._chosen(queries[rows], scores_bN, said))
            for rows, scores_bN, said in self._scored(queries, advance)
        ]
        schema = self.schema()
        if not found:
            return schema.empty_table()
        at = np.concatenate([rows[columns["row"]] for rows, columns in found])
        merged = {k: np.concatenate([columns[k] for _, columns in found]) for k in found[0][1]}
        order = np.lexsort([merged["id"], -merged["score"], at])
        at = at[order]
        merged = {name: values[order] for name, values in merged.items()}
        asked = queries[at]
        ends = (merged["id"], asked.entity_B)
        merged |= {
            "head": np.where(asked.tail_B, *ends[::-1]),
            "relation": asked.relation_B,
            "tail": np.where(asked.tail_B, *ends),
            "of_tail": asked.tail_B,
        }
        return pa.table([pa.array(merged[f.name], f.type, safe=False) for f in schema], schema=schema)

    def _scored(
        self, queries: Queries, advance: Callable[[int], None]
    ) -> Iterator[tuple[IntArray, torch.Tensor, Mapping[str, torch.Tensor]]]:
        """(rows, scores, what each signal adds to them), batch by batch."""
        if not isinstance(self.scorer, Ranker):
            for rows, scores_bN in self.scorer.rank(queries, batch_size=self.batch_size, advance=advance):
                yield rows, scores_bN, {}
            return
        ranker = self.scorer
        for rows, _, said in ranker.said(queries, batch_size=self.batch_size, advance=advance):
            asked = queries[rows]
            weights = {name: like(ranker.mixture.of(name, asked), x) for name, x in said.items()}
            added = {name: weights[name][:, None] * x for name, x in said.items()}
            yield rows, ranker.combined(asked, said), added

    def _chosen(
        self, queries: Queries, scores_BN: torch.Tensor, said: Mapping[str, torch.Tensor]
    ) -> dict[str, np.ndarray]:
        """The candidates of a batch as columns; ``row`` is the query of each."""
        others_BN = scores_BN.masked_fill(scores_BN <= MISSED, float("-inf"))  # that it is compared with
        others_BN[_at(self.train.lookup(queries), scores_BN)] = float("-inf")
        open_BN = others_BN.clone()
        open_BN[_at(self.known.lookup(queries), scores_BN)] = float("-inf")
        sets = [[_best(row_N, self.top) for row_N in values_BN] for values_BN in (others_BN, open_BN)]
        rows, ids = [], []
        for row, (hidden, open) in enumerate(zip(*sets, strict=True)):
            either = list(dict.fromkeys([*hidden, *open]))
            ids += either
            rows += [row] * len(either)
        members = [{(row, i) for row, of_row in enumerate(found) for i in of_row} for found in sets]
        pairs = list(zip(rows, ids, strict=True))
        row_n, id_n = np.array(rows, np.int64), np.array(ids, np.int64)
        at = _at((row_n, id_n), scores_BN)
        columns = {
            "row": row_n,
            "id": id_n,
            "hidden": np.array([pair in members[0] for pair in pairs], np.bool_),
            "open": np.array([pair in members[1] for pair in pairs], np.bool_),
        }
        columns |= dict(zip(FEATURES, self._features(others_BN, row_n, id_n), strict=True))
        return columns | {name: values[at].float().cpu().numpy() for name, values in said.items()}

    def _features(self, others_BN: torch.Tensor, row_n: IntArray, id_n: IntArray) -> FloatArray:
        """What scores say of candidates, ``(F, n)``, each among all that training does not give.

        These are the score, the log-softmax, the logarithm of the realistic rank, and by how much the score
        is above that of the best other candidate.
        """
        device = others_BN.device
        rows, ids = (torch.from_numpy(x).to(device) for x in (row_n, id_n))
        values = others_BN[rows, ids]
        normalizer_B = torch.logsumexp(others_BN.double() / self.temperature, 1)
        best_BK = others_BN.topk(min(2, others_BN.shape[1]), dim=1).values
        best_B, second_B = best_BK[:, 0], best_BK[:, -1]
        above, equal = (torch.empty(len(values), dtype=torch.float64, device=device) for _ in range(2))
        step = max(1, MAX_SCORES // others_BN.shape[1])
        for start in range(0, len(values), step):
            some = slice(start, start + step)
            among, own = others_BN[rows[some]], values[some, None]
            above[some], equal[some] = (among > own).sum(1).double(), (among == own).sum(1).double()
        rival = torch.where((above == 0) & (equal == 1), second_B[rows], best_B[rows])
        rival = torch.where(rival.isinf(), values, rival)  # nobody else is there
        features = [
            values.double(),
            values.double() / self.temperature - normalizer_B[rows],
            torch.log(1 + above + (equal - 1) / 2),
            values.double() - rival.double(),
        ]
        found: FloatArray = torch.stack(features).cpu().numpy()
        return found

    @property
    def temperature(self) -> float:
        """Scores divided by it are logits."""
        return self.scorer.reader.settings.training.temperature if isinstance(self.scorer, Ranker) else 1.0


def _at(pairs: tuple[IntArray, IntArray], like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(x).to(like.device) for x in pairs)


def _best(scores_N: torch.Tensor, k: int) -> list[int]:
    """The k best of those that may be chosen."""
    ids = top(scores_N, k)
    finite = torch.isfinite(scores_N[ids]).tolist() if ids else []
    return [i for i, there in zip(ids, finite, strict=True) if there]
