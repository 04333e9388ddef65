"""The best candidates of many queries, by workers as by one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Cli, refused
from raying import sent_here

import kgmlm
from kgmlm.core import workers
from kgmlm.core.errors import RunError
from kgmlm.core.progress import Watcher
from kgmlm.graphs.entities import EntityTable
from kgmlm.runs.run import Predicting

NEW = EntityTable(["atl"], ["Atlantis"], ["a lost island"])


@pytest.mark.long
def test_workers_rank_many_queries(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    asked = tmp_path / "asked.tsv"
    rows = ["france\tcapital\t", "\tcapital\tparis", "rome\tlocated_in\t", "Atlantis\tcapital\t"] * 5
    asked.write_text("head\trelation\ttail\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.tsv").write_text("label\tname\natl\tAtlantis\n")
    command = ("rank", toy_run, "--queries", asked, "--entities", tmp_path / "new.tsv", "--json", "--explain",
               "-k", "3", "--batch-size", "4", "-q")  # fmt: skip
    alone, done = cli(*command), cli(*command, "--ray", "local", "--workers", "2")
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    assert len(done.stdout.splitlines()) == 3 * 20
    assert done.stdout == alone.stdout
    one = ("rank", toy_run, "--head", "france", "--relation", "capital")
    refused(cli(*one, "--ray", "local"), "goes with --queries")


def test_a_table_of_many_queries_is_the_same_by_workers(
    toy_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "made_on_ray", sent_here)
    monkeypatch.setattr(workers, "find_spec", lambda name: object())
    run = kgmlm.open_run(toy_run, device="cpu").with_entities(NEW, [("Atlantis", "capital", "rome")])
    asked = [("atl", "capital", None), (None, "capital", "paris")]
    for table in (run.rank, run.explain):
        assert table(asked, k=4, ray="local", workers=2).equals(table(asked, k=4))


def test_a_worker_that_sees_other_weights_is_refused(toy_run: Path) -> None:
    way = kgmlm.open_run(toy_run, device="cpu").options
    with pytest.raises(RunError, match=r"has other weights on .*; workers need the run at the same path"):
        Predicting(toy_run, way, None, "others", [], 64, 64, {}).begin(Watcher())
