"""Ranks, probabilities, weights and differences as the tables and charts of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgmlm.comparison import Difference
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, FloatArray
from kgmlm.mixture import Mixture
from kgmlm.reliability import Bins
from kgmlm.reporting.charts import Chart, Interval, Series, bar_chart, interval_chart, line_chart
from kgmlm.reporting.ranked import Question, Ranked, filled
from kgmlm.reporting.tables import SIGNALS, Cell, Table, clipped, number, percent, weight
from kgmlm.scope import Scope

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


def key_figures(ranked: Ranked) -> list[tuple[str, str, str]]:
    """The figures that a reader sees first: name, value, and what guessing would have."""
    both = ranked.by_side()["both"]
    candidates = ranked.ranks.candidates_B
    # By chance any rank is as likely as any other.
    harmonic = np.cumsum(1 / np.arange(1, int(candidates.max()) + 1))
    guessed = {
        "mrr": float((harmonic[candidates - 1] / candidates).mean()),
        **{f"hits_at_{k}": float(np.minimum(1, k / candidates).mean()) for k in (1, 10)},
        "median": float(np.median((candidates + 1) / 2)),
    }
    return [
        ("MRR", f"{both['inverse_harmonic_mean_rank']:.3f}",
         f"mean of 1/rank: 1 is perfect, guessing has {_least(guessed['mrr'], number)}"),
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
    """How the ranks of the answers spread."""
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
    """By which entities of a question training has not; None where it has all."""
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
    told = ", ".join(f"{name}: {value:.3f}" for (name, _), value in zip(rows, mrr, strict=True))
    return bar_chart(
        "MRR by known answers", f"MRR by the number of known answers: {told}.", [name for name, _ in rows],
        [("MRR", mrr)], table, labels=("answers in training", "MRR"),
    )  # fmt: skip


def relation_table(ranked: Ranked) -> Table:
    """A row per relation, those first that are asked about most."""
    names = {r.label: clipped(r.name) for r in ranked.graph.relations}
    found = sorted(ranked.by_relation().items(), key=lambda item: -item[1]["both"]["count"])
    rows = []
    for label, of in found:
        both = of["both"]
        rows.append((
            Cell(names[label]), number(both["count"], 0), number(both["mrr"]), number(of["tail"].get("mrr")),
            number(of["head"].get("mrr")), percent(both["hits_at_1"]), percent(both["hits_at_10"]),
            number(both["arithmetic_mean_rank"], 1),
        ))  # fmt: skip
    columns = ("relation", "questions", "MRR", "MRR tails", "MRR heads", "Hits@1", "Hits@10", "mean rank")
    return Table.of("By relation", columns, rows, sortable=True)


@dataclass(frozen=True)
class Measured:
    """How good probabilities are on triples of a split.

    Attributes:
        bins: the reliability diagram.
        figures: as of :func:`kgmlm.reliability.measured`.
    """

    split: str
    bins: Bins
    figures: Mapping[str, Any]


def reliability_chart(found: Measured) -> Chart:
    """Whether probabilities come true as often as they say."""
    bins = found.bins
    columns = [bins.predicted_K, bins.observed_K, bins.mass_K]
    rows = [
        (number(float(p), 3), number(float(o), 3), percent(float(m)))
        for p, o, m in zip(*columns, strict=True)
    ]
    table = Table.of("Reliability", ("probability", "share that is true", "of all"), rows)
    points = [(float(p), float(o)) for p, o in zip(bins.predicted_K, bins.observed_K, strict=True)]
    series = Series("run", points, [float(m) for m in bins.mass_K])
    description = f"The mean distance to the line where both are equal is {found.figures['ece']:.3f}."
    return line_chart(
        "Reliability of the probabilities", description, [series], table, unit=True,
        labels=("probability that the run gives", "share that is true"),
    )  # fmt: skip


def reliability_table(found: Measured) -> Table:
    """The figures of probabilities."""
    told, low_high = found.figures, found.figures.get("ece_95", (None, None))
    rows = [
        (Cell("calibration error (ECE): 0 is perfect"), number(told["ece"])),
        (Cell("its 95 % interval"), Cell(" to ".join(number(x).text for x in low_high), right=True)),
        (Cell("decided rightly at a probability of .5"), percent(told["accuracy"])),
        (Cell("AUC: how often a true triple has a higher one than a false one"), number(told.get("auc"))),
        (Cell("Brier score: 0 is perfect, always saying .5 has .25"), number(told["brier"])),
        (Cell("true triples"), number(told["positives"], 0)),
        (Cell("false triples"), number(told["negatives"], 0)),
    ]
    return Table.of(f"Probabilities on {found.split}", ("figure", "value"), rows)


def weight_tables(mixture: Mixture, graph: KnowledgeGraph) -> list[Table]:
    """The weights of signals: one for all relations, and those by relation and side where they differ."""
    names = list(mixture.tables)
    rows = [(Cell(name), weight(mixture.averages[name]), Cell(SIGNALS.get(name, ""))) for name in names]
    found = [Table.of("Signals", ("signal", "weight", "what it says"), rows)]
    tables = {name: mixture.tables[name].tolist() for name in names}
    differing = [n for n in names if any(row != tables[n][0] or row[0] != row[1] for row in tables[n])]
    if differing:
        columns = [f"{name}, {side}" for name in differing for side in ("tails", "heads")]
        per = [
            (Cell(clipped(r.name)), *(weight(w) for name in differing for w in tables[name][i]))
            for i, r in enumerate(graph.relations)
        ]
        found.append(Table.of("Weights by relation and side", ("relation", *columns), per, sortable=True))
    return found


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
        found = graph.entities[entity]
        return cls(clipped(found.surface), clipped(found.description, _DESCRIBED))


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


def shown(graph: KnowledgeGraph, found: Sequence[Question]) -> list[ShownQuestion]:
    """Questions with their texts."""
    rows = []
    for q in found:
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


def measured_on(split: str, labels: BoolArray, probabilities: FloatArray, groups: Any) -> Measured | None:
    """How good probabilities are, true and false triples weighing the same; None where there is but one."""
    from kgmlm.reliability import binned, measured, reweighted

    if not labels.any() or labels.all():
        return None
    weights = reweighted(labels, np.ones(len(labels)), 0.5)
    return Measured(
        split,
        binned(labels, probabilities, weights, bins=10),
        measured(labels, probabilities, weights, groups=groups),
    )
