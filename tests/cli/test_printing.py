from __future__ import annotations

import io
import sys
from dataclasses import replace

import pandas as pd
import pytest
from rich.cells import cell_len

from kgmlm.cli.printing import percent, print_predictions, print_reasoned, print_table
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query
from kgmlm.ranking.predictor import Prediction, WeighedScore

TOKENS = tuple(
    {"token": raw, "text": text, "id": i, "position": i, "log_likelihood": -1.0 - i}
    for i, (raw, text) in enumerate((("ĠTok", " Tok"), ("yo", "yo"), ("Ġ[x", " [x"), ("Ã", "")))
)
NAMES = ("Tokyo", "東京都千代田区丸の内一丁目九番地", "🗼 tower of Tokyo", "[red]x[/red]", "ab" * 45)


def answers(reasons: tuple[str, ...] = ()) -> list[Prediction]:
    """Five answers with the parts of eight signals."""
    signals = ("likelihood", "vector", "kge", "rules", "types", "biencoder", "reverse")
    return [
        Prediction(
            n + 1, n, f"e{n}", name, 5.0 - n, n % 2 == 0, TOKENS,
            {s: WeighedScore(0.5, 1.0 - n * i) for i, s in enumerate(signals)},
            reasons, probability=None if n % 2 == 0 else 0.5 / n, checked=n != 3,
        )
        for n, name in enumerate(NAMES)
    ]  # fmt: skip


def printed(
    graph: KnowledgeGraph, found: list[Prediction], capsys: pytest.CaptureFixture[str], tokens: bool = False
) -> list[str]:
    """The lines of the answers to one query."""
    asked = [Query(0, 0, "tail")]
    quiet = {"as_json": False, "as_csv": False, "many": False}
    print_predictions(graph, asked, [found], **quiet, sureness="", tokens=tokens)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_an_explained_answer_is_a_line_with_bars_and_its_reasons(
    toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    because = (f"Tokyo [capital] of Japan and {'東' * 40} lies in Asia (17 of 18)", "another (1 of 2)")
    lines = printed(toy, answers(because), capsys)
    assert max(map(cell_len, lines)) <= columns
    firsts = [line for line in lines if line[:4].strip().isdigit()]
    assert [line.split()[0] for line in firsts] == ["1", "2", "3", "4", "5"]
    at = {cell_len(line[: line.index(word)]) for line in firsts for word in ("known", "new") if word in line}
    assert len(at) == 1, "columns stay in line whatever letters names have"
    joined = " ".join("".join(lines).split())
    scored = [replace(p, probability=None, score=-(10.0**p.rank)) for p in answers()]
    rows = [line for line in printed(toy, scored, capsys) if line[:4].strip().isdigit()]
    ends = {cell_len(line[: line.index(w)]) for line in rows for w in ("known", "new") if w in line}
    assert len(ends) == 1, "as wide as the longest score"
    assert joined.count("because") == 5
    assert "[capital]" in joined
    assert "another" not in joined, "the best reason is enough"
    assert "[red]x" in joined
    assert "tokens:" not in joined
    assert "tokens: Tok -1.00, yo -2.00, [x -3.00, Ã -4.00" in " ".join(
        "".join(printed(toy, answers(), capsys, tokens=True)).split()
    )


def test_a_bar_is_what_a_signal_adds_beyond_the_least(
    toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    def of(*values: tuple[float, float]) -> list[Prediction]:
        return [
            Prediction(n + 1, n, f"e{n}", f"e{n}", 0.0, False, (),
                       {"vector": WeighedScore(2.0, x), "kge": WeighedScore(0.0, y)})
            for n, (x, y) in enumerate(values)
        ]  # fmt: skip

    _, head, first, second, third = printed(toy, of((3.0, 9.0), (2.0, 0.0), (1.0, 5.0)), capsys)
    assert "kge" not in head, "it counts nothing"
    full, half = first.count("█"), second.count("█")
    assert (full, half) == (2 * half, full // 2)
    assert full
    assert "█" not in third
    assert "█" not in "".join(printed(toy, of((3.0, 9.0)), capsys)), "there is nothing to compare with"


def test_where_there_are_no_blocks_bars_are_of_signs(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    asked = [Query(0, 0, "tail")]
    print_predictions(toy, asked, [answers()], as_json=False, as_csv=False, many=False, sureness="")
    out.flush()
    shown = out.buffer.getvalue().decode()
    assert "##" in shown
    assert "2588" not in shown


def test_answers_of_one_name_have_their_labels(
    toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Prediction(n + 1, n, f"e{n}", name, -n, n > 1) for n, name in enumerate(("cat", "cat", "dog"))]
    shown = "\n".join(printed(toy, rows, capsys))
    assert "cat (e0)" in shown
    assert "cat (e1)" in shown
    assert "(e2)" not in shown
    assert "score" in shown
    assert "probability" not in shown, "a score never looks like a share"
    assert shown.count("new") == 2
    assert shown.count("known") == 1


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.5, "50 %"), (0.0123, "1.2 %"), (1e-5, "< 0.1 %"), (0.997, "> 99 %"), (0.994, "99 %"), (None, "")],
)
def test_a_probability_is_short(probability: float | None, text: str) -> None:
    assert percent(probability) == text


def test_a_table_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("of [two]", pd.DataFrame({"name": ["x y", "[z]"], "count": [1000, 2]}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "of [two]"
    assert [line.split() for line in lines if "000" in line or "z]" in line][-2:] == [
        ["x", "y", "1,000"], ["[z]", "2"],
    ]  # fmt: skip
    assert not any(c in "".join(lines) for c in "│┃┏")


def test_listed_triples_have_their_reasons_below_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reason = f"Elbe flows {'and ' * 20}far (8 of 65); another (1 of 2)"
    elbe = {"head_name": "Elbe [red]", "relation_name": "flows through", "tail_name": "東" * 9}
    oder = {"head_name": "Oder", "relation_name": "is", "tail_name": "a river"}
    rows = [elbe | {"probability": 0.39, "because": reason}, oder | {"probability": 0.05, "because": ""}]
    print_reasoned(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f" 39 %  Elbe [red]  flows through  {'東' * 9}"
    assert lines[-1] == "5.0 %  Oder        is             a river"
    assert len(lines) == 4
    assert max(map(cell_len, lines)) <= 80
    rows[1]["tail_name"] = "river " * 20
    print_reasoned(rows)
    assert "5.0 %  Oder  is  " + "river " * 19 + "river" in capsys.readouterr().out, "no name is cut"


def test_a_name_that_is_too_long_has_a_line_of_its_own(
    toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "a name that is longer than a terminal " * 3
    lines = printed(toy, [replace(p, name=name.strip()) for p in answers()[:1]], capsys)
    joined = " ".join(" ".join(lines).split())
    assert name.strip() in joined, "no name is cut"
    assert max(map(cell_len, lines)) <= 80
