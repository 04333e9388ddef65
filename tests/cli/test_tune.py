"""`kgmlm tune`: weights chosen on validation, and signals that are trained beside a run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.core.errors import RunError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.runs.opened import open_folder, untuned_ranker
from kgmlm.runs.tuned import MIXTURE
from kgmlm.runs.writing import save_model, save_signal
from kgmlm.signals.kge import KGE

SMALL = ("--set", "kge.dimension=8", "--set", "kge.batch_size=16")


def test_a_kge_model_is_added_weighed_lent_and_dropped(
    cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(cli("evaluate", run, "--scores", "kge"), "no KGE model", "kgmlm tune RUN --add kge")
    refused(cli("tune", run, "--add", "kge", "--from", toy_run), "no signal 'kge'", "--add kge")
    refused(cli("tune", run, "--add", "paths"), "no signal 'paths' to add", "kge, rules")
    refused(cli("tune", run, "--set", "kge.dimension=8"), "say how to --add")
    done = cli("tune", run, "--add", "kge", *SMALL, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    assert list(valid) == ["text", "kge"]
    refused(cli("tune", run, "--add", "kge", *SMALL), "has a signal 'kge' already", "--overwrite")
    more = ("--add", "kge", "--overwrite", "--set", "vector.enabled=true")
    refused(cli("tune", run, *more), "not vector.enabled")
    opened = open_folder(run)
    how = opened.record["signals"]["kge"]
    assert how["settings"]["dimension"] == 8
    assert "kgmlm tune" in how["command"]
    assert opened.tuned.by["valid"] == valid
    assert set(opened.tuned.of) == {"likelihood", "vector", "kge"}
    reports = {}
    for scores in ("all", "text", "kge"):
        done = cli("evaluate", run, "--split", "valid", "--scores", scores, "--json", "-q")
        assert done.returncode == 0, done.stderr
        reports[scores] = json.loads(done.stdout)
    assert reports["kge"]["metrics"]["mrr"] == pytest.approx(valid["kge"]["mrr_kge"])
    tuned = untuned_ranker(opened).replace(mixture=opened.tuned.mixture)
    for scores in ("all", "text"):
        by_weights = evaluate(tuned.by(scores), opened.graph, Protocol(split="valid")).report
        assert reports[scores]["metrics"]["mrr"] == pytest.approx(by_weights["metrics"]["mrr"], abs=1e-6)
    assert reports["text"]["signals"] == {}
    assert reports["all"]["signals"]["kge"] == how
    assert reports["all"]["chosen_by"]["valid"] == valid
    base = ("rank", run, "--relation", "capital", "--head", "france", "--json", "-k", "3")
    (row, *_) = [json.loads(x) for x in cli(*base, "--explain").stdout.splitlines()]
    assert {"vector", "kge"} <= row["parts"].keys()
    explained = cli(*base[:-3], "--explain", COLUMNS="80").stdout.splitlines()
    assert explained[1].split()[:3] == ["rank", "name", "score"]
    assert "kge" in explained[1]
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    done = cli("tune", other, "--add", "kge", "--from", run)
    assert "kge: validation MRR" in done.stdout, done.stderr
    assert open_folder(other).record["signals"]["kge"] == how
    (other / KGE.file).write_bytes(b"")
    refused(cli("rank", other, *base[2:]), KGE.file, "has 0 bytes instead of", "--add kge --overwrite")
    assert cli("tune", other, "--drop", "kge").returncode == 0
    assert not (other / KGE.file).exists()
    assert cli("rank", other, *base[2:]).returncode == 0
    refused(cli("tune", other, "--drop", "kge"), "no signal 'kge'")
    refused(cli("tune", other, "--drop", "likelihood"), "no 'likelihood' beside its model")


def test_several_signals_are_added_and_dropped_at_once(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    several = ("--add", "kge", "--add", "types")
    refused(cli("tune", run, *several, "--set", "rules.length=2"), "--add kge", "not rules.length")
    assert not (run / KGE.file).exists()
    done = cli("tune", run, *several, "--set", "kge.dimension=8", "--set", "types.relation=", "--json", "-q")
    assert list(json.loads(done.stdout)) == ["text", "kge", "types"], done.stderr
    made = open_folder(run).record["signals"]
    assert made["kge"]["settings"]["dimension"] == 8
    assert made["types"]["settings"] == {"relation": ""}
    refused(cli("tune", run, "--drop", "kge", "--drop", "rules"), "no signal 'rules'")
    assert set(open_folder(run).record["signals"]) == {"kge", "types"}, "nothing is dropped unless all can be"
    again = ("--drop", "types", "--drop", "kge", "--add", "types", "--overwrite")
    assert cli("tune", run, *again, "-q").returncode == 0
    made = open_folder(run).record["signals"]
    assert set(made) == {"types"}


def test_weights_are_chosen_again_on_all_of_validation(
    cli: Cli, toy_vector_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    valid = kgmlm.tune(run, progress=False)["text"]
    assert {"mrr", "mrr_one_weight", "mrr_likelihood", "mrr_vector", "hits_at_1"} <= valid.keys()
    after = kgmlm.evaluate(run, split="valid", progress=False)
    assert after.values["chosen_by"]["valid"]["text"] == valid
    opened = open_folder(run)
    tuned = untuned_ranker(opened).replace(mixture=opened.tuned.mixture)
    by_weights = evaluate(tuned, opened.graph, Protocol(split="valid")).report
    assert after.metrics["mrr"] == pytest.approx(by_weights["metrics"]["mrr"], abs=1e-6), "by what was chosen"
    assert kgmlm.evaluate(run, scores="likelihood", progress=False).values["chosen_by"] is None
    done = cli("tune", run, "--max-triples", "3")
    assert "text: validation MRR" in done.stdout
    assert "one weight for all" in " ".join(done.stdout.split())
    kept = (run / MIXTURE).read_bytes()
    (run / "graph" / "triples.arrow").write_bytes(b"")
    with pytest.raises(RunError, match=r"triples\.arrow has 0 bytes instead of"):
        kgmlm.tune(run, progress=False)
    assert (run / MIXTURE).read_bytes() == kept


def test_weights_are_refused_for_signals_that_they_were_not_chosen_for(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    opened = open_folder(run)
    opened = save_signal(opened, KGE.fit(opened.graph, opened.settings.kge.model_copy(update={"epochs": 1})))

    def rank(run: Path, **options: Any) -> None:
        assert len(kgmlm.open_run(run, **options).rank(relation="capital", head="france", k=1)) == 1

    stale = f"not chosen for the kge .*kgmlm tune {re.escape(str(run))}`"
    with pytest.raises(RunError, match=stale):
        rank(run)
    for scores in ("text", "likelihood", "kge"):
        rank(run, scores=scores)  # what needs no other weights works
    kgmlm.tune(run, progress=False)
    rank(run)
    opened = open_folder(run)
    opened = save_model(opened, untuned_ranker(opened, "cpu"))  # as if it were trained further
    with pytest.raises(RunError, match=stale):
        rank(run)
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    shutil.copy(run / MIXTURE, other / MIXTURE)
    (other / "model" / "kgmlm.json").unlink()
    with pytest.raises(RunError, match=r"kgmlm\.json is missing"):
        rank(other)


def test_rules_are_written_where_a_link_points(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    assert cli("tune", run, "--add", "rules", "-q").returncode == 0
    (tmp_path / "link.tsv").symlink_to("rules.tsv")
    refused(cli("rules", run, "--output", tmp_path), "is a folder")
    assert cli("rules", run, "--output", tmp_path / "link.tsv").returncode == 0
    assert (tmp_path / "link.tsv").is_symlink()
    rows = [line.split("\t") for line in (tmp_path / "rules.tsv").read_text("utf-8").splitlines()]
    shown = json.loads(cli("rules", run, "--json", "-k", 3).stdout)
    assert [row[3] for row in rows[:3]] == [rule["rule"] for rule in shown]
