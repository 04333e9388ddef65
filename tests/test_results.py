"""The committed results: complete, and the pages that show them up to date."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = sorted((ROOT / "eval" / "results").glob("*.json"))


def test_there_are_results() -> None:
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_a_result_says_where_it_comes_from(path: Path) -> None:
    report = json.loads(path.read_text("utf-8"))
    assert report["dataset"]
    kind = "expected" if report["protocol"]["negatives_by"] == "expectation" else "realistic"
    assert report["metrics"][f"both.{kind}.count"] == 2 * report["triples"]
    assert report["run"]["minutes"] > 0
    assert report["run"]["settings"]["training"]
    assert report["run"]["command"].startswith("kgmlm train")
    assert report["command"].startswith("kgmlm evaluate")
    assert report["hardware"]["threads"] > 0
    added = [report[part] for part in ("structure", "rescoring") if report.get(part)]
    commands = [made[key] for made in added for key in ("command", "chosen_by") if key in made]
    for command in (report["command"], report["run"]["command"], *commands):
        assert not any(word.startswith("/") for word in command.split()), "a path of one machine"


def script(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_rules_are_evaluated(tmp_path: Path) -> None:
    script("eval/baselines.py", "toy", "--output", tmp_path / "rules.json")
    report = json.loads((tmp_path / "rules.json").read_text("utf-8"))
    mrr = {r["rule"]: r["metrics"]["both.realistic.inverse_harmonic_mean_rank"] for r in report["rows"]}
    assert list(mrr) == ["constant", "frequency", "mirror", "mirror, then frequency"]
    assert mrr["frequency"] > mrr["constant"] > 0
    assert report["command"].startswith("python eval/baselines.py toy")


@pytest.mark.slow
def test_retrieval_is_measured_and_drawn(toy_vector_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "retrieval.json"
    script("eval/benchmarks/retrieval.py", toy_vector_run, "--sizes", 400, "--output", output)
    rows = {row["way"]: row for row in json.loads(output.read_text("utf-8"))["rows"]}
    assert {"exact likelihood", "likelihood index", "exact entity", "FAISS flat", "entity index"} == set(rows)
    assert {row["entities"] for row in rows.values()} == {400}
    assert all(rows[way]["recall_at_100"] == 1 for way in ("likelihood index", "entity index"))
    assert all(row["p50_ms"] > 0 for row in rows.values())
    assert (tmp_path / "retrieval.svg").read_text("utf-8").count("entity index")


@pytest.mark.slow
def test_curves_are_read_joined_and_drawn(toy_run: Path, toy_vector_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "curves.json"
    script("eval/curves.py", f"names={toy_run}", "--output", output)
    script("eval/curves.py", f"vectors={toy_vector_run}", "--output", output)
    curves = json.loads(output.read_text("utf-8"))
    assert {name: len(curve["points"]) for name, curve in curves.items()} == {"names": 2, "vectors": 2}
    rows = [json.loads(x) for x in (toy_run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [mrr for _, mrr in curves["names"]["points"]] == [r["valid_mrr"] for r in rows if "valid_mrr" in r]
    assert "vectors" in (tmp_path / "curves.svg").read_text("utf-8")


def test_the_tables_show_the_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "eval" / "tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
