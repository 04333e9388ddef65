"""Top-k tables for people: names, scores, known or new, explanations.

Follows PyKEEN's prediction tables: columns ``tail_id``, ``score``, ``tail_label`` (or ``head_...``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kgmlm.core.arrays import IntArray, top
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import FilterIndex, Queries, Query
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.probability import TripleClassifier
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.trees import Trees
from kgmlm.text.reader import Reading

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.ranking.retrieval import Retrieval

SAMPLE = 2000  # entities over which the average score of a signal is taken


class WeighedScore(NamedTuple):
    """A part of a score: ``weight * value``; a score is the sum of its parts.

    The value of a second stage ("reverse", "trees") is its score of a candidate
    less its lowest score among the candidates that it scored.
    """

    weight: float
    value: float


@dataclass(frozen=True)
class Prediction:
    """One candidate of one query; ``known`` when some split has the triple.

    The probability is that of finding the triple in a further hidden set
    (:class:`~kgmlm.ranking.probability.Calibration`); None where the run has none, or where training or
    validation has the triple. It is None, and ``checked`` is False, where training has nothing of one of its
    entities and validation had too few such entities to fit to.

    Explained, it has each token's log-likelihood and the parts of its score: likelihood, vector, kge, rules,
    types, linked and others, and the second stages that the run ranks by. The likelihood is there even where
    its weight is 0. ``because`` has sentences: the best rules that predict the candidate, links of training,
    and the groups of features by which trees rank it.
    """

    rank: int
    id: int
    label: str
    name: str
    score: float
    known: bool
    tokens: tuple[dict[str, Any], ...] | None = None
    parts: Mapping[str, WeighedScore] | None = None
    because: tuple[str, ...] = ()
    probability: float | None = None
    checked: bool = True

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm rank --json`` prints."""
        row: dict[str, Any] = {
            "rank": self.rank,
            "entity": self.label,
            "name": self.name,
            "probability": self.probability,
            "score": self.score,
            "known": self.known,
        }
        if not self.checked:
            row["checked"] = False
        if self.parts is not None:
            row["parts"] = {
                name: {**part._asdict(), "adds": part.weight * part.value}
                for name, part in self.parts.items()
            }
        if self.because:
            row["because"] = list(self.because)
        return row if self.tokens is None else row | {"tokens": list(self.tokens)}


class _Sureness(NamedTuple):
    """A probability, if there is one, and whether validation could check it."""

    probability: float | None
    checked: bool


SHOWN_GROUPS = 4  # groups of features of trees


