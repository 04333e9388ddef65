"""Weights that validation chooses for structure and vectors, and the command that fuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli, refused

from kgmlm.config import Protocol, VectorSettings
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.runs import STRUCTURE, open_run
from kgmlm.signals.structure import Structure
from kgmlm.tuning import validate, weigh_structure


def oracle(graph: KnowledgeGraph, split: str, relations: list[int]) -> Structure:
    """A structural model that knows the answers of some relations and is wrong about the others."""
    count = len(graph.entities)

    class Oracle(Structure):
        def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
            found = torch.zeros(len(reading.queries), count)
            for b, query in enumerate(reading.queries):
                h, r, t = graph.splits[split].T
                known, answers = (h, t) if query.target == "tail" else (t, h)
                sign = 1.0 if query.relation in relations else -1.0
                mine = answers[(known == query.entity) & (r == query.relation)]
                found[b, mine] = sign
            return found

    return Oracle(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0), np.zeros(0, np.int64))


def test_a_relation_gets_the_weight_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRIOR is taken away: the toy graph has few queries a relation."""
    monkeypatch.setattr("kgmlm.tuning.PRIOR", 0.01)
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    before = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"]
    asked = np.unique(toy.splits["valid"][:, 1]).tolist()
    good, bad = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    assert good
    assert bad
    ranker.signals["structure"] = oracle(toy, "valid", good)
    with pytest.raises(ConfigError, match="no structural model"):
        weigh_structure(make_ranker(), toy, Protocol(split="valid"))
    ranker.mixture, found = weigh_structure(ranker, toy, Protocol(split="valid"))
    weights = ranker.mixture.tables["structure"]
    assert (weights[good] > 0).all()
    assert (weights[bad] == 0).all()
    assert found["mrr_text"] == pytest.approx(before)
    assert found["mrr"] > found["mrr_one_weight"] >= before
    after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
    assert after["mrr"] == pytest.approx(found["mrr"])
    assert after["both.realistic.hits_at_10"] == pytest.approx(found["hits_at_10"])
    ranker = ranker.by("text")
    assert evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"] == pytest.approx(before)


def test_a_rarely_asked_relation_leans_on_the_others(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker.signals["structure"] = oracle(toy, "valid", relations[:-1])
    mixture, _ = weigh_structure(ranker, toy, Protocol(split="valid"))
    assert len(set(mixture.tables["structure"][relations].ravel().tolist())) == 1


def test_vectors_get_the_weights_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, found = make_ranker(vector=VectorSettings(enabled=True)), []
    for prior in (1e6, 0.01):
        monkeypatch.setattr("kgmlm.tuning.PRIOR", prior)
        ranker.mixture, metrics = validate(ranker, toy, Protocol(split="valid"))
        found.append(metrics)
        assert ranker.mixture.signals == ("likelihood", "vector")
        weights = set(ranker.mixture.tables["vector"].ravel().tolist())
        assert (len(weights) > 1) == (prior < 1), "much of the average or little"
        after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
        assert after["mrr"] == pytest.approx(found[-1]["mrr"])
    assert found[0]["mrr"] == pytest.approx(found[0]["mrr_one_weight"])
    assert found[1]["mrr"] > found[1]["mrr_one_weight"] == found[0]["mrr_one_weight"]


def test_a_run_is_fused_by_the_command(cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(cli("evaluate", run, "--scores", "structure"), "no structural model", "kgmlm fuse")
    refused(cli("fuse", run, "--from", run), "no structural model")
    settings = ("--set", "structure.dimension=8", "--set", "structure.batch_size=16")
    done = cli("fuse", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    refused(cli("fuse", run, *settings), "has a structural model already", f"--from {run}", "--overwrite")
    refused(cli("fuse", run, "--overwrite", "--set", "vector.enabled=true"), "not by vector.enabled")
    record = json.loads((run / "run.json").read_text("utf-8"))
    assert record["structure"]["valid"] == valid
    assert record["structure"]["settings"]["dimension"] == 8
    assert "kgmlm fuse" in record["structure"]["command"]
    reports = {}
    for scores in ("all", "text", "structure"):
        done = cli("evaluate", run, "--split", "valid", "--scores", scores, "--json", "-q")
        assert done.returncode == 0, done.stderr
        reports[scores] = json.loads(done.stdout)
    assert reports["all"]["metrics"]["mrr"] == pytest.approx(valid["mrr"])
    assert reports["text"]["metrics"]["mrr"] == pytest.approx(valid["mrr_text"])
    assert reports["structure"]["metrics"]["mrr"] != pytest.approx(valid["mrr_text"])
    assert reports["structure"]["metrics"]["mrr"] == pytest.approx(valid["mrr_structure"])
    assert reports["text"]["structure"] is None
    assert reports["all"]["structure"]["settings"]["dimension"] == 8
    base = ("rank", run, "--relation", "capital", "--head", "france", "--json", "-k", "3")
    (row, *_) = [json.loads(x) for x in cli(*base, "--explain").stdout.splitlines()]
    assert {"vector", "structure"} <= row["parts"].keys()
    assert "; structure " in cli(*base[:-3], "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("fuse", other, "--from", run), "already", "--overwrite")
    done = cli("fuse", other, "--from", run, "--overwrite")
    assert "validation MRR" in done.stdout, done.stderr
    assert open_run(other).record["structure"]["settings"] == record["structure"]["settings"]
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("rank", other, *base[2:]), STRUCTURE, "has 0 bytes instead of", "kgmlm fuse")
