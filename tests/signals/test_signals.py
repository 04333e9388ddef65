"""The contract of signals, and one more of them in ten lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from kgmlm import signals
from kgmlm.cli.app import app
from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import BiencoderSettings, KGESettings, Protocol, Settings, VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals import SIGNALS, beside
from kgmlm.signals.base import Pool, Signal
from kgmlm.text.reader import Reader, Reading


class Longest:
    """A signal in a few lines: long names first, by a factor that it learns."""

    name: ClassVar[str] = "longest"
    title: ClassVar[str] = "lengths of names"
    about: ClassVar[str] = "how long the name is"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/longest.safetensors"

    def __init__(self, entities: EntityTable, factor: float) -> None:
        self.factor = factor
        self.lengths_N = np.array([factor * len(x) for x in entities.column("surface")], np.float32)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        lengths = self.lengths_N[pool.filled]
        return lengths if pool.own else np.tile(lengths, (len(reading.queries), 1))

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Longest:
        return Longest(reader.context.entities, self.factor)

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        return None

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: Any,
        advance: Any = None,
        device: Any = None,
        kept: Path | None = None,
    ) -> Longest:
        return cls(graph.entities, 1 / len(graph.splits["train"]))

    def save(self, path: Path) -> None:
        save_file({"factor": np.array([self.factor])}, path)

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Longest:
        try:
            return cls(graph.entities, load_file(path)["factor"].item())
        except SafetensorError:
            raise RunError(f"{path} cannot be read") from None


REGISTRY = SIGNALS
QUICK = {  # settings of signals that train for long by default
    "kge": KGESettings(dimension=4, epochs=1),
    "biencoder": BiencoderSettings(dimension=8, relation_dimension=4, steps=3, precision="fp32"),
}


@pytest.fixture(scope="module", autouse=True)
def longest() -> Iterator[None]:
    """One more signal's line in the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(signals.SIGNALS, Longest.name, Longest)
        yield


def fitted(name: str, graph: KnowledgeGraph, encoder: str) -> Signal:
    """A signal that is trained beside a text model, quickly."""
    settings = QUICK.get(name, getattr(Settings(), name, None))
    if isinstance(settings, BiencoderSettings):
        settings = settings.model_copy(update={"encoder": encoder})
    return beside()[name].fit(graph, settings)


@pytest.fixture(scope="module")
def trained(toy: KnowledgeGraph, tiny_encoder: str) -> dict[str, Signal]:
    """All signals that are trained beside a text model."""
    return {name: fitted(name, toy, tiny_encoder) for name in beside()}


@pytest.fixture
def whole(make_ranker: Callable[..., Ranker], trained: dict[str, Signal]) -> Ranker:
    """A ranker that has every signal."""
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    for name, signal in trained.items():
        ranker = ranker.with_signal(signal)
        ranker.mixture = ranker.mixture.evenly(name, 0.5)
    return ranker


def reading_of(ranker: Ranker, toy: KnowledgeGraph) -> Reading:
    queries, _ = toy.queries("test")
    return Reading(queries, ranker.reader.read)


