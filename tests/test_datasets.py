from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgmlm.cards import card_names, read_card
from kgmlm.checks import check_graph
from kgmlm.datasets import (
    GlossChooser,
    build_graph,
    labeled,
    load_graph,
    read_folder,
    split_random,
    write_folder,
)
from kgmlm.kg import DataError, KnowledgeGraph

Real = Callable[[str], KnowledgeGraph]


@pytest.mark.parametrize("name", card_names())
def test_every_dataset_has_what_its_card_says(real: Real, name: str) -> None:
    graph = real(name)
    report = check_graph(graph, read_card(name).counts)
    assert report["mismatches"] == {}
    assert graph.sources


def test_wn18rr_texts(real: Real) -> None:
    graph = real("wn18rr")
    entity = graph.entities[graph.entities.index["01726172"]]
    assert (entity.name, entity.surface) == ("play", "play verb 7")
    assert entity.description.startswith("perform music on")
    assert graph.entities[graph.entities.index["03455488"]].surface == "tombstone noun"
    assert graph.relations[graph.relations.index["_has_part"]].name == "has part"


def test_wn18rr_joined_glosses_keep_the_one_that_fits(real: Real) -> None:
    graph = real("wn18rr")
    expected = {
        "01268457": "cover with paper",
        "01088749": "provide with staff",
        "02707429": "be applicable to",
        "02752496": "a sock worn",
        "00442847": "a brief swim",
    }
    for label, start in expected.items():
        assert graph.entities[graph.entities.index[label]].description.startswith(start)
    assert graph.notes["glosses_joined"] == 232
    assert graph.notes["glosses_resolved"] > 200


def test_fb15k237_texts(real: Real) -> None:
    graph = real("fb15k237")
    entity = graph.entities[graph.entities.index["/m/010016"]]
    assert entity.name.startswith("Denton")
    assert entity.description == "city in Texas, United States"


def test_umls_needs_no_import_of_pykeen() -> None:
    code = "import sys, kgmlm; kgmlm.load_graph('umls'); print('pykeen' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_gloss_that_cannot_be_told_is_not_chosen() -> None:
    chooser = GlossChooser(
        [("noun", "a stone"), ("verb", "move fast"), ("noun", "a tree"), ("verb", "go away")]
    )
    assert chooser.choose("rock", "noun", ["a stone thing", "move quickly"]) == "a stone thing"
    assert chooser.choose("rock", "noun", ["a stone thing", "a tree thing"]) is None
    assert chooser.choose("rock", "noun", ['zz; "the rock fell"', "yy"]) == 'zz; "the rock fell"'


def test_a_written_folder_reads_back_the_same(toy: KnowledgeGraph, tmp_path: Path) -> None:
    write_folder(toy, tmp_path / "copy")
    copy = read_folder(tmp_path / "copy")
    for split in toy.splits:
        assert labeled(copy, copy.splits[split]) == labeled(toy, toy.splits[split])
    assert copy.entities.table.equals(toy.entities.table)
    assert list(copy.relations) == list(toy.relations)


def test_a_folder_in_use_is_not_overwritten(toy: KnowledgeGraph, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(DataError, match="not empty"):
        write_folder(toy, tmp_path)


def test_entities_without_triples_are_candidates_and_labels_name_the_nameless(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("old_oak\tgrows_in\tNA\n")
    (tmp_path / "entities.tsv").write_text("label\tname\tdescription\nash\tAsh\ttree\nNA\t\t\n")
    graph = read_folder(tmp_path)
    assert graph.entities.column("label") == ["NA", "ash", "old_oak"]
    assert graph.entities.column("name") == ["NA", "Ash", "old oak"]
    assert graph.relations[0].name == "grows in"
    assert graph.seen_N.tolist() == [True, False, True]


def test_what_is_no_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a folder nor a built-in"):
        load_graph(tmp_path / "none")
    with pytest.raises(DataError, match=r"no train\.tsv"):
        load_graph(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"):
        load_graph(tmp_path / "file")


def grid(n: int) -> KnowledgeGraph:
    rows = [[f"e{i}", f"r{(i + j) % 3}", f"e{j}"] for i in range(n) for j in range(n) if i != j]
    return build_graph("grid", {"train": rows})


def test_a_random_split_is_a_partition_that_leaves_nothing_unseen() -> None:
    graph = grid(12)
    split = split_random(graph, 0.1, 0.2, seed=3)
    assert [len(split.splits[s]) for s in ("train", "valid", "test")] == [132 - 13 - 26, 13, 26]
    assert sorted(map(tuple, split.all_triples.tolist())) == sorted(map(tuple, graph.all_triples.tolist()))
    assert split.seen_N.all()
    assert set(split.splits["train"][:, 1]) == {0, 1, 2}


def test_a_random_split_depends_on_its_seed_alone() -> None:
    first, same, other = (split_random(grid(9), 0.1, 0.1, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.splits["test"], same.splits["test"])
    assert not np.array_equal(first.splits["test"], other.splits["test"])


def test_a_random_split_makes_only_what_is_missing(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="has all of"):
        split_random(toy, 0.1, 0.1)
    graph = build_graph(
        "x", {"train": labeled(grid(9), grid(9).splits["train"]), "test": [["e0", "r0", "e1"]]}
    )
    split = split_random(graph, 0.2, 0.9)
    assert len(split.splits["test"]) == 1
    assert list(split.splits) == ["train", "valid", "test"]


@pytest.mark.parametrize("shares", [(0.0, 0.1), (0.5, 0.5), (-0.1, 0.2)])
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="shares"):
        split_random(grid(6), *shares)


def test_a_graph_too_sparse_to_split_says_so() -> None:
    with pytest.raises(DataError, match="too sparse"):
        split_random(build_graph("x", {"train": [["a", "r", "b"], ["c", "r", "d"]]}), 0.4, 0.4)
