"""A KGE model that teaches the text: the loss, the run folder, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_SETTINGS, Cli, refused

from kgmlm.config import (
    KGESettings,
    Protocol,
    Settings,
    TrainingSettings,
    VectorSettings,
    load_settings,
)
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, IntArray
from kgmlm.objectives import objective
from kgmlm.objectives.ranking import EntityLosses
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.runs import TEACHER, open_run
from kgmlm.scoring import distillation_loss
from kgmlm.signals.kge import KGE
from kgmlm.starting import resume_run, start_run
from kgmlm.training import train

SMALL = KGESettings(dimension=8, batch_size=16)
DISTILLATION = ("--set", "training.distillation=1", "--set", "kge.dimension=8")


@pytest.fixture(scope="module")
def kge(toy: KnowledgeGraph) -> KGE:
    return KGE.fit(toy, SMALL)


def settings(*more: str) -> Settings:
    return load_settings(None, [x for x in TINY_SETTINGS if "=" in x] + ["kge.dimension=8", *more])


@pytest.mark.slow
@pytest.mark.parametrize(
    "vector",
    [VectorSettings(), VectorSettings(enabled=True), VectorSettings(enabled=True, residual_rate=0.01)],
)
def test_every_softmax_over_entities_is_taught(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], kge: KGE, vector: VectorSettings
) -> None:
    ranker = make_ranker(vector=vector)
    found, taught = [], list[tuple[int, IntArray]]()

    class Counting(KGE):
        def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
            assert pool.ids is not None
            taught.append((len(reading.queries), pool.ids))
            found: torch.Tensor = super().score(reading, pool)
            return found

    teacher = Counting(kge.entities_SD, kge.relations_RD, kge.rows_N, kge.relation_rows)
    for distillation in (0.0, 1.0, 3.0):
        chosen = TrainingSettings(batch_size=8, distillation=distillation)
        stream, losses = objective(ranker, toy, chosen, (0, 1), teacher=teacher if distillation else None)
        assert isinstance(losses, EntityLosses)
        found.append(losses(ranker.reader.model, next(stream.from_position(0))).item())
    assert found[0] < found[1]
    assert found[2] - found[0] == pytest.approx(3 * (found[1] - found[0]), rel=1e-4)
    assert {b for b, _ in taught} == {8}
    seen = set(np.flatnonzero(toy.seen_N).tolist())
    assert all(set(ids.tolist()) <= seen for _, ids in taught), "of no entity that training has not seen"
    assert len(taught) == (4 if vector.enabled else 2)


@pytest.mark.slow
def test_what_is_taught_comes_nearer_to_its_teacher(toy: KnowledgeGraph, kge: KGE, tmp_path: Path) -> None:
    queries, grouped = toy.unique_queries("train")
    seen = np.flatnonzero(toy.seen_N)
    rows, ids = grouped.take(np.arange(len(queries)))
    answers = (torch.from_numpy(rows), torch.from_numpy(np.searchsorted(seen, ids)))
    apart = {}
    for distillation in (0, 5):
        chosen = settings("training.epochs=40", f"training.distillation={distillation}")
        run, ranker = start_run(tmp_path / str(distillation), toy, "scratch", chosen, teach=lambda: (kge, {}))
        train(run, ranker)
        scores_BN = torch.zeros(len(queries), len(seen))
        for at, part_bN in ranker.rank(queries, seen):
            scores_BN[torch.from_numpy(at)] = part_bN
        taught_BN = kge.score(Reading(queries), Pool(len(toy.entities), seen))
        apart[distillation] = distillation_loss(
            scores_BN, taught_BN, answers, chosen.training.temperature
        ).item()
    assert apart[5] < 0.7 * apart[0]


@pytest.mark.slow
def test_a_taught_run_resumes_to_the_same_losses(toy: KnowledgeGraph, tmp_path: Path) -> None:
    chosen = settings("training.epochs=4", "training.distillation=1", "vector.enabled=true")
    for name, stop in (("whole", None), ("parts", 7)):
        run, ranker = start_run(tmp_path / name, toy, "scratch", chosen)
        train(run, ranker, max_steps=stop)
    train(*resume_run(tmp_path / "parts"), resume=True)
    whole, parts = ((tmp_path / name / "metrics.jsonl").read_text("utf-8") for name in ("whole", "parts"))
    assert whole == parts


@pytest.mark.slow
def test_what_was_taught_ranks_by_text_alone(toy: KnowledgeGraph, tmp_path: Path) -> None:
    run, ranker = start_run(
        tmp_path / "run", toy, "scratch", settings("training.epochs=1", "training.distillation=1")
    )
    train(run, ranker)
    run = open_run(tmp_path / "run")
    before = evaluate(run.ranker(), toy, Protocol()).report
    (tmp_path / "run" / TEACHER).unlink()
    ranker = run.ranker()
    assert "kge" not in ranker.signals
    assert "kge" not in ranker.mixture.signals
    assert evaluate(ranker, toy, Protocol()).report["metrics"] == before["metrics"]


@pytest.mark.parametrize("name", ["token", "masked"])
def test_other_objectives_are_not_taught(toy: KnowledgeGraph, tmp_path: Path, name: str) -> None:
    chosen = settings("training.distillation=1", f"training.objective={name}")
    with pytest.raises(ConfigError, match=f"not '{name}'"):
        start_run(tmp_path / "run", toy, "scratch", chosen)
    assert not (tmp_path / "run").exists()
    assert settings("training.distillation=1").for_reranking().training.distillation == 0


def test_nothing_is_left_when_the_teacher_fails(toy: KnowledgeGraph, tmp_path: Path) -> None:
    def teach() -> tuple[KGE, dict[str, object]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_run(tmp_path / "run", toy, "scratch", settings("training.distillation=1"), teach=teach)
    assert not any(tmp_path.iterdir())


def test_a_run_is_taught_by_the_command(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run, twin, gone = (tmp_path / name for name in ("run", "twin", "gone"))
    base = ("train", "--dataset", "toy", "--model", "scratch", *TINY_SETTINGS, "--set", "training.epochs=2")
    taught = DISTILLATION[:2]
    refused(cli(*base, "--output", twin, "--teacher", toy_run), "training.distillation=1")
    refused(cli(*base, *taught, "--output", twin, "--teacher", toy_run), "no signal 'kge'", "--add kge")
    refused(cli(*base, *DISTILLATION, "--output", twin, "--teacher", toy_run), "kge.dimension")
    done = cli(*base, *DISTILLATION, "--output", run, "-q")
    assert done.returncode == 0, done.stderr
    record = json.loads((run / "run.json").read_text("utf-8"))
    assert record["teacher"]["settings"]["dimension"] == 8
    assert record["teacher"]["command"] == record["command"]
    refused(cli("evaluate", run, "--scores", "kge"), "no KGE model")
    done = cli(*base, *taught, "--output", twin, "--teacher", run, "-q")
    assert done.returncode == 0, done.stderr
    assert open_run(twin).settings.kge.dimension == 8, "as the teacher has it"
    assert (twin / TEACHER).read_bytes() == (run / TEACHER).read_bytes()
    assert json.loads((twin / "run.json").read_text("utf-8"))["teacher"] == record["teacher"]
    assert (twin / "metrics.jsonl").read_text("utf-8").splitlines()[0] == (
        (run / "metrics.jsonl").read_text("utf-8").splitlines()[0]
    ), "a teacher that is lent teaches as its own run's"
    refused(cli("train", "--resume", "--output", run, "--teacher", run), "start of a run")
    done = cli("tune", run, "--add", "kge", "--from", run, "-q")
    assert "kge: validation MRR" in done.stdout, done.stderr
    assert open_run(run).record["signals"]["kge"]["command"] == record["command"]
    assert (run / KGE.file).is_file()
    done = cli("evaluate", run, "--json", "-q")
    assert json.loads(done.stdout)["run"]["teacher"] == record["teacher"]
    refused(cli(*base, *taught, "--output", gone, "--teacher", tmp_path), "not a run folder")
    graph = ("train", "--dataset", "umls", *base[3:])
    refused(cli(*graph, *taught, "--output", gone, "--teacher", run), "another graph")
    assert not gone.exists()
