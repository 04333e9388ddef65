"""Reasons: evidence for a triple that a reader would accept, as one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Query
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.base import Reason, Signal, sentences, spoken
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.mentions import Mentions
from kgmlm.signals.vector import EntityVectors, Vector

OFTEN = 1 / 3  # how often a rule must be right
PRIOR_COUNT = 3  # triples added to those of a relation, so that one of one does not count as always
COMPARED = 1000  # known cases, at most, that are compared with a triple


class _Case(NamedTuple):
    """A training triple like a given one, with ``other`` in place of its ``own``."""

    likeness: float
    own: int
    other: int
    triple: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Reasons:
    """Says why triples may be true.

    The best rule, if it is right at least a third of the time and more often than the relation has the answer
    anyway; else the training triple of the relation that is most alike; else which description names whom.

    Attributes:
        context: texts and training triples.
        signals: of a run; rules, mentions and vectors of texts have a say.
    """

    context: ContextGraph
    signals: Mapping[str, Signal]

    @classmethod
    def of(cls, ranker: Ranker) -> Reasons:
        """By the signals of a ranker that count."""
        counting = {name: ranker.signals[name] for name in ranker.mixture.signals if name in ranker.signals}
        return cls(ranker.context, counting)

    def __call__(self, triple: tuple[int, int, int]) -> str:
        """The sentence; empty where nothing is known that is like it."""
        return self._rule(triple) or self._case(triple) or self._mention(triple)

    def _asked(self, triple: tuple[int, int, int]) -> tuple[tuple[Query, int], tuple[Query, int]]:
        head, relation, tail = triple
        return (Query(head, relation, "tail"), tail), (Query(tail, relation, "head"), head)

    def _rule(self, triple: tuple[int, int, int]) -> str:
        """The rule that is right most often."""
        best: tuple[float, Reason] | None = None
        asked = self._asked(triple)
        # how often the relation has either end anyway
        count = int((self.context.train[:, 1] == triple[1]).sum()) + PRIOR_COUNT
        usual = max(len(self.context.links.answers(query)) for query, _ in asked) / count
        for query, candidate in asked:
            for signal in self.signals.values():
                for reason in signal.reasons(query, candidate):
                    share = reason.correct / max(1, reason.predicted)
                    if share >= max(OFTEN, usual) and (best is None or share > best[0]):
                        best = share, reason
        return sentences(self.context, [best[1]])[0] if best else ""

    def _case(self, triple: tuple[int, int, int]) -> str:
        """The training triple with the same relation and answer whose other entity is most alike."""
        cases = []
        for query, candidate in self._asked(triple):
            back = Query(candidate, query.relation, "head" if query.target == "tail" else "tail")
            others = self.context.links.answers(back)[:COMPARED]
            others = others[others != query.entity]
            if not len(others):
                continue
            likeness = self._likeness(query.entity, others)
            best = int(likeness.argmax())
            other = int(others[best])
            ends = (other, candidate) if query.target == "tail" else (candidate, other)
            known = (ends[0], query.relation, ends[1])
            cases.append(_Case(float(likeness[best]), query.entity, other, known))
        case = max(cases, default=None)
        if case is None or case.likeness <= 0:
            return ""
        surfaces = self.context.surfaces
        how = "is described most like" if self._vectors is not None else "shares most facts with"
        fact = spoken(self.context, [case.triple])
        return f"{fact}, and {surfaces[case.other]} {how} {surfaces[case.own]}"

    @property
    def _vectors(self) -> EntityVectors | None:
        """The vectors of the texts of entities, where there are any."""
        for signal in self.signals.values():
            if isinstance(signal, Biencoder):
                return signal.vectors
        return next((signal.vectors for signal in self.signals.values() if isinstance(signal, Vector)), None)

    def _likeness(self, entity: int, others: np.ndarray) -> np.ndarray:
        """How alike entities are to one: cosines of their texts, else the number of facts that they share."""
        if (vectors := self._vectors) is not None:
            cosines: np.ndarray = vectors.of(others) @ vectors.of(np.array([entity]))[0]
            return cosines
        own = set(map(tuple, self.context.links.at(entity).tolist()))
        facts = (self.context.links.at(other).tolist() for other in others.tolist())
        return np.array([len(own & set(map(tuple, of_other))) for of_other in facts])

    def _mention(self, triple: tuple[int, int, int]) -> str:
        """Whose description names whom."""
        for signal in self.signals.values():
            if isinstance(signal, Mentions):
                for sentence in signal.because(
                    self.context, Query(triple[0], triple[1], "tail"), triple[2], 1.0
                ):
                    return sentence
        return ""
