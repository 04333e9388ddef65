"""Protocol to ranks to report: filtered, both sides, seen and unseen apart.

Every triple of the split is kept. Scores come from the ranker, which knows no answers but training's; the
others meet scores only here, in the filter and in the ranks. What counts as unseen is what the *run* was not
trained on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from kgmlm import files
from kgmlm.config import Protocol
from kgmlm.filters import FilterIndex
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import (
    SPLITS,
    BoolArray,
    ConfigError,
    DataError,
    FloatArray,
    IntArray,
    Queries,
    both_sides,
    counted,
)
from kgmlm.metrics import (
    HITS_AT,
    MADE_BY,
    Ranks,
    expected_hits,
    flat_metrics,
    headline,
    rank_answers,
    sides,
    summarize,
)
from kgmlm.ranker import HELD, MISSED, Parts, Ranker, Retrieval, Weights
from kgmlm.rescoring import Use

WEIGHTS_TRIED = tuple(2.0**i for i in range(-2, 6))  # of entity vectors, in units of Ranker.default_weights
RESCORED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RESCORING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
STRUCTURE_TRIED = tuple(2.0**i for i in range(-4, 6))  # of structure, in units of the temperature
PRIOR = 50  # queries of the average that join those of a relation


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph to evaluate on, and what a model was trained on.

    Attributes:
        graph: texts of the candidates, triples to ask, known answers.
        seen_N: which entities the model's training triples have.
        own_N: which entities belong to the evaluated graph; others are further candidates.
        other: whether it is not the graph that the model was trained on.
        earlier: other graphs than this that the model was trained on.
    """

    graph: KnowledgeGraph
    seen_N: BoolArray
    own_N: BoolArray
    other: bool = False
    earlier: Sequence[KnowledgeGraph] = ()

    @classmethod
    def of(cls, graph: KnowledgeGraph, earlier: Sequence[KnowledgeGraph] = ()) -> Scope:
        """The graph that the model was trained on; what ``earlier`` graphs have was seen, too."""
        known = _seen(earlier)
        seen_N = graph.seen_N | np.array([x in known for x in graph.entities.column("label")], np.bool_)
        return cls(graph, seen_N, np.ones(len(graph.entities), np.bool_), earlier=earlier)

    @classmethod
    def inductive(
        cls,
        trained: KnowledgeGraph,
        graph: KnowledgeGraph,
        protocol: Protocol,
        *,
        earlier: Sequence[KnowledgeGraph] = (),
        allow_seen_entities: bool = False,
        allow_new_relations: bool = False,
    ) -> Scope:
        """Another graph than the one that the model was trained on; entities and relations meet by label.

        Args:
            earlier: further graphs that the model was trained on before.
            allow_seen_entities: evaluate though training triples have some of the graph's entities; the
                breakdown tells them apart.
            allow_new_relations: read relations that training has not from their names.

        Raises:
            DataError: when the model was trained on an evaluated triple, on an entity that would count as
                unseen, or not on a relation.
        """
        train = trained.splits["train"]
        known_relations = {trained.relations[r].label for r in np.unique(train[:, 1])}
        asked = graph.triples(protocol.split)
        new = sorted({graph.relations[r].label for r in np.unique(asked[:, 1])} - known_relations)
        if new and not allow_new_relations:
            others = f" nor on {counted(len(new) - 1, 'other')}" if len(new) > 1 else ""
            raise DataError(
                f"the run was not trained on the relation '{new[0]}' of '{graph.name}'{others}; "
                "--allow-new-relations reads them from their names"
            )
        learned = {x for before in (trained, *earlier) for x in before.labeled(before.splits["train"])}
        evaluated = dict.fromkeys(graph.labeled(asked))
        shared = [triple for triple in evaluated if triple in learned]
        if shared:
            raise DataError(
                f"the run was trained on {len(shared):,} of the {len(evaluated):,} {protocol.split} triples "
                f"of '{graph.name}', such as ({', '.join(shared[0])}); evaluate a run of another graph"
            )
        labels = trained.entities.column("label")
        seen = _seen([trained, *earlier])
        own = graph.entities.column("label")
        overlap = [x for x in own if x in seen]
        if overlap and not allow_seen_entities:
            raise DataError(
                f"the run was trained on {len(overlap):,} of the {len(own):,} entities of '{graph.name}', "
                f"which would count as unseen, such as '{overlap[0]}'; "
                "--allow-seen-entities tells them apart instead"
            )
        if protocol.candidates in ("all", "train"):
            further = [i for i, x in enumerate(labels) if x not in graph.entities.index]
            graph = graph.extended(trained.entities.take(np.array(further, np.int64)))
        everyone = graph.entities.column("label")
        seen_N = np.array([x in seen for x in everyone], np.bool_)
        own_N = np.arange(len(everyone)) < len(own)
        return cls(graph, seen_N, own_N, other=True, earlier=(trained, *earlier))

    def known(self, triples: IntArray, split: str) -> int:
        """How many of some triples of the graph a split of the graphs has that the model was trained on."""
        known_T = np.zeros(len(triples), np.bool_)
        if not self.other and split in self.graph.splits:
            count = len(self.graph.entities)
            asked, there = (
                (t[:, 1] * count + t[:, 0]) * count + t[:, 2] for t in (triples, self.graph.splits[split])
            )
            known_T = np.isin(asked, there)
        for before in self.earlier:
            if split in before.splits:
                learned = set(before.labeled(before.splits[split]))
                known_T |= [triple in learned for triple in self.graph.labeled(triples)]
        return int(known_T.sum())

    def members(self, protocol: Protocol) -> BoolArray:
        """Which entities are candidates under a protocol."""
        if protocol.candidates == "train":
            return self.seen_N
        if protocol.candidates == "graph":
            return self.own_N
        member_N = np.ones_like(self.seen_N)
        if protocol.candidates == "split":
            member_N[:] = False
            member_N[self.graph.triples(protocol.split)[:, [0, 2]].ravel()] = True
        return member_N


