"""Mentions: which names stand in which descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signal_tests import SignalTests

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.signals.base import Pool
from kgmlm.signals.mentions import Mentions
from kgmlm.text.reader import Reading

TEXTS = {
    "apt28": ("APT28", "A group that uses X-Agent and, since 2016, Zebrocy.", "Fancy Bear"),
    "xagent": ("X-Agent", "Made by the FANCY  BEAR; it has nothing to do with agents.", ""),
    "zebrocy": ("Zebrocy", "A tool. See \u2018apt28\u2019.", ""),
    "agent": ("agent", "One who acts.", ""),
    "c2": ("C2", "A channel of Zebrocy.", ""),
    "bear1": ("Brown Bear", "An animal.", ""),
    "bear2": ("brown bear", "A Brown Bear is a beer.", ""),
    "circus": ("Circus", "It has a brown bear, C2 and Brown Bears.", ""),
}


class TestMentions(SignalTests):
    kind = Mentions


@pytest.fixture
def entities() -> EntityTable:
    import pyarrow as pa

    names, descriptions, aliases = zip(*TEXTS.values(), strict=True)
    columns = {"label": [*TEXTS], "name": names, "description": descriptions, "surface": names}
    table = pa.table({**columns, "aliases": aliases})
    return EntityTable.of(pa.table([c.cast(pa.large_string()) for c in table.columns], table.column_names))


def found(mentions: Mentions) -> dict[tuple[str, str], float]:
    pairs = mentions.pairs.tocoo()
    labels = mentions.entities.column("label")
    rows = zip(*(x.tolist() for x in (*pairs.coords, pairs.data)), strict=True)
    return {(labels[a], labels[b]): round(share, 3) for a, b, share in rows if a < b}


EXPECTED = {
    ("apt28", "xagent"): 2.0,  # each names the other, one of them by an alias
    ("apt28", "zebrocy"): 2.0,
    ("zebrocy", "c2"): 1.0,
    ("bear1", "circus"): 0.5,  # two have the name
    ("bear2", "circus"): 0.5,
    ("bear1", "bear2"): 0.5,
}


def test_whole_names_and_aliases_count(entities: EntityTable) -> None:
    """No part of a name or of a word, nothing short, and not an entity's own name."""
    pairs = found(Mentions.of(entities))
    by_label = {tuple(sorted(pair, key=[*TEXTS].index)): share for pair, share in pairs.items()}
    assert by_label == EXPECTED


@pytest.mark.parametrize("new", [["zebrocy"], ["apt28", "bear2"], ["circus", "c2", "agent"]])
def test_new_entities_are_looked_for_alone(entities: EntityTable, new: list[str], monkeypatch: Any) -> None:
    labels = entities.column("label")
    rest = np.array([i for i, label in enumerate(labels) if label not in new])
    added = np.array([i for i, label in enumerate(labels) if label in new])
    grown = entities.take(np.concatenate([rest, added]))
    before = Mentions.of(entities.take(rest))
    rows = np.concatenate([np.arange(len(rest)), np.full(len(added), -1)])
    reader: Any = type("Reader", (), {"context": type("Context", (), {"entities": grown})})
    whole = Mentions.of(grown)
    monkeypatch.setattr("kgmlm.signals.mentions.FEW_ENTITIES", 3)
    after = before.for_graph(reader, rows, np.zeros(1, np.int64))
    unshared = {pair for pair in found(whole) if not {"bear1", "bear2"} & {*pair}}
    assert {pair: found(after)[pair] for pair in unshared} == {pair: found(whole)[pair] for pair in unshared}
    assert found(after).keys() == found(whole).keys()
    monkeypatch.setattr("kgmlm.signals.mentions.FEW_ENTITIES", 0)
    assert found(before.for_graph(reader, rows, np.zeros(1, np.int64))) == found(whole)


def test_pools_have_the_same_scores(entities: EntityTable) -> None:
    mentions, count = Mentions.of(entities), len(entities)
    queries = Queries(np.arange(count), np.zeros(count, np.int64), np.ones(count, np.bool_))
    reading: Any = Reading(queries, None)
    whole = mentions.score(reading, Pool(count))
    assert whole.dtype == np.float32
    assert np.array_equal(whole, whole.T)
    some: IntArray = np.array([3, 0, 7])
    assert np.array_equal(mentions.score(reading, Pool(count, some)), whole[:, some])
    own = np.random.default_rng(0).integers(-1, count, (count, 6))
    scores = mentions.score(reading, Pool(count, own))
    there = own >= 0
    assert np.array_equal(scores[there], np.take_along_axis(whole, np.maximum(own, 0), 1)[there])


def test_it_is_told_whose_description_names_whom(entities: EntityTable) -> None:
    at, mentions = entities.index, Mentions.of(entities)
    apt28, xagent, zebrocy, c2 = (at[label] for label in ("apt28", "xagent", "zebrocy", "c2"))
    assert mentions.named(apt28, xagent) == [(apt28, xagent), (xagent, apt28)]
    assert mentions.named(zebrocy, c2) == [(c2, zebrocy)]
    assert mentions.named(xagent, c2) == []


def test_a_run_learns_it_and_keeps_it(toy_run: Path, tmp_path: Path) -> None:
    import shutil

    path = shutil.copytree(toy_run, tmp_path / "run")
    kgmlm.tune(path, add="mentions", progress=False)
    run = kgmlm.open_run(path, device="cpu")
    signal = run.predictor.ranker.signals["mentions"]
    assert isinstance(signal, Mentions)
    assert found(signal) == found(Mentions.of(run.graph.entities))
    assert run.folder.tuned.mixture.averages["mentions"] > 0
    kgmlm.tune(path, drop="mentions", progress=False)
    assert "mentions" not in kgmlm.open_run(path, device="cpu").predictor.ranker.signals


def test_a_damaged_file_is_a_sentence(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path = tmp_path / "mentions.safetensors"
    mentions = Mentions.of(toy.entities)
    mentions.save(path)
    assert found(Mentions.open(path, toy)) == found(mentions)
    tensors = dict(mentions.tensors())
    from kgmlm.core.files import write_tensors

    write_tensors(path, {**tensors, "pairs": np.full_like(tensors["pairs"], 99)})
    with pytest.raises(RunError, match="cannot be read: a pair is not of its entities"):
        Mentions.open(path, toy)
