"""The report of a run: what it says is so, whatever the graph, and it refers to nothing outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from browsing import chromium
from conftest import Cli, refused
from doubles import run
from hypothesis import given
from trainings import TINY, arguments

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.core.errors import DataError, RunError
from kgmlm.core.tables import ENDS
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.metrics import Ranks
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.listing import read_list
from kgmlm.prediction.new_facts import FILE
from kgmlm.ranking.ranker import Ranker
from kgmlm.reporting import figures
from kgmlm.reporting.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_ROWS,
    RIGHT,
    TOP,
    WIDTH,
    Cell,
    Series,
    Table,
    bar_chart,
    clipped,
    curves,
    line_chart,
    number,
    ticks,
)
from kgmlm.reporting.figures import Ranked, entity_map, questions
from kgmlm.reporting.report import Contents, render
from kgmlm.runs.opened import open_folder
from kgmlm.runs.run import Run
from kgmlm.training.summary import counted

VOID = {"meta", "line", "rect", "polyline", "circle", "br"}
SECTIONS = ["metrics", "signals", "relations", "new-facts", "questions", "made", "curves", "audit", "words"]


class Page(HTMLParser):
    """A page as it is read: every element that is begun is ended, and what refers to something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[tuple[str, str]] = []
        self.handlers: list[str] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "srcset", "data", "poster"):
                self.references.append((tag, value or ""))
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Page:
    """A page that is sound: small, well formed, and sufficient in itself."""
    data = path.read_bytes()
    assert len(data) < 1_000_000
    page = Page(data.decode())
    assert {value[:1] for _, value in page.references} <= {"#"}
    assert {value.removeprefix("#") for _, value in page.references} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert not page.handlers
    assert not {"img", "link", "iframe", "object", "embed"} & set(page.tags)
    assert page.tags.count("title") == 1 + page.tags.count("desc")  # the page's, and one of each drawing
    assert "url(" not in data.decode()
    assert "@import" not in data.decode()
    return page