def _seen(graphs: Sequence[KnowledgeGraph]) -> set[str]:
    """Labels of the entities that training triples of some graphs have."""
    columns = [(graph.entities.column("label"), graph.seen_N) for graph in graphs]
    return {label for labels, seen_N in columns for label, seen in zip(labels, seen_N, strict=True) if seen}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Ranks of both queries of each evaluated triple (all heads, then all tails), and the report.

    Attributes:
        triples: (n, 3) ids; row i of the 2n ranks belongs to triple ``i % n``.
        ranks: among the protocol's candidates.
        scores_B: the answers' scores.
        report: a JSON-ready object.
    """

    graph: KnowledgeGraph
    triples: IntArray
    tail_B: BoolArray
    ranks: Ranks
    scores_B: torch.Tensor
    report: Mapping[str, Any]

    def write_ranks(self, path: Path, made_by: str = "", *, follow: bool = False) -> None:
        """Per-query ranks as Parquet, keyed by labels, whole or not at all.

        Args:
            path: a link is followed, and a pipe or a device written into, if ``follow`` says so.
            made_by: says of which scores of a run they are.
        """
        labels = np.array(self.graph.entities.column("label"), dtype=object)
        relations = np.array([r.label for r in self.graph.relations], dtype=object)
        h, r, t = np.tile(self.triples, (2, 1)).T
        table = pa.table(
            {
                "head": labels[h].tolist(),
                "relation": relations[r].tolist(),
                "tail": labels[t].tolist(),
                "target": np.where(self.tail_B, "tail", "head").tolist(),
                "score": self.scores_B.numpy(),
                "optimistic": self.ranks.optimistic_B,
                "pessimistic": self.ranks.pessimistic_B,
                "candidates": self.ranks.candidates_B,
            }
        )
        files.write_parquet(path, table.replace_schema_metadata({MADE_BY: made_by}), follow=follow)


Figures = Callable[[Ranks], dict[str, float]]


def _brief(protocol: Protocol) -> Figures:
    """The few figures of a slice under a protocol: realistic, or expected where negatives are not drawn."""
    wanted = ("count", "inverse_harmonic_mean_rank", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10",
              "arithmetic_mean_rank")  # fmt: skip

    def expected(ranks: Ranks) -> dict[str, float]:
        hits = {f"hits_at_{k}": expected_hits(ranks, protocol.negatives, k) for k in HITS_AT if len(ranks)}
        return {"count": float(len(ranks)), **hits}

    def realistic(ranks: Ranks) -> dict[str, float]:
        full = summarize(ranks)
        brief = {k: full[k] for k in wanted if k in full}
        return brief | ({"mrr": full["inverse_harmonic_mean_rank"]} if len(ranks) else {})

    return expected if _is_expected(protocol) else realistic


def _is_expected(protocol: Protocol) -> bool:
    return bool(protocol.negatives) and protocol.negatives_by == "expectation"


def _metrics(ranks: Ranks, tail_B: BoolArray, protocol: Protocol) -> dict[str, float]:
    """All metrics of a set of ranks; ``side.expected.…`` alone where negatives are not drawn."""
    if _is_expected(protocol):
        figures = _brief(protocol)
        parts = {side: figures(part) for side, part in sides(ranks, tail_B)}
        return {f"{side}.expected.{k}": v for side, part in sorted(parts.items()) for k, v in part.items()}
    metrics = flat_metrics(ranks, tail_B)
    return ({"mrr": headline(metrics)} if len(ranks) else {}) | metrics


def breakdown(
    ranks: Ranks, triples: IntArray, tail_B: BoolArray, seen_N: BoolArray, figures: Figures
) -> dict[str, Any]:
    """Metrics by which position of the triple is unseen, and by which role in the query is."""
    h, t = np.tile(triples[:, [0, 2]], (2, 1)).T
    new_h, new_t = ~seen_N[h], ~seen_N[t]
    new_answer, new_known = np.where(tail_B, new_t, new_h), np.where(tail_B, new_h, new_t)
    slices = {
        "position": {
            "neither": ~new_h & ~new_t,
            "head": new_h & ~new_t,
            "tail": ~new_h & new_t,
            "both": new_h & new_t,
            "any": new_h | new_t,
        },
        "role": {
            "answer": new_answer & ~new_known,
            "known": new_known & ~new_answer,
            "both": new_answer & new_known,
            "neither": ~new_answer & ~new_known,
        },
    }
    return {
        f"unseen_{kind}": {name: figures(ranks[mask]) for name, mask in masks.items()}
        for kind, masks in slices.items()
    }


def _within(triples: IntArray, member_N: BoolArray, protocol: Protocol) -> IntArray:
    """The triples whose entities are candidates.

    Raises:
        DataError: when there is none.
    """
    triples = triples[member_N[triples[:, [0, 2]]].all(1)]
    if not len(triples):
        raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
    return triples


def _sampled(scope: Scope, protocol: Protocol) -> IntArray:
    """The triples that a protocol asks, before those outside its candidates are left out."""
    triples = scope.graph.triples(protocol.split)
    if protocol.triples != "all":
        new = ~scope.seen_N[triples[:, [0, 2]]].all(1)
        triples = triples[new if protocol.triples == "unseen" else ~new]
    if not protocol.max_triples or protocol.max_triples >= len(triples):
        return triples
    rng = np.random.default_rng(protocol.seed)
    return triples[np.sort(rng.choice(len(triples), protocol.max_triples, replace=False))]


@dataclass(frozen=True, eq=False)
class _Asked:
    """Both queries of each evaluated triple, grouped so that each distinct query is scored once.

    Attributes:
        queries: all heads, then all tails.
        answers: of each.
        first: a query of each group.
        members: queries, group by group; those of group g are ``members[bounds[g]:bounds[g + 1]]``.
        known: the filter.
    """

    queries: Queries
    answers: IntArray
    first: IntArray
    members: IntArray
    bounds: IntArray
    known: FilterIndex

    @classmethod
    def of(cls, triples: IntArray, graph: KnowledgeGraph, protocol: Protocol) -> _Asked:
        queries, answers = both_sides(triples)
        splits = [graph.splits[s] for s in graph.splits if s in protocol.filter]
        index = FilterIndex(np.concatenate([np.zeros((0, 3), np.int64), *splits]), len(graph.entities))
        _, first, inverse = np.unique(index.keys(queries), return_index=True, return_inverse=True)
        members = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[members], np.arange(len(first) + 1))
        return cls(queries, answers, first, members, bounds, index)

    @property
    def distinct(self) -> Queries:
        """The distinct queries."""
        return self.queries[self.first]

    def in_parts(self, rows: IntArray, most: int) -> Iterator[tuple[IntArray, IntArray]]:
        """As :meth:`of_groups`, some queries at a time: a hub may be asked about in thousands of triples."""
        at, group = self.of_groups(rows)
        most = max(1, most)
        for start in range(0, len(at), most):
            yield at[start : start + most], group[start : start + most]

    def of_groups(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The queries of some groups, and for each which of the groups it belongs to."""
        at = np.concatenate([self.members[self.bounds[r] : self.bounds[r + 1]] for r in rows])
        return at, np.repeat(np.arange(len(rows)), self.bounds[rows + 1] - self.bounds[rows])


