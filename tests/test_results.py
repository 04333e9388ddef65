"""The committed results: complete, reproducible, and the pages that show them up to date."""

import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.config import load_settings
from kgmlm.evaluation.metrics import read_ranks

ROOT = Path(__file__).parent.parent
EVAL = ROOT / "eval"
LINES = {
    line["id"]: line for line in map(json.loads, (EVAL / "results.jsonl").read_text("utf-8").splitlines())
}
RUNS = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted((EVAL / "runs").glob("*.toml"))}
RANKS = sorted((EVAL / "ranks").glob("*.parquet"))


def script(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"": run, **run.get("added", {})}


def commands(run: dict[str, Any]) -> list[str]:
    return [c for part in parts(run).values() for c in (*part["commands"], *part.get("today", []))]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_has_its_run_and_adds_up(line: dict[str, Any]) -> None:
    run = RUNS[line["run"]]
    assert set(line["after"]) <= set(run.get("added", {}))
    assert line["id"].rpartition("-")[0] == line["dataset"]
    assert line["command"].startswith("kgmlm evaluate")
    # With KGE in the same command.
    presets = any("--preset" in command or "--minutes" in command for command in run["commands"])
    assert ("kge" in line["scores"]) <= (presets or any("kge" in x or "reranker" in x for x in line["after"]))
    metrics = line["metrics"]
    assert 0 < metrics["hits_at_1"] <= metrics["hits_at_3"] <= metrics["hits_at_10"] <= 1
    if line["candidates"].get("negatives", {}).get("by") != "expectation":
        assert metrics["hits_at_1"] < metrics["mrr"] < 1 <= metrics["mr"]
        assert metrics["mrr"] == pytest.approx((metrics["mrr_head"] + metrics["mrr_tail"]) / 2, abs=2e-6)
        assert metrics["mrr_pessimistic"] <= metrics["mrr"] <= metrics["mrr_optimistic"]
    unseen = line.get("unseen")
    if isinstance(unseen, dict):
        shares = [unseen[k] for k in ("seen", "any") if k in unseen]
        assert sum(part["count"] for part in shares) == line["count"]
        if "mrr" in metrics:
            mean = sum(part["count"] * part["mrr"] for part in shares) / line["count"]
            assert mean == pytest.approx(metrics["mrr"], abs=2e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_its_parents_and_commands(name: str) -> None:
    run = RUNS[name]
    assert run["id"] == name
    assert run["about"]
    assert run["minutes"] > 0
    assert any(c.startswith("kgmlm train") for c in run["commands"])
    for part in parts(run).values():
        for needed in filter(None, [part.get("parent"), *part.get("needs", [])]):
            other, _, addition = needed.partition(".")
            assert addition in parts(RUNS[other])


def test_no_record_has_a_path_of_one_machine() -> None:
    for command in [
        *(line["command"] for line in LINES.values()),
        *(c for r in RUNS.values() for c in commands(r)),
    ]:
        assert not any(word.startswith(("/", "~")) for word in shlex.split(command)), command


def test_every_run_is_evaluated_or_a_parent() -> None:
    known = {line["run"] for line in LINES.values()} | {run["parent"] for run in RUNS.values()}
    assert known - {""} == set(RUNS)


@pytest.mark.parametrize("path", RANKS, ids=lambda p: p.stem)
def test_ranks_give_the_figures_of_their_line(path: Path) -> None:
    ranks, line = read_ranks(path), LINES[path.stem]
    realistic = (ranks["optimistic"] + ranks["pessimistic"]) / 2
    assert len(ranks) == line["count"]
    assert (1 / realistic).mean() == pytest.approx(line["metrics"]["mrr"], abs=1e-6)
    assert (realistic <= 10).mean() == pytest.approx(line["metrics"]["hits_at_10"], abs=1e-6)
    for side in ("head", "tail"):
        mrr = (1 / realistic[ranks["target"] == side]).mean()
        assert mrr == pytest.approx(line["metrics"][f"mrr_{side}"], abs=1e-6)


def test_ranks_are_small() -> None:
    assert RANKS
    assert sum(path.stat().st_size for path in RANKS) < 20e6


def parse(command: str) -> None:
    """Have today's command line read a command, without running it; its settings, too."""
    words = shlex.split(command)[1:]
    result: Any = typer.main.get_command(app)
    while hasattr(result, "commands"):
        result = result.commands[words.pop(0)]
    given = result.make_context("kgmlm", words).params
    load_settings(ROOT / given["config"] if given.get("config") else None, given.get("set_") or [])


@pytest.mark.slow
def test_every_evaluation_has_a_chain_of_todays_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EVAL))
    reproduce: Any = importlib.import_module("reproduce")
    for kept in ("runs", "evaluations"):  # read once, not for each evaluation
        monkeypatch.setattr(reproduce.store, kept, cache(getattr(reproduce.store, kept)))
    known = set()
    for name in LINES:
        shown = [c for c in reproduce.chain(name) if not c.startswith("#")]
        assert any(c.startswith("kgmlm train") for c in shown)
        assert shown[-1].startswith(("kgmlm evaluate runs/", "kgmlm evaluate models/"))
        assert f"runs/{name}.json" in shown[-1] or "--output" not in LINES[name]["command"]
        known |= {c for c in shown if c.startswith("kgmlm") and not reproduce.deleted(c)}
    for command in known:
        parse(command)


