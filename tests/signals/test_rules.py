"""The signal of rules: scores against a walk through all rules, withheld triples, reasons, other graphs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from signal_tests import SignalTests
from test_rule_grounding import directed_edges, ends
from test_rule_mining import graph_of
from typer.testing import CliRunner

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.config import RuleSettings
from kgmlm.core.errors import DataError, RunError
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query, both_sides
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder
from kgmlm.signals import rules as rules_module
from kgmlm.signals.base import Pool
from kgmlm.signals.rule_set import NONE, UNSEEN, ConstantRules, PathRules, RuleFile, RuleSet
from kgmlm.signals.rules import BEST, DISCOUNT, FREQUENCY, SCALE, Rules
from kgmlm.text.reader import Reading

ENTITIES, RELATIONS = 6, 2
DIRECTED = 2 * RELATIONS
Triples = list[tuple[int, int, int]]

entity, relation, directed = (st.integers(0, n - 1) for n in (ENTITIES, RELATIONS, DIRECTED))
graphs = st.lists(st.tuples(entity, relation, entity), min_size=1, max_size=20)
counts = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted).map(lambda pair: pair[::-1])
path = st.tuples(counts, relation, st.lists(directed, min_size=1, max_size=3)).filter(
    lambda rule: rule[2] != [2 * rule[1]]
)
constant = st.tuples(counts, directed, entity, directed, st.integers(-1, ENTITIES - 1)).filter(
    lambda rule: rule[1] != rule[3] or rule[4] not in (rule[2], NONE)
)


class TestRules(SignalTests):
    kind = Rules

    def settings(self, encoder: str) -> RuleSettings:
        return RuleSettings()


def whole(paths: list[Any], constants: list[Any]) -> RuleSet:
    """Rules from what hypothesis draws, each once."""
    once = {(r, *b): (*c, r, *b, *[NONE] * (3 - len(b))) for c, r, b in paths}
    p = np.array([*once.values()], np.int64).reshape(-1, 6)
    c = np.array([(*c, *rest) for c, *rest in constants], np.int64).reshape(-1, 6)
    return RuleSet(PathRules(p[:, 0], p[:, 1], p[:, 2], p[:, 3:]), ConstantRules(*c.T.copy()))


def small(triples: Triples) -> KnowledgeGraph:
    train = np.array(triples, np.int64).reshape(-1, 3)
    names = (
        EntityTable([f"e{i}" for i in range(ENTITIES)]),
        RelationTable([f"r{i}" for i in range(RELATIONS)]),
    )
    return KnowledgeGraph("small", *names, {"train": train}, {})


def fires(rules: RuleSet, triples: Triples, asked: int, x: int) -> dict[int, set[int]]:
    """What each rule predicts of a query, by walking: rules by number, those with constants behind paths."""
    edges = directed_edges(triples)
    results: dict[int, set[int]] = {}
    p, c = rules
    for m in range(len(p)):
        body = [int(s) for s in (p.backward if asked % 2 else p.body)[m] if s != NONE]
        if p.relation[m] == asked // 2:
            results[m] = ends(edges, x, body)
    for m in range(len(c)):
        s, d, q, answer = (int(a[m]) for a in (c.relation, c.value, c.asked, c.answer))
        holders = {a for a, link, b in edges if link == s and d in (NONE, b)}
        if q == asked and x in holders:
            results[len(p) + m] = {answer} - {x}
        elif q == asked ^ 1 and x == answer:
            results[len(p) + m] = holders - {x}
    return results


def walked(rules: RuleSet, triples: Triples, asked: int, x: int, discount: float) -> torch.Tensor:
    """Scores of all entities, one by one."""
    predicted, correct = (np.concatenate([getattr(k, n) for k in rules]) for n in ("predicted", "correct"))
    sure = correct / (predicted + UNSEEN)
    fired = fires(rules, triples, asked, x)
    links = [b for _, s, b in directed_edges(triples) if s == asked]
    out = []
    for y in range(ENTITIES):
        values = sorted((-np.log1p(-sure[m]) for m, ys in fired.items() if y in ys), reverse=True)[:BEST]
        often = links.count(y) / (len(links) + UNSEEN)
        evidence = sum(e * discount**j for j, e in enumerate(values)) + FREQUENCY * often
        out.append(SCALE * evidence**0.5)
    return torch.tensor(out, dtype=torch.float32)


@settings(deadline=None, max_examples=150)
@given(
    graphs, st.lists(path, max_size=8), st.lists(constant, max_size=8),
    st.sampled_from([1e-3, DISCOUNT, 1.0]), st.sampled_from([1, 10**6]),
)  # fmt: skip
def test_scores_are_those_of_a_walk_through_all_rules(
    triples: Triples,
    paths: list[Any],
    constants: list[Any],
    discount: float,
    cells: int,
) -> None:
    rules = whole(paths, constants)
    signal = Rules.over_graph(rules, small(triples), discount)
    asked = [(x, s) for x in range(ENTITIES) for s in range(DIRECTED)]
    queries = Queries(
        np.array([x for x, _ in asked]),
        np.array([s // 2 for _, s in asked]),
        np.array([s % 2 == 0 for _, s in asked]),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules_module, "CELLS", cells)
        found_BN = signal.score(Reading(queries), Pool(ENTITIES))
    assert found_BN.dtype == np.float32
    expected_BN = torch.stack([walked(rules, triples, s, x, discount) for x, s in asked])
    torch.testing.assert_close(torch.from_numpy(found_BN), expected_BN, atol=1e-6, rtol=1e-5)


def read(graph: KnowledgeGraph, tmp_path: Path, *lines: str, **more: str) -> Rules:
    """The signal of rules of a file."""
    file = tmp_path / "rules.txt"
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return Rules.fit(graph, RuleSettings.model_validate({"file": str(file), **more}))


TOWNS = graph_of("lyon in rhone\nrhone in france\nlyon near vienne\nvienne in france\npau near vienne")


def evidence_of(
    signal: Rules, entity: str, relation: str, target: str, graph: KnowledgeGraph = TOWNS
) -> dict[str, float]:
    query = Query(
        graph.entities.index[entity], graph.relations.index[relation], "tail" if target == "tail" else "head"
    )
    (scores,) = signal.score(Reading(Queries.of([query])), Pool(len(graph.entities))).tolist()
    evidence = [(x / SCALE) ** 2 for x in scores]
    return dict(zip(graph.entities.column("label"), evidence, strict=True))


def test_the_next_rule_breaks_the_ties_of_the_best(tmp_path: Path) -> None:
    lines = (
        "20\t10\t.5\tin(X,Y) <= near(X,A), in(A,Y)",
        "20\t10\t.5\tin(X,vienne) <= near(X,A)",
        "30\t5\t.2\tin(X,france) <= near(X,vienne)",
    )
    evidence = evidence_of(read(TOWNS, tmp_path, *lines), "pau", "in", "tail")
    first, second = -np.log(1 - 10 / 22), -np.log(1 - 5 / 32)
    assert evidence["vienne"] == pytest.approx(first, abs=FREQUENCY)
    assert evidence["france"] - evidence["vienne"] == pytest.approx(DISCOUNT * second, abs=FREQUENCY)
    assert evidence["rhone"] < FREQUENCY


def test_on_an_unseen_graph_rules_hold_for_its_own_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tmp_path: Path
) -> None:
    signal = read(
        toy, tmp_path,
        "30\t20\t.7\tlocated_in(X,Y) <= located_in(X,A), located_in(A,Y)",
        "30\t20\t.7\tlocated_in(X,usa) <= located_in(X,new)",
    )  # fmt: skip
    ranker = make_ranker().with_signal(signal)
    train = np.array([[0, 1, 1], [1, 1, 2]])
    unseen = KnowledgeGraph(
        "unseen",
        EntityTable(["lyon", "rhone", "france"]),
        RelationTable(["other", "located_in"]),
        {"train": train},
        {},
    )
    over = ranker.for_graph(unseen.context).signals["rules"]
    assert isinstance(over, Rules)
    result = evidence_of(over, "lyon", "located_in", "tail", unseen)
    assert result["france"] > 0
    assert result["rhone"] < FREQUENCY
    assert len(over.applied.rules.constants) == 0


def test_no_rules_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no rules were found in"):
        read(TOWNS, tmp_path, "9\t8\t.9\tat(X,Y) <= in(X,Y)")
    with pytest.raises(DataError, match="cannot be read"):
        Rules.fit(TOWNS, RuleSettings(file=str(tmp_path / "none.txt")))


def test_what_is_damaged_or_of_another_graph_is_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    signal = Rules.fit(toy, RuleSettings())
    signal.save(file := tmp_path / "rules.safetensors")
    with pytest.raises(RunError, match="of another graph"):
        Rules.open(file, TOWNS)
    tensors = load_file(file)
    for name, value in (("constant.answer", 10**6), ("path.body", -2)):
        save_file({**tensors, name: torch.full_like(tensors[name], value)}, file)
        with pytest.raises(RunError, match="does not have"):
            Rules.open(file, toy)


def test_candidates_of_a_query_alone_score_as_among_all(toy: KnowledgeGraph) -> None:
    signal = Rules.fit(toy, RuleSettings())
    queries, answers = toy.queries("train")
    ids = np.random.default_rng(0).integers(-1, len(toy.entities), (len(queries), 9))
    ids[::2, 0] = answers[::2]  # of some queries the answer is a candidate
    whole, own = Pool(len(toy.entities)), Pool(len(toy.entities), ids)
    among, alone = (signal.score(Reading(queries), pool) for pool in (whole, own))
    expected = np.take_along_axis(among, own.filled, 1)
    np.testing.assert_array_equal(alone[own.there], expected[own.there])


def test_mined_rules_written_as_a_file_score_the_same(toy: KnowledgeGraph, tmp_path: Path) -> None:
    signal = Rules.fit(toy, RuleSettings())
    lines = RuleFile(toy.entities, toy.relations).lines(signal.applied.rules)
    again = read(toy, tmp_path, *(line.rstrip("\n") for line in lines))
    queries, _ = toy.queries("test")
    before, after = (s.score(Reading(queries), Pool(len(toy.entities))) for s in (signal, again))
    torch.testing.assert_close(after, before)


def test_rules_find_what_they_predict(toy: KnowledgeGraph) -> None:
    """Most training triples of the toy graph follow from others."""
    queries, answers = both_sides(toy.splits["train"])
    scores_BN = Rules.fit(toy, RuleSettings()).score(Reading(queries), Pool(len(toy.entities)))
    own_B = scores_BN[np.arange(len(answers)), answers]
    assert (own_B > np.median(scores_BN, 1)).mean() > 0.5


def test_a_run_explains_by_rules(toy_run: Path, tmp_path: Path) -> None:
    run = str(shutil.copytree(toy_run, tmp_path / "run"))
    done = CliRunner().invoke(app, ["tune", run, "--add", "rules", "--set", "rules.length=2", "--json", "-q"])
    assert done.exit_code == 0, done.output
    assert {"mrr", "mrr_text", "mrr_rules"} <= json.loads(done.stdout)["rules"].keys()
    assert open_folder(run).record["signals"]["rules"]["settings"]["length"] == 2
    opened = kgmlm.open_run(run, scores="rules")
    head, relation, _ = opened.graph.labeled(opened.graph.splits["train"])[0]
    table = opened.explain(head=head, relation=relation, k=3)
    assert {"rules", "because"} <= set(table.columns)
    assert any(" of " in sentence for because in table["because"] for sentence in because)
    asked = ["rank", run, "--head", head, "--relation", relation, "--explain", "--scores", "rules", "-k", "3"]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    assert '"because"' in done.stdout
    done = CliRunner().invoke(app, asked)
    assert "because" in done.stdout


def test_rules_of_a_run_are_shown_and_written(toy_run: Path, tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    refused(cli("rules", run), "has no rules; `kgmlm tune", "--add rules` mines some")
    kgmlm.tune(run, add="rules", progress=False)
    table = kgmlm.open_run(run).rules()
    assert table["confidence"].tolist() == (table["correct"] / table["predicted"]).tolist()
    shown = cli("rules", run, "-k", "3", "--json")
    assert [row["rule"] for row in json.loads(shown.stdout)] == table["rule"].head(3).tolist()
    assert "the 3 most confident of" in cli("rules", run, "-k", "3").stdout
    capitals = kgmlm.open_run(run).rules("has the capital")
    assert 0 < len(capitals) < len(table)
    assert capitals["rule"].str.startswith("capital(").all()
    assert cli("rules", run, "--output", tmp_path / "rules.tsv").returncode == 0
    graph = kgmlm.open_run(run).graph
    again, skipped = RuleFile(graph.entities, graph.relations).read(tmp_path / "rules.tsv")
    assert (sum(map(len, again)), skipped) == (len(table), 0)
    refused(cli("rules", run, "--relation", "owns"), "owns")