@pytest.fixture(scope="module")
def evaluated(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated."""
    path = tmp_path_factory.mktemp("reporting") / "toy"
    shutil.copytree(toy_run, path)
    kgmlm.evaluate(path, output=path / "test.json", progress=False)
    return path


def test_a_report_says_what_the_evaluation_said(evaluated: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("report", evaluated, "--output", tmp_path / "a.html", "--compare", evaluated)
    assert done.returncode == 0, done.stderr
    assert "the report is in" in done.stdout
    assert "which `kgmlm evaluate` has kept" in done.stderr
    page = read(tmp_path / "a.html")
    assert [x for x in page.ids if x in SECTIONS] == SECTIONS
    metrics = json.loads((evaluated / "test.json").read_text())["metrics"]
    for side in ("both", "tail", "head"):
        for name in ("inverse_harmonic_mean_rank", "adjusted_arithmetic_mean_rank_index"):
            assert number(metrics[f"{side}.realistic.{name}"]).text in page.text
    assert f"kgmlm calibrate {evaluated}" in page.text  # how to get what is not there
    assert "probabilities" not in page.ids
    counting = counted(kgmlm.load_graph("toy"), split="test")
    assert f"counting answers in training has {counting.mrr:.3f}" in page.text
    assert "counting answers in training" in page.text
    best = read_list(evaluated / FILE)[0].slice(0, 1).to_pylist()[0]
    assert " ".join(best[f"{end}_name"] for end in ENDS) in page.text
    assert "the 8 test triples, which training has not seen" in page.text
    assert "Table 1" not in page.text  # numbered by the style
    assert "Compared with toy" in page.text
    assert "0 of 12 intervals do not touch zero" in page.text
    assert page.text.count("+0.0000 to +0.0000") == 12


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280])
def test_everybody_can_read_it(evaluated: Path, tmp_path: Path, width: int) -> None:
    path = kgmlm.report(evaluated, tmp_path / "a.html", compare=evaluated, progress=False)
    with chromium() as browser:
        context = browser.new_context(bypass_csp=True, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.goto(path.absolute().as_uri())
        from axe_playwright_python.sync_playwright import Axe

        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            result = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [fault["id"] for fault in result] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        context.close()


def test_a_run_that_was_not_evaluated_is_evaluated_and_its_ranks_are_kept(
    toy_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "toy"
    shutil.copytree(toy_run, path)
    done: list[str] = []
    made = kgmlm.report(
        path, tmp_path / "a.html", max_triples=5, progress=lambda what, n, total: done.append(what)
    )
    assert "evaluating test" in done
    assert (path / "ranks" / "test.5-triples.parquet").is_file()
    assert "a sample of 5 of the 8 test triples" in read(made).text
    valid = read(kgmlm.report(path, tmp_path / "b.html", split="valid", progress=False)).text
    assert "by which the run was chosen" in valid


def test_ranks_must_be_of_the_run(evaluated: Path, tmp_path: Path) -> None:
    kept = evaluated / "ranks" / "test.parquet"
    read(kgmlm.report(evaluated, tmp_path / "a.html", ranks=kept, progress=False))
    with pytest.raises(DataError, match="goes without --split"):
        kgmlm.report(evaluated, tmp_path / "b.html", ranks=kept, split="test", progress=False)
    trained = tmp_path / "trained-on"
    shutil.copytree(evaluated, trained)
    mixture = json.loads((trained / "model/mixture.json").read_text())
    (trained / "model/mixture.json").write_text(json.dumps(mixture))  # other bytes, as of a later training
    with pytest.raises(RunError, match="ranks of other weights"):
        kgmlm.report(trained, tmp_path / "b.html", ranks=kept, progress=False)
    assert not (tmp_path / "b.html").exists()


HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=http://example.org/x onerror='alert(2)'>",
    "</style></title></svg><b>",
    "{{ 7 * 7 }}{% raw %}",
    "שלום \u202eevil\u202c عالم",
    "👩‍👩‍👧‍👦 family",
    "a & b &lt; c",
    "null\x01\x1b[31m\u2028tab",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a graph without validation and with one relation, whose texts are markup and worse."""
    path = tmp_path_factory.mktemp("hostile")
    graph = path / "<b>graph & co"
    graph.mkdir()
    entities = [f"label{i}\t{name}\t{'<i>' + 'long ' * 1000}" for i, name in enumerate(HOSTILE)]
    (graph / "entities.tsv").write_text("label\tname\tdescription\n" + "\n".join(entities) + "\n", "utf-8")
    (graph / "relations.tsv").write_text("label\tname\nis<a>\tis <a href=//x>\n", "utf-8")
    for split, step in (("train", 1), ("test", 2)):
        rows = [f"label{i}\tis<a>\tlabel{(i + step) % len(HOSTILE)}\n" for i in range(len(HOSTILE))]
        (graph / f"{split}.tsv").write_text("".join(rows), "utf-8")
    kgmlm.train(graph, model="scratch", output=path / "run", progress=False, max_steps=1, **arguments(**TINY))
    return path / "run"


@pytest.mark.slow
def test_names_are_data(hostile: Path, tmp_path: Path) -> None:
    page = read(kgmlm.report(hostile, tmp_path / "a.html", progress=False))
    assert not {"i", "img", "a href=//x"} & set(page.tags)
    for name in HOSTILE[:4]:
        assert " ".join(name.split()) in page.text
    assert not {"\x01", "\x1b", "\u2028"} & set(page.text)
    assert "👩‍👩‍👧‍👦" in page.text
    assert len(page.text) < 60_000  # descriptions are cut
    assert "trained without validation triples" in page.text
    assert "the graph has none" in page.text  # so there are no probabilities
    assert "<b>graph & co" in page.text


@pytest.mark.slow
def test_a_graph_of_training_triples_alone_has_a_report(hostile: Path, tmp_path: Path) -> None:
    folder = open_folder(hostile)
    graph = replace(folder.graph, splits={"train": folder.graph.splits["train"]})
    alone = Run(replace(folder, graph=graph))
    page = read(kgmlm.report(alone, tmp_path / "a.html", progress=False))
    assert "nothing says how well this run ranks" in page.text
    assert "metrics" not in page.ids
    with pytest.raises(DataError, match="to compare runs on"):
        kgmlm.report(alone, tmp_path / "b.html", compare=alone, progress=False)


@pytest.mark.slow
def test_runs_of_different_graphs_do_not_compare(
    hostile: Path, evaluated: Path, tmp_path: Path, cli: Cli
) -> None:
    done = cli("report", evaluated, "--compare", hostile, "--output", tmp_path / "a.html", "-q")
    refused(done, "are runs of different graphs")
    assert not (tmp_path / "a.html").exists()


@pytest.mark.slow
def test_a_pack_has_a_report(evaluated: Path, tmp_path: Path) -> None:
    pack = kgmlm.pack(evaluated, tmp_path / "small-one.kgmlm", progress=False)
    page = read(kgmlm.report(pack, tmp_path / "a.html", progress=False))
    assert "small-one Link prediction" in page.text
    assert "curves" not in page.ids  # a pack leaves out how it was trained
    assert "kgmlm pack PACK --calibrate" in page.text


@pytest.mark.slow
def test_probabilities_are_measured_where_a_run_has_them(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "europe"
    kgmlm.train("europe", model="scratch", output=path, progress=False, max_steps=1, **arguments(**TINY))
    kgmlm.calibrate(path, progress=False)
    text = read(kgmlm.report(path, tmp_path / "a.html", progress=False)).text
    assert "Probabilities on validation" in text
    assert "of 100 such triples with 20 %, expect 20" in text
    run = kgmlm.open_run(path, typed=True).with_entities(EntityTable(["atl"], ["Atlantis"]))
    wider = read(kgmlm.report(run, tmp_path / "c.html", progress=False)).text
    assert "Probabilities on validation" in wider
    kgmlm.tune(path, add="types", progress=False)
    again = read(kgmlm.report(path, tmp_path / "b.html", progress=False)).text
    assert "were not fitted for the" in again


def test_a_full_disk_leaves_the_old_report(
    evaluated: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.html").write_text("the old one")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    done = cli("report", evaluated, "--output", tmp_path / "a.html", "-q")
    assert done.returncode == 2
    assert "no room left" in done.stderr
    assert (tmp_path / "a.html").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    refused(cli("report", evaluated, "--output", tmp_path, "-q"), "is a folder")


@pytest.fixture
def ranked(toy: KnowledgeGraph, tmp_path: Path) -> Ranked:
    run(toy).write_ranks(tmp_path / "ranks.parquet")
    return Ranked.read(tmp_path / "ranks.parquet", toy)


def test_ranks_are_read_as_they_were_written(ranked: Ranked, toy: KnowledgeGraph, tmp_path: Path) -> None:
    result = run(toy)
    assert ranked.split == "test"
    assert ranked.by_side()["head"]["inverse_harmonic_mean_rank"] == pytest.approx(
        result.report["metrics"]["head.realistic.inverse_harmonic_mean_rank"]
    )
    roles = result.report["breakdown"]["unseen_role"]
    messages = ranked.by_unseen(Scope.of(toy))
    assert [part["count"] for part in messages.values()] == [
        roles[role]["count"] for role in ("neither", "answer", "known", "both")
    ]
    table = pd.read_parquet(tmp_path / "ranks.parquet")
    table[table["target"] == "tail"].to_parquet(tmp_path / "half.parquet")
    with pytest.raises(DataError, match="lacks one of the two questions"):
        Ranked.read(tmp_path / "half.parquet", toy)
    table.assign(head=table["head"] + "?").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"another graph than 'toy', which has no '.*\?'"):
        Ranked.read(tmp_path / "other.parquet", toy)
    swapped = table.assign(head=table["tail"], tail=table["head"])
    swapped.to_parquet(tmp_path / "swapped.parquet")
    with pytest.raises(DataError, match="other triples than those of a split"):
        Ranked.read(tmp_path / "swapped.parquet", toy)


def test_questions_are_told_apart_by_the_answers_that_training_has(
    toy: KnowledgeGraph, ranked: Ranked
) -> None:
    train = toy.splits["train"]
    queries, _ = ranked.asked
    counts = [
        int(((train[:, 0 if q.target == "tail" else 2] == q.entity) & (train[:, 1] == q.relation)).sum())
        for q in queries
    ]
    result = ranked.by_answers()
    assert result["none"]["count"] == counts.count(0)
    assert result["1"]["count"] == counts.count(1)
    assert result["2–9"]["count"] == sum(2 <= n <= 9 for n in counts)
    assert sum(part["count"] for part in result.values()) == len(counts)


def test_the_distribution_counts_each_side_once(toy: KnowledgeGraph, ranked: Ranked) -> None:
    parts = ranked.distribution()
    assert sum(h for _, h, _ in parts) == pytest.approx(1)
    assert sum(t for _, _, t in parts) == pytest.approx(1)
    tails = ranked.realistic[ranked.asked[0].tail_B]
    assert parts[0][0] == "1"
    assert parts[0][2] == pytest.approx((tails == 1).mean())
    assert {name: t for name, _, t in parts}["4–5"] == pytest.approx(((tails > 3) & (tails <= 5)).mean())


def test_the_worst_rank_last_and_the_typical_near_the_median(ranked: Ranked) -> None:
    worst, typical = ranked.worst(5), ranked.typical(5)
    keys = ranked.graph.context.answers.keys(ranked.asked[0])
    for chosen in (worst, typical):
        assert len(set(keys[chosen])) == len(chosen) == 5
    ranks = ranked.realistic
    assert ranks[worst].tolist() == sorted(ranks[worst], reverse=True)
    assert ranks[worst[0]] == ranks.max()
    away = np.abs(ranks - np.median(ranks))
    others = np.setdiff1d(np.arange(len(ranks)), typical)
    fresh = [i for i in others if keys[i] not in set(keys[typical])]
    assert away[typical].max() <= away[fresh].min()
    best = replace(ranked, ranks=Ranks(*(np.ones(len(ranks), np.int64) for _ in range(3))))
    assert len(best.worst(5)) == 0


def test_what_came_first_instead_is_no_answer(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], tmp_path: Path
) -> None:
    ranker = make_ranker()
    evaluation = evaluate(ranker, toy, Protocol())
    evaluation.write_ranks(tmp_path / "ranks.parquet")
    ranked = Ranked.read(tmp_path / "ranks.parquet", toy)
    at = np.arange(len(ranked.ranks))
    true = set(map(tuple, toy.all_triples.tolist()))
    asked = questions(ranked, ranker, at)
    assert len(asked) == len(at)
    for q, rank in zip(asked, ranked.realistic, strict=True):
        assert not q.moved
        assert q.rank == rank
        assert bool(q.before) == (rank > 1)
        assert (q.behind is None) == bool(q.before)
        for e in (*q.before, *([] if q.behind is None else [q.behind])):
            triple = (q.entity, q.relation, e) if q.target == "tail" else (e, q.relation, q.entity)
            assert triple not in true
    elsewhere = replace(ranked, ranks=Ranks(*(np.full(len(at), n) for n in (25, 25, 31))))
    assert any(q.moved for q in questions(elsewhere, ranker, at))


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_reach_around_what_is_shown(low: float, more: float) -> None:
    high = low + more
    result, slack = ticks(low, high), 1e-6 * max(1, abs(low), abs(high))
    assert 2 <= len(result) <= 8
    assert result[0] <= low + slack
    assert result[-1] >= high - slack


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 50)), min_size=1, max_size=40))
def test_lines_stay_within_the_drawing(points: list[tuple[float, float]]) -> None:
    chart = line_chart("t", "d", [Series("s", points)], Table.of("t", ("x",), []), labels=("x", "y"))
    for x, y in chart.lines[0].points:
        assert 0 <= x <= WIDTH
        assert TOP - 0.1 <= y <= HEIGHT


