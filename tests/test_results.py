"""The committed results: complete, and the pages that show them up to date."""

import json
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
    for command in (report["command"], report["run"]["command"]):
        assert not any(word.startswith("/") for word in command.split()), "a path of one machine"


def test_the_tables_show_the_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "eval" / "tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
