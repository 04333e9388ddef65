"""A run that is ready for ONNX Runtime: the same scores without torch, and torch where it must be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli, refused

import kgmlm
from kgmlm.core import digests, machine
from kgmlm.core.config import RuleSettings, TypeSettings
from kgmlm.core.errors import ConfigError, ModelError, RunError
from kgmlm.core.progress import Watcher
from kgmlm.evaluation.pykeen import to_pykeen_model
from kgmlm.graphs.entities import EntityTable
from kgmlm.ranking.ranker import StageWeight
from kgmlm.runs.opened import computed_by, open_ranker, untuned_ranker
from kgmlm.runs.options import RankingOptions, Runtime
from kgmlm.runs.run import Run
from kgmlm.runs.tuned import TunedWeights
from kgmlm.runs.writing import save_model, save_signal, save_tuned
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.text.onnx_model import ONNX_FILE, OnnxModel, read_facts
from kgmlm.text.torch_model import span_model

GOLDEN = Path(__file__).parent.parent / "golden"
RUNTIMES: tuple[Runtime, ...] = ("torch", "onnx")
ASKED = [("austria", "capital", None), (None, "capital", "vienna"), ("atlantis", "borders", None)]
NEW = EntityTable(["atlantis"], ["Atlantis"], ["a country under the sea"])


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with vectors, ComplEx, rules, types, and the structure."""
    path = Path(shutil.copytree(GOLDEN / "run", tmp_path_factory.mktemp("ready") / "run"))
    run = kgmlm.open_run(path).folder
    run = save_signal(run, Rules.fit(run.graph, RuleSettings()))
    run = save_signal(run, Types.fit(run.graph, TypeSettings()))
    mixture = run.tuned.mixture.evenly("rules", 0.5).evenly("types", 0.25)
    run = save_tuned(run, TunedWeights(mixture))
    assert kgmlm.onnx(path) == path / "model" / ONNX_FILE
    return path


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def scores_of(run: Run) -> np.ndarray:
    """The scores of all candidates of some queries of both sides."""
    queries, _ = run.graph.queries("test")
    values = np.zeros((len(queries), len(run.graph.entities)))
    for rows, scores_bN in run.predictor.ranker.rank(queries, batch_size=5):
        values[rows] = scores_bN
    return values


def opened(run: Path, runtime: Any, **way: Any) -> Run:
    return kgmlm.open_run(run, runtime=runtime, device="cpu", **way)


def reads(run: Run) -> type:
    return type(run.predictor.ranker.reader.model)