def test_bars_stand_on_the_axis_side_by_side() -> None:
    chart = bar_chart(
        "t", "d", ["a", "b"], [("x", [0.5, 1]), ("y", [0, 0.25])], Table.of("t", ("x",), []), labels=("", "")
    )
    assert {round(b.y + b.height, 1) for b in chart.bars} == {chart.bottom}
    assert [b.series for b in chart.bars] == [0, 1, 0, 1]
    assert chart.bars[2].height == pytest.approx(2 * chart.bars[0].height, abs=0.2)
    assert all(a.x + a.width <= b.x for a, b in zip(chart.bars, chart.bars[1:], strict=False))


def test_long_tables_and_texts_are_cut() -> None:
    rows = [(Cell(str(i)),) for i in range(MAX_ROWS + 7)]
    assert Table.of("t", ("x",), rows).left_out == 7
    assert len(clipped("x" * 5000)) < 100
    assert clipped("a\n\u0000 b") == "a b"
    assert clipped("  ") == ""


def test_a_log_that_was_cut_is_drawn_as_far_as_it_goes(toy_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy"
    shutil.copytree(toy_run, path)
    whole = curves(open_folder(path))
    assert [chart.title for chart in whole] == ["Loss of the text model", "Validation of the text model"]
    log = path / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-9] + b'\xff\n[1]\n{"step": 1, "loss": "x"}\n')
    assert len(curves(open_folder(path))) == 2
    log.unlink()
    assert curves(open_folder(path)) == []


