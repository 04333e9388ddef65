"""Models of PyKEEN as signals: made again of class, arguments and tensors, and asked beside the others."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pykeen.models
import pytest
import torch
from conftest import Cli, refused
from doubles import Hears
from pykeen.pipeline import PipelineResult, pipeline
from pykeen.triples import TriplesFactory
from safetensors.numpy import load_file, save_file

import kgmlm
from kgmlm.core import machine
from kgmlm.core.errors import ConfigError, KgmlmError, RunError
from kgmlm.evaluation.pykeen import to_factory
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, both_sides
from kgmlm.runs.folder import open_folder
from kgmlm.signals import is_beside, kind_of, kinds_in
from kgmlm.signals.base import Pool
from kgmlm.signals.pykeen_model import PyKEENModel, names_of, taken
from kgmlm.text.reader import Reading

MADE: dict[str, dict[str, Any]] = {
    "RotatE": {"embedding_dim": 8},
    "TransE": {},
    "TuckER": {"embedding_dim": 8, "relation_dim": 6},
    "QuatE": {"embedding_dim": 4},
    "TransR": {"embedding_dim": 8, "relation_dim": 5},
    "CompGCN": {"embedding_dim": 8},
}


def made(graph: KnowledgeGraph, kind: str, inverse: bool = False) -> tuple[Any, TriplesFactory]:
    """A model with random parameters, and its factory."""
    plain = to_factory(graph, "train")
    factory = TriplesFactory(
        plain.mapped_triples, plain.entity_to_id, plain.relation_to_id, create_inverse_triples=inverse
    )
    model = getattr(pykeen.models, kind)(triples_factory=factory, random_seed=3, **MADE[kind])
    return model.eval(), factory


def asked(graph: KnowledgeGraph) -> Queries:
    return both_sides(np.concatenate([graph.splits["train"][:6], graph.splits["test"]]))[0]


def expected(model: Any, queries: Queries) -> Any:
    """Scores of all entities by a model that has the ids of the graph."""
    rows = []
    with torch.inference_mode():
        for q in queries:
            ends = (q.entity, q.relation) if q.target == "tail" else (q.relation, q.entity)
            batch = torch.tensor([ends])
            rows.append((model.predict_t(batch) if q.target == "tail" else model.predict_h(batch))[0])
    return torch.stack(rows).numpy()


WAYS = [*((kind, kind == "CompGCN") for kind in MADE), ("TuckER", True)]


@pytest.mark.parametrize(("kind", "inverse"), WAYS)
def test_a_model_says_what_it_says_in_pykeen(
    toy: KnowledgeGraph, tmp_path: Path, kind: str, inverse: bool
) -> None:
    model, factory = made(toy, kind, inverse)
    signal = taken(model, factory, toy)
    assert signal.name == f"pykeen:{kind.lower()}"
    assert signal.file == f"signals/pykeen-{kind.lower()}.safetensors"
    assert (len(signal.triples) > 1) == (kind == "CompGCN"), "triples are kept where it is made of them"
    queries = asked(toy)
    signal.save(tmp_path / "x.safetensors")
    opened = type(signal).open(tmp_path / "x.safetensors", toy)
    scores_BN = opened.score(Reading(queries), Pool(len(toy.entities)))
    assert scores_BN == pytest.approx(expected(model, queries), abs=1e-3)
    some = np.array([5, 0, 7])
    assert np.array_equal(opened.score(Reading(queries), Pool(len(toy.entities), some)), scores_BN[:, some])
    own = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 4))
    of_own = opened.score(Reading(queries), Pool(len(toy.entities), own))
    assert np.array_equal(of_own, np.take_along_axis(scores_BN, own, 1))


def test_what_a_model_does_not_know_it_is_neutral_about(toy: KnowledgeGraph) -> None:
    known = [row for row in toy.labeled(toy.splits["train"]) if "france" not in row]
    part = KnowledgeGraph.from_triples(known)
    model, factory = made(part, "TransE")
    signal, queries = taken(model, factory, toy), asked(toy)
    france, relations = toy.entities.index["france"], set(part.relations.index)
    scores_BN = signal.score(Reading(queries), Pool(len(toy.entities)))
    there = np.array([label in part.entities.index for label in toy.entities.column("label")])
    for q, row in zip(queries, scores_BN, strict=True):
        if q.entity == france or not there[q.entity] or toy.relations[q.relation].label not in relations:
            assert not row.any()
        else:
            assert row[france] == pytest.approx(row[there].mean(), abs=1e-4)
    rows, relation_rows = np.array([france, -1, 3]), np.arange(len(toy.relations))
    small = signal.over(None, rows, relation_rows)
    one = Queries(np.array([2]), np.array([0]), np.array([True]))
    whole = Queries(np.array([3]), np.array([0]), np.array([True]))
    found = small.score(Reading(one), Pool(3))[0]
    before = signal.score(Reading(whole), Pool(len(toy.entities)))[0]
    assert found[[0, 2]] == pytest.approx(before[[france, 3]], abs=1e-5)


def test_labels_that_are_numbers_are_found() -> None:
    graph = KnowledgeGraph.from_triples([("00001740", "r", "00002098"), ("00002098", "r", "x1")])
    ids = {1740: 0, 2098: 1, "x1": 2}
    plain = to_factory(graph, "train")
    factory = TriplesFactory(torch.tensor([[0, 0, 1], [1, 0, 2]]), ids, plain.relation_to_id)  # type: ignore[arg-type]
    model = pykeen.models.TransE(triples_factory=factory, embedding_dim=4)
    assert taken(model, factory, graph).rows_N.tolist() == [ids[1740], ids[2098], 2]


def test_what_cannot_be_taken_is_one_sentence(toy: KnowledgeGraph) -> None:
    model, factory = made(toy, "RotatE")

    class Own(pykeen.models.TransE):
        """No class of PyKEEN's."""

    with pytest.raises(ConfigError, match="is no model of"):
        taken(Own(triples_factory=factory), factory, toy)
    with pytest.raises(ConfigError, match="is no model of"):
        taken(object(), factory, toy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be made again"):
        taken(model, factory, toy, arguments={"embedding_dim": 9})
    with pytest.raises(ConfigError, match="cannot be made again"):
        taken(model, factory, toy, arguments={"no": 9})
    other = KnowledgeGraph.from_triples([("a", "b", "c")])
    with pytest.raises(RunError, match="knows no entity of"):
        taken(model, factory, other)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    taken(model, factory, toy)
    assert torch.equal(before[0], torch.get_rng_state()), "nobody's random numbers move"
    assert before[1:] == (str(np.random.get_state()), random.getstate())


def test_names_of_files_and_signals() -> None:
    files = ("pykeen-rotate", "kge", "pykeen-A", "pykeen-", "pykeen-a b")
    assert names_of(f"{file}.safetensors" for file in files) == ["pykeen:rotate"]
    assert kind_of("pykeen:../x") is None
    assert kind_of("pykeen") is None
    found = kind_of("pykeen:mine")
    assert found is not None
    assert found.file == "signals/pykeen-mine.safetensors"
    assert is_beside("pykeen:mine")
    assert not is_beside("likelihood")


@pytest.fixture(scope="module")
def saved(toy: KnowledgeGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline of PyKEEN."""
    folder = tmp_path_factory.mktemp("pykeen") / "rotate"
    training, testing = to_factory(toy, "train"), to_factory(toy, "test")
    found: PipelineResult = pipeline(
        training=training, testing=testing, model="RotatE", model_kwargs={"embedding_dim": 16},
        training_kwargs={"num_epochs": 40, "use_tqdm": False}, evaluation_kwargs={"use_tqdm": False},
        random_seed=0, device="cpu",
    )  # fmt: skip
    found.save_to_directory(folder)
    return folder


def test_a_run_takes_models_of_pykeen(
    cli: Cli, saved: Path, toy_run: Path, tmp_path: Path, toy: KnowledgeGraph
) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    add = ("tune", run, "--add", "pykeen", "-q")
    refused(cli(*add), "--from names the folder")
    refused(cli(*add, "--from", saved), "executes the code in it", "--trust-pickle")
    refused(cli(*add, "--from", tmp_path, "--trust-pickle"), "has no trained_model.pkl")
    refused(cli(*add, "--from", saved, "--trust-pickle", "--set", "kge.epochs=1"), "--from trains nothing")
    refused(cli(*add, "--from", saved, "--trust-pickle", "--arguments", "[1]"), "JSON object")
    refused(cli(*add, "--from", saved, "--trust-pickle", "--arguments", "{"), "is no JSON")
    refused(cli("tune", run, "--add", "kge", "--trust-pickle"), "go with --add pykeen")
    refused(cli("tune", run, "--add", "pykeen:A b", "--from", saved, "--trust-pickle"), "small letters")
    done = cli(*add, "--from", saved, "--trust-pickle", "--json")
    assert list(json.loads(done.stdout)) == ["text", "pykeen:rotate"], done.stderr
    refused(cli(*add, "--from", saved, "--trust-pickle"), "has a signal 'pykeen:rotate' already")
    model, factory = made(toy, "TransE")
    figures = kgmlm.tune(run, add="pykeen:other", source=kgmlm.FromPyKEEN(model, factory), progress=False)
    assert list(figures) == ["text", "pykeen:other", "pykeen:rotate"], "several stand side by side"
    opened = open_folder(run, verify=True)
    assert not [p for p in run.rglob("*") if p.suffix in (".pkl", ".pt", ".bin")], "no pickle is kept"
    assert opened.record["signals"]["pykeen:rotate"]["class"] == "RotatE"
    assert {"pykeen:rotate", "pykeen:other"} <= set(kinds_in(run))
    asked_one = ("rank", run, "--head", "france", "--relation", "capital", "--json")
    row = json.loads(cli(*asked_one, "--explain").stdout.splitlines()[0])
    assert {"pykeen:rotate", "pykeen:other"} <= row["parts"].keys()
    assert cli(*asked_one, "--scores", "pykeen:rotate").returncode == 0
    refused(cli(*asked_one, "--scores", "pykeen:none"), "has no PyKEEN model")
    report = json.loads(cli("evaluate", run, "--json", "-q").stdout)
    assert report["scores"]["pykeen:rotate"] > 0
    assert "pykeen:rotate: weight" in cli("info", run).stdout
    pack = tmp_path / "x.kgmlm"
    assert cli("pack", run, "--output", pack, "-q").returncode == 0
    packed = json.loads(cli("evaluate", pack, "--json", "-q").stdout)
    assert packed["metrics"]["mrr"] == pytest.approx(report["metrics"]["mrr"], abs=0.1)
    refused(cli("tune", run, "--drop", "pykeen"), "has no 'pykeen'", "pykeen:rotate")
    assert cli("tune", run, "--drop", "pykeen:rotate", "--drop", "pykeen:other", "-q").returncode == 0
    assert not [name for name in open_folder(run).tuned.mixture.tables if name.startswith("pykeen")]


def test_without_pykeen_its_models_are_left_out(
    saved: Path, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    source = kgmlm.FromPyKEEN(saved, trust_pickle=True)
    kgmlm.tune(run, add="pykeen", source=source, progress=False)
    installed = machine.installed
    monkeypatch.setattr(machine, "installed", lambda package: package != "pykeen" and installed(package))
    watch = Hears()
    report = kgmlm.evaluate(run, progress=watch)
    assert any("PyKEEN is not installed: pykeen:rotate left out" in line for line in watch.told)
    assert report.metrics["both.realistic.hits_at_10"] > 0
    with pytest.raises(KgmlmError, match="PyKEEN is not installed"):
        kgmlm.tune(run, add="pykeen:again", source=source, progress=False)


DAMAGE = {
    "no class": lambda t, about: about.update(kind=3),
    "no entities": lambda t, about: about.update(entities=0),
    "rows of others": lambda t, about: t.update(rows=t["rows"] + 10**6),
    "triples of others": lambda t, about: t.update(triples=t["triples"] + 10**6),
    "no triples": lambda t, about: t.pop("triples"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_sentence(toy: KnowledgeGraph, tmp_path: Path, what: str) -> None:
    signal, path = taken(*made(toy, "TransE"), toy), tmp_path / "x.safetensors"
    signal.save(path)
    tensors = {name: of.copy() for name, of in load_file(path).items()}
    about = json.loads(tensors["about"].tobytes())
    DAMAGE[what](tensors, about)
    save_file({**tensors, "about": np.frombuffer(json.dumps(about).encode(), np.uint8).copy()}, path)
    with pytest.raises(RunError, match="cannot be read") as caught:
        PyKEENModel.open(path, toy)
    assert "\n" not in str(caught.value)


def test_a_class_that_is_no_model_is_not_made(toy: KnowledgeGraph, tmp_path: Path) -> None:
    signal, path = taken(*made(toy, "TransE"), toy), tmp_path / "x.safetensors"
    signal.save(path)
    tensors = load_file(path)
    about = {**json.loads(tensors["about"].tobytes()), "kind": "resolve_model"}
    save_file({**tensors, "about": np.frombuffer(json.dumps(about).encode(), np.uint8).copy()}, path)
    with pytest.raises(RunError, match="cannot be made"):
        PyKEENModel.open(path, toy).score(Reading(asked(toy)), Pool(len(toy.entities)))
    other = KnowledgeGraph.from_triples([("a", "b", "c")])
    with pytest.raises(RunError, match="of another graph"):
        PyKEENModel.open(path, other)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("NodePiece", {"embedding_dim": 4}),
        ("TransE", {"entity_initializer_kwargs": {"url": "https://example.org/x.pkl"}}),
        ("TransE", {"entity_initializer": "/tmp/x.pkl"}),
        ("TransE", {"embedding_dim": 10**9}),
    ],
)
def test_a_file_of_a_stranger_makes_nothing_else(
    toy: KnowledgeGraph, tmp_path: Path, kind: str, arguments: dict[str, Any]
) -> None:
    """Arguments name no files, no addresses, and no class that reads any; a pack may come from anybody."""
    signal, path = taken(*made(toy, "TransE"), toy), tmp_path / "x.safetensors"
    signal.save(path)
    tensors = load_file(path)
    about = json.loads(tensors["about"].tobytes()) | {"kind": kind, "arguments": arguments}
    save_file({**tensors, "about": np.frombuffer(json.dumps(about).encode(), np.uint8).copy()}, path)
    with pytest.raises(RunError, match="made again"):
        PyKEENModel.open(path, toy).score(Reading(asked(toy)), Pool(len(toy.entities)))
