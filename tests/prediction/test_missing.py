"""What an entity lacks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import ConfigError, QueryError
from kgmlm.graphs.queries import FilterIndex


@pytest.fixture(scope="module")
def run(calibrated_run: Path) -> Path:
    return calibrated_run


def test_the_facts_are_about_the_entity_new_and_the_most_probable_first(run: Path) -> None:
    opened = kgmlm.open_run(run, device="cpu")
    facts = opened.missing("France", k=7)
    assert len(facts) == 7
    rows, graph = facts.as_json(), opened.graph
    triples = facts.listed.triples
    assert all("france" in (row["head"], row["tail"]) for row in rows)
    known = FilterIndex(graph.all_triples, len(graph.entities))
    assert not known.has(triples).any()
    assert len({row["relation"] for row in rows}) > 1, "of all relations"
    probabilities = [row["probability"] for row in rows]
    assert probabilities == sorted(probabilities, reverse=True)
    given = kgmlm.classify(opened, [(r["head"], r["relation"], r["tail"]) for r in rows], progress=False)
    assert given.probabilities == pytest.approx(np.array(probabilities), abs=1e-5)
    frame = facts.to_frame()
    assert list(frame)[:4] == ["head_name", "relation_name", "tail_name", "probability"]
    assert "France" in repr(facts)
    assert "expect 20 among" in facts.stands_for


def test_several_entities_and_new_ones_may_be_asked_about(run: Path) -> None:
    opened = kgmlm.open_run(run, device="cpu")
    both = opened.missing(["France", "germany"], k=40).as_json()
    assert {end for row in both for end in (row["head"], row["tail"])} >= {"france", "germany"}
    new = pd.DataFrame([("atlantis", "Atlantis", "an island")], columns=["label", "name", "description"])
    wider = opened.with_entities(new, [("atlantis", "located_in", "Europe")])
    rows = kgmlm.missing(wider, "Atlantis").as_json()
    assert all("atlantis" in (row["head"], row["tail"]) for row in rows)
    assert ("atlantis", "located_in", "europe") not in {(r["head"], r["relation"], r["tail"]) for r in rows}


def test_without_probabilities_the_clearest_come_first(toy_run: Path) -> None:
    facts = kgmlm.missing(toy_run, "France", k=3)
    assert len(facts) == 3
    assert [row["probability"] for row in facts.as_json()] == [None] * 3
    assert facts.stands_for == ""


def test_unknown_entities_and_numbers_are_refused(run: Path) -> None:
    with pytest.raises(QueryError, match="Atlantis"):
        kgmlm.missing(run, "Atlantis")
    with pytest.raises(ConfigError, match="k is"):
        kgmlm.missing(run, "France", k=0)


def test_the_command(cli: Cli, run: Path, tmp_path: Path) -> None:
    done = cli("complete", run, "--entity", "France", "-k", "4", "-q")
    assert done.returncode == 0, done.stderr
    assert "the 4 most probable" in done.stdout
    assert "expect 20 among" in done.stderr
    rows = json.loads(cli("complete", run, "--entity", "France", "--entity", "Spain", "--json").stdout)
    assert len(rows) == 10
    new = tmp_path / "new.tsv"
    new.write_text("label\tname\natl\tAtlantis\n")
    asked = ("complete", run, "--entity", "Atlantis", "--entities", new, "--json")
    assert all("atl" in (row["head"], row["tail"]) for row in json.loads(cli(*asked).stdout))
    refused(cli("complete", run), "--output names the file", "--entity")
    refused(cli("complete", run, "--entity", "France", "--output", tmp_path / "x.csv"), "--entity goes with")
    refused(cli("complete", run, "--entity", "France", "--report", "test"), "--entity goes with")
    refused(cli("complete", run, "--output", tmp_path / "x.csv", "--entities", new), "go with --entity")
    refused(cli("complete", run, "--entity", "Atlantis"), "Atlantis")