@dataclass(frozen=True, eq=False)
class _View:
    """A set of candidates, the queries that can be asked of it, and their ranks as they come in.

    Attributes:
        ids: the candidates.
        column_N: column of each entity among them, -1 for the others.
        asked_B: queries whose whole triple lies in the set.
        ranks_3B: optimistic, pessimistic, candidates.
    """

    ids: IntArray
    column_N: IntArray
    asked_B: BoolArray
    ranks_3B: IntArray

    @classmethod
    def of(cls, member_N: BoolArray, triples: IntArray, among_T: BoolArray | None = None) -> _View:
        """Of the queries of all triples, or of those ``among`` them that are marked."""
        ids = np.flatnonzero(member_N)
        column_N = np.full(len(member_N), -1)
        column_N[ids] = np.arange(len(ids))
        asked_T = member_N[triples[:, [0, 2]]].all(1)
        asked_B = np.tile(asked_T if among_T is None else asked_T & among_T, 2)
        return cls(ids, column_N, asked_B, np.zeros((3, len(asked_B)), np.int64))

    def rank(
        self, scores_bN: torch.Tensor, at: IntArray, answers: IntArray, known: tuple[IntArray, IntArray]
    ) -> None:
        """Rank the queries ``at``, whose scores of all entities and known answers these are."""
        asked = self.asked_B[at]
        if not asked.any():
            return
        device = scores_bN.device
        if not asked.all():
            scores_bN = scores_bN[torch.from_numpy(np.flatnonzero(asked)).to(device)]
        if len(self.ids) < len(self.column_N):
            scores_bN = scores_bN[:, torch.from_numpy(self.ids).to(device)]
        rows, ids = known
        use = asked[rows] & (self.column_N[ids] >= 0)
        row_of = np.cumsum(asked) - 1
        columns = (row_of[rows[use]], self.column_N[ids[use]])
        ranks = rank_answers(
            scores_bN,
            torch.from_numpy(self.column_N[answers[asked]]).to(device),
            (torch.from_numpy(columns[0]).to(device), torch.from_numpy(columns[1]).to(device)),
        )
        self.ranks_3B[:, at[asked]] = ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B

    def result(self) -> Ranks:
        """Ranks of the queries that were asked."""
        return Ranks(*self.ranks_3B[:, self.asked_B])


