"""The signal of types and what it forbids: training only, given types, other graphs, runs, commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from signal_tests import SignalTests
from test_first_stage import scores_of
from typer.testing import CliRunner

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.config import Protocol, TypeSettings, VectorSettings
from kgmlm.core.errors import DataError, RunError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.datasets import read_folder, write_folder
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import Queries, Query, both_sides
from kgmlm.ranking.constraints import IMPOSSIBLE, MIN_TRIPLES, Functional, Possible, Typed
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder
from kgmlm.runs.options import RankingOptions
from kgmlm.signals.base import Pool
from kgmlm.signals.types import Types
from kgmlm.text.reader import Reading


class TestTypes(SignalTests):
    kind = Types

    def settings(self, encoder: str) -> TypeSettings:
        return TypeSettings()


def towns(types: dict[str, str] | None = None) -> KnowledgeGraph:
    """Towns lie in countries, people live in towns; each person in one. One triple of test is odd."""
    n = MIN_TRIPLES + 5
    train = [[f"town{i:02}", "lies_in", f"country{i % 3}"] for i in range(n)]
    train += [[f"person{i:02}", "lives_in", f"town{(i * 7) % n:02}"] for i in range(n)]
    train += [[f"person{i:02}", "knows", f"person{(i + 3) % n:02}"] for i in range(n)]
    train += [["cat", "knows", "person01"], ["person02", "knows", "cat"]]
    test = [["cat", "lives_in", "town03"], ["person00", "lives_in", "country0"]]
    return build_graph(
        "towns", {"train": train, "test": test}, TextColumns(types=types or {}), extra_entities=["new"]
    )


TOWNS = towns()


def typed(graph: KnowledgeGraph, **settings: object) -> Typed:
    return Typed(Types.fit(graph, TypeSettings.model_validate(settings)).types)


def asked(graph: KnowledgeGraph, entity: str, relation: str, target: str) -> Queries:
    side = "tail" if target == "tail" else "head"
    return Queries.of([Query(graph.entities.index[entity], graph.relations.index[relation], side)])  # type: ignore[arg-type]


def names(graph: KnowledgeGraph, mask: np.ndarray) -> set[str]:
    labels = graph.entities.column("label")
    return {labels[i].rstrip("0123456789") for i in np.flatnonzero(mask)}


def test_typed_allows_what_fits_and_what_nothing_is_known_of() -> None:
    constraint = typed(TOWNS)
    for relation, target, kinds in (
        ("lives_in", "tail", {"town", "new"}),
        ("lies_in", "tail", {"country", "new"}),
        ("lives_in", "head", {"person", "cat", "new"}),  # the cat knows people, as people do
    ):
        (allowed,) = constraint.allowed(asked(TOWNS, "person00", relation, target))
        assert names(TOWNS, allowed) == kinds
    lives_in = TOWNS.relations.index["lives_in"]
    assert names(TOWNS, constraint.askable(lives_in, tails=True)) == {"person", "cat", "new"}
    assert names(TOWNS, constraint.askable(lives_in, tails=False)) == {"town", "new"}


def test_a_relation_with_few_triples_forbids_nothing() -> None:
    few = replace(TOWNS, splits={"train": TOWNS.splits["train"][: MIN_TRIPLES - 1]})
    for relation in range(len(few.relations)):
        for target in ("tail", "head"):
            query = Queries.of([Query(0, relation, target)])
            assert typed(few).allowed(query).all()


def test_given_types_decide_of_entities_that_training_has_not() -> None:
    types = {x: x.rstrip("0123456789") for x in TOWNS.entities.column("label") if x not in ("cat", "new")}
    graph = towns(types={**types, "new": "town"})
    (allowed,) = typed(graph).allowed(asked(graph, "person00", "lives_in", "tail"))
    assert names(graph, allowed) == {"town", "new"}
    (allowed,) = typed(graph).allowed(asked(graph, "town00", "lies_in", "tail"))
    assert names(graph, allowed) == {"country"}


def test_functional_relations_are_learned_with_their_exceptions() -> None:
    constraint = Functional.learn(TOWNS.context)
    one = {r.label: constraint.one_R2[i].tolist() for i, r in enumerate(TOWNS.relations)}
    # Of 25 people, one knows two: too many exceptions.
    assert one == {"lies_in": [True, False], "lives_in": [True, True], "knows": [False, False]}
    many = [[f"p{i}", "has", f"c{i}"] for i in range(200)] + [["p0", "has", "c1"], ["p1", "has", "c0"]]
    graph = build_graph("few exceptions", {"train": many})
    assert Functional.learn(graph.context).one_R2.tolist() == [[True, True]]
    assert Functional.learn(graph.context).learned() == {"one_tail": 1, "one_head": 1, "exceptions": 4}


def test_what_is_filled_has_no_further_answer_and_is_no_answer() -> None:
    constraint = Functional.learn(TOWNS.context)
    (allowed,) = constraint.allowed(asked(TOWNS, "person00", "lives_in", "tail"))
    assert names(TOWNS, allowed) == {"town"}  # its own
    assert allowed.sum() == 1
    (allowed,) = constraint.allowed(asked(TOWNS, "cat", "lives_in", "tail"))
    assert "person" in names(TOWNS, allowed)  # of types it knows nothing
    assert "town" not in names(TOWNS, allowed)  # each has its one inhabitant
    (allowed,) = constraint.allowed(asked(TOWNS, "country0", "lies_in", "head"))
    lies_in = TOWNS.splits["train"][TOWNS.splits["train"][:, 1] == TOWNS.relations.index["lies_in"]]
    there = lies_in[lies_in[:, 2] == TOWNS.entities.index["country0"], 0]
    assert allowed[there].all(), "known answers stay"
    assert "town" in names(TOWNS, allowed)
    allowed[there] = False
    assert "town" not in names(TOWNS, allowed)
    relation = TOWNS.relations.index["lives_in"]
    assert names(TOWNS, constraint.askable(relation, tails=True)) == {"cat", "country", "new", "town"}


def test_no_split_but_training_has_a_say() -> None:
    bare = replace(TOWNS, splits={"train": TOWNS.splits["train"]})
    queries, _ = both_sides(TOWNS.splits["test"])
    for mine, theirs in (
        (typed(TOWNS), typed(bare)),
        (Functional.learn(TOWNS.context), Functional.learn(bare.context)),
    ):
        assert np.array_equal(mine.allowed(queries), theirs.allowed(queries))


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    base = make_ranker(vector=VectorSettings(enabled=True)).reader
    return Ranker.initial(TOWNS.context, base.tokenizer, base.model, base.settings, base.vocabulary)


def test_what_is_forbidden_stays_a_candidate_with_a_finite_score_and_true_answers_are_counted(
    ranker: Ranker,
) -> None:
    free = evaluate(ranker, TOWNS, Protocol(pykeen=True))
    bound = ranker.constrained(typed(TOWNS), Functional.learn(TOWNS.context))
    evaluation = evaluate(bound, TOWNS, Protocol(pykeen=True))
    assert (evaluation.ranks.candidates_B == free.ranks.candidates_B).all()
    assert evaluation.report["pykeen_comparable"] == free.report["pykeen_comparable"]
    message = evaluation.report["constraints"]
    assert message["typed"]["answers_forbidden"] == 1  # a country to live in
    # The town has its inhabitant, and the person a town: neither query of the two triples has another answer.
    assert message["functional"]["answers_forbidden"] == 4
    assert 0 < message["typed"]["candidates_kept"] < 1
    few = evaluate(bound, TOWNS, Protocol(candidates="split"))
    members = np.unique(TOWNS.splits["test"][:, [0, 2]])
    allowed_BN = typed(TOWNS).allowed(both_sides(TOWNS.splits["test"])[0])
    assert few.report["constraints"]["typed"]["candidates_kept"] == pytest.approx(
        allowed_BN[:, members].mean()
    )
    assert json.loads(json.dumps(message)) == message
    tails = np.flatnonzero(evaluation.tail_B)
    odd = tails[evaluation.triples[:, 2] == TOWNS.entities.index["country0"]]
    assert evaluation.scores_B[odd].tolist() == [pytest.approx(IMPOSSIBLE)]
    scores = scores_of(bound, TOWNS.queries("test")[0])
    assert np.isfinite(scores).all()
    allowed = bound.possible.allowed(TOWNS.queries("test")[0])
    assert (scores[~allowed] < -1e30).all()
    assert (scores[allowed] > -1e30).all()


def test_shortlists_and_own_entities_meet_them_too(ranker: Ranker) -> None:
    bound = ranker.constrained(typed(TOWNS))
    queries = asked(TOWNS, "town00", "lives_in", "tail")
    rows, columns = bound.possible.forbidden(queries, np.array([[TOWNS.entities.index["country0"], -1, 0]]))
    assert (rows.tolist(), columns.tolist()) == ([0, 0], [0, 2])
    own = TOWNS.entities.index["town00"]
    assert not bound.possible.allowed(queries)[0, own]
    assert bound.allowing_self().possible.allowed(queries)[0, own]
    assert "country" not in names(TOWNS, bound.allowing_self().possible.allowed(queries)[0])
    assert not bound.unconstrained().possible.forbidden(queries)[0].size
    count = len(TOWNS.entities)
    askable = bound.possible.askable(int(queries.relation_B[0]), True, count)
    assert {"person", "cat"} <= names(TOWNS, askable) <= {"person", "cat", "new"}
    assert Possible.anything(3).askable(0, True, count).all()


def test_another_graph_goes_by_what_the_run_learned_and_by_its_own_training(ranker: Ranker) -> None:
    other = build_graph(
        "other", {"train": [["rome", "lies_in", "italy"], ["eva", "lives_in", "rome"]],
                  "test": [["rome", "odd", "eva"]]},
    )  # fmt: skip
    bound = ranker.constrained(typed(TOWNS), Functional.learn(TOWNS.context)).for_graph(other.context)
    typed_only, functional = bound.possible.further
    (allowed,) = typed_only.allowed(asked(other, "eva", "lives_in", "tail"))
    assert names(other, allowed) == {"rome"}
    (allowed,) = functional.allowed(asked(other, "italy", "lies_in", "head"))
    assert names(other, allowed) == {"rome", "italy", "eva"}  # Rome, which answers it
    assert typed_only.allowed(asked(other, "eva", "odd", "tail")).all()
    over = ranker.with_signal(Types.fit(TOWNS, TypeSettings())).for_graph(other.context).signals["types"]
    scores = over.score(Reading(asked(other, "eva", "lives_in", "tail")), Pool(3))[0]
    assert scores.argmax() == other.entities.index["rome"]


def test_the_nearest_lend_their_types_where_a_ranker_has_vectors(ranker: Ranker) -> None:
    signal = Types.fit(TOWNS, TypeSettings())
    assert signal.types.sources()["none"] == 1
    aided = ranker.with_signal(signal).signals["types"]
    assert isinstance(aided, Types)
    assert aided.types.sources() == {"seen": len(TOWNS.entities) - 1, "given": 0, "nearest": 1, "none": 0}
    constraint = ranker.constrained(typed(TOWNS)).possible.further[0]
    assert isinstance(constraint, Typed)
    assert constraint.types.sources()["nearest"] == 1


def test_a_relation_of_types_must_be_there() -> None:
    with pytest.raises(RunError, match="has no relation 'is_a'"):
        Types.fit(TOWNS, TypeSettings(relation="is_a"))
    signal = Types.fit(TOWNS, TypeSettings(relation="lies_in"))
    assert signal.types.affinity.labels == ("country0", "country1", "country2")


def test_types_of_several_lines_are_kept(tmp_path: Path) -> None:
    graph = build_graph("x", {"train": [["a", "r", "b"]]}, TextColumns(types={"a": "one\ntwo", "b": "three"}))
    signal = Types.fit(graph, TypeSettings())
    signal.save(file := tmp_path / "types.safetensors")
    assert Types.open(file, graph).types.affinity.labels == ("one\ntwo", "three")
    old = load_file(file) | {"labels": torch.tensor(list(b"one\nthree"), dtype=torch.uint8)}
    save_file(old, file)
    assert Types.open(file, graph).types.affinity.labels == ("one", "three")


def test_what_is_damaged_or_of_another_graph_is_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    signal = Types.fit(TOWNS, TypeSettings())
    signal.save(file := tmp_path / "types.safetensors")
    with pytest.raises(RunError, match="of another graph"):
        Types.open(file, toy)
    tensors = load_file(file)
    for name, value in (("features", 10**6), ("rates", float("nan")), ("sizes", 5), ("begins", -1)):
        save_file({**tensors, name: torch.full_like(tensors[name], value)}, file)
        with pytest.raises(RunError, match="cannot be read"):
            Types.open(file, TOWNS)


def test_given_types_are_read_written_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "train.tsv").write_text("bonn\tlies_in\tgermany\nulm\tlies_in\tgermany\n")
    (folder / "entities.tsv").write_text(
        "label\tname\ttypes\nbonn\tBonn\tcity | capital\ngermany\tGermany\t\n"
    )
    graph = read_folder(folder)
    assert graph.entities.types == [("city", "capital"), (), ()]
    assert graph.entities[0].types == ("city", "capital")
    write_folder(graph, tmp_path / "again")
    assert read_folder(tmp_path / "again").entities.types == graph.entities.types
    wider = graph.extended(EntityTable(["rome"], types=["city"]))
    assert wider.entities.types == [("city", "capital"), (), (), ("city",)]
    assert graph.entities.take(np.array([1, 2])).types is None
    done = CliRunner().invoke(app, ["data", "check", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["types"] == {"entities": 1, "unseen": 0, "types": 2}
    (folder / "entities.tsv").write_text("label\tname\ttypes\ttypes\nbonn\tBonn\tcity\tcity\n")
    with pytest.raises(DataError, match="'types' is there twice"):
        read_folder(folder)


def test_a_run_and_its_pack_keep_given_types_and_the_signal(toy_run: Path, tmp_path: Path) -> None:
    run = str(shutil.copytree(toy_run, tmp_path / "run"))
    done = CliRunner().invoke(app, ["tune", run, "--add", "types", "--json", "-q"])
    assert done.exit_code == 0, done.output
    assert {"mrr", "mrr_text", "mrr_types"} <= json.loads(done.stdout)["types"].keys()
    assert open_folder(run, verify=True).record["signals"]["types"]["settings"] == {"relation": ""}
    done = CliRunner().invoke(app, ["pack", run, "--output", str(tmp_path / "run.kgmlm"), "-q"])
    assert done.exit_code == 0, done.output
    asked_for = ["--head", "france", "--relation", "capital", "--json", "-k", "31"]
    for options in ([], ["--scores", "types"], ["--typed"], ["--functional"], ["--typed", "--allow-self"]):
        answers = []
        for where in (run, str(tmp_path / "run.kgmlm")):
            done = CliRunner().invoke(app, ["rank", where, *asked_for, *options])
            assert done.exit_code == 0, done.output
            answers.append([json.loads(line)["entity"] for line in done.stdout.splitlines()])
        if options == ["--scores", "types"]:
            assert answers[0] == answers[1]
    report = kgmlm.evaluate(run, typed=True, functional=True, progress=False)
    assert set(report.values["constraints"]) == {"typed", "functional"}
    assert (Path(run) / "ranks" / "test.typed.functional.parquet").is_file()
    assert RankingOptions(typed=True, functional=True).words() == ["typed", "functional"]
    plain = kgmlm.open_run(run).rank(head="france", relation="capital", k=31)
    bound = kgmlm.open_run(run, functional=True).rank(head="france", relation="capital", k=31)
    assert set(bound["tail_label"]) <= set(plain["tail_label"])


def test_a_run_on_disk_has_given_types(tmp_path: Path) -> None:
    from kgmlm.graphs.storage import read_graph, write_graph

    graph = towns(types={"new": "town", "town00": "town"})
    write_graph(graph, tmp_path / "graph")
    assert read_graph(tmp_path / "graph", "towns", {}).entities.types == graph.entities.types
