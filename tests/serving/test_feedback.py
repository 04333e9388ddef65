"""Accepted and rejected triples: added line by line, read whatever was cut off, written as triples."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import DataError, RunError
from kgmlm.core.tables import read_triples
from kgmlm.graphs.datasets import read_labeled
from kgmlm.runs import feedback
from kgmlm.runs.feedback import Judgment


def said(tail: str, label: int | None, head: str = "virus") -> Judgment:
    return Judgment.model_validate({"head": head, "relation": "causes", "tail": tail, "label": label})


def test_the_last_word_counts(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"
    assert feedback.read_judgments(file) == ([], 0)
    for one in (
        said("flu", 1),
        said("rain", 1),
        said("rain", 0),
        said("flu", None),
        said("a\nb 🦠", 1),
    ):
        feedback.add_judgments(file, one)
    result = feedback.read_judgments(file)
    assert [j.tail for j in result.judgments] == ["flu", "rain", "rain", "flu", "a\nb 🦠"]
    assert {j.tail: j.label for j in result.counting()} == {"rain": 0, "a\nb 🦠": 1}
    assert {j.tail: j.label for j in result.latest().values()} == {"flu": None, "rain": 0, "a\nb 🦠": 1}
    assert all(j.time.endswith("+00:00") for j in result.judgments)


def test_odd_labels_are_written_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    for tail, label in (("a\tb", 1), ("c", 0)):
        feedback.add_judgments(tmp_path / feedback.FEEDBACK_FILE, said(tail, label))
    with pytest.raises(DataError, match="which a TSV file cannot hold"):
        kgmlm.feedback(tmp_path, tmp_path / "said.tsv")
    output = tmp_path / "said.parquet"
    assert kgmlm.feedback(tmp_path, output)["accepted"] == 1
    table, true = read_labeled(output)
    assert table.columns.column("tail").to_pylist() == ["a\tb", "c"]
    assert true is not None
    assert true.tolist() == [True, False]


@pytest.mark.parametrize(
    "rest", [b'{"head": "vi', b"\xff\xfe", b'{"head": "x"}', b"[1]", b'{"label": 7}\n\n']
)
def test_what_was_cut_off_spoils_nothing(tmp_path: Path, rest: bytes) -> None:
    file = tmp_path / "feedback.jsonl"
    feedback.add_judgments(file, said("flu", 1))
    with open(file, "ab") as cut:
        cut.write(rest)
    feedback.add_judgments(file, said("rain", 0))
    result = feedback.read_judgments(file)
    assert [j.tail for j in result.judgments] == ["flu", "rain"]
    assert result.damaged == 1


def test_many_may_write_at_once(tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"

    def write(n: int) -> None:
        for i in range(5):
            feedback.add_judgments(file, said(f"{n} {i} " + "x" * 5000, 1))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = feedback.read_judgments(file)
    assert (len(result.judgments), result.damaged) == (20, 0)


def test_what_cannot_be_written_or_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        feedback.add_judgments(tmp_path / "folder", said("flu", 1))
    with pytest.raises(RunError, match="cannot be read"):
        feedback.read_judgments(tmp_path / "folder")


def test_judgments_become_triples_with_labels(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "triples.tsv"
    run.mkdir()
    (run / "run.json").write_bytes((toy_run / "run.json").read_bytes())
    refused(cli("feedback", run, "--output", output), "has no judgments")
    for tail, label in (("paris", 1), ("rome", 0), ("berlin", 1), ("berlin", None)):
        one = {"head": "france", "relation": "capital", "tail": tail, "label": label}
        feedback.add_judgments(run / feedback.FEEDBACK_FILE, Judgment.model_validate(one))
    done = cli("feedback", run, "--output", output, "--json")
    assert json.loads(done.stdout)["accepted"] == 1
    assert output.read_text() == "france\tcapital\tparis\t1\nfrance\tcapital\trome\t0\n"
    assert len(read_triples(output, labeled=True).columns) == 2
    (run / feedback.FEEDBACK_FILE).write_text((run / feedback.FEEDBACK_FILE).read_text() + "{")
    assert "1 line of" in cli("feedback", run, "--output", output).stderr
    assert kgmlm.feedback(run, output)["damaged"] == 1
    refused(cli("feedback", tmp_path, "--output", output), "is not a run folder")