def _kept_by_pykeen(graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Which triples PyKEEN evaluates, were all their entities trained: each once, of trained relations."""
    kept_T = np.zeros(len(triples), np.bool_)
    kept_T[np.unique(triples, axis=0, return_index=True)[1]] = True
    kept_T &= np.isin(triples[:, 1], graph.splits["train"][:, 1])
    return kept_T


@dataclass(frozen=True, eq=False)
class _Drawn(_View):
    """A view that ranks each query among its own few candidates.

    Attributes:
        own_B: the entity of each query.
        protocol: says how many negatives, how they are drawn, and by which seed.
    """

    own_B: IntArray
    protocol: Protocol

    def rank(
        self, scores_bN: torch.Tensor, at: IntArray, answers: IntArray, known: tuple[IntArray, IntArray]
    ) -> None:
        rows, ids = known
        bounds = np.searchsorted(rows, np.arange(len(at) + 1))  # a filter index answers row by row
        for b in np.flatnonzero(self.asked_B[at]):
            rng = np.random.default_rng([self.protocol.seed, int(at[b])])  # whatever the batches
            drawn = self._negatives(rng, ids[bounds[b] : bounds[b + 1]], answers[b], self.own_B[at[b]])
            few = torch.from_numpy(np.append(drawn, answers[b])).to(scores_bN.device)
            ranks = rank_answers(scores_bN[b, few][None], torch.tensor([len(drawn)], device=few.device))
            self.ranks_3B[:, at[b]] = [
                int(x[0]) for x in (ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B)
            ]

    def _negatives(
        self, rng: np.random.Generator, known: IntArray, answer: np.int64, own: np.int64
    ) -> IntArray:
        count = self.protocol.negatives
        if self.protocol.negatives_by == "grail":
            allowed = self.ids[~np.isin(self.ids, np.append(known, own))]
            return rng.choice(allowed, count) if len(allowed) else allowed
        taken = np.append(known, answer)
        drawn = rng.choice(self.ids, min(len(self.ids), count + len(taken)), replace=False)
        return drawn[~np.isin(drawn, taken)][:count]


def evaluate(
    ranker: Ranker,
    graph: KnowledgeGraph | Scope,
    protocol: Protocol,
    *,
    retrieval: Retrieval | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> Evaluation:
    """Rank the answers of a split's triples on both sides.

    A query that several triples share is encoded once. What cannot answer (``ranker.possible``) stays a
    candidate and ranks last, also where a triple says that it does; such triples are counted. On the run's
    own graph, ranks among training entities alone and without that constraint are taken from the same
    forward passes: what PyKEEN would report, which drops triples with unseen entities or relations and asks
    duplicates once.

    Args:
        ranker: over the entities of the graph.
        graph: the run's own graph, or a :class:`Scope` of another.
        retrieval: rank what an index finds before anything is filtered; an answer that it misses ranks
            behind all that it finds, level with the rest. The report compares with exact ranking.
        advance: called with (queries just done, distinct queries in all).

    Raises:
        DataError: when the split is absent or has no triple to evaluate.
        ConfigError: when the filter names an unknown split, or more negatives are to be drawn than there are.
    """
    unknown = set(protocol.filter) - set(SPLITS)
    if unknown:
        raise ConfigError(
            f"the filter names an unknown split '{unknown.pop()}' (there are: {', '.join(SPLITS)})"
        )
    if protocol.allow_self:
        ranker = ranker.unconstrained()
    scope = graph if isinstance(graph, Scope) else Scope.of(graph)
    graph, seen_N, member_N = scope.graph, scope.seen_N, scope.members(protocol)
    sampled = _sampled(scope, protocol)
    triples = _within(sampled, member_N, protocol)
    asked = _Asked.of(triples, graph, protocol)
    if retrieval is not None and protocol.negatives:
        raise ConfigError("an index is evaluated among all candidates, not among negatives")

    main = _View.of(member_N, triples)
    if protocol.negatives and protocol.negatives_by == "drawing" and protocol.negatives >= len(main.ids):
        raise ConfigError(
            f"{protocol.negatives:,} negatives cannot be drawn from {len(main.ids):,} candidates, one of "
            "which is the answer; ask for fewer, or for 0 to rank among all"
        )
    if protocol.negatives and not _is_expected(protocol):
        main = _Drawn(**vars(main), own_B=asked.queries.entity_B, protocol=protocol)
    comparable = None
    if not protocol.negatives and not scope.other and retrieval is None and graph.seen_N.any():
        comparable = _View.of(graph.seen_N, triples, _kept_by_pykeen(graph, triples))
    exact = _View.of(member_N, triples)  # used with a retriever only
    answer_scores_B = torch.zeros(len(asked.queries))
    distinct = asked.distinct
    started = time.monotonic()
    other = exact if retrieval is not None else comparable
    for rows, scores_dN, other_dN in _scores(
        ranker, distinct, retrieval, other is not None, batch_size, lambda n: advance(n, len(distinct))
    ):
        for at, group in asked.in_parts(rows, HELD // scores_dN.shape[1]):
            answers = asked.answers[at]
            scores_bN = scores_dN[torch.from_numpy(group).to(scores_dN.device)]
            true = torch.from_numpy(answers).to(scores_dN.device)
            answer_scores_B[at] = scores_bN.gather(1, true[:, None])[:, 0].cpu()
            known = asked.known.lookup(asked.queries[at])
            main.rank(scores_bN, at, answers, known)
            if other is not None:
                other.rank(other_dN[torch.from_numpy(group).to(other_dN.device)], at, answers, known)
    seconds = time.monotonic() - started

    ranks, tail_B, relation_B = main.result(), asked.queries.tail_B, asked.queries.relation_B
    figures = _brief(protocol)
    texts = graph.entities.take(main.ids)
    candidates: dict[str, Any] = {
        "set": protocol.candidates,
        "count": len(main.ids),
        "names_truncated": int(ranker.candidates.truncated_N[main.ids].sum()),
        "without_name": texts.unnamed,
        "without_description": texts.column("description").count(""),
    }
    if protocol.negatives:
        candidates["negatives"] = {"count": protocol.negatives, "by": protocol.negatives_by}
        if not _is_expected(protocol):  # a query that nearly everything answers has fewer
            candidates["negatives"]["least"] = int(ranks.candidates_B.min()) - 1
    report = {
        "dataset": graph.name,
        "split": protocol.split,
        "triples": len(triples),
        "triples_left_out": len(sampled) - len(triples),
        "triples_trained": scope.known(triples, "train"),
        "triples_validated": scope.known(triples, "valid"),
        "queries": len(distinct),
        "seconds": round(seconds, 2),
        "candidates": candidates,
        "own_entity": _own_entity(ranker, asked),
        "protocol": protocol.model_dump(mode="json"),
        "metrics": _metrics(ranks, tail_B, protocol),
        "breakdown": breakdown(ranks, triples, tail_B, seen_N, figures),
    }
    if comparable is not None:
        report["pykeen_comparable"] = {
            "candidates": len(comparable.ids),
            "metrics": _metrics(comparable.result(), tail_B[comparable.asked_B], protocol),
        }
    if retrieval is not None:
        found_B = (answer_scores_B > MISSED).numpy()
        report["retrieval"] = _retrieved(retrieval, ranks, exact.result(), found_B, tail_B)
    report["relations"] = {
        graph.relations[r].label: {
            side: figures(part) for side, part in sides(ranks[relation_B == r], tail_B[relation_B == r])
        }
        for r in np.unique(relation_B)
    }
    return Evaluation(graph, triples, tail_B, ranks, answer_scores_B, report)


def _scores(
    ranker: Ranker,
    queries: Queries,
    retrieval: Retrieval | None,
    others: bool,
    batch_size: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
    """Rows, scores, and if asked for others of the same queries: beside those by shortlist the exact ones,
    else those without constraints on what can answer.
    """
    if retrieval is not None:
        yield from ranker.retrieve_and_rank(queries, retrieval, batch_size, advance)
        return
    if others and ranker.possible.own_B(queries).any():
        yield from ranker.rank_both(queries, batch_size, advance)
        return
    for rows, scores_BN in ranker.rank(queries, batch_size=batch_size, advance=advance):
        yield rows, scores_BN, scores_BN


def _own_entity(ranker: Ranker, asked: _Asked) -> dict[str, Any]:
    """What a report says of queries that their own entity cannot answer."""
    own_B = ranker.possible.own_B(asked.queries)
    loops_B = asked.answers == asked.queries.entity_B
    return {
        "excluded": bool(ranker.possible.loop_free_R.any()),
        "relations": int(ranker.possible.loop_free_R.sum()),
        "ranks": int(own_B.sum()),
        "true_loops": int((own_B & loops_B).sum()),
    }


def _retrieved(
    retrieval: Retrieval, ranks: Ranks, exact: Ranks, found_B: BoolArray, tail_B: BoolArray
) -> dict[str, Any]:
    """How many answers an index finds, and what ranking its shortlist costs."""
    metrics, exactly = flat_metrics(ranks, tail_B), flat_metrics(exact, tail_B)
    record = retrieval.retriever.record
    effort = retrieval.retriever.effort if retrieval.effort is None else retrieval.effort
    return {
        "kind": retrieval.retriever.kind,
        "factory": record["factory"],
        "k": retrieval.k,
        "effort": effort,
        "recall": {
            "tail": float(found_B[tail_B].mean()),
            "head": float(found_B[~tail_B].mean()),
            "both": float(found_B.mean()),
        },
        "exact": {"mrr": headline(exactly), "hits_at_10": exactly["both.realistic.hits_at_10"]},
        "mrr_lost": headline(exactly) - headline(metrics),
    }


def _check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def _ranked_by(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    count: int,
    score: Callable[[Queries, IntArray, Parts], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
) -> tuple[_Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes; the ranker's own weights say which parts are made.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and the parts.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    _check_choice(protocol)
    scope = Scope.of(graph)
    member_N = scope.members(protocol)
    triples = _within(_sampled(scope, protocol), member_N, protocol)
    asked = _Asked.of(triples, graph, protocol)
    views = [_View.of(member_N, triples) for _ in range(count)]
    distinct = asked.distinct
    for rows, parts in ranker.parts(distinct, batch_size=batch_size):
        split = [
            (at, group, asked.known.lookup(asked.queries[at]))
            for at, group in asked.in_parts(rows, HELD // len(graph.entities))
        ]
        for view, scores_dN in zip(views, score(distinct[rows], rows, parts), strict=True):
            for at, group, known in split:
                source = torch.from_numpy(group).to(scores_dN.device)
                view.rank(scores_dN[source], at, asked.answers[at], known)
        advance(len(rows), len(distinct))
    return asked, [view.result() for view in views]


def _by_weights(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    tried: Sequence[Weights],
    advance: Callable[[str, int, int], None],
    batch_size: int = 64,
) -> tuple[Queries, list[Ranks]]:
    """Queries, and their ranks under several weights."""
    asked, ranks = _ranked_by(
        ranker,
        graph,
        protocol,
        len(tried),
        lambda queries, rows, parts: (ranker.combined(queries, parts, weights=w) for w in tried),
        partial(advance, "validating"),
        batch_size,
    )
    return asked.queries, ranks


def _of_relations(reciprocal_WB: FloatArray, queries: Queries, relations: int) -> tuple[IntArray, FloatArray]:
    """Which of W ways is best for each relation and side ``(R, 2)``, and the reciprocal ranks ``(B,)`` by it.

    What is rarely asked leans on what is best for all: :data:`PRIOR` queries of the average join its own.
    """
    mean_W = reciprocal_WB.mean(1)
    chosen_R2 = np.full((relations, 2), int(mean_W.argmax()))
    side_B = 1 - queries.tail_B.astype(np.int64)
    for relation, side in np.unique(np.stack([queries.relation_B, side_B], 1), axis=0):
        own_WB = reciprocal_WB[:, (queries.relation_B == relation) & (side_B == side)]
        chosen_R2[relation, side] = (own_WB.sum(1) + PRIOR * mean_W).argmax()
    return chosen_R2, reciprocal_WB[chosen_R2[queries.relation_B, side_B], np.arange(len(queries))]


def choose_structure(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    batch_size: int = 64,
) -> dict[str, float]:
    """Choose how much the structural model counts beside the text: one weight a relation and side, by MRR.

    The weights are left in ``ranker.structure``.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no structural model.

    Returns:
        ``mrr``, ``hits_at_1`` and ``hits_at_10`` under the chosen weights, ``mrr_text`` and
        ``mrr_structure`` of each alone, and ``mrr_one_weight`` with the best weight for all relations.
    """
    structure = ranker.structure
    if structure is None:
        raise ConfigError("the ranker has no structural model to weigh")
    unit = ranker.settings.training.temperature  # both as confident as in training
    text = ranker.weights._replace(structure=0.0)
    values = [0.0, *(unit * x for x in STRUCTURE_TRIED)]
    ranker.structure = structure.weighted(torch.ones_like(structure.weights_R2))
    ranker.weights = text._replace(structure=1.0)
    tried = [*(text._replace(structure=v) for v in values), Weights(0.0, 0.0, 1.0)]
    queries, ranks = _by_weights(ranker, graph, protocol, tried, advance, batch_size)
    *mixed_WB, alone_B = (1 / r.of_type("realistic") for r in ranks)
    reciprocal_WB = np.stack(mixed_WB)
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB, queries, len(structure.weights_R2))
    weights_R2 = torch.tensor(values, dtype=torch.float32)[torch.from_numpy(chosen_R2)]
    ranker.structure = structure.weighted(weights_R2)
    ranker.weights = text._replace(structure=1.0)
    return {
        "mrr": float(final_B.mean()),
        "hits_at_1": float((final_B >= 1).mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "mrr_text": float(mean_W[0]),
        "mrr_structure": float(alone_B.mean()),
        "mrr_one_weight": float(mean_W.max()),
    }


def choose_rescoring(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    candidates: int | None = None,
) -> dict[str, float]:
    """Choose how many of the best are rescored and how much that counts, by MRR; not rescoring is a choice.

    The choice is left in ``ranker.rescorer``.

    Args:
        candidates: how many are tried at most; None is as many as the rescorer's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no rescorer.

    Returns:
        ``mrr``, ``hits_at_1`` and ``hits_at_10`` under the choice, ``k`` and ``weight``, ``mrr_first``
        without rescoring, and ``held``, the share of answers that the most candidates tried hold.
    """
    rescorer = ranker.rescorer
    if rescorer is None:
        raise ConfigError("the ranker has no rescorer to weigh")
    most = min(candidates or rescorer.rescoring.candidates, len(graph.entities))
    sizes = sorted({k for k in RESCORED_TRIED if k < most} | {most})
    unit = ranker.settings.training.temperature  # both as confident as in training
    tried = [Use(0, 0.0), *(Use(k, unit * x) for k in sizes for x in RESCORING_TRIED)]
    held: list[tuple[IntArray, IntArray]] = []

    def score(queries: Queries, rows: IntArray, parts: Parts) -> Iterator[torch.Tensor]:
        scores_dN = ranker.combined(queries, parts)
        best, ids_dK = ranker.best(queries, scores_dN, most)
        held.append((rows, ids_dK))
        read_dK = ranker.read(queries, best.to_read(ids_dK)).to(scores_dN.device)
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).rescored(scores_dN, read_dK[:, : use.k], use.weight)

    asked, ranks = _ranked_by(ranker, graph, protocol, len(tried), score, partial(advance, "rescoring"))
    held_B = np.zeros(len(asked.queries), np.bool_)
    for rows, ids_dK in held:
        at, group = asked.of_groups(rows)
        held_B[at] = (ids_dK[group] == asked.answers[at][:, None]).any(1)
    found = [flat_metrics(r, asked.queries.tail_B) for r in ranks]
    mrrs = [headline(metrics) for metrics in found]
    chosen = int(np.argmax(mrrs))
    rescorer.use = tried[chosen]
    return {
        "mrr": mrrs[chosen],
        "hits_at_1": found[chosen]["both.realistic.hits_at_1"],
        "hits_at_10": found[chosen]["both.realistic.hits_at_10"],
        "k": rescorer.use.k,
        "weight": rescorer.use.weight,
        "mrr_first": mrrs[0],
        "held": float(held_B.mean()),
    }


def validate(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> dict[str, float]:
    """MRR and Hits@10 of the run's own graph; with entity vectors, choose their weights by the MRR.

    Weights are tried from likelihood alone to vectors alone, all from the same forward passes: one for all,
    then for each relation and side. They are left in ``ranker.weights`` and ``ranker.factors_R2``.

    Args:
        advance: called with (what is being done, how many just were, how many there are).

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        ``mrr`` and ``hits_at_10`` under the best weights; with vectors also ``weight_...`` and ``mrr_...`` of
        ``likelihood`` and ``vector``: the weights before factors, and the MRR of each alone; and
        ``mrr_one_weight``, without factors.
    """
    _check_choice(protocol)
    if not ranker.settings.vector.enabled:
        bar = partial(advance, "validating")
        metrics = evaluate(ranker, graph, protocol, advance=bar).report["metrics"]
        return {"mrr": metrics["mrr"], "hits_at_10": metrics["both.realistic.hits_at_10"]}
    unit = Ranker.default_weights(ranker.settings).vector
    tried = [Weights(), *(Weights(1.0, unit * x) for x in WEIGHTS_TRIED), Weights(0.0, 1.0)]
    ranker.weights, ranker.factors_R2 = Weights(1.0, unit), None  # both parts are made
    unread = ranker.unread()
    ranker.read_entities(advance=lambda n: advance("reading entities", n, unread))
    queries, ranks = _by_weights(ranker, graph, protocol, tried, advance)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB[:-1], queries, len(graph.relations))
    if mean_W[-1] > final_B.mean():
        ranker.weights, final_B = tried[-1], reciprocal_WB[-1]
    else:
        vector_W = torch.tensor([weights.vector for weights in tried], dtype=torch.float32)
        ranker.weights = Weights(1.0, float(vector_W[mean_W[:-1].argmax()]) or unit)  # factors may be 0
        ranker.factors_R2 = vector_W[torch.from_numpy(chosen_R2)] / ranker.weights.vector
    return {
        "mrr": float(final_B.mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "weight_likelihood": ranker.weights.likelihood,
        "weight_vector": ranker.weights.vector,
        "mrr_one_weight": float(mean_W.max()),
        "mrr_likelihood": float(mean_W[0]),
        "mrr_vector": float(mean_W[-1]),
    }