def test_the_script_and_the_style_are_those_that_the_page_allows() -> None:
    empty = Table.of("t", ("x",), [])
    contents: dict[str, Any] = dict.fromkeys(("name", "graph", "made", "version", "command"), "x")
    page = render(
        Contents(**contents, facts=(), stages=empty, curves=(), validated=False, weights=(), audit=())
    )
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_entities_are_drawn_near_those_that_are_alike(
    toy: KnowledgeGraph, toy_vector_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, count = kgmlm.open_run(toy_vector_run, device="cpu").predictor.ranker, len(toy.entities)
    rng = np.random.default_rng(0)
    group_N = np.arange(count) % 2
    vectors_ND = np.eye(8)[group_N] + 0.02 * rng.standard_normal((count, 8))
    monkeypatch.setattr(figures, "embeddings_of", lambda ranker, of, ids: vectors_ND[ids])
    monkeypatch.setattr(figures, "_kinds_of", lambda graph, ids: [f"group {group_N[i]}" for i in ids])
    chart = entity_map(ranker, toy)
    assert chart is not None
    assert set(chart.legend) == {"group 0", "group 1", "others"}
    assert [row[1].key for row in chart.table.rows] == [len(line.dots) for line in chart.lines]
    one, two, others = (np.array(line.dots).reshape(-1, 3) for line in chart.lines)
    assert (len(one) + len(two), len(others)) == (count, 0)
    for x, y, _ in (*one, *two):
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM
    (mid, far), (other, wide) = (
        (part.mean(0), np.linalg.norm(part - part.mean(0), axis=1).mean()) for part in (one, two)
    )
    assert np.linalg.norm(mid - other) > max(far, wide)


def test_kinds_of_entities_are_types_or_else_what_they_are_in_most_triples(
    toy: KnowledgeGraph, toy_vector_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = kgmlm.open_run(toy_vector_run, device="cpu").predictor.ranker
    labels, named = (toy.entities.column(name) for name in ("label", "name"))
    types = ["place|thing", *["thing"] * (len(toy.entities) - 1)]
    typed = entity_map(ranker, replace(toy, entities=EntityTable(labels, named, types=types), links=None))
    assert typed is not None
    assert typed.legend == ("thing", "place", "others")
    plain = entity_map(ranker, toy)
    assert plain is not None
    assert all(" of " in kind or kind == "others" for kind in plain.legend)
    monkeypatch.setattr(figures, "MIN_MAPPED", len(toy.entities) + 1)
    assert entity_map(ranker, toy) is None


def test_a_report_has_the_map_of_a_run_with_embeddings(toy_vector_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_vector_run, tmp_path / "run")
    page = kgmlm.report(run, tmp_path / "a.html", max_triples=2, progress=False).read_text("utf-8")
    assert "Entities by their embeddings" in page
    assert 'id="entity-map-t"' in page
