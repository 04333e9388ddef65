"""Evaluations and many queries by workers: the same as by one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from raying import report_of, sent_here
from test_scope import elsewhere

import kgmlm
from kgmlm.core import workers
from kgmlm.core.config import Protocol
from kgmlm.core.errors import RunError
from kgmlm.core.progress import Watcher
from kgmlm.evaluation.evaluate import EvaluationWork
from kgmlm.graphs.datasets import write_folder
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.options import RankingOptions

NEW = EntityTable(["atl"], ["Atlantis"], ["a lost island"])


def evaluated(run: Any, **options: Any) -> tuple[dict[str, Any], list[list[int]]]:
    """A report but for what differs by who has made it; and the ranks."""
    report = kgmlm.evaluate(run, **{"progress": False, "device": "cpu", **options})
    ranks = report.evaluation.ranks
    return report_of(report), [x.tolist() for x in (ranks.optimistic_B, ranks.pessimistic_B)]


def test_a_worker_opens_what_is_evaluated(
    toy: KnowledgeGraph, toy_vector_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "made_on_ray", sent_here)
    monkeypatch.setattr(workers, "find_spec", lambda name: object())
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
        by_workers = evaluated(of, ray="local", workers=2, batch_size=2, **options)
        assert by_workers == evaluated(of, batch_size=2, **options)


def test_a_worker_that_sees_other_weights_is_refused(toy_run: Path) -> None:
    work = EvaluationWork(toy_run, RankingOptions(device="cpu"), Protocol(), 64, None, False, {})
    with pytest.raises(RunError, match=r"has other weights or triples on .*; workers need the run"):
        work.begin(Watcher())
