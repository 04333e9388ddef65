"""Evaluations and many queries by workers: the same as by one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from raying import EVALUATED, report_of, sent_here
from test_scope import elsewhere

import kgmlm
from kgmlm.core import workers
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.core.progress import Watcher
from kgmlm.core.workers import Make, Tick, Workers
from kgmlm.evaluation.evaluate import EvaluationWork
from kgmlm.evaluation.evaluator import Found
from kgmlm.graphs.datasets import write_folder
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.options import RankingOptions

MARK = "KGMLM_TEST_MARK"  # a file that is there when a worker has ended
NEW = EntityTable(["atl"], ["Atlantis"], ["a lost island"])


class Ending(EvaluationWork):
    """Its second piece ends the process, on the first try."""

    def begin(self, watch: Watcher) -> Make[Found]:
        make, mark = super().begin(watch), Path(os.environ[MARK])

        def made(number: int, advance: Tick) -> Found:
            if number == 1 and not mark.exists():
                mark.touch()
                os._exit(9)
            return make(number, advance)

        return made


def evaluated(run: Any, **options: Any) -> tuple[dict[str, Any], list[list[int]]]:
    """A report but for what differs by who has made it; and the ranks."""
    found = kgmlm.evaluate(run, **{"progress": False, "device": "cpu", **options})
    ranks = found.evaluation.ranks
    return report_of(found), [x.tolist() for x in (ranks.optimistic_B, ranks.pessimistic_B)]


def test_a_worker_that_is_lost_midway_changes_nothing(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    files = [tmp_path / f"ranks-{n}.parquet" for n in range(2)]
    alone = evaluated(toy_run, ranks=files[0], **EVALUATED)
    monkeypatch.setattr("kgmlm.evaluation.evaluate.EvaluationWork", Ending)
    done: list[tuple[str, int, int]] = []
    found = evaluated(toy_run, ranks=files[1], workers=2, progress=lambda *of: done.append(of), **EVALUATED)
    assert (tmp_path / "mark").exists()
    assert found == alone
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(done) > 2, "so many pieces"
    assert sum(n for _, n, _ in done) == done[0][2] == len(alone[1][0]), "nothing is ranked twice"


def test_a_worker_opens_what_is_evaluated(
    toy: KnowledgeGraph, toy_vector_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "made_in_processes", sent_here)
    write_folder(elsewhere(toy), tmp_path / "other")
    run = kgmlm.open_run(toy_vector_run, device="cpu")
    cases: tuple[tuple[Any, dict[str, Any]], ...] = (
        (toy_vector_run, {"scores": "vector", "allow_self": True}),
        (run.with_entities(NEW), {"max_triples": 4}),
        (run, {"typed": True, "precision": "bf16"}),
        (run, {"graph": tmp_path / "other"}),
        (run, {"graph": tmp_path / "other", "candidates": "all", "by_relation": True}),
    )
    for of, options in cases:
        assert evaluated(of, workers=2, batch_size=2, **options) == evaluated(of, batch_size=2, **options)


def test_a_worker_that_sees_other_weights_is_refused(toy_run: Path) -> None:
    work = EvaluationWork(toy_run, RankingOptions(device="cpu"), Protocol(), 64, None, False, {})
    with pytest.raises(RunError, match=r"has other weights or triples on .*; workers need the run"):
        work.begin(Watcher())


def test_what_does_not_go_together_is_refused(toy_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least one worker"):
        kgmlm.evaluate(toy_run, workers=0)
    with pytest.raises(ConfigError, match="goes with --engine ray"):
        kgmlm.evaluate(toy_run, address="here:1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="share the work already"):
        Workers(workers=2)
