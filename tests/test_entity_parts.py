"""A graph whose training reads few entities: sampled validation, and all entities in parts at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import vectors_of
from trainings import TINY, VECTORS, Validation, go, settings

import kgmlm
from kgmlm import entity_parts, tuning
from kgmlm.arrays import numpy
from kgmlm.config import Protocol, VectorSettings
from kgmlm.contest import Contest
from kgmlm.entity_parts import FOLDER, read_entities
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, RunError
from kgmlm.objectives.sampling import Columns
from kgmlm.ranker import Ranker
from kgmlm.runs import open_run
from kgmlm.starting import start_run
from kgmlm.tuning import weigh_text

FEW: dict[str, Any] = {**TINY, "eval_candidates": 5, "vector": {"enabled": True, "max_length": 24}}


@pytest.fixture
def unread(toy: KnowledgeGraph, tmp_path: Path) -> Path:
    """A run whose training has left all entities to be read."""
    go(tmp_path / "run", toy, *VECTORS, "training.eval_candidates=5", validate=Validation(0.1, 0.2, 0.3))
    return tmp_path / "run"


def test_validation_in_training_reads_the_sample_and_no_other_text(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    assert ranker.vectors is not None
    protocol = Protocol(split="valid", max_triples=3)
    contest = Contest.of(toy, protocol, 4)
    assert contest.ids is not None
    assert set(contest.asked.answers.tolist()) <= set(contest.ids.tolist())
    assert contest.width < len(toy.entities)
    mixture, figures = weigh_text(ranker, toy, protocol, among=4)
    assert figures["candidates"] == contest.width
    assert len(toy.entities) - ranker.vectors.unread == contest.width
    assert {"likelihood", "vector"} == set(mixture.signals)
    _, whole = weigh_text(ranker, toy, protocol)
    assert "candidates" not in whole
    assert figures["mrr_vector"] >= whole["mrr_vector"], "fewer compete"


@pytest.mark.parametrize("vector", [VectorSettings(), VectorSettings(enabled=True)])
def test_a_sample_that_leaves_none_out_ranks_as_all_entities_do(
    toy: KnowledgeGraph,
    make_ranker: Callable[..., Ranker],
    vector: VectorSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranker, protocol = make_ranker(vector=vector), Protocol(split="valid")
    _, whole = weigh_text(ranker, toy, protocol)
    members = np.arange(len(toy.entities))
    asked = Contest.of(toy, protocol)
    assert Contest.of(toy, protocol, len(members)).ids is None
    everyone = replace(asked, columns=Columns(members))
    monkeypatch.setattr(tuning, "_contest", lambda *of: everyone)
    _, sampled = weigh_text(ranker, toy, protocol, among=1)
    assert sampled.pop("candidates") == len(members)
    assert sampled == pytest.approx(whole)


def test_ranks_in_a_sample_are_those_of_its_columns(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    """Against a loop over the scores of all entities."""
    ranker, protocol = make_ranker(), Protocol(split="valid")
    _, figures = weigh_text(ranker, toy, protocol, among=6)
    contest = Contest.of(toy, protocol, 6)
    assert contest.ids is not None
    queries, answers = toy.queries("valid")
    known = {split: set(map(tuple, toy.splits[split].tolist())) for split in ("train", "valid")}
    reciprocal = []
    scores_BN = torch.zeros(len(queries), len(toy.entities))
    for rows, part_bN in ranker.rank(queries):
        scores_BN[torch.from_numpy(rows)] = part_bN
    for query, answer, scores_N in zip(queries, answers.tolist(), scores_BN.tolist(), strict=True):
        better = ties = 0
        for other in contest.ids.tolist():
            ends = (query.entity, other) if query.target == "tail" else (other, query.entity)
            triple = (ends[0], query.relation, ends[1])
            if other == answer or any(triple in found for found in known.values()):
                continue
            better += scores_N[other] > scores_N[answer]
            ties += scores_N[other] == scores_N[answer]
        reciprocal.append(1 / (1 + better + ties / 2))
    assert figures["mrr"] == pytest.approx(np.mean(reciprocal))


def test_a_run_whose_entities_are_unread_says_what_reads_them(unread: Path) -> None:
    run = open_run(unread, verify=True)
    assert run.unread
    assert run.unfinished
    with pytest.raises(RunError, match="not read yet; `kgmlm tune"):
        run.ranker()


def test_who_is_killed_in_the_midst_of_reading_goes_on_there(
    unread: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, total = open_run(unread), len(open_run(unread).graph.entities)

    class Killed(Exception):
        pass

    read: list[int] = []

    def kill(n: int, of: int) -> None:
        read.append(n)
        if sum(read) >= 10:
            raise Killed

    with pytest.raises(Killed):
        read_entities(run, "cpu", batch_size=4, advance=kill, size=8)
    assert [p.name for p in sorted((unread / FOLDER).glob("*.npy"))] == ["part-000000.npy"]
    made: list[int] = []

    def counting(vectors: Any) -> Any:
        made.append(len(vectors))
        return numpy(vectors)

    monkeypatch.setattr(entity_parts, "numpy", counting)
    read_entities(run, "cpu", size=8)
    assert sum(made) == total - 8, "what was there is not read again"
    assert not (unread / FOLDER).exists()
    assert not run.unread
    assert run.unfinished, "weights were chosen for no vectors"
    fresh = run.text_ranker("cpu")
    run.save_chosen(replace(run.chosen, by={"command": "kgmlm tune"}))
    opened = open_run(unread, verify=True).ranker("cpu")
    torch.testing.assert_close(vectors_of(opened), vectors_of(fresh), atol=1e-5, rtol=1e-5)
    assert not run.unfinished


@pytest.mark.parametrize("about", [b"{}", b'{"model": "x", "size": 8}', b"["])
def test_parts_of_another_model_are_read_again(unread: Path, about: bytes) -> None:
    (unread / FOLDER).mkdir()
    (unread / FOLDER / "about.json").write_bytes(about)
    np.save(unread / FOLDER / "part-000000.npy", np.zeros((8, 32), np.float32))
    read_entities(open_run(unread), "cpu", size=8)
    run = open_run(unread)
    run.save_chosen(run.chosen)
    assert vectors_of(run.ranker("cpu"))[:8].norm(dim=1).min() > 0.9


def test_a_damaged_part_is_named(unread: Path) -> None:
    run = open_run(unread)

    def cut(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_entities(run, "cpu", advance=cut, size=8)
    (unread / FOLDER / "part-000001.npy").write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"part-000001\.npy is damaged; remove it"):
        read_entities(run, "cpu", size=8)


def test_residuals_need_all_entities(toy: KnowledgeGraph, tmp_path: Path) -> None:
    chosen = settings(*VECTORS, "vector.residual_rate=0.1", "training.eval_candidates=5")
    with pytest.raises(ConfigError, match=r"set it to 0, or training\.eval_candidates to 0"):
        start_run(tmp_path / "run", toy, "scratch", chosen)


@pytest.mark.slow
def test_a_run_without_vectors_is_measured_among_all_too(tmp_path: Path) -> None:
    run = kgmlm.train("toy", "scratch", tmp_path / "run", epochs=1, progress=False, eval_candidates=5, **TINY)
    found = run.folder.chosen.by["valid"]["text"]["mrr"]
    _, figures = weigh_text(run.folder.untuned("cpu"), run.folder.graph, Protocol(split="valid"))
    assert run.folder.record["best_valid_mrr"] == found == pytest.approx(figures["mrr"])


@pytest.mark.slow
def test_the_command_measures_among_all_at_the_end_and_resumes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Power(Exception):
        pass

    def cut(*arguments: Any, **named: Any) -> None:
        raise Power

    with monkeypatch.context() as patched:
        patched.setattr(entity_parts, "_join", cut)
        with pytest.raises(Power):
            kgmlm.train("toy", "scratch", tmp_path / "run", epochs=2, progress=False, **FEW)
    run = open_run(tmp_path / "run")
    assert (run.record["status"], run.unread) == ("finished", True)
    sampled = run.record["best_valid_mrr"]
    done = kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
    assert not done.folder.unfinished
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert all("valid_candidates" in row for row in rows if "valid_mrr" in row)
    assert done.folder.record["best_valid_mrr"] < sampled, "more compete"
    with pytest.raises(RunError, match="nothing to resume"):
        kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
