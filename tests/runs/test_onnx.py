"""The structure of a model as a file: each family that packs, any sizes, no weights in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from conftest import Cli
from families import FAMILIES, build
from test_app import loaded_by
from trainings import TINY, arguments
from transformers import BertConfig, ElectraConfig, RobertaConfig, XLMRobertaConfig

import kgmlm
from kgmlm.core.errors import ConfigError, ModelError
from kgmlm.core.progress import Watcher
from kgmlm.runs import onnx
from kgmlm.runs.onnx import TOLERANCE, export
from kgmlm.text.onnx_model import ONNX_FILE
from kgmlm.text.torch_model import SpanModel

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
         "max_position_embeddings": 80}  # fmt: skip
CONFIGS = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "electra": partial(ElectraConfig, embedding_size=32),
    "xlm-roberta": XLMRobertaConfig,
}


def saved(model: SpanModel, folder: Path) -> Path:
    model.save(folder)
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_each_family_computes_the_same(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, family, (FAMILIES[family][0], partial(CONFIGS[family], **SHAPE)))
    model = SpanModel(build(family)[0])
    folder = saved(model, tmp_path)
    assert export(model, folder, folder / ONNX_FILE) <= TOLERANCE
    size = (folder / ONNX_FILE).stat().st_size
    assert size < 100_000, "weights are elsewhere"
    before = (folder / ONNX_FILE).read_bytes()
    export(model, folder, folder / ONNX_FILE)
    assert (folder / ONNX_FILE).read_bytes() == before, "the same model, the same file"


def test_what_cannot_be_exported_says_so(
    tiny_model: SpanModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SpanModel(build("deberta-v2")[0])
    with pytest.raises(ModelError, match="cannot be exported; these families can: bert"):
        export(other, saved(other, tmp_path / "other"), tmp_path / ONNX_FILE)
    folder = saved(tiny_model, tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(onnx, "installed", lambda name: name != "onnx")
        with pytest.raises(ConfigError, match="needs onnx: pip install onnx"):
            export(tiny_model, folder, tmp_path / ONNX_FILE)
    wider = SpanModel(build("roberta")[0])
    with pytest.raises(ModelError, match="has no tensor"):
        export(wider, folder, tmp_path / ONNX_FILE)
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="other states than torch"):
        export(tiny_model, folder, tmp_path / ONNX_FILE)


def test_training_ends_by_making_the_run_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    class Hears(Watcher):
        def tell(self, message: str) -> None:
            rows.append(message)

    def trained(name: str, **more: object) -> Path:
        given = TINY | {"epochs": 1, "progress": Hears(), "onnx": True} | more
        return kgmlm.train("toy", "scratch", tmp_path / name, **arguments(**given)).path

    run = trained("ready")
    assert (run / "model" / ONNX_FILE).is_file()
    assert kgmlm.open_run(run, runtime="onnx").rank(head="France", relation="capital").shape[0] == 10
    assert not (trained("bare", onnx=False) / "model" / ONNX_FILE).exists()

    for kind in (ModelError, RuntimeError):  # the exporter's own are of the latter kind

        def odd(folder: object, kind: type[Exception] = kind) -> None:
            raise kind("OddForMaskedLM cannot be exported")

        monkeypatch.setattr(onnx, "make_ready", odd)
        torch_alone = trained(kind.__name__)
        assert f"torch will read the texts of {torch_alone}: OddForMaskedLM cannot be exported" in rows
        assert kgmlm.open_run(torch_alone).rank(head="France", relation="capital").shape[0] == 10


def test_a_training_without_export_goes_on_without(tmp_path: Path) -> None:
    run = tmp_path / "run"
    kgmlm.train("toy", "scratch", run, **arguments(**TINY, epochs=2), max_steps=1, progress=False)
    kgmlm.train(output=run, resume=True, progress=False)
    assert not (run / "model" / ONNX_FILE).exists()


@pytest.mark.slow
def test_a_fresh_run_is_asked_without_torch(cli: Cli, tmp_path: Path, tiny_encoder: str) -> None:
    few = ("--set", "biencoder.steps=4", "--set", f"biencoder.encoder={tiny_encoder}",
           "--set", "training.epochs=1")  # fmt: skip
    done = cli("train", "--dataset", "toy", "--model", "scratch", "--preset", "quick", "--output",
               tmp_path / "run", *few)  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked = ("rank", str(tmp_path / "run"), "--head", "France", "--relation", "capital", "--explain")
    loaded = loaded_by([asked, asked], ("torch", "transformers", "pandas", "sklearn"))
    assert loaded == [[], []]
