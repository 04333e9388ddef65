"""The bi-encoder: what its vectors follow from, its training, other graphs, and damaged files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli, Launch, refused
from safetensors.numpy import load_file, save_file
from signal_tests import SignalTests
from worlds import together

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import BiencoderSettings, Protocol
from kgmlm.core.errors import ModelError, RunError
from kgmlm.core.processes import ProcessGroup
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals import rows_of, text_vectors
from kgmlm.signals.base import Pool
from kgmlm.signals.biencoder import Biencoder, profile_of, weighted_sums
from kgmlm.signals.biencoder_training import Training
from kgmlm.signals.text_vectors import EncoderSource, read_texts
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.reader import Reader, Reading


class TestBiencoder(SignalTests):
    kind = Biencoder

    def settings(self, encoder: str) -> BiencoderSettings:
        return BiencoderSettings(dimension=8, steps=3, precision="fp32", encoder=encoder)


@pytest.fixture(scope="module")
def settings(tiny_encoder: str) -> BiencoderSettings:
    return BiencoderSettings(
        encoder=tiny_encoder,
        dimension=16,
        steps=40,
        batch_size=16,
        dropout=0.1,
        precision="fp32",
    )


@pytest.fixture(scope="module")
def made(toy: KnowledgeGraph, settings: BiencoderSettings) -> Biencoder:
    return Biencoder.fit(toy, settings)


def scores(signal: Biencoder, queries: Queries, graph: KnowledgeGraph) -> Any:
    return signal.score(Reading(queries), Pool(len(graph.entities)))


def for_graph(signal: Biencoder, ranker: Ranker, graph: KnowledgeGraph) -> Biencoder:
    """The signal over another graph."""
    entity_rows, relation_rows = rows_of(graph.context, signal.context)
    reader: Reader = ranker.reader.for_graph(graph.context)
    return signal.for_graph(reader, entity_rows, relation_rows)


def test_scores_are_those_of_the_head_that_is_trained(
    toy: KnowledgeGraph, settings: BiencoderSettings, made: Biencoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts_ND = np.asarray(made.vectors.all, np.float32)
    training = Training(toy, made.relation_texts_RD, settings.model_copy(update={"steps": 1}))
    head = {name: torch.from_numpy(x) for name, x in made.head.items()}
    training.head.load_state_dict(head, strict=False)
    training.head.eval()
    for chance in ("NEIGHBOR_DROPOUT", "STRUCTURE_DROPOUT"):
        monkeypatch.setattr(f"kgmlm.signals.biencoder_training.{chance}", 0.0)
    links, count = toy.context.links, len(toy.entities)
    row_E, _, other_E = links.edges(np.arange(count))
    ones_E = np.ones(len(row_E), np.float32)
    sums_ND = weighted_sums(ones_E, row_E, other_E, count, texts_ND.__getitem__)
    profile = profile_of(links, count, 2 * len(toy.relations))
    training.hold(texts_ND, sums_ND, profile)
    chosen = np.arange(len(training.queries))
    with torch.no_grad():
        kinds_KM = training.head.kinds(training.relation_texts_RD)
        queries_BW = training.query(training.batch(chosen), kinds_KM)
        text_NW = training.head.candidate(training.texts_ND)
        candidates_NW = training.candidates(
            np.arange(count), text_NW, training.sums_ND, training.degree_N, kinds_KM
        )
    expected = (queries_BW @ candidates_NW.T).numpy()
    np.testing.assert_allclose(scores(made, training.queries, toy), expected, atol=1e-5)


def test_it_learns(
    toy: KnowledgeGraph, settings: BiencoderSettings, made: Biencoder, make_ranker: Callable[..., Ranker]
) -> None:
    def mrr(signal: Biencoder) -> float:
        ranker = make_ranker().with_signal(signal)
        evaluation: float = evaluate(
            ranker.replace(mixture=ranker.mixture.only("biencoder")),
            toy,
            Protocol(split="train", filter=("train",)),
        ).report["metrics"]["mrr"]
        return evaluation

    fresh = Biencoder.fit(toy, settings.model_copy(update={"steps": 1}))
    assert mrr(made) > mrr(fresh) + 0.1


@pytest.mark.parametrize("candidates", [0, 5])
def test_training_is_a_function_of_its_seed(
    toy: KnowledgeGraph, settings: BiencoderSettings, candidates: int
) -> None:
    few = settings.model_copy(update={"steps": 3, "candidates": candidates})
    one, two = (Biencoder.fit(toy, few).head for _ in range(2))
    other = Biencoder.fit(toy, few.model_copy(update={"seed": 1})).head
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_answers_that_training_knows_tell_nothing_of_a_query(
    toy: KnowledgeGraph, made: Biencoder, make_ranker: Callable[..., Ranker]
) -> None:
    queries, answers = toy.unique_queries("train")
    for i in range(len(queries)):
        query, (_, ids) = queries[np.array([i])], answers.take(np.array([i]))
        train = toy.splits["train"]
        entity, relation, tail = int(query.entity_B[0]), int(query.relation_B[0]), bool(query.tail_B[0])
        asked, answer = (0, 2) if tail else (2, 0)
        known = (train[:, asked] == entity) & (train[:, 1] == relation) & np.isin(train[:, answer], ids)
        without = replace(toy, splits={**toy.splits, "train": train[~known]})
        result = for_graph(made, make_ranker(), without).query_vectors(query)
        np.testing.assert_allclose(result, made.query_vectors(query), atol=1e-6)


def test_further_triples_and_entities_change_whom_they_touch(
    toy: KnowledgeGraph, made: Biencoder, make_ranker: Callable[..., Ranker]
) -> None:
    _ = made.candidates_NW
    extended = toy.extended(EntityTable(["q1", "q2"], ["Atlantis", "Avalon"], ["a lost city", ""]))
    new, head = len(toy.entities), 3
    wider = extended.with_context(np.array([[head, 0, new]]))
    grown = for_graph(made, make_ranker(), wider)
    further = for_graph(
        for_graph(made, make_ranker(), wider), make_ranker(), wider
    )  # of what is not computed yet
    fresh = Biencoder(
        made.head, wider.context, grown.vectors, grown.relation_texts_RD, grown.relation_rows, made.encoder
    )
    np.testing.assert_allclose(grown.candidates_NW, fresh.candidates_NW, atol=1e-6)
    np.testing.assert_allclose(further.candidates_NW, fresh.candidates_NW, atol=1e-6)
    again = for_graph(grown, make_ranker(), wider.extended(EntityTable(["q3"], ["Lyonesse"])))
    np.testing.assert_allclose(again.candidates_NW[: new + 2], fresh.candidates_NW, atol=1e-6)
    changed = np.abs(grown.candidates_NW[:new] - made.candidates_NW).max(1) > 1e-6
    assert np.flatnonzero(changed).tolist() == [head]


def test_a_relation_never_seen_is_known_by_its_text(
    toy: KnowledgeGraph, made: Biencoder, make_ranker: Callable[..., Ranker]
) -> None:
    wider = toy.with_relations(["made of", "made of stone"])
    new = len(toy.relations)
    grown = for_graph(made, make_ranker(), wider)
    assert grown.relation_rows[new:].tolist() == [-1, -1]
    asked = Queries(np.array([0, 0]), np.array([new, new + 1]), np.array([True, True]))
    one, two = scores(grown, asked, wider)
    assert np.isfinite(one).all()
    assert not np.allclose(one, two)
    queries, _ = toy.queries("test")
    np.testing.assert_allclose(scores(grown, queries, wider), scores(made, queries, toy), atol=1e-6)


def test_an_entity_without_text_and_triples_has_a_score(
    toy: KnowledgeGraph, made: Biencoder, make_ranker: Callable[..., Ranker]
) -> None:
    wider = toy.extended(EntityTable(["q1"], [" "]))
    grown = for_graph(made, make_ranker(), wider)
    queries = Queries(np.array([len(toy.entities), 0]), np.array([0, 0]), np.array([True, False]))
    assert np.isfinite(scores(grown, queries, wider)).all()


@pytest.mark.parametrize("own", [True, False])
def test_a_second_training_reads_no_text_again(
    toy: KnowledgeGraph, tiny_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """The encoder lies in the model's file, or in the signal's."""
    small: dict[str, Any] = {"dimension": 16, "steps": 8, "encoder": "" if own else tiny_encoder}
    run = kgmlm.train(
        toy,
        tiny_encoder,
        tmp_path / "run",
        preset="quick",
        settings={"training.batch_size": 16, "biencoder": small},
        progress=False,
    )
    read: list[int] = []
    whole = EncoderSource.read

    def reading(source: EncoderSource, ids: IntArray, batch_size: int = 64) -> Any:
        read.extend(ids.tolist())
        return whole(source, ids, batch_size)

    monkeypatch.setattr(EncoderSource, "read", reading)
    again: dict[str, Any] = {"overwrite": True, "progress": False, "add": "biencoder"}
    kgmlm.tune(run, **again, settings={"biencoder": {"steps": 3}})
    assert not read
    kgmlm.tune(run, **again, settings={"biencoder": {"max_length": 8, "steps": 3}})
    assert len(read) == len(toy.entities), "these are other vectors"
    assert not list(tmp_path.glob(".*unfinished")), "nothing is left beside the run"


def test_training_ends_after_its_seconds(toy: KnowledgeGraph, settings: BiencoderSettings) -> None:
    steps: list[int] = []
    timed = settings.model_copy(update={"seconds": 3.0, "steps": 10**6})
    Biencoder.fit(toy, timed, lambda n, total: steps.append(n))
    assert 1 <= sum(steps) < 10**6


def test_reading_that_was_killed_continues_with_the_next_part(
    toy: KnowledgeGraph, settings: BiencoderSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = settings.model_copy(update={"steps": 2})
    expected = Biencoder.fit(toy, few)
    monkeypatch.setattr(text_vectors, "PART", 10)
    read, kept = TextEncoder.read, tmp_path / ".run.biencoder-unfinished"
    asked: list[int] = []

    def killed(self: TextEncoder, texts: list[str], *args: Any, **options: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        if len(texts) == 10:
            asked.append(len(texts))
        return read(self, texts, *args, **options)

    monkeypatch.setattr(TextEncoder, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        Biencoder.fit(toy, few, kept=kept)
    assert len(list(kept.glob("*.npy"))) == 2
    counted: list[int] = []

    def counting(self: TextEncoder, texts: list[str], *args: Any, **options: Any) -> Any:
        counted.append(len(texts))
        return read(self, texts, *args, **options)

    monkeypatch.setattr(TextEncoder, "read", counting)
    figures = Biencoder.fit(toy, few, kept=kept)
    assert sum(counted) == len(toy.relations) + len(toy.entities) - 20
    assert not kept.exists()
    for name, values in expected.head.items():
        np.testing.assert_allclose(figures.head[name], values, atol=1e-5)


def test_vectors_of_other_texts_are_read_again(
    toy: KnowledgeGraph, settings: BiencoderSettings, tmp_path: Path
) -> None:
    few, kept = settings.model_copy(update={"steps": 1}), tmp_path / "kept"
    Biencoder.fit(toy, few).save(tmp_path / "one.safetensors")
    kept.mkdir()
    (kept / "about.json").write_text('{"encoder": "another"}')
    np.save(kept / "texts-000000.npy", np.zeros((len(toy.entities), 32), np.float32))
    Biencoder.fit(toy, few, kept=kept).save(tmp_path / "two.safetensors")
    one, two = (load_file(tmp_path / f"{name}.safetensors")["texts"] for name in ("one", "two"))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("texts", lambda x: x[:, :-1].copy()),
        ("texts", lambda x: x[:-1].copy()),
        ("candidates", lambda x: x[:-1].copy()),
        ("head.query.weight", lambda x: x * np.float32(np.nan)),
        ("head.relation", lambda x: x[:-1].copy()),
        ("relations", lambda x: x[:-1].copy()),
        ("rows", lambda x: x + 99),
        ("encoder:config", lambda x: x[:-1].copy()),
        ("head.asked.weight", None),
    ],
)
def test_a_damaged_file_is_one_sentence(
    toy: KnowledgeGraph, made: Biencoder, tmp_path: Path, name: str, change: Callable[[Any], Any] | None
) -> None:
    path = tmp_path / "biencoder.safetensors"
    made.save(path)
    tensors = load_file(path)
    tensors = {k: x for k, x in tensors.items() if k != name} | (
        {name: change(tensors[name])} if change else {}
    )
    save_file(tensors, path)
    with pytest.raises(RunError, match=r"biencoder.safetensors (cannot be read|is of another graph)"):
        Biencoder.open(path, toy)


def test_an_encoder_that_cannot_be_loaded_is_one_sentence(toy: KnowledgeGraph, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no text encoder can be loaded"):
        Biencoder.fit(toy, BiencoderSettings(encoder=str(tmp_path)))


def test_a_run_from_scratch_needs_the_name_of_an_encoder(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    refused(cli("tune", run, "--add", "biencoder"), "trained from scratch", "biencoder.encoder=NAME")
    assert not open_folder(run).has_signal("biencoder")


def test_a_run_keeps_it_ranks_by_it_and_packs_it(
    cli: Cli, toy_run: Path, tmp_path: Path, settings: BiencoderSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    run = shutil.copytree(toy_run, tmp_path / "run")
    given = {name: getattr(settings, name) for name in ("encoder", "dimension", "steps")}
    kgmlm.tune(run, add="biencoder", settings={"biencoder": given}, progress=False)
    opened = kgmlm.open_run(run, device="cpu")
    assert opened.folder.record["signals"]["biencoder"]["settings"]["encoder"] == settings.encoder
    assert "biencoder" in opened.folder.tuned.mixture.tables
    table = tmp_path / "new.tsv"
    table.write_text("label\tname\tdescription\nq1\tAtlantis\ta lost city\n")
    asked = (
        "rank",
        "--relation",
        "located_in",
        "--head",
        "Atlantis",
        "--entities",
        table,
        "--json",
        "--explain",
    )
    done = cli(*asked[:1], run, *asked[1:])
    assert done.returncode == 0, done.stderr
    assert "biencoder" in json.loads(done.stdout.splitlines()[0])["parts"]
    pack = kgmlm.pack(run, tmp_path / "small.kgmlm", progress=False)
    queries, _ = opened.folder.graph.queries("test")
    before, after = (tuned_ranker(open_folder(x), "cpu", scores="biencoder") for x in (run, pack))
    for (_, a), (_, b) in zip(before.rank(queries), after.rank(queries), strict=True):
        assert 0 < np.abs(a - b).max() < 0.1, "matrices are rounded"
    kgmlm.tune(run, drop="biencoder", progress=False)
    assert not (run / Biencoder.file).exists()
    kgmlm.tune(run, add="biencoder", source=pack, progress=False)
    lent = tuned_ranker(open_folder(run), "cpu", scores="biencoder")
    for (_, a), (_, b) in zip(lent.rank(queries), after.rank(queries), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_processes_share_the_reading(
    toy: KnowledgeGraph, settings: BiencoderSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_vectors, "PART", 10)
    few, read = settings.model_copy(update={"steps": 2}), TextEncoder.read
    counted: list[int] = []

    def counting(self: TextEncoder, texts: list[str], *args: Any, **options: Any) -> Any:
        counted.append(len(texts))
        return read(self, texts, *args, **options)

    monkeypatch.setattr(TextEncoder, "read", counting)

    def job(world: ProcessGroup) -> list[int]:
        counted.clear()
        read_texts(toy, Biencoder.source(toy, few), tmp_path / "kept")
        return list(counted)

    together(2, job)
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 4
    counted.clear()
    figures = Biencoder.fit(toy, few, kept=tmp_path / "kept")
    assert sum(counted) == len(toy.relations), "the texts of entities are there"
    for name, values in Biencoder.fit(toy, few).head.items():
        np.testing.assert_allclose(figures.head[name], values, atol=1e-5)


@pytest.mark.slow
def test_two_processes_add_it_to_a_run(
    toy_run: Path, tmp_path: Path, settings: BiencoderSettings, launch: Launch
) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    given = (f"biencoder.encoder={settings.encoder}", "biencoder.steps=5", "biencoder.dimension=8")
    words = ("tune", run, "--add", "biencoder", *(x for pair in given for x in ("--set", pair)), "-q")
    for done in launch(words, words):
        assert done.returncode == 0, done.stderr
    assert "biencoder" in open_folder(run, verify=True).tuned.mixture.tables
    assert not list(tmp_path.glob(".run*unfinished*"))
