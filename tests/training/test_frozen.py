"""Runs whose masked LM is not trained: other signals rank alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli, refused
from safetensors import safe_open
from trainings import arguments

import kgmlm
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.opened import open_folder
from kgmlm.runs.run import Run
from kgmlm.signals.biencoder import Biencoder
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.reader import Reader

SMALL: dict[str, Any] = {"biencoder": {"steps": 20, "dimension": 16, "precision": "fp32"}}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: str) -> Run:
    path = tmp_path_factory.mktemp("frozen") / "run"
    return kgmlm.train("toy", tiny_encoder, path, preset="quick", progress=False, **arguments(**SMALL))


@pytest.mark.slow
class TestQuick:
    def test_it_has_all_but_a_trained_masked_lm(self, quick: Run, tiny_encoder: str) -> None:
        run = open_folder(quick.path, verify=True)
        assert run.record["status"] == "finished"
        assert not run.settings.trains_text
        assert set(run.tuned.mixture.signals) <= {
            "rules",
            "types",
            "linked",
            "mentions",
            "unseen",
            "biencoder",
            "similar_entities",
            "similar_answers",
        }
        assert set(run.record["signals"]) == {
            *("rules", "types", "linked", "mentions", "unseen", "biencoder"),
            *("similar_entities", "similar_answers"),
        }
        assert not (run.path / "checkpoints").exists()
        ours, theirs = (TextEncoder.load(str(path), 32) for path in (run.model_folder, tiny_encoder))
        for name, tensor in theirs.weights().items():
            assert torch.equal(torch.as_tensor(ours.weights()[name]), torch.as_tensor(tensor)), "as it came"

    def test_queries_are_not_read_by_the_masked_lm(self, quick: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Reader, "encode", None)
        explained = quick.explain(head="france", relation="located_in", k=3)
        assert len(explained) == 3

    def test_its_text_ranks_nothing(self, cli: Cli, quick: Run) -> None:
        for scores in ("text", "likelihood"):
            refused(cli("evaluate", quick.path, "--scores", scores), "masked LM is not trained", scores)
        done = cli("evaluate", quick.path, "--json", "-q")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["metrics"]["mrr"] > 0

    def test_the_encoder_is_kept_once(
        self, quick: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
        with safe_open(quick.path / Biencoder.file, "numpy") as file:
            assert not any(name.startswith("encoder.") for name in file.keys())  # noqa: SIM118
        new = tmp_path / "new.tsv"
        new.write_text("label\tname\tdescription\nq1\tAtlantis\ta lost city\n")
        pack = kgmlm.pack(quick.path, tmp_path / "small.kgmlm", progress=False)
        for run in (quick, kgmlm.open_run(pack, device="cpu")):
            best = run.with_entities(new).rank(head="Atlantis", relation="located_in", k=3)
            assert len(best) == 3
        other = shutil.copytree(quick.path, tmp_path / "other")
        with pytest.raises(
            RunError, match="similar entities and similar answers need the bi-encoder; --drop"
        ):
            kgmlm.tune(other, drop="biencoder", progress=False)
        kgmlm.tune(other, drop=["biencoder", "similar_entities", "similar_answers"], progress=False)
        kgmlm.tune(other, add="biencoder", source=quick.path, progress=False)
        with safe_open(other / Biencoder.file, "numpy") as file:
            assert any(name.startswith("encoder.") for name in file.keys()), "a lent one is whole"  # noqa: SIM118

    def test_new_texts_are_read_without_torch(self, cli: Cli, quick: Run, tmp_path: Path) -> None:
        run = shutil.copytree(quick.path, tmp_path / "run")
        new = tmp_path / "new.tsv"
        new.write_text("label\tname\tdescription\nq1\tAtlantis\ta lost city\n")
        ask = ("rank", run, "--head", "Atlantis", "--relation", "located_in", "--entities", new, "--json")
        done = cli(*ask)
        assert done.returncode == 0, done.stderr
        assert cli("onnx", run).returncode == 0
        assert open_folder(run, verify=True).record["files"].keys() >= {Biencoder.file, Biencoder.structure}
        code = "import sys; sys.modules['torch'] = None\nfrom kgmlm.cli.app import app; app(sys.argv[1:])"
        alone = subprocess.run(
            [sys.executable, "-c", code, *map(str, ask), "--runtime", "onnx"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert alone.returncode == 0, alone.stderr
        one, other = (list(map(json.loads, text.splitlines())) for text in (done.stdout, alone.stdout))
        assert [x["entity"] for x in one] == [x["entity"] for x in other]
        kgmlm.tune(run, add="biencoder", overwrite=True, progress=False)
        assert not (run / Biencoder.structure).exists(), "it may be another encoder's"
        open_folder(run, verify=True)

    def test_it_predicts_and_is_reported(self, cli: Cli, quick: Run, tmp_path: Path) -> None:
        run = shutil.copytree(quick.path, tmp_path / "run")
        for words in (
            ("report", run, "--output", tmp_path / "report.html", "-q"),
            ("info", run),
            ("tune", run, "--add", "reverse", "-q"),
        ):
            done = cli(*words)
            assert done.returncode == 0, done.stderr

    def test_there_is_nothing_to_resume(self, cli: Cli, quick: Run) -> None:
        done = cli("train", "--output", quick.path, "--resume")
        assert "Traceback" not in done.stderr
        assert open_folder(quick.path).record["step"] == 0


def test_a_kill_between_stages_is_continued(
    toy: KnowledgeGraph, tiny_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Biencoder, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            kgmlm.train(
                toy, tiny_encoder, tmp_path / "run", preset="quick", progress=False, **arguments(**SMALL)
            )
    assert set(open_folder(tmp_path / "run").record["signals"]) == {
        "rules",
        "types",
        "linked",
        "mentions",
        "unseen",
    }
    run = kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
    assert "biencoder" in run.folder.tuned.mixture.tables


def test_entity_vectors_need_a_trained_masked_lm(
    toy: KnowledgeGraph, tiny_encoder: str, tmp_path: Path
) -> None:
    given = {"preset": "plain", "epochs": 0, "vector": {"enabled": True}, "progress": False}
    with pytest.raises(ConfigError, match=r"vector\.enabled trains entity vectors"):
        kgmlm.train(toy, tiny_encoder, tmp_path / "run", **arguments(**given))
    run = kgmlm.train(
        toy, tiny_encoder, tmp_path / "run", preset="plain", settings={"training.epochs": 0}, progress=False
    )
    with pytest.raises(RunError, match="there is no other signal to weigh"):
        kgmlm.tune(run, progress=False)
    with pytest.raises(ConfigError, match="is not trained"):
        kgmlm.evaluate(run, scores="likelihood", progress=False)