@pytest.mark.parametrize("name", [*REGISTRY, Longest.name])
class TestEverySignal:
    def test_it_is_one(self, whole: Ranker, name: str) -> None:
        assert isinstance(whole.signals[name], Signal)
        assert whole.signals[name].name == name
        assert all((REGISTRY[name].title, REGISTRY[name].about))

    def test_a_run_keeps_it_where_packs_look_for_it(self, name: str) -> None:
        expected = f"signals/{name}.safetensors" if name in beside() else "model/"
        assert REGISTRY[name].file.startswith(expected)

    def test_all_ways_of_scoring_a_candidate_agree(
        self, whole: Ranker, toy: KnowledgeGraph, name: str
    ) -> None:
        reading = reading_of(whole, toy)
        signal = whole.signals[name]
        all_BN, some = signal.score(reading, whole.pool()), np.array([5, 0, 17])
        some_BN = signal.score(reading, whole.pool(some))
        np.testing.assert_allclose(some_BN, all_BN[:, some], atol=1e-5, rtol=1e-5)
        own = np.random.default_rng(0).integers(-1, len(toy.entities), (len(reading.queries), 6))
        pool = whole.pool(own)
        own_BK, expected_BK = signal.score(reading, pool), np.take_along_axis(all_BN, pool.filled, 1)
        assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in (all_BN, some_BN, own_BK))
        np.testing.assert_allclose(own_BK[pool.there], expected_BK[pool.there], atol=1e-5, rtol=1e-5)

    def test_over_a_wider_graph_it_says_the_same(self, whole: Ranker, toy: KnowledgeGraph, name: str) -> None:
        wider = whole.over(toy.extended(EntityTable(["q1"], ["Atlantis"])).context)
        reading = reading_of(whole, toy)
        before = whole.signals[name].score(reading, whole.pool())
        after = wider.signals[name].score(reading_of(wider, toy), wider.pool())
        np.testing.assert_allclose(after[:, :-1], before, atol=1e-5, rtol=1e-5)
        assert np.isfinite(after[:, -1]).all()

    def test_what_is_saved_is_opened_and_says_the_same(
        self, whole: Ranker, toy: KnowledgeGraph, name: str, tmp_path: Path
    ) -> None:
        signal, path = whole.signals[name], tmp_path / REGISTRY[name].file
        path.parent.mkdir(parents=True)
        before = signal.score(reading_of(whole, toy), whole.pool())
        signal.save(path)
        opened = whole.with_signal(REGISTRY[name].open(path, toy, whole.reader)).signals[name]
        np.testing.assert_array_equal(opened.score(reading_of(whole, toy), whole.pool()), before)
        if path.exists():  # it has more to keep than the model's weights
            path.write_bytes(path.read_bytes()[:-1])
            with pytest.raises(RunError, match="cannot be read"):
                REGISTRY[name].open(path, toy, whole.reader)

    def test_it_knows_no_answers(
        self, whole: Ranker, toy: KnowledgeGraph, tiny_encoder: str, name: str
    ) -> None:
        """Its scores follow from the training triples alone: other splits may say what they like."""
        bare = replace(toy, splits={"train": toy.splits["train"]})
        ranker = (
            whole.with_signal(fitted(name, bare, tiny_encoder))
            if name in beside()
            else whole.over(bare.context)
        )
        signal = ranker.signals[name]
        expected = whole.signals[name].score(reading_of(whole, toy), whole.pool())
        found = signal.score(reading_of(whole, toy), whole.pool())
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    def test_it_reads_text_only_if_it_says_so(self, whole: Ranker, toy: KnowledgeGraph, name: str) -> None:
        signal = whole.signals[name]
        reading = Reading(toy.queries("test")[0])
        if signal.reads:
            with pytest.raises(AssertionError, match="without a model"):
                signal.score(reading, whole.pool())
        else:
            signal.score(reading, whole.pool())


def test_one_more_signal_is_ranked_explained_evaluated_and_taken_to_a_wider_graph(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker().with_signal(Longest(toy.entities, 1.0))
    plain, ranker = ranker, ranker.replace(mixture=ranker.mixture.evenly("longest", 100.0))
    longest = max(toy.entities.column("surface"), key=len)
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    ((_, found),) = Predictor(toy, ranker).predict([query], k=3, explain=True)
    assert len(found[0].name) == len(longest)
    assert found[0].parts is not None
    assert found[0].parts["longest"] == (100.0, float(len(longest)))
    assert json.dumps(found[0].as_json())
    mixed = evaluate(ranker, toy, Protocol())
    assert evaluate(plain, toy, Protocol()).report["metrics"] != mixed.report["metrics"]
    wider = Predictor(toy, ranker).with_entities(EntityTable(["q1"], ["A" * 99]))
    assert wider.rank(head="usa", relation="located_in", k=1)["tail_label"].tolist() == ["q1"]


def test_one_more_signal_is_trained_beside_a_run_tuned_saved_and_opened_again(
    toy_run: Path, tmp_path: Path
) -> None:
    run = str(shutil.copytree(toy_run, tmp_path / "run"))
    done = CliRunner().invoke(app, ["tune", run, "--add", "longest", "--json", "-q"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["longest"]
    assert {"mrr", "mrr_text", "mrr_longest", "mrr_one_weight"} <= figures.keys()
    opened = open_folder(run, verify=True)
    assert "kgmlm" in opened.record["signals"]["longest"]["versions"]
    for scores in ("all", "longest", "text"):
        asked = ["evaluate", run, "--split", "valid", "--scores", scores, "--json", "-q"]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        if scores != "all":
            assert report["metrics"]["mrr"] == pytest.approx(figures[f"mrr_{scores}"])
    ranker = tuned_ranker(opened, "cpu")
    assert ranker.signals["longest"].score(Reading(Queries.of([])), ranker.pool()).shape[1] > 0
    assert ranker.mixture.tables["longest"].shape == (len(opened.graph.relations), 2)
    pack = tmp_path / "toy.kgmlm"
    assert CliRunner().invoke(app, ["pack", run, "--output", str(pack)]).exit_code == 0
    packed = tuned_ranker(open_folder(pack), "cpu")
    assert packed.mixture.tables["longest"].tolist() == ranker.mixture.tables["longest"].tolist()
    assert CliRunner().invoke(app, ["tune", run, "--drop", "longest", "-q"]).exit_code == 0
    assert "longest" not in tuned_ranker(open_folder(run), "cpu").signals