class Predictor:
    """Ranks candidates for queries given as labels or names.

    Args:
        retrieval: rank only what an index finds; fewer candidates than asked for may be left of it.
        classifier: says how probable the shown triples are; None: nothing does.

    Example:
        >>> predictor = kgmlm.open_run("runs/demo").predictor  # doctest: +SKIP
        >>> predictor.rank("Astrid Lindgren", "worked in", k=3)  # doctest: +SKIP
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        ranker: Ranker,
        retrieval: Retrieval | None = None,
        classifier: TripleClassifier | None = None,
    ) -> None:
        self.graph = graph
        self.ranker = ranker
        self.retrieval = retrieval
        self.classifier = classifier
        self.resolver = Resolver(graph)

    def with_entities(self, more: EntityTable, triples: IntArray | None = None) -> Predictor:
        """A predictor that knows further entities, as candidates and in queries, by their text.

        Nothing is trained. The likelihood of a new entity costs no forward pass; its vector, in runs with
        vectors, costs one. Scores of the other entities do not change, unless triples are given.

        Args:
            triples: (n, 3) ids, triples of these entities: their neighbors in texts, what rules and types go
                by, and known answers.

        Raises:
            DataError: when an entity exists already.

        Example:
            >>> new = EntityTable(["sars2"], ["coronavirus"], ["an RNA virus"])  # doctest: +SKIP
            >>> predictor.with_entities(new).rank(head="coronavirus", relation="causes")  # doctest: +SKIP
        """
        graph = self.graph.extended(more)
        if triples is not None and len(triples):
            graph = graph.with_context(triples)
        ranker = self.ranker.for_graph(graph.context)
        retrieval = self.retrieval
        if retrieval is not None:
            from kgmlm.ranking.retrieval import added

            new = np.arange(len(self.graph.entities), len(graph.entities))
            retrieval = retrieval._replace(retriever=added(ranker, retrieval.retriever, new))
        classifier = self.classifier and self.classifier.with_signals(ranker)
        return Predictor(graph, ranker, retrieval, classifier)

    @cached_property
    def _validation(self) -> FilterIndex:
        return FilterIndex(self.graph.splits["valid"], len(self.graph.entities))

    @cached_property
    def _known(self) -> FilterIndex:
        return self.graph.filter_index

    @cached_property
    def _false(self) -> FilterIndex:
        none = np.zeros((0, 3), np.int64)
        return FilterIndex(self.graph.negatives.get("train", none), len(self.graph.entities))

    def _never(self, queries: Queries, novel: bool) -> tuple[IntArray, IntArray]:
        """The answers that are left out, as (row, id) pairs: false ones, and for ``novel`` known ones."""
        false = self._false.lookup(queries)
        if not novel:
            return false
        known = self._known.lookup(queries)
        return np.concatenate([false[0], known[0]]), np.concatenate([false[1], known[1]])

    def predict(
        self,
        queries: Sequence[Query],
        k: int = 10,
        *,
        novel: bool = False,
        explain: bool = False,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[int, list[Prediction]]]:
        """The k best candidates of each query, as (position in ``queries``, predictions), batch by batch.

        Equal scores keep the order of the labels and share no rank here; ties matter in evaluation. What
        cannot answer (``ranker.possible``) is left out, and so is what training knows to be false.

        Args:
            novel: leave out triples that the graph has in any split.
            explain: add each token's log-likelihood and the parts of the score.
        """
        table = Queries.of(queries)
        for rows, ranked in self._ranked(table, k, novel, batch_size, advance):
            known_rows, known_ids = self._known.lookup(table[rows])
            known = set(zip(known_rows.tolist(), known_ids.tolist(), strict=True))
            never = set(zip(*(part.tolist() for part in self._never(table[rows], novel)), strict=True))
            chosen = [
                [(i, score) for i, score in of_query if score > MISSED and (b, i) not in never][:k]
                for b, of_query in enumerate(ranked)
            ]
            sureness = self._sureness(
                table[rows], [[i for i, _ in of_query] for of_query in chosen], batch_size
            )
            for b, row in enumerate(rows.tolist()):
                predictions = [
                    self._prediction(rank, i, score, (b, i) in known, sure)
                    for rank, ((i, score), sure) in enumerate(zip(chosen[b], sureness[b], strict=True), 1)
                ]
                explained = explain and predictions
                yield row, self._explained(queries[row], predictions) if explained else predictions

    def placed(self, query: Query, ids: IntArray, *, novel: bool = False) -> list[Prediction]:
        """Explain some candidates of a query, at the places that they have among all entities.

        Args:
            novel: as of :meth:`predict`: triples that the graph has take no place.
        """
        if not len(ids):
            return []
        asked = Queries.of([query])
        ((_, (scores_N,)),) = self.ranker.rank(asked)
        known = set(self._known.lookup(asked)[1].tolist())
        others_N = scores_N.copy()
        others_N[self._never(asked, novel)[1]] = float("-inf")
        (sureness,) = self._sureness(asked, [ids.tolist()])
        predictions = [
            self._prediction(1 + int((others_N > scores_N[i]).sum()), i, float(scores_N[i]), i in known, sure)
            for i, sure in zip(ids.tolist(), sureness, strict=True)
        ]
        return self._explained(query, predictions)

    def _prediction(self, rank: int, i: int, score: float, known: bool, sure: _Sureness) -> Prediction:
        """A candidate with its label and name."""
        entity = self.graph.entities[i]
        return Prediction(
            rank,
            i,
            entity.label,
            entity.surface,
            score,
            known,
            probability=sure.probability,
            checked=sure.checked,
        )

    def _sureness(
        self, asked: Queries, ids: Sequence[Sequence[int]], batch_size: int = 64
    ) -> list[list[_Sureness]]:
        """How probable candidates of each query are."""
        if self.classifier is None:
            return [[_Sureness(None, True)] * len(of_query) for of_query in ids]
        rows = np.repeat(np.arange(len(ids)), [len(of_query) for of_query in ids])
        triples = asked[rows].triples(np.array([i for of_query in ids for i in of_query], np.int64))
        # triples that training or validation has get no probability
        new = ~self.graph.context.answers.has(triples)
        if self.graph.has("valid"):
            new &= ~self._validation.has(triples)
        sureness = [_Sureness(None, True)] * len(triples)
        probabilities = self.classifier.probabilities(self.classifier.ask(triples[new], batch_size))
        for n, probability in zip(np.flatnonzero(new).tolist(), probabilities.tolist(), strict=True):
            is_checked = probability == probability  # else it is not a number
            sureness[n] = _Sureness(probability if is_checked else None, is_checked)
        values = iter(sureness)
        return [[next(values) for _ in of_query] for of_query in ids]

    def usual(self, query: Query) -> dict[str, float]:
        """The average part of each signal in a score, over at most :data:`SAMPLE` entities."""
        asked, count = Queries.of([query]), len(self.graph.entities)
        pool = self.ranker.pool(np.arange(0, count, -(-count // SAMPLE)))
        ((_, _, signal_scores),) = self.ranker.signal_scores(asked, pool)
        return {
            name: self.ranker.mixture.of(name, asked).item() * float(scores_1N.mean())
            for name, scores_1N in signal_scores.items()
        }

    def _ranked(
        self,
        queries: Queries,
        k: int,
        novel: bool,
        batch_size: int,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[IntArray, list[list[tuple[int, float]]]]]:
        """Ids and scores of each query, best first: a shortlist, or the k best of all."""
        if self.retrieval is not None:
            from kgmlm.ranking.retrieval import lists_of

            for rows, scores_BC, ids_BC in lists_of(
                self.ranker, queries, self.retrieval, batch_size, advance
            ):
                assert ids_BC is not None
                pairs = (
                    zip(*row, strict=True) for row in zip(ids_BC.tolist(), scores_BC.tolist(), strict=True)
                )
                yield rows, [[(i, score) for i, score in row if i >= 0] for row in pairs]
            return
        for rows, scores_BN in self.ranker.rank(queries, batch_size=batch_size, advance=advance):
            ranked_BN = scores_BN.copy()
            ranked_BN[self._never(queries[rows], novel)] = -np.inf
            ids = [top(row, k) for row in ranked_BN]
            yield rows, [[(i, float(row[i])) for i in of] for of, row in zip(ids, scores_BN, strict=True)]

    def _explained(self, query: Query, predictions: list[Prediction]) -> list[Prediction]:
        """Add to predictions the parts of their scores."""
        ids = np.array([p.id for p in predictions], np.int64)
        asked, ranker, reader = Queries.of([query]), self.ranker, self.ranker.reader
        reading = Reading(asked, reader.read)
        columns: dict[str, list[float]] = {}
        values: Sequence[Sequence[float]] = [()] * len(ids)
        if reader.settings.trains_text:
            (values,) = ranker.likelihood.explain(reading, ids)
            columns["likelihood"] = [fmean(of_tokens) for of_tokens in values]
        further = [name for name in ranker.mixture.signals if name in ranker.signals and name != "likelihood"]
        for name in further:
            columns[name] = ranker.signals[name].score(reading, ranker.pool(ids))[0].tolist()
        weights = {name: float(ranker.mixture.of(name, asked)[0]) for name in columns}
        stages = self._second(asked, ids, [p.score for p in predictions])
        trees = ranker.stages.get(Trees.name)
        exact = isinstance(trees, Trees) and trees.stage_weight.k and self.retrieval is None
        of_trees = trees.parts(ranker, asked) if isinstance(trees, Trees) and exact else {}
        explained = []
        for n, (p, log_likelihoods) in enumerate(zip(predictions, values, strict=True)):
            parts = {name: WeighedScore(weights[name], column[n]) for name, column in columns.items()}
            for name, (weight, scores) in stages.items() if p.score > MISSED else ():
                before = sum(part.weight * part.value for part in parts.values())
                parts[name] = WeighedScore(weight, (scores[n] - before) / weight)
            ids_T = reader.names.tokens(p.id).tolist() if log_likelihoods else []
            rows = zip(reader.tokenizer.tokens(ids_T), reader.tokenizer.texts(ids_T), ids_T, strict=True)
            tokens = tuple(
                {"token": piece, "text": text, "id": token, "position": position, "log_likelihood": value}
                for position, ((piece, text, token), value) in enumerate(
                    zip(rows, log_likelihoods, strict=True)
                )
            )
            because = (*self._because(query, p.id, further), *_tree_sentences(of_trees.get(p.id, {})))
            explanation = replace(p, tokens=tokens, parts=parts, because=because)
            explained.append(explanation)
        return explained

    def _second(
        self, asked: Queries, ids: IntArray, scores: Sequence[float]
    ) -> dict[str, tuple[float, Sequence[float]]]:
        """The weight of each second stage, and the scores after it; ``scores`` are those after the last."""
        ranker = self.ranker
        stages = {
            name: (stage_weight.weight, scores)
            for name, stage_weight in ranker.stage_weights.items()
            if stage_weight.k
        }
        for name in reversed(list(stages)[1:]):
            ranker = ranker.without_stage(name)
            ((_, before_1N),) = ranker.rank(asked)
            last = next(reversed(ranker.stages))
            stages[last] = (stages[last][0], before_1N[0, ids].tolist())
        return stages

    def because(self, query: Query, candidate: int) -> tuple[str, ...]:
        """Sentences on why a candidate scores, by those signals that count and can give reasons."""
        counting = [name for name in self.ranker.mixture.signals if name in self.ranker.signals]
        return self._because(query, candidate, counting)

    def _because(self, query: Query, candidate: int, names: Sequence[str]) -> tuple[str, ...]:
        """The sentences of those signals that can say in words why a candidate scores."""
        mixture, asked = self.ranker.mixture, Queries.of([query])
        signals = {name: self.ranker.signals[name] for name in names}
        return tuple(
            sentence
            for name, signal in signals.items()
            for sentence in signal.because(
                self.graph.context, query, candidate, mixture.of(name, asked).item()
            )
        )

    def rank(
        self,
        head: str | None = None,
        relation: str = "",
        tail: str | None = None,
        k: int = 10,
        *,
        novel: bool = False,
    ) -> pd.DataFrame:
        """The k best tails of (head, relation, ?), or heads of (?, relation, tail).

        Returns:
            A table, best first: the name, the probability, whether the triple is known, score and rank. Last
            come PyKEEN's ``tail_label`` and ``tail_id`` (``head_...`` for heads).

        Raises:
            QueryError: for an unknown or ambiguous entity or relation.
        """
        import pandas as pd

        query = self.resolver.query(relation, head, tail)
        ((_, predictions),) = self.predict([query], k, novel=novel)
        side = query.target
        return pd.DataFrame(
            {
                f"{side}_name": [p.name for p in predictions],
                "probability": [p.probability for p in predictions],
                "known": [p.known for p in predictions],
                "score": [p.score for p in predictions],
                "rank": [p.rank for p in predictions],
                f"{side}_label": [p.label for p in predictions],
                f"{side}_id": [p.id for p in predictions],
            }
        ).astype({"probability": float})


def _tree_sentences(parts: Mapping[str, float]) -> tuple[str, ...]:
    """A sentence on how much groups of features add to the trees' score of a candidate, largest first."""
    largest = sorted(parts.items(), key=lambda part: -abs(part[1]))[:SHOWN_GROUPS]
    listed = ", ".join(f"{group} {added:+.2f}" for group, added in largest)
    return (f"trees: {listed}",) if listed else ()
