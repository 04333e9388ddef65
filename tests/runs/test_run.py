"""A run in Python."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kgmlm
from kgmlm.core.errors import ConfigError, QueryError
from kgmlm.graphs.entities import EntityTable
from kgmlm.runs.run import Run


@pytest.fixture(scope="module")
def run(toy_run: Path) -> Run:
    return kgmlm.open_run(toy_run, device="cpu")


def test_opening_loads_no_model_and_prints_nothing(toy_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = kgmlm.open_run(toy_run)
    assert "predictor" not in vars(opened)
    assert "finished; toy: 31 entities" in repr(opened)
    assert str(toy_run) in opened._repr_html_()
    with pytest.raises(QueryError, match="no entity has the label or name"):
        opened.rank(head="Frnace", relation="capital", k=1)
    assert "predictor" not in vars(opened)  # a wrong name costs no model
    opened.rank(head="France", relation="capital", k=1)
    assert "predictor" in vars(opened)
    assert capsys.readouterr() == ("", "")


def test_one_query_has_pykeens_columns(run: Run) -> None:
    table = run.rank(head="France", relation="has the capital", k=3)
    assert list(table.columns) == [
        *("tail_name", "probability", "known", "score", "rank", "tail_label", "tail_id"),
    ]
    assert table["score"].is_monotonic_decreasing
    assert "head_id" in run.rank(relation="capital", tail="paris", k=1).columns


def test_a_query_may_be_said_in_order(run: Run) -> None:
    best = run.rank(head="France", relation="has the capital", k=3)
    pd.testing.assert_frame_equal(run.rank("France", "has the capital", k=3), best)
    heads = run.rank(None, "capital", "paris", 2)
    pd.testing.assert_frame_equal(heads, run.rank(relation="capital", tail="paris", k=2))
    assert run.explain("France", "has the capital", k=1)["name"].tolist() == best["tail_name"].tolist()[:1]


def test_a_run_does_what_the_package_does_with_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
    quiet: dict[str, Any] = {"progress": False}
    report = run.evaluate(**quiet)
    assert report.metrics == kgmlm.evaluate(run, **quiet).metrics
    assert run.info().graph["name"] == "toy"
    copied = kgmlm.open_run(shutil.copytree(run.path, tmp_path / "copy"))
    assert copied.report(tmp_path / "report.html", **quiet).is_file()
    classified = copied.classify([("france", "capital", "berlin")], **quiet)
    assert 0 <= classified.probabilities[0] <= 1
    assert copied.complete(tmp_path / "new.tsv", **quiet)["output"] == str(tmp_path / "new.tsv")


def test_only_what_people_ask_for_is_completed_by_tab(run: Run) -> None:
    assert all(hasattr(Run, name) or name in ("folder", "graph", "options") for name in dir(run))
    assert {"rank", "evaluate", "complete", "serve"} <= set(dir(run))
    assert not {"opened", "reopen", "predictor", "further"} & set(dir(run))


def test_a_pickled_run_opens_again(run: Run) -> None:
    again = pickle.loads(pickle.dumps(run))
    pd.testing.assert_frame_equal(again.rank("France", "capital"), run.rank("France", "capital"))
    assert again.options == run.options
    more = run.with_entities(pd.DataFrame({"label": ["atl"], "name": ["Atlantis"]}))
    with pytest.raises(TypeError, match="further entities is not pickled"):
        pickle.dumps(more)


def test_many_queries_are_ranked_at_once(run: Run) -> None:
    heard: list[int] = []
    asked = [("France", "capital", None), (None, "capital", "paris"), ("usa", "located_in", None)]
    table = run.rank(asked, k=2, progress=lambda what, n, total: heard.append(n))
    assert list(table.columns) == [
        *("head", "relation", "tail", "name", "probability", "known", "score", "rank", "entity"),
    ]
    assert table["head"].tolist()[:2] == ["france", "france"]
    assert table["tail"].tolist()[2:4] == ["paris", "paris"]
    assert table["head"].isna().sum() == 2
    assert sum(heard) == 3
    one = run.rank(head="France", relation="capital", k=2)
    assert table["score"].tolist()[:2] == pytest.approx(one["score"].tolist(), abs=1e-5)
    assert len(run.rank([], k=2)) == len(run.explain([])) == 0
    with pytest.raises(QueryError, match="either queries or one query"):
        run.rank(relation="capital", queries=asked)
    with pytest.raises(QueryError, match="queries are given twice"):
        run.rank(asked, queries=asked)
    for ask in (run.rank, run.explain):
        assert ask(queries=asked, k=2)["name"].tolist() == table["name"].tolist()


def test_a_triple_has_the_score_that_ranking_gives_its_tail_and_its_head(run: Run) -> None:
    table = run.score([("France", "capital", "berlin"), ("france", "has the capital", "Paris")])
    assert list(table.columns) == ["head", "relation", "tail", "tail_score", "head_score"]
    count = len(run.graph.entities)
    tails = run.rank(head="France", relation="capital", k=count).set_index("tail_label")["score"]
    heads = run.rank(relation="capital", tail="paris", k=count).set_index("head_label")["score"]
    assert table["tail_score"].tolist() == pytest.approx([tails["berlin"], tails["paris"]], abs=1e-5)
    assert table["head_score"][1] == pytest.approx(heads["france"], abs=1e-5)
    with pytest.raises(QueryError, match="no entity has the label or name"):
        run.score([("Frnace", "capital", "paris")])
    assert run.score([]).empty
    with pytest.raises(QueryError, match="a list of"):
        run.score(("France", "capital", "paris"))  # type: ignore[arg-type]


def test_an_explanation_adds_up(run: Run) -> None:
    table = run.explain(head="France", relation="capital", k=3)
    np.testing.assert_allclose(table["likelihood"], table["score"], atol=1e-5)
    tokens = table["tokens"][0]
    assert "".join(text for text, _ in tokens).strip() == table["name"][0]
    assert np.mean([ll for _, ll in tokens]) == pytest.approx(table["likelihood"][0], abs=1e-5)


def test_further_entities_are_known_by_their_text(run: Run, tmp_path: Path) -> None:
    wider = run.with_entities(EntityTable(["atl"], ["Atlantis"], ["a lost island"]))
    file = tmp_path / "more.tsv"
    file.write_text("label\tname\tdescription\nlem\tLemuria\ta lost land\n")
    widest = wider.with_entities(file)
    best = widest.rank(head="Atlantis", relation="located_in", k=99)
    assert {"lem"} <= set(best["tail_label"])
    before = run.rank(head="France", relation="capital", k=1)["score"][0]
    assert widest.rank(head="France", relation="capital", k=1)["score"][0] == pytest.approx(before, abs=1e-5)
    with pytest.raises(QueryError):
        run.rank(head="Atlantis", relation="located_in")


def test_further_entities_come_with_triples(run: Run, tmp_path: Path) -> None:
    new = EntityTable(["atl", "lem"], ["Atlantis", "Lemuria"])
    given = [("Atlantis", "capital", "paris"), ("lem", "borders", "atl")]
    wider = run.with_entities(new, given)
    assert wider.graph.labeled(wider.graph.context.train)[-2:] == [
        ("atl", "capital", "paris"), ("lem", "borders", "atl"),
    ]  # fmt: skip
    assert len(run.graph.context.train) + 2 == len(wider.graph.context.train)
    table = wider.rank(head="Atlantis", relation="capital", k=99).set_index("tail_label")
    assert table.loc["paris", "known"]
    assert table["known"].sum() == 1
    file = tmp_path / "triples.csv"
    for header, line in (("", 2), ("Head,Relation,Tail\n", 3)):
        file.write_text(f"{header}Atlantis,capital,paris\nlem,borders,atl\n")
        again = run.with_entities(new, file)
        assert (again.graph.context.train == wider.graph.context.train).all()
        file.write_text(f"{header}Atlantis,capital,paris\nlem,bounds,atl\n")
        with pytest.raises(QueryError, match=rf"triples.csv:{line}: no relation has"):
            run.with_entities(new, file)
    wrong: list[tuple[Any, str]] = [
        ([("france", "capital", "paris")], "triple 1: neither entity is new"),
        ([given[0], ("Atlantis", "capital", "Nowhere")], "triple 2: no entity has"),
        (["abc"], "a list of"),
    ]
    for triples, sentence in wrong:
        with pytest.raises(QueryError, match=sentence):
            run.with_entities(new, triples)
    further = wider.with_entities(EntityTable(["mu"]), [("mu", "borders", "Atlantis")])
    assert len(further.graph.context.train) == len(wider.graph.context.train) + 1
    assert run.with_entities(new).graph.context.train is run.graph.splits["train"]


def test_a_way_to_ask_is_given_when_it_is_opened(toy_vector_run: Path, tmp_path: Path) -> None:
    path = shutil.copytree(toy_vector_run, tmp_path / "run")
    scores = {}
    for name in ("all", "likelihood", "vector"):
        opened = kgmlm.open_run(path, scores=name)
        scores[name] = opened.rank(head="France", relation="capital", k=3)["score"][0]
    assert len(set(scores.values())) == 3
    assert -1 <= scores["vector"] <= 1
    count = 9999
    ruled, free = (
        kgmlm.open_run(path, allow_self=allowed).rank(head="usa", relation="located_in", k=count)
        for allowed in (False, True)
    )
    assert len(free) == len(ruled) + ("usa" not in set(ruled["tail_label"]))


def test_tables_are_asked_like_lists(run: Run) -> None:
    frame = pd.DataFrame([("France", "capital", "berlin")], columns=["head", "relation", "tail"])
    assert run.score(frame).equals(run.score([("France", "capital", "berlin")]))
    asked = pd.DataFrame({"relation": ["capital"], "head": ["France"], "tail": [None]})
    assert run.rank(asked, k=2).equals(run.rank([("France", "capital", None)], k=2))
    new = pd.DataFrame({"label": ["atl"], "name": ["Atlantis"]})
    given = pd.DataFrame([("Atlantis", "capital", "Paris")], columns=["head", "relation", "tail"])
    more = run.with_entities(new, triples=given)
    assert more.rank(head="Atlantis", relation="located_in", k=1)["rank"].tolist() == [1]


@pytest.mark.parametrize("k", [0, -1, "3", 2.0, True])
def test_k_is_a_whole_number(run: Run, k: Any) -> None:
    for ask in (run.rank, run.explain):
        with pytest.raises(ConfigError, match="k is a whole number from 1 on"):
            ask(head="France", relation="capital", k=k)
    with pytest.raises(ConfigError, match="k is a whole number from 1 on"):
        kgmlm.rank_relations(run, "France", "Paris", k=k)