def test_reproduce_begins_with_the_parents() -> None:
    shown = script("eval/reproduce.py", "wn18rr-16", "--recorded").splitlines()
    order = [
        line.removeprefix("# ") for line in shown if line.startswith("# ") and not line.startswith("# -")
    ]
    assert order[:2] == ["wn18rr", "wn18rr-more"]
    assert order.index("wn18rr.kge") < order.index("wn18rr-more.kge") < order.index("wn18rr-taught")
    assert order[-2:] == ["wn18rr-taught.reranker", "wn18rr-16"]
    assert shown[-1] == LINES["wn18rr-16"]["command"]


def test_reproduce_runs_the_chain(tmp_path: Path) -> None:
    (tmp_path / "eval").symlink_to(EVAL)
    program = tmp_path / "kgmlm"
    program.write_text('#!/bin/sh\necho "$@" >> ran\n', "utf-8")
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, EVAL / "reproduce.py", "umls-05", "--run"],
        cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, capture_output=True,
    )  # fmt: skip
    ran = (tmp_path / "ran").read_text("utf-8").splitlines()
    assert [line.split()[0] for line in ran] == ["train", "evaluate"]


def test_a_report_is_added(toy_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "eval"
    copy.mkdir()
    for name in ("add.py", "store.py", "results.jsonl"):
        shutil.copy(EVAL / name, copy)
    shutil.copytree(EVAL / "runs", copy / "runs")
    report, ranks = tmp_path / "report.json", tmp_path / "ranks.parquet"
    kgmlm.evaluate(toy_run, output=report, ranks=ranks, progress=False)
    parsed = json.loads(report.read_text("utf-8"))
    parsed["command"], parsed["run"]["command"] = "kgmlm evaluate runs/toy", "kgmlm train --dataset toy"
    report.write_text(json.dumps(parsed), "utf-8")
    script(copy / "add.py", report, ranks, "--id", "toy-01", "--run", "toy")
    line = json.loads((copy / "results.jsonl").read_text("utf-8").splitlines()[-1])
    assert (line["id"], line["run"], line["count"]) == ("toy-01", "toy", 2 * parsed["triples"])
    assert line["metrics"]["mrr"] == round(parsed["metrics"]["mrr"], 6)
    assert read_ranks(copy / "ranks" / "toy-01.parquet").equals(read_ranks(ranks))
    run = tomllib.loads((copy / "runs" / "toy.toml").read_text("utf-8"))
    assert run["commands"] == ["kgmlm train --dataset toy"]
    parsed["command"] = "kgmlm evaluate /home/me/toy"
    report.write_text(json.dumps(parsed), "utf-8")
    with pytest.raises(AssertionError, match="a path of one machine"):
        script(copy / "add.py", report, ranks, "--id", "toy-02", "--run", "toy")


@pytest.mark.long
def test_the_rules_are_evaluated(tmp_path: Path) -> None:
    script("eval/baselines.py", "toy", "--output", tmp_path / "rules.json")
    report = json.loads((tmp_path / "rules.json").read_text("utf-8"))
    mrr = {r["rule"]: r["metrics"]["both.realistic.inverse_harmonic_mean_rank"] for r in report["rows"]}
    assert list(mrr) == ["constant", "frequency", "mirror", "mirror, then frequency"]
    assert mrr["frequency"] > mrr["constant"] > 0
    assert report["command"].startswith("python eval/baselines.py toy")


@pytest.mark.long
def test_retrieval_is_measured_and_drawn(toy_vector_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "retrieval.json"
    script("eval/benchmarks/retrieval.py", toy_vector_run, "--sizes", 400, "--output", output)
    rows = {row["way"]: row for row in json.loads(output.read_text("utf-8"))["rows"]}
    assert {"exact likelihood", "exact entity", "FAISS flat", "entity index"} == set(rows)
    assert {row["entities"] for row in rows.values()} == {400}
    assert rows["entity index"]["recall_at_100"] == 1
    assert all(row["p50_ms"] > 0 for row in rows.values())
    assert (tmp_path / "retrieval.svg").read_text("utf-8").count("entity index")


@pytest.mark.long
def test_curves_are_read_joined_and_drawn(toy_run: Path, toy_vector_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "curves.json"
    script("eval/curves.py", f"names={toy_run}", "--output", output)
    script("eval/curves.py", f"vectors={toy_vector_run}", "--output", output)
    curves = json.loads(output.read_text("utf-8"))
    assert {name: len(curve["points"]) for name, curve in curves.items()} == {"names": 2, "vectors": 2}
    rows = [json.loads(x) for x in (toy_run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [mrr for _, mrr in curves["names"]["points"]] == [r["valid_mrr"] for r in rows if "valid_mrr" in r]
    assert "vectors" in (tmp_path / "curves.svg").read_text("utf-8")


def test_half_links_make_up_the_whole() -> None:
    rows = json.loads((EVAL / "half_links.json").read_text("utf-8"))["rows"]
    for record in {row["record"] for row in rows}:
        parts = [row for row in rows if row["record"] == record]
        ranks, line = sum(row["ranks"] for row in parts), LINES[record]
        assert ranks == line["count"]
        for key in ("mrr", "hits_at_1", "hits_at_10"):
            mean = sum(row["ranks"] * row[key] for row in parts) / ranks
            assert mean == pytest.approx(line["metrics"][key], abs=1e-4)


def test_the_tables_show_the_results() -> None:
    script("eval/tables.py", "--check")
