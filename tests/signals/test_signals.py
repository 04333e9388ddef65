"""One more signal in twenty lines, and what every command makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from signal_tests import SignalTests
from typer.testing import CliRunner

from kgmlm import signals
from kgmlm.cli.app import app
from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals import SIGNALS
from kgmlm.signals.base import Pool, TrainableSignal
from kgmlm.text.reader import Reader, Reading


class Longest(TrainableSignal):
    """A signal in a few lines: long names first, by a factor that it learns."""

    name: ClassVar[str] = "longest"
    title: ClassVar[str] = "lengths of names"
    about: ClassVar[str] = "how long the name is"
    file: ClassVar[str] = "signals/longest.safetensors"

    def __init__(self, entities: EntityTable, factor: float) -> None:
        self.factor = factor
        self.lengths_N = np.array([factor * len(x) for x in entities.column("surface")], np.float32)

    @classmethod
    def fit(cls, graph: KnowledgeGraph, *_: Any, **__: Any) -> Longest:
        return cls(graph.entities, 1 / len(graph.splits["train"]))

    def score(self, reading: Reading, pool: Pool) -> Floats:
        lengths = self.lengths_N[pool.filled]
        return lengths if pool.own else np.tile(lengths, (len(reading.queries), 1))

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Longest:
        return Longest(reader.context.entities, self.factor)

    def tensors(self) -> dict[str, Any]:
        return {"factor": np.array([self.factor])}

    @classmethod
    def from_tensors(cls, tensors: Any, graph: KnowledgeGraph, reader: Reader | None) -> Longest:
        return cls(graph.entities, tensors["factor"].item())


REGISTRY = SIGNALS


@pytest.fixture(scope="module", autouse=True)
def longest() -> Iterator[None]:
    """One more signal's line in the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(signals.SIGNALS, Longest.name, Longest)
        yield


class TestLongest(SignalTests):
    kind = Longest


@pytest.mark.parametrize("name", REGISTRY)
def test_every_signal_has_a_class_of_tests(name: str) -> None:
    modules = [import_module(path.stem) for path in Path(__file__).parent.glob("test_*.py")]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    tests = [c for c in classes if issubclass(c, SignalTests) and hasattr(c, "kind")]
    assert SIGNALS[name] in {c.kind for c in tests}
    assert SIGNALS[name].name == name


def test_one_more_signal_is_ranked_explained_evaluated_and_taken_to_a_wider_graph(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker().with_signal(Longest(toy.entities, 1.0))
    plain, ranker = ranker, ranker.replace(mixture=ranker.mixture.evenly("longest", 100.0))
    longest = max(toy.entities.column("surface"), key=len)
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    ((_, best),) = Predictor(toy, ranker).predict([query], k=3, explain=True)
    assert len(best[0].name) == len(longest)
    assert best[0].parts is not None
    assert best[0].parts["longest"] == (100.0, float(len(longest)))
    assert json.dumps(best[0].as_json())
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