WAYS: list[dict[str, Any]] = [{"scores": s} for s in ("all", "text", "likelihood", "vector", "kge")] + [
    {"typed": True, "functional": True}
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_scores_are_those_of_torch(ready: Path, way: dict[str, Any]) -> None:
    one, other = opened(ready, "torch", **way), opened(ready, "onnx", **way)
    assert reads(other) is OnnxModel
    np.testing.assert_allclose(scores_of(other), scores_of(one), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_pykeen_is_that_of_torch(ready: Path) -> None:
    pairs = torch.tensor([[0, 0], [5, 1]])
    one, other = (to_pykeen_model(opened(ready, r).predictor).score_t(pairs) for r in RUNTIMES)
    torch.testing.assert_close(other, one, atol=1e-4, rtol=0)


def test_explanations_and_new_entities_are_those_of_torch(ready: Path) -> None:
    order = ["relation", "head", "tail", "entity"]
    one, other = (
        opened(ready, r).with_entities(NEW).explain(ASKED, k=31).sort_values(order) for r in RUNTIMES
    )
    texts = ["head", "relation", "tail", "entity", "known", "because"]
    assert one[texts].fillna("").to_numpy().tolist() == other[texts].fillna("").to_numpy().tolist()
    columns = ["score", "likelihood", "vector", "kge", "rules", "types"]
    np.testing.assert_allclose(other[columns], one[columns], atol=1e-4)
    for mine, theirs in zip(one["tokens"], other["tokens"], strict=True):
        assert [text for text, _ in mine] == [text for text, _ in theirs]
        np.testing.assert_allclose([x for _, x in mine], [x for _, x in theirs], atol=1e-4)


@pytest.mark.parametrize("stage_weight", [StageWeight(5, 0.5), StageWeight(20, 1.0)])
def test_the_best_are_asked_back_as_by_torch(ready: Path, tmp_path: Path, stage_weight: StageWeight) -> None:
    run = kgmlm.open_run(copied(ready, tmp_path)).folder
    run = save_tuned(run, TunedWeights(run.tuned.mixture, {"reverse": stage_weight}))
    queries, _ = run.graph.queries("valid")
    scores, plain = {}, {}
    for runtime in RUNTIMES:
        ranker = open_ranker(run, RankingOptions(runtime=runtime), run.graph)
        assert ranker.stage_weights == {"reverse": stage_weight}
        of = np.zeros((2, len(queries), len(run.graph.entities)), np.float32)
        for way, asked in enumerate((ranker, ranker.unreranked())):
            for rows, scores_bN in asked.rank(queries):
                of[way, rows] = scores_bN
        scores[runtime], plain[runtime] = of
    one, other = RUNTIMES
    np.testing.assert_allclose(scores[other], scores[one], atol=5e-4)
    assert (scores[other] - plain[other] > 1e-3).any(1).mean() > 0.9


def test_the_best_runtime_is_chosen(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kgmlm.open_run(ready).folder
    asked = {
        RankingOptions(runtime="torch"): ("torch", ""),
        RankingOptions(): ("onnx", ""),
        RankingOptions(runtime="onnx", precision="bf16"): ("torch", "computes in fp32"),
        RankingOptions(runtime="onnx", device="cuda"): ("torch", "on the CPU here, not on 'cuda'"),
        RankingOptions(runtime="onnx", rerank=5): ("onnx", ""),
        RankingOptions(runtime="onnx", retrieve=5): ("torch", "asks no index"),
    }
    monkeypatch.setattr(machine, "may_have_gpu", lambda: False)
    for way, (runtime, why) in asked.items():
        result, message = computed_by(run, way)
        assert result == runtime
        assert why in message
        assert bool(why) == bool(message)
    monkeypatch.setattr(machine, "may_have_gpu", lambda: True)
    assert computed_by(run, RankingOptions(runtime="auto"))[0] == "torch"
    assert computed_by(run, RankingOptions(runtime="auto", device="cpu"))[0] == "onnx"
    assert computed_by(run, RankingOptions(runtime="onnx"))[0] == "onnx"
    run = save_tuned(run, TunedWeights(run.tuned.mixture, {"reverse": StageWeight(3, 1.0)}))
    assert computed_by(run, RankingOptions(runtime="onnx"))[0] == "onnx"
    run = save_tuned(run, TunedWeights(run.tuned.mixture))
    for missing, message in (("onnxruntime", "ONNX Runtime is not installed"), ("torch", "")):
        monkeypatch.setattr(machine, "installed", lambda name, missing=missing: name != missing)
        assert message in computed_by(run, RankingOptions(runtime="onnx"))[1]
    with pytest.raises(ConfigError, match=r"in fp32, not bf16, and torch is not installed"):
        computed_by(run, RankingOptions(runtime="auto", precision="bf16"))


def test_what_lacks_says_so_in_a_line(ready: Path, tmp_path: Path, cli: Cli) -> None:
    ask = ("--head", "austria", "--relation", "capital", "--json", "-q", "--runtime")
    before = cli("rank", ready, *ask, "torch")
    reranked = cli("rank", ready, *ask, "onnx", "--retrieve", "5")
    assert reranked.stderr == "ONNX Runtime asks no index: torch reads the texts\n"
    run = copied(ready, tmp_path)
    (run / "model" / ONNX_FILE).unlink()
    refused(cli("rank", run, *ask, "auto"), f"{ONNX_FILE} is missing")  # it is one of the run's files
    digests.write_manifest(run / "model")
    done = cli("rank", run, *ask, "onnx")
    assert done.stdout == before.stdout
    assert done.stderr == f"{run} has no model/{ONNX_FILE} (`kgmlm onnx` writes one): torch reads the texts\n"
    assert cli("rank", run, *ask, "auto").stderr == ""


@pytest.mark.parametrize("damage", ["bytes", "facts", "architecture"])
def test_a_file_that_cannot_be_used_is_not(ready: Path, tmp_path: Path, cli: Cli, damage: str) -> None:
    run = copied(ready, tmp_path)
    file = run / "model" / ONNX_FILE
    data = file.read_bytes()
    if damage == "bytes":
        file.write_bytes(b"\0" * 500 + data[500:])
    elif damage == "facts":
        file.write_bytes(data[:-9] + b"xxxxxxxxx")
    else:
        config = run / "model" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_eps": 1e-5}))
    digests.write_manifest(run / "model")
    with pytest.raises(ModelError, match=rf"{ONNX_FILE} cannot be used: .*; `kgmlm onnx` makes it again"):
        OnnxModel.open(run / "model")
    done = cli("rank", run, "--head", "austria", "--relation", "capital", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert f"{ONNX_FILE} cannot be used" in done.stderr
    assert done.stderr.endswith("torch reads the texts\n")
    assert len(done.stderr.splitlines()) == 1
    kgmlm.onnx(run)
    assert reads(opened(run, "onnx")) is OnnxModel
    kgmlm.open_run(run, verify=True)


def test_other_weights_are_read_and_a_new_model_has_no_file(ready: Path, tmp_path: Path) -> None:
    run = copied(ready, tmp_path)
    ranker = untuned_ranker(kgmlm.open_run(run).folder, "cpu")
    for parameter in span_model(ranker.reader.model).parameters():
        parameter.data *= 1.01
    before = (run / "model" / ONNX_FILE).read_bytes()
    save_model(kgmlm.open_run(run).folder, ranker)
    assert not (run / "model" / ONNX_FILE).exists()
    (run / "model" / ONNX_FILE).write_bytes(before)  # by hand: it has no weights that could be old
    way = {"scores": "likelihood"}
    one, other = (scores_of(opened(run, r, **way)) for r in ("torch", "onnx"))
    np.testing.assert_allclose(other, one, atol=1e-4)
    assert np.abs(one - scores_of(opened(ready, "torch", **way))).max() > 1e-3


def test_it_is_evaluated_by_torch(ready: Path) -> None:
    run = opened(ready, "onnx")
    assert reads(run) is OnnxModel
    by_path = kgmlm.evaluate(ready, split="valid", progress=False)
    assert kgmlm.evaluate(run, split="valid", progress=False).values["metrics"] == by_path.values["metrics"]


def test_a_pack_has_it(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    without = copied(ready, tmp_path)
    (without / "model" / ONNX_FILE).unlink()
    digests.write_manifest(without / "model")
    packs = [
        kgmlm.pack(run, tmp_path / f"{name}.kgmlm", progress=False)
        for run, name in ((ready, "a"), (without, "b"))
    ]
    np.testing.assert_allclose(
        scores_of(opened(packs[0], "onnx")), scores_of(opened(packs[0], "torch")), atol=1e-4
    )
    assert reads(opened(packs[1], "auto")) is OnnxModel, "made for the pack"
    assert not (without / "model" / ONNX_FILE).exists()
    assert cli("pack", without, "--output", tmp_path / "c.kgmlm", "--no-onnx", "-q").returncode == 0
    refused(cli("onnx", packs[0]), "is a pack, which is not written to")
    monkeypatch.setattr("kgmlm.runs.models.installed", lambda name: False)
    with pytest.raises(RunError, match="is opened by torch, which is not installed"):
        opened(tmp_path / "c.kgmlm", "torch").open(Watcher())


WITHOUT = """
import sys
for name in ("torch", "transformers", "accelerate", "pykeen", "pandas", "sklearn"):
    sys.modules[name] = None  # importing it fails
import pyarrow
try:
    pyarrow.array(["a"])  # looks for pandas once, and fails because it finds None there
except AttributeError:
    pass
from kgmlm.cli.app import app
"""
WITHOUT_TORCH = (
    WITHOUT
    + """
try:
    app(sys.argv[1:])
except SystemExit as done:
    from fastapi.testclient import TestClient
    import kgmlm
    from kgmlm.serving.serve import service
    with TestClient(service(kgmlm.open_run(sys.argv[2])), base_url="http://127.0.0.1") as client:
        found = client.post("/rank", json={"queries": [{"head": "austria", "relation": "capital"}], "k": 3})
    print(found.status_code, found.text, file=sys.stderr)
    raise
"""
)
PROBABILITIES = (
    WITHOUT
    + """
import json
from fastapi.testclient import TestClient
import kgmlm
from kgmlm.serving.serve import service
run, triples = sys.argv[1:]
pair = ["rank", run, "--head", "austria", "--tail", "vienna"]
for arguments in ([*pair, "--json"], ["classify", run, triples, "--json"], [*pair, "--csv"], pair):
    try:
        app(arguments)
    except SystemExit as done:
        print("--", done.code, flush=True)
body = {"head": "austria", "relation": "capital"}
new = {"name": "Atlantis", "triples": [{"relation": "borders", "tail": "austria"}]}
for way in ({}, {"allow_self": True, "rerank": 0}):
    with TestClient(service(kgmlm.open_run(run, **way)), base_url="http://127.0.0.1") as client:
        claims = {"triples": [body | {"tail": "berlin"}], "explain": True}
        print(json.dumps(client.post("/classify", json=claims).json()))
        asked = body | {"entities": [new], "also": ["berlin"]}
        print(json.dumps(client.post("/explore", json=asked).json()))
"""
)


IMPORTED = """
import sys
from kgmlm.cli.app import app
app(sys.argv[1:], standalone_mode=False)
print(*sys.modules)
"""


def python(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    started = [sys.executable, "-c", code, *arguments]
    return subprocess.run(started, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_it_ranks_and_is_served_where_torch_is_not(ready: Path, tmp_path: Path, cli: Cli) -> None:
    run = copied(ready, tmp_path)
    folder = kgmlm.open_run(run).folder
    folder = save_tuned(folder, replace(folder.tuned, stage_weights={"reverse": StageWeight(5, 1.0)}))
    ask = ("--head", "austria", "--relation", "capital", "-k", "3", "--explain", "--json")
    done = python(WITHOUT_TORCH, "rank", run, *ask)
    assert done.returncode == 0, done.stderr
    assert '"reverse": ' in done.stdout
    assert done.stdout == cli("rank", run, *ask, "--runtime", "onnx").stdout
    assert done.stderr.strip().startswith("200 "), done.stderr


@pytest.mark.slow
def test_probabilities_need_no_torch(ready: Path, tmp_path: Path, cli: Cli) -> None:
    run, triples = copied(ready, tmp_path), tmp_path / "triples.tsv"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    triples.write_text("austria\tcapital\tberlin\naustria\tcapital\tvienna\nfrance\tborders\titaly\n")
    done = python(PROBABILITIES, run, triples)
    assert done.returncode == 0, done.stderr
    *printed, served = re.split("^-- 0\n", done.stdout, flags=re.M)
    by_torch = [
        [json.loads(line) for line in cli(*command, "--json", "-q", *runtime).stdout.splitlines()]
        for command, runtime in (
            (("rank", run, "--head", "austria", "--tail", "vienna"), ("--runtime", "torch")),
            (("classify", run, triples), ("--runtime", "torch")),
        )
    ]
    for item, expected in zip(printed[:2], by_torch, strict=True):
        rows = [json.loads(line) for line in item.splitlines()]
        assert rows == [pytest.approx(row, abs=1e-3) for row in expected]
    assert printed[2].startswith("head,relation,tail,probability,probability_if_half_true,true")
    assert len(printed[2].splitlines()) == 1 + len(by_torch[0])
    assert "probability" in printed[3]
    probability = by_torch[1][0]["probability"]
    classified, explored, *others = map(json.loads, served.splitlines())
    for answer in (classified, others[0]):
        assert answer["results"][0]["probability"] == pytest.approx(probability, abs=1e-3)
    for answer in (explored, others[1]):
        assert answer["also"][0]["entity"] == "berlin"
    numbers = [answer["also"][0]["probability"] for answer in (explored, others[1])]
    assert numbers == pytest.approx([probability, probability], abs=1e-3)
    ask = ("--head", "austria", "--relation", "capital", "--runtime", "onnx", "--precision", "bf16", "-q")
    notes = cli("rank", run, *ask).stderr
    assert notes.startswith("ONNX Runtime computes in fp32, not bf16: torch reads the texts\n")


@pytest.mark.slow
def test_it_imports_nothing_heavy(ready: Path) -> None:
    ask = ("--head", "austria", "--relation", "capital", "--explain", "-q")
    done = python(IMPORTED, "rank", ready, *ask)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert "onnxruntime" in imported
    assert not {"torch", "transformers", "pandas", "sklearn", "accelerate", "pykeen"} & imported


def test_what_a_file_says_of_itself_is_read_from_its_end(ready: Path) -> None:
    data = (ready / "model" / ONNX_FILE).read_bytes()
    facts = read_facts(data)
    assert facts.tokens > 0
    assert len(facts.decoder) == 2
    with pytest.raises(ValueError, match="not one of ours"):
        read_facts(data[:-30].replace(b'{"kgmlm_structure"', b""))
    with pytest.raises(ValueError, match="of another version"):
        read_facts(data.replace(b'{"kgmlm_structure":1', b'{"kgmlm_structure":2'))
