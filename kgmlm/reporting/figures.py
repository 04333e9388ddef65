"""Ranks, probabilities, weights and differences as the tables and charts of a report.

Shapes: n triples, 2n queries (all heads, then all tails), R relations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kgmlm.core.arrays import FloatArray, IntArray, highest
from kgmlm.core.config import Protocol, Side, load_protocol
from kgmlm.core.errors import DataError
from kgmlm.core.tables import ENDS
from kgmlm.evaluation.compare import Difference
from kgmlm.evaluation.metrics import Ranks, half_interval, rank_answers, read_ranks, sides, summarize
from kgmlm.evaluation.results import about_relations, breakdown, brief
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import SPLITS, FilterIndex, Queries, both_sides
from kgmlm.prediction.new_facts import TEST, NewFacts
from kgmlm.ranking.probability import Calibration
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.reporting.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Cell,
    Chart,
    Interval,
    Line,
    Table,
    about,
    bar_chart,
    clipped,
    interval_chart,
    number,
    percent,
    weight,
)
from kgmlm.sharing.embeddings import embedded, embeddings_of, kind_among
from kgmlm.signals import SIGNALS
from kgmlm.training.summary import Figure

# Training triples that answer a question already, from and to.
ANSWERS = {"none": (0, 0), "1": (1, 1), "2–9": (2, 9), "10–99": (10, 99), "100+": (100, None)}
UNSEEN = {
    "neither": "neither",
    "answer": "the answer alone",
    "known": "the entity that is asked about alone",
    "both": "both",
}
_ENDS = [1, 2, 3, 5, 10, 30, 100, 300, *(m * 10**e for e in range(3, 9) for m in (1, 3))]
MAPPED, MIN_MAPPED = 1000, 20  # entities in the figure of their embeddings
NAMED = 3  # kinds of entities that have colors there
_SHOWN = 3  # candidates that are shown of a question
_FACTS = 20  # new facts that are shown
_QUERY_BATCH = 8  # queries whose scores are in memory together


@dataclass(frozen=True, eq=False)
class Ranked:
    """The ranks of both queries of each triple.

    Attributes:
        split: that the triples are of.
        triples: ``(n, 3)`` ids, sorted.
        ranks: of the 2n questions.
    """

    graph: KnowledgeGraph
    split: str
    triples: IntArray
    ranks: Ranks

    @classmethod
    def read(cls, path: Path, graph: KnowledgeGraph) -> Ranked:
        """Read the ranks that an evaluation wrote.

        Raises:
            DataError: when it is of another graph, or lacks one of the two questions of a triple.
        """
        table = read_ranks(path)
        indexes = (graph.entities.index, graph.relations.index, graph.entities.index)
        columns = [
            table[name].map(index) for name, index in zip(("head", "relation", "tail"), indexes, strict=True)
        ]
        unknown = next((c for c in columns if c.isna().any()), None)
        if unknown is not None:
            label = table[unknown.name][unknown.isna()].iloc[0]
            raise DataError(f"{path} has ranks of another graph than '{graph.name}', which has no '{label}'")
        h, r, t = (c.to_numpy(np.int64) for c in columns)
        tail_B = (table["target"] == "tail").to_numpy()
        order = np.lexsort((t, r, h, tail_B))
        asked: IntArray = np.stack([h, r, t], axis=1)[order].astype(np.int64)
        heads, tails = asked[~tail_B[order]], asked[tail_B[order]]
        if not np.array_equal(heads, tails):
            raise DataError(f"{path} lacks one of the two questions, for head and for tail, of some triples")
        o, p, n = (table[c].to_numpy(np.int64)[order] for c in ("optimistic", "pessimistic", "candidates"))
        return cls(graph, _split_of(path, graph, heads), heads, Ranks(o, p, n))

    @cached_property
    def asked(self) -> tuple[Queries, IntArray]:
        """The 2n questions, and their answers."""
        return both_sides(self.triples)

    @cached_property
    def realistic(self) -> FloatArray:
        """The rank of each answer; ties share the mean of theirs."""
        return self.ranks.of_type("realistic")

    def by_side(self) -> dict[str, dict[str, float]]:
        """All metrics of head questions, tail questions and both."""
        return {side: summarize(part) for side, part in sides(self.ranks, self.asked[0].tail_B)}

    def by_relation(self) -> dict[str, Any]:
        """Few metrics of each relation that is asked, by side."""
        return about_relations(self.ranks, self.asked[0], self.graph.relations, brief(Protocol()))

    def by_unseen(self, scope: Scope) -> dict[str, Any]:
        """Few metrics by which entities of a question training has not, as :data:`UNSEEN` has them."""
        tail_B = self.asked[0].tail_B
        parts = breakdown(
            self.ranks, self.triples, tail_B, scope.seen_N, scope.half_links(self.triples), brief(Protocol())
        )
        return {UNSEEN[role]: parts["unseen_role"][role] for role in UNSEEN}

    def by_answers(self) -> dict[str, Any]:
        """Few metrics by how many answers of a question training has, as :data:`ANSWERS` has it."""
        rows, _ = self.graph.context.answers.lookup(self.asked[0])
        counts_B = np.bincount(rows, minlength=len(self.ranks))
        figures = brief(Protocol())
        return {
            name: figures(
                self.ranks[(counts_B >= low) & (counts_B <= (counts_B.max() if high is None else high))]
            )
            for name, (low, high) in ANSWERS.items()
        }

    def distribution(self) -> list[tuple[str, float, float]]:
        """The distribution of ranks: ranges, and the shares of head and of tail queries in each."""
        last = next((i for i, end in enumerate(_ENDS) if end >= self.realistic.max()), len(_ENDS) - 1)
        which_B = np.minimum(np.searchsorted(_ENDS, self.realistic), last)
        tail_B = self.asked[0].tail_B
        shares = [np.bincount(which_B[of_B], minlength=last + 1) / of_B.sum() for of_B in (~tail_B, tail_B)]
        starts = [1, *(end + 1 for end in _ENDS)]
        names = [f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in zip(starts, _ENDS, strict=False)]
        return [(names[i], float(shares[0][i]), float(shares[1][i])) for i in range(last + 1)]

    def worst(self, count: int) -> IntArray:
        """Questions whose answers rank furthest behind, each once; none whose answer is first."""
        order = np.argsort(-self.realistic, kind="stable")
        return self._distinct(order[self.realistic[order] > 1], count)

    def typical(self, count: int) -> IntArray:
        """Questions whose answers rank nearest to the median, each once; ties are broken at random."""
        drawn = np.random.default_rng(0).permutation(len(self.ranks))
        away_B = np.abs(self.realistic - np.median(self.realistic))
        questions = self._distinct(drawn[np.argsort(away_B[drawn], kind="stable")], count)
        return questions[np.argsort(self.realistic[questions], kind="stable")]

    def _distinct(self, order: IntArray, count: int) -> IntArray:
        """The first ``count`` distinct questions in an order."""
        keys = self.graph.context.answers.keys(self.asked[0][order])
        first = np.sort(np.unique(keys, return_index=True)[1])
        return order[first[:count]]


@dataclass(frozen=True)
class Question:
    """One question, its true answer, and what the run ranks first.

    Attributes:
        entity, relation, answer: ids.
        rank: of the answer as it was evaluated, among ``candidates``.
        before: the best candidates that rank ahead of or level with the answer and are not known answers.
        behind: if there are none, the next candidate behind it; else None.
        moved: whether the answer now ranks elsewhere than in the evaluation.
    """

    entity: int
    relation: int
    answer: int
    target: str
    rank: float
    candidates: int
    before: tuple[int, ...]
    behind: int | None
    moved: bool


def questions(ranked: Ranked, ranker: Ranker, at: IntArray) -> list[Question]:
    """Ask some questions once more, to see what comes first.

    Args:
        ranker: of the run that the ranks are of, over its graph.
        at: which of the 2n.
    """
    every, every_answer = ranked.asked
    queries, answers = every[at], every_answer[at]
    by_query: dict[int, Question] = {}
    known = ranked.graph.filter_index
    filtered = [
        ranked.graph.splits[s]
        for s in load_protocol(None, split=ranked.split).filter
        if s in ranked.graph.splits
    ]
    counted = FilterIndex(np.concatenate(filtered), len(ranked.graph.entities))
    for rows, scores_bN in ranker.rank(queries, batch_size=_QUERY_BATCH):
        own = answers[rows]
        now = rank_answers(scores_bN, own, counted.lookup(queries[rows]))
        left_bN = scores_bN.copy()
        left_bN[known.lookup(queries[rows])] = -np.inf
        left_bN[np.arange(len(rows)), own] = -np.inf
        best_bk, ids_bk = highest(left_bN, min(_SHOWN, left_bN.shape[1]))
        for i, row in enumerate(rows.tolist()):
            query, place = queries[row], int(at[row])
            pairs = zip(ids_bk[i].tolist(), best_bk[i].tolist(), strict=True)
            others = [(e, score) for e, score in pairs if score > float("-inf")]
            before = tuple(e for e, score in others if score >= float(scores_bN[i, own[i]]))
            rank, of = float(ranked.realistic[place]), int(ranked.ranks.candidates_B[place])
            by_query[row] = Question(
                query.entity,
                query.relation,
                int(answers[row]),
                query.target,
                rank,
                of,
                before,
                None if before or not others else others[0][0],
                moved=abs(float(now.of_type("realistic")[i]) - rank) > max(1.0, 0.02 * rank),
            )
    return [by_query[i] for i in range(len(at))]


def _split_of(path: Path, graph: KnowledgeGraph, triples: IntArray) -> str:
    """The split that has all of some triples.

    Raises:
        DataError: when there is none.
    """
    asked = set(map(tuple, triples.tolist()))
    for split in reversed(SPLITS):
        if split in graph.splits and asked <= set(map(tuple, graph.splits[split].tolist())):
            return split
    raise DataError(f"{path} has ranks of other triples than those of a split of '{graph.name}'")


def filled(parts: Mapping[str, Mapping[str, float]]) -> Sequence[tuple[str, Mapping[str, float]]]:
    """Leave out empty parts."""
    return [(name, figures) for name, figures in parts.items() if figures["count"]]


METRICS = {"mrr": "MRR", "hits_at_1": "Hits@1", "hits_at_3": "Hits@3", "hits_at_10": "Hits@10"}
SIDES = ("both", "tail", "head")
_FEW = ("questions", "MRR", "Hits@1", "Hits@3", "Hits@10")
_DESCRIBED = 140  # characters of a description


def _few(figures: Mapping[str, float]) -> tuple[Cell, ...]:
    """The cells under the columns of ``_FEW``."""
    hits = (figures.get(f"hits_at_{k}") for k in (1, 3, 10))
    return (
        number(figures["count"], 0),
        number(figures.get("inverse_harmonic_mean_rank")),
        *(percent(x) for x in hits),
    )


def key_figures(ranked: Ranked, counting: Figure, side: Side = "both") -> list[tuple[str, str, str]]:
    """The figures that a reader sees first: name, value, and what guessing would have.

    Args:
        counting: the MRR of counting on the same split, for both sides.
        side: whose questions are measured.
    """
    tail_B = ranked.asked[0].tail_B
    own_B = np.ones_like(tail_B) if side == "both" else tail_B == (side == "tail")
    both, half = ranked.by_side()[side], half_interval(1 / ranked.realistic[own_B])
    candidates = ranked.ranks.candidates_B[own_B]
    beside = f"; {counting.name} has {counting.mrr:.3f}" if side == "both" else f", of {side}s alone"
    guessed = {  # any rank is as likely as any other
        **{f"hits_at_{k}": float(np.minimum(1, k / candidates).mean()) for k in (1, 10)},
        "median": float(np.median((candidates + 1) / 2)),
    }
    return [
        ("MRR", f"{both['inverse_harmonic_mean_rank']:.3f}",
         f"± {half:.3f} at 95 %. The mean of 1/rank: 1 is perfect{beside}"),
        ("Hits@1", percent(both["hits_at_1"]).text,
         f"of the answers come first; guessing has {_least(guessed['hits_at_1'], percent)}"),
        ("Hits@10", percent(both["hits_at_10"]).text,
         f"are among the first ten; guessing has {_least(guessed['hits_at_10'], percent)}"),
        ("Median rank", f"{both['median_rank']:,g}",
         f"half of the answers rank no worse; guessing has {guessed['median']:,.0f}"),
    ]  # fmt: skip


def _least(value: float, shown: Callable[[float], Cell]) -> str:
    """A score of guessing, which among many candidates is nearly nothing."""
    return shown(value).text if value >= 0.001 else f"under {shown(0.001).text}"


def signal_table(rows: Sequence[Figure], triples: int) -> Table:
    """The MRR of all signals together, of each alone, and of counting, on validation."""
    cells = [
        (Cell(row.name), number(row.mrr), Cell("" if row.half is None else f"± {row.half:.3f}", right=True))
        for row in rows
    ]
    return Table.of(f"MRR of {triples:,} validation triples", ("signal", "MRR", "95 %"), cells)


def fact_table(facts: NewFacts, graph: KnowledgeGraph) -> Table:
    """The most probable new facts."""
    test = set(graph.labeled(graph.splits[TEST])) if TEST in graph.splits else set()
    rows = []
    for fact in facts.table.slice(0, _FACTS).to_pylist():
        reason = str(fact.get("because", "")).split("; ")[0]
        in_test = [Cell("yes" if tuple(fact[end] for end in ENDS) in test else "")] if test else []
        fact_text = clipped(" ".join(fact[f"{end}_name"] for end in ENDS), _DESCRIBED)
        rows.append(
            (Cell(fact_text), percent(fact["probability"]), Cell(clipped(reason, _DESCRIBED)), *in_test)
        )
    columns = ("fact", "probability", "because", *(["in test"] if test else []))
    return Table.of("Facts that the graph probably lacks", columns, rows)


def came_true(facts: NewFacts) -> str:
    """A sentence on how many of the most probable facts the test split has."""
    if (of := facts.hidden) is None:
        return ""
    return (
        f"The test split was hidden. Of the {of['listed']:,} facts with a probability of "
        f"{of['probability']:.0%} or more it has {of['true']:,}; {of['listed'] * of['expected']:.0f} were "
        "expected."
    )


def side_table(ranked: Ranked) -> Table:
    """All figures of head questions, tail questions and both."""
    more = ("arithmetic_mean_rank", "median_rank", "adjusted_arithmetic_mean_rank_index")
    names = {"both": "both", "tail": "tail: (head, relation, ?)", "head": "head: (?, relation, tail)"}
    metrics = ranked.by_side()
    rows = [
        (
            Cell(names[side]),
            *_few(metrics[side]),
            *(number(metrics[side].get(key), 3 if "index" in key else 1) for key in more),
        )
        for side in SIDES
    ]
    return Table.of("By what is asked for", ("asked for", *_FEW, "mean rank", "median", "AMRI"), rows)


def rank_chart(ranked: Ranked) -> Chart:
    """A chart of the distribution of ranks."""
    parts = ranked.distribution()
    summed = np.cumsum([[heads, tails] for _, heads, tails in parts], axis=0)
    rows = [
        (Cell(name), percent(tails), percent(heads), percent(float(sums[1])), percent(float(sums[0])))
        for (name, heads, tails), sums in zip(parts, summed, strict=True)
    ]
    table = Table.of(
        "Ranks of the answers",
        ("rank", "of tails", "of heads", "up to here, tails", "up to here, heads"),
        rows,
    )
    first = f"{parts[0][2]:.0%} of the tails and {parts[0][1]:.0%} of the heads come first"
    ends = [_short(name.split("–")[-1]) for name, _, _ in parts]
    return bar_chart(
        "Ranks of the answers", f"{first}; the furthest rank is {ranked.realistic.max():,.0f}.", ends,
        [("tails", [t for _, _, t in parts]), ("heads", [h for _, h, _ in parts])],
        table, labels=("rank, up to", "share of the answers"),
    )  # fmt: skip


def _short(count: str) -> str:
    for zeros, letter in ((",000,000", "M"), (",000", "k")):
        if count.endswith(zeros):
            return count.removesuffix(zeros) + letter
    return count


def unseen_table(ranked: Ranked, scope: Scope) -> Table | None:
    """Metrics by which entities of a question training lacks; None if it has all."""
    rows = filled(ranked.by_unseen(scope))
    if [name for name, _ in rows] == ["neither"]:
        return None
    cells = [(Cell(name), *_few(figures)) for name, figures in rows]
    return Table.of("By which entities training has never seen", ("unseen", *_FEW), cells)


def answers_chart(ranked: Ranked) -> Chart:
    """By how many answers of a question training has already."""
    rows = filled(ranked.by_answers())
    mrr = [figures["mrr"] for _, figures in rows]
    cells = [(Cell(name), *_few(figures)) for name, figures in rows]
    table = Table.of("By known answers", ("known answers", *_FEW), cells)
    listed = ", ".join(f"{name}: {value:.3f}" for (name, _), value in zip(rows, mrr, strict=True))
    return bar_chart(
        "MRR by known answers", f"MRR by the number of known answers: {listed}.", [name for name, _ in rows],
        [("MRR", mrr)], table, labels=("answers in training", "MRR"),
    )  # fmt: skip


def relation_table(ranked: Ranked) -> Table:
    """A row per relation, those first that are asked about most."""
    names = {r.label: clipped(r.name) for r in ranked.graph.relations}
    relations = sorted(ranked.by_relation().items(), key=lambda item: -item[1]["both"]["count"])
    rows = []
    for label, of in relations:
        both = of["both"]
        rows.append((
            Cell(names[label]), number(both["count"], 0), number(both["mrr"]), number(of["tail"].get("mrr")),
            number(of["head"].get("mrr")), percent(both["hits_at_1"]), percent(both["hits_at_10"]),
            number(both["arithmetic_mean_rank"], 1),
        ))  # fmt: skip
    columns = ("relation", "questions", "MRR", "MRR tails", "MRR heads", "Hits@1", "Hits@10", "mean rank")
    return Table.of("By relation", columns, rows, sortable=True)


def calibration_chart(calibration: Calibration) -> Chart | None:
    """How many validation triples were expected and found at or above each probability; None if a file does
    not say.
    """
    rows = calibration.chosen_by.get("valid", {}).get("held_out")
    if not rows:
        return None
    keys = (("probability", 2), ("candidates", 0), ("expected", 0), ("validation", 0))
    cells = [tuple(number(float(row[key]), digits) for key, digits in keys) for row in rows]
    columns = ("probability, at least", "triples", "expected in validation", "found")
    table = Table.of("Triples, by what was fitted to the others", columns, cells)
    series = [
        (name, [float(row[key]) for row in rows])
        for name, key in (("expected", "expected"), ("found", "validation"))
    ]
    least = [f"{row['probability']:g}" for row in rows]
    return bar_chart(
        "Probabilities on validation", "Validation triples, expected and found, from each probability on.",
        least, series, table, labels=("probability, at least", "triples"),
    )  # fmt: skip


def decision_table(calibration: Calibration) -> Table | None:
    """How well probabilities decide where half of the triples are true."""
    half = calibration.chosen_by.get("valid", {}).get("half")
    if not half:
        return None
    rows = [
        (Cell("decided rightly at a probability of .5"), percent(half["accuracy"])),
        (Cell("AUC: how often a true triple has a higher one than a false one"), number(half.get("auc"))),
        (Cell("Brier score: 0 is perfect, always saying .5 has .25"), number(half["brier"])),
        (Cell("calibration error (ECE): 0 is perfect"), number(half["ece"])),
    ]
    return Table.of("Where half of the triples are true", ("figure", "value"), rows)


def list_chart(report: Mapping[str, Any]) -> Chart:
    """Precision of the best listed triples, expected and found in a hidden split, and their recall."""
    rows = [row for row in report["best"] if row["listed"]]
    keys = ("listed", "true", "expected", "precision", "recall")
    cells = [
        (number(row["listed"], 0), number(row["true"], 0), *(percent(row[key]) for key in keys[2:]))
        for row in rows
    ]
    table = Table.of(f"The best triples, by {report['split']}", keys, cells)
    series = [
        (name, [float(row[key] or 0) for row in rows])
        for name, key in (("expected", "expected"), ("precision", "precision"), ("recall", "recall"))
    ]
    return bar_chart(
        "The list, judged as a list", "Precision of the best triples, expected and found, and recall.",
        [f"{row['listed']:,}" for row in rows], series, table, labels=("the best", "share"),
    )  # fmt: skip


def weight_tables(mixture: Mixture, graph: KnowledgeGraph) -> list[Table]:
    """The weights of signals: one for all relations, and those by relation and side where they differ; then
    those that queries about unseen entities have instead.
    """
    tables, further = _weight_tables(mixture, list(mixture.tables), graph, ""), mixture.of_unseen
    names = [name for name in mixture.differing if further and name in further.tables]
    if further is None or not names:
        return tables
    return tables + _weight_tables(further, names, graph, ", of queries about unseen entities")


def _weight_tables(mixture: Mixture, names: list[str], graph: KnowledgeGraph, of: str) -> list[Table]:
    rows = [(Cell(name), weight(mixture.averages[name]), Cell(about(name))) for name in names]
    tables = [Table.of(f"Weights of all relations{of}", ("signal", "weight", "what it says"), rows)]
    by_relation = {name: mixture.tables[name].tolist() for name in names}
    differing = [
        name for name, rows in by_relation.items() if any(row != rows[0] or row[0] != row[1] for row in rows)
    ]
    if differing:
        columns = [f"{name}, {side}" for name in differing for side in ("tails", "heads")]
        per = [
            (Cell(clipped(r.name)), *(weight(w) for name in differing for w in by_relation[name][i]))
            for i, r in enumerate(graph.relations)
        ]
        caption = f"Weights by relation and side{of}"
        tables.append(Table.of(caption, ("relation", *columns), per, sortable=True))
    return tables


def difference_chart(differences: Sequence[Difference]) -> Chart:
    """Differences with their intervals, metric by metric."""
    columns = ("metric", "the other", "this run", "difference", "95 % interval", "p")
    names = {"both": "both", "tail": "tails", "head": "heads"}
    ordered = [
        d for metric in METRICS for side in SIDES for d in differences if (d.metric, d.side) == (metric, side)
    ]
    rows, intervals = [], []
    for d in ordered:
        name = f"{METRICS[d.metric]}, {names[d.side]}"
        between = Cell(f"{_signed(d.low)} to {_signed(d.high)}", right=True)
        difference = Cell(_signed(d.difference), d.difference)
        rows.append((Cell(name), number(d.a), number(d.b), difference, between, number(d.p, 4)))
        intervals.append(Interval(name, d.difference, d.low, d.high, SIDES.index(d.side)))
    sure = [i for i in intervals if i.low > 0 or i.high < 0]
    description = f"{len(sure)} of {len(intervals)} intervals do not touch zero."
    return interval_chart(
        "Differences and their 95 % intervals", description, intervals,
        Table.of("This run against the other", columns, rows), label="this run minus the other",
    )  # fmt: skip


def entity_map(ranker: Ranker, graph: KnowledgeGraph) -> Chart | None:
    """Entities as dots, those with like embeddings near each other, by t-SNE; the three most frequent kinds
    have colors. None where few have embeddings; of many a sample is drawn.

    A kind is the type that an entity is given first or, in a graph without types, the relation and side that
    most of its training triples have.

    Raises:
        ConfigError: when the run has no embeddings.
    """
    from sklearn.manifold import TSNE

    of = kind_among(ranker, None)
    mapped_ids = embedded(ranker, of)
    count = min(MAPPED, len(mapped_ids))
    if count < MIN_MAPPED:
        return None
    ids = np.sort(np.random.default_rng(0).choice(mapped_ids, count, replace=False))
    drawing = TSNE(perplexity=min(30.0, (count - 1) / 3), init="pca", metric="cosine", random_state=0)
    places_n2 = drawing.fit_transform(embeddings_of(ranker, of, ids))
    low, high = places_n2.min(0), places_n2.max(0)
    x_n, y_n = ((places_n2 - low) / np.maximum(high - low, 1e-9)).T
    kinds, names = _kinds_of(graph, ids), graph.entities.take(ids).column("name")
    frequent = [kind for kind, _ in Counter(kinds).most_common() if kind][:NAMED]
    legend = [*(clipped(kind) for kind in frequent), "others"]
    places: list[list[tuple[float, float, float]]] = [[] for _ in legend]
    examples: list[list[str]] = [[] for _ in legend]
    for name, kind, x, y in zip(names, kinds, x_n.tolist(), y_n.tolist(), strict=True):
        series = frequent.index(kind) if kind in frequent else len(frequent)
        at = (LEFT + x * (RIGHT - LEFT), BOTTOM + y * (TOP - BOTTOM))
        places[series].append((round(at[0], 1), round(at[1], 1), 2.5))
        examples[series].append(name)
    table = Table.of(
        "Kinds of entities in the figure",
        ("kind", "entities", "such as"),
        [
            (Cell(kind), number(len(dots), 0), Cell(clipped(", ".join(few[:3]))))
            for kind, dots, few in zip(legend, places, examples, strict=True)
        ],
    )
    signal = SIGNALS.get(of)
    return Chart(
        "Entities by their embeddings",
        f"{count:,} of {len(mapped_ids):,} entities, by the {signal.title if signal else of}; those that are "
        "alike are near each other, and directions mean nothing.",
        table,
        legend=tuple(legend),
        lines=tuple(Line(series, (), tuple(dots)) for series, dots in enumerate(places)),
    )


def _kinds_of(graph: KnowledgeGraph, ids: IntArray) -> list[str]:
    """The kind of each of some entities; "" where nothing says it."""
    given = graph.entities.types
    if given is not None:
        return [given[i][0] if given[i] else "" for i in ids.tolist()]
    row_E, kind_E, _ = graph.context.links.edges(ids)
    counts_nK = np.zeros((len(ids), 2 * len(graph.relations)), np.int64)
    np.add.at(counts_nK, (row_E, kind_E), 1)
    names = [f"{side} of {r.name}" for r in graph.relations for side in ("head", "tail")]
    return [names[row.argmax()] if row.any() else "" for row in counts_nK]


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


@dataclass(frozen=True)
class Shown:
    """An entity as a report shows it."""

    name: str
    description: str

    @classmethod
    def of(cls, graph: KnowledgeGraph, entity: int) -> Shown:
        """One of a graph."""
        read = graph.entities[entity]
        return cls(clipped(read.surface), clipped(read.description, _DESCRIBED))


@dataclass(frozen=True)
class ShownQuestion:
    """A question as a report shows it: its entity stands at the side that is not asked for."""

    head: Shown | None
    relation: str
    tail: Shown | None
    answer: Shown
    rank: Cell
    candidates: int
    before: tuple[Shown, ...]
    behind: Shown | None


def shown(graph: KnowledgeGraph, questions: Sequence[Question]) -> list[ShownQuestion]:
    """Questions with their texts."""
    rows = []
    for q in questions:
        own = Shown.of(graph, q.entity)
        rows.append(
            ShownQuestion(
                own if q.target == "tail" else None,
                clipped(graph.relations[q.relation].name),
                own if q.target == "head" else None,
                Shown.of(graph, q.answer),
                number(q.rank, 0 if q.rank.is_integer() else 1),
                q.candidates,
                tuple(Shown.of(graph, e) for e in q.before),
                None if q.behind is None else Shown.of(graph, q.behind),
            )
        )
    return rows
