from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import kgmlm
from kgmlm.core.digests import sha256
from kgmlm.core.errors import DataError, KgmlmError
from kgmlm.graphs.cards import Card, Sources, card_names, cards_folder, read_card, write_card
from kgmlm.graphs.checks import check_graph, odd_columns
from kgmlm.graphs.datasets import (
    TEXT_READERS,
    GlossChooser,
    load_graph,
    read_entities,
    read_folder,
    write_folder,
)
from kgmlm.graphs.graph import KnowledgeGraph, build_graph
from kgmlm.graphs.queries import repeated
from kgmlm.graphs.storage import read_graph, write_graph

REGISTRY = TEXT_READERS
Real = Callable[[str], KnowledgeGraph]


@pytest.mark.parametrize("name", REGISTRY)
class TestEveryReader:
    def card(self, name: str) -> Card:
        """Of the smallest graph that has its texts by this reader."""
        cards = [card for card in map(read_card, card_names()) if card.texts and card.texts.reader == name]
        assert cards, "some graph needs it"
        return min(cards, key=lambda card: card.counts.train)

    @pytest.mark.slow
    def test_it_finds_a_text_for_every_label(self, real: Real, name: str) -> None:
        card = self.card(name)
        graph = real(card.name)
        texts, again = (REGISTRY[name](Sources(card, download=False)) for _ in range(2))
        assert texts == again
        columns = (texts.names, texts.descriptions, texts.surfaces, texts.relations)
        assert all(type(text) is str for column in columns for text in column.values())
        assert card.texts is not None
        if "relations" in card.texts.files:
            assert {r.label for r in graph.relations} <= texts.relations.keys()
        labels = graph.entities.column("label")
        named = np.mean([bool(texts.names.get(label)) for label in labels])
        described = np.mean([bool(texts.descriptions.get(label)) for label in labels])
        assert named > 0.95
        assert described > 0.9 or "descriptions" not in card.texts.files
        assert all(count >= 0 for count in texts.notes.values())

    def test_a_file_that_the_card_does_not_name_is_one_sentence(self, name: str) -> None:
        card = self.card(name)
        assert card.texts is not None
        bare = card.model_copy(update={"texts": card.texts.model_copy(update={"files": {}})})
        with pytest.raises(DataError, match=f"the card of '{card.name}' names no file for"):
            REGISTRY[name](Sources(bare, download=False))


LARGE = {"wn18rr", "fb15k237", "fb15k237-n", "kg20c", "wikidata5m", "wikidata5m-ind"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in card_names()]
)
def test_every_dataset_has_what_its_card_says(real: Real, name: str) -> None:
    graph = real(name)
    report = check_graph(graph, read_card(name).counts)
    assert report["mismatches"] == {}
    assert graph.sources


@pytest.mark.slow
def test_wn18rr_texts(real: Real) -> None:
    graph = real("wn18rr")
    entity = graph.entities[graph.entities.index["01726172"]]
    assert (entity.name, entity.surface) == ("play", "play verb 7")
    assert entity.description.startswith("perform music on")
    assert graph.entities[graph.entities.index["03455488"]].surface == "tombstone noun"
    assert graph.relations[graph.relations.index["_has_part"]].name == "has part"


@pytest.mark.slow
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


@pytest.mark.slow
def test_fb15k237_n_has_false_triples(real: Real) -> None:
    graph = real("fb15k237-n")
    known = {tuple(triple) for triples in graph.splits.values() for triple in triples.tolist()}
    for split in ("valid", "test"):
        assert len(graph.negatives[split]) == len(graph.splits[split])
        false = {tuple(triple) for triple in graph.negatives[split].tolist()}
        assert len(false & known) < len(false) / 100


@pytest.mark.slow
def test_kg20c_has_types(real: Real) -> None:
    graph = real("kg20c")
    entity = graph.entities[graph.entities.index["0000E336"]]
    assert (entity.name, entity.types) == ("Fuzzy logic", ("domain",))


@pytest.mark.slow
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
        assert copy.labeled(copy.splits[split]) == toy.labeled(toy.splits[split])
    assert copy.entities.table.equals(toy.entities.table)
    assert list(copy.relations) == list(toy.relations)


def test_a_description_may_be_very_long(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,r,b\n")
    words = "x, " * 50_000
    (tmp_path / "entities.csv").write_text(f'label,name,description\na,A,"{words}"\n')
    assert read_folder(tmp_path).entities[0].description == words


def test_a_folder_in_use_is_not_overwritten(toy: KnowledgeGraph, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(DataError, match="not empty"):
        write_folder(toy, tmp_path)


def test_entities_without_triples_are_candidates_and_labels_name_the_nameless(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("old_oak\tgrows_in\tNA\n")
    (tmp_path / "entities.tsv").write_text("label\tname\tdescription\nash\tAsh\ttree\nNA\t  \t\n")
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


def test_a_folder_with_the_name_of_a_built_in_dataset_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "toy"
    folder.mkdir()
    assert len(load_graph("toy").entities) == 31, "a run folder may have the name of its dataset"
    (folder / "train.tsv").write_text("a\tr\tb\n")
    with pytest.raises(DataError, match=r"built-in dataset and a folder here; write \./toy"):
        load_graph("toy")
    assert len(load_graph("./toy").entities) == len(load_graph(Path("toy")).entities) == 2
    monkeypatch.chdir(cards_folder())
    assert len(load_graph("toy").entities) == 31


def entities_file(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_new_entities_are_read_and_the_nameless_named_by_their_labels(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    file = entities_file(
        tmp_path / "new.tsv", "label\tname\tdescription\nq1\tAtlantis\ta lost island\nnew_town\t \t\n"
    )
    new = read_entities(file, toy)
    assert [(e.name, e.description) for e in (new[0], new[1])] == [
        ("Atlantis", "a lost island"),
        ("new town", ""),
    ]
    graph = toy.extended(new)
    assert len(graph.entities) == len(toy.entities) + 2
    assert graph.entities.index["q1"] == len(toy.entities)
    assert not graph.seen_N[-2:].any()
    assert graph.entities[3] == toy.entities[3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label\tname\nfrance\tFrance\n", "new.tsv:2: label 'france' exists in the graph already"),
        ("label\tname\nx\tX\ny\tY\nx\tZ\n", "new.tsv:4: label 'x' stands already on line 2"),
        ("label\tname\nx\n", "new.tsv:2: expected 2 columns"),
        ("label\tname\n\tX\n", "new.tsv:2: the label is empty"),
        ("label\tname\n", "no entities"),
        ("label\n", "column 'name' is missing"),
        ("", "is empty"),
    ],
)
def test_bad_new_entities_are_named_by_line(
    toy: KnowledgeGraph, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read_entities(entities_file(tmp_path / "new.tsv", text), toy)


HEADERS = [
    "head\trelation\ttail", "Subject\tPredicate\tObject", "h\tr\tt", "source\trelation\ttarget", "s\tp\to",
    "FROM\tedge_type\tto", "head_id\trelation_label\ttail id", ":START_ID\t:TYPE\t:END_ID",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_in_a_file_of_triples_is_no_triple(tmp_path: Path, header: str) -> None:
    (tmp_path / "train.tsv").write_text(f"{header}\na\tr\tb\n")
    with pytest.raises(DataError, match=r"train\.tsv:1: .* is a header, not a triple; --skip-header"):
        load_graph(tmp_path)
    graph = load_graph(tmp_path, skip_header=True)
    assert graph.labeled(graph.splits["train"]) == [("a", "r", "b")]


def test_any_first_line_can_be_skipped_but_not_all_there_is(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("ich,bin,du\na,r,b\n")
    assert len(load_graph(tmp_path).splits["train"]) == 2
    assert len(load_graph(tmp_path, skip_header=True).splits["train"]) == 1
    (tmp_path / "test.csv").write_text("head,relation,tail\n")
    with pytest.raises(DataError, match=r"test\.csv has no triples below its header"):
        load_graph(tmp_path, skip_header=True)
    with pytest.raises(DataError, match="'toy' is built in"):
        load_graph("toy", skip_header=True)


def test_a_header_in_another_order_is_refused_even_when_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("head\ttail\trelation\na\tb\tr\n")
    for skip in (False, True):
        with pytest.raises(DataError, match="the columns must be head, relation and tail, in this order"):
            load_graph(tmp_path, skip_header=skip)


@pytest.mark.parametrize(
    ("name", "right"),
    [("dev.tsv", "valid"), ("validation.csv", "valid"), ("val.txt.gz", "valid"), ("Valid.tsv", "valid"),
     ("testing.parquet", "test"), ("TEST.txt", "test"), ("Entities.tsv", "entities")],
)  # fmt: skip
def test_a_misnamed_split_is_not_overlooked(tmp_path: Path, name: str, right: str) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\n")
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=rf"{name} would not be read; call it {right}\."):
        load_graph(tmp_path)
    (tmp_path / name).rename(tmp_path / "notes.tsv")
    load_graph(tmp_path)


def test_a_misnamed_training_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "training.tsv").write_text("a\tr\tb\n")
    with pytest.raises(DataError, match=r"training\.tsv would not be read; call it train\.tsv"):
        load_graph(tmp_path)


def test_duplicates_are_counted() -> None:
    graph = build_graph("x", {"train": [("a", "r", "b")] * 3 + [("b", "r", "a")]})
    assert repeated(graph.splits["train"]) == 2
    assert repeated(graph.splits["train"][:1]) == 0


def test_what_tsv_cannot_hold_is_written_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('"a\tb",r,c\nc,r,"a\tb"\nc,r,d\nd,r,c\n')
    (tmp_path / "entities.csv").write_text("label,name,description\nc,C,a\td\n")
    graph = load_graph(tmp_path)
    write_folder(graph, tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"train.parquet", "entities.parquet", "relations.tsv"}
    copy = load_graph(tmp_path / "copy")
    assert copy.labeled(copy.splits["train"]) == graph.labeled(graph.splits["train"])
    assert copy.entities.table.equals(graph.entities.table)


def test_known_negatives_are_read_kept_and_written(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.tsv").write_text("a\tr\tb\t1\nb\tr\tc\t1\nb\tr\td\t-1\n")
    (folder / "valid.tsv").write_text("a\tr\tc\t1\na\tr\ta\t-1\nc\ts\td\t-1\n")
    (folder / "test.csv").write_text("a,r,c,1\n")
    graph = read_folder(folder)
    assert graph.labeled(graph.splits["valid"]) == [("a", "r", "c")]
    assert graph.labeled(graph.negatives["valid"]) == [("a", "r", "a"), ("c", "s", "d")]
    assert graph.labeled(graph.splits["train"]) == [("a", "r", "b"), ("b", "r", "c")]
    assert graph.labeled(graph.negatives["train"]) == [("b", "r", "d")]
    assert "test" not in graph.negatives
    assert len(graph.all_triples) == 4, "what is false is nobody's known answer"
    write_folder(graph, tmp_path / "again")
    again = read_folder(tmp_path / "again")
    assert again.labeled(again.negatives["valid"]) == graph.labeled(graph.negatives["valid"])
    assert again.labeled(again.splits["valid"]) == graph.labeled(graph.splits["valid"])
    write_graph(graph, tmp_path / "graph")
    kept = read_graph(tmp_path / "graph", "data", {})
    assert kept.negatives["valid"].tolist() == graph.negatives["valid"].tolist()
    assert len(kept.with_relations(["t_u"]).relations) == 3
    assert kept.with_relations(["t_u"]).relations[2].name == "t u"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a\tr\tc\t1\na\tr\ta\t2\n", "valid.tsv:2: the label is '2'; it must be 1"),
        ("a\tr\tc\t0\na\tr\ta\t-1\n", "valid.tsv:2: the label is '-1', but 0 stood for false before"),
        ("a\tr\tc\t1\na\tr\ta\n", "valid.tsv:2: expected 4 tab-separated columns, found 3"),
    ],
)
def test_labels_that_cannot_be_right_are_one_sentence(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\n")
    (tmp_path / "valid.tsv").write_text(rows)
    with pytest.raises(DataError, match=re.escape(message)):
        read_folder(tmp_path)


def _tar(path: Path, members: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cards of Wikidata5M with files of a few lines in the same form; returns the folder of the files."""
    mirror, cards = tmp_path / "mirror", tmp_path / "cards"
    mirror.mkdir()
    aliases = "Q1\tEarth\tthe globe\nQ2\tSun\nQ30\tpart of nothing\nQ4\n"
    relations = "P1\torbits\tgoes around\nP2\tpart of\n"
    _tar(
        mirror / "wikidata5m_alias.tar.gz",
        {"wikidata5m_entity.txt": aliases, "wikidata5m_relation.txt": relations},
    )
    texts = f'Q1\tthird planet "from" the Sun\nQ2\t{"star " * 999}\nQ30\tnowhere\nno line of it\n'
    (mirror / "wikidata5m_text.txt.gz").write_bytes(gzip.compress(texts.encode()))
    for kind, test in (("transductive", "Q2\tP2\tQ1\n"), ("inductive", "Q5\tP2\tQ6\n")):
        splits = {"train": "Q1\tP1\tQ2\nQ4\tP2\tQ1\n", "valid": "Q4\tP1\tQ2\n", "test": test}
        _tar(
            mirror / f"wikidata5m_{kind}.tar.gz",
            {f"wikidata5m_{kind}_{split}.txt": text for split, text in splits.items()},
        )
    for name in ("wikidata5m", "wikidata5m-ind"):
        card = read_card(name)
        known = [
            source.model_copy(update={"sha256": source.sha256 and sha256(mirror / source.path)})
            for source in card.source
        ]
        (cards / name).mkdir(parents=True)
        write_card(card.model_copy(update={"source": tuple(known)}), cards / name)
    monkeypatch.setattr("kgmlm.graphs.cards.cards_folder", lambda: cards)
    monkeypatch.setenv("KGMLM_MIRROR", str(mirror))
    return mirror


def test_wikidata5m_is_read_from_its_files(miniature: Path) -> None:
    graph = load_graph("wikidata5m", download=False)
    assert graph.entities.column("label") == ["Q1", "Q2", "Q4"]
    assert graph.entities.column("surface") == ["Earth", "Sun", "Q4"]
    first, star, none = graph.entities.column("description")
    assert (first, star[:10], len(star), none) == ('third planet "from" the Sun', "star star ", 400, "")
    assert [(r.label, r.name) for r in graph.relations] == [("P1", "orbits"), ("P2", "part of")]
    assert {split: graph.labeled(part) for split, part in graph.splits.items()} == {
        "train": [("Q1", "P1", "Q2"), ("Q4", "P2", "Q1")],
        "valid": [("Q4", "P1", "Q2")],
        "test": [("Q2", "P2", "Q1")],
    }
    assert graph.sources["wikidata5m_text.txt.gz"] == sha256(miniature / "wikidata5m_text.txt.gz")


def test_wikidata5m_of_unseen_entities_keeps_them(miniature: Path) -> None:
    graph = load_graph("wikidata5m-ind", download=False)
    assert [x for x, seen in zip(graph.entities.column("label"), graph.seen_N, strict=True) if not seen] == [
        "Q5",
        "Q6",
    ]


def test_a_text_file_that_is_cut_is_one_sentence(miniature: Path) -> None:
    path = miniature / "wikidata5m_text.txt.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"wikidata5m_text\.txt\.gz cannot be read"):
        load_graph("wikidata5m", download=False)


def test_a_graph_is_its_own_dataset(toy: KnowledgeGraph) -> None:
    assert load_graph(toy) is toy
    for wrong in (pd.DataFrame({"head": ["a"]}), [("a", "r")], 7):
        with pytest.raises(DataError, match="a name, the path of a folder, a graph, or triples in memory: "):
            load_graph(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("splits", [["train"], ["train", "valid", "test"]])
@pytest.mark.parametrize("header", ["drug,interaction,gene", "gene1,edge,gene2", "n.name,type(r),m.name"])
def test_a_header_in_words_of_its_own_is_found(header: str, splits: list[str], tmp_path: Path) -> None:
    for number, split in enumerate(splits):
        rows = [f"a{i},r{i % 2},a{(i + number + 1) % 6}" for i in range(6)]
        (tmp_path / f"{split}.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(DataError, match=r"train\.csv:1: .* looks like a header"):
        load_graph(tmp_path)
    assert len(load_graph(tmp_path, skip_header=True).splits["train"]) == 6
    first = header.split(",")[0]
    (tmp_path / "entities.tsv").write_text(f"label\tname\n{first}\tit\n")
    assert len(load_graph(tmp_path).splits["train"]) == 7, "a label that is listed is known"


def test_a_graph_of_leaves_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\nc\ts\td\ne\tt\tf\n")
    assert len(load_graph(tmp_path).splits["train"]) == 3


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("train.tsv", '"a"\t"r"\t"b"', "in quotes"),
        ("train.csv", "a;r;b", "semicolons"),
        ("train.csv", "a\tr\tb\t1\t2", "tabs"),
        ("train.tsv", "a,r,b", "commas"),
        ("train.csv", '"a, 0",r,"two\nlines"', "ends in line 2"),
        ("train.csv", "1,a,r,b", "or leave the column out"),
    ],
)
def test_what_is_wrong_with_columns_is_said(name: str, line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(DataError, match=said):
        load_graph(tmp_path)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2)])
def test_columns_in_another_order_are_asked_about(order: tuple[int, ...], toy: KnowledgeGraph) -> None:
    rows = [tuple(row[i] for i in order) for row in toy.labeled(toy.splits["train"])]
    asked = odd_columns(build_graph("turned", {"train": rows}))
    names = ("head", "relation", "tail")
    expected = ", ".join(names[i] for i in order)
    assert (f"triples {expected}?" in asked) if order != (0, 1, 2) else asked == ""


def test_files_that_nobody_reads_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\n")
    for name in ("entity2text.txt", "entities.json", "test_negatives.txt", "README.md", "LICENSE.txt"):
        (tmp_path / name).write_text("x")
    loaded = load_graph(tmp_path).unread
    assert list(loaded) == ["entities.json", "entity2text.txt", "test_negatives.txt"]
    assert all(loaded.values()), "each with what to do"
    assert kgmlm.data.check(tmp_path).values["unread"] == loaded


def test_a_folder_of_a_rule_learner_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("p1\tchild of\tp0\np2\tchild of\tp1\n")
    (tmp_path / "facts.txt").write_text("p0\tparent of\tp1\np1\tparent of\tp2\np2\tparent of\tp3\n")
    (tmp_path / "entities.txt").write_text("p0\np1\np2\np3\np4\n")
    (tmp_path / "relations.txt").write_text("parent of\nchild of\n")
    graph = load_graph(tmp_path)
    assert len(graph.triples("train")) == 5
    assert (len(graph.entities), len(graph.relations), graph.unread) == (5, 2, {})
    assert graph.notes == {"further training triples, of facts.txt": 3}
    (tmp_path / "facts.txt").rename(tmp_path / "Facts.txt")
    with pytest.raises(DataError, match=r"Facts\.txt would not be read; call it facts\.txt"):
        load_graph(tmp_path)
    (tmp_path / "Facts.txt").unlink()
    (tmp_path / "entities.txt").write_text("p0\np1\np0\n")
    with pytest.raises(DataError, match=r"entities\.txt:3: label 'p0' stands already on line 1"):
        load_graph(tmp_path)


def test_columns_and_files_that_nobody_reads_are_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\n")
    (tmp_path / "entities.tsv").write_text("label\tname\tcategory\na\tA\tletter\n")
    (tmp_path / "more.txt").write_text("b\tr\ta\n")
    with pytest.raises(KgmlmError):
        kgmlm.train(tmp_path, model="nowhere/at-all", output=tmp_path / "run", preset="plain")
    err = capsys.readouterr().err
    assert "not read: more.txt" in err
    assert "not read: the column 'category' of entities.tsv (the column 'types' has such texts)" in err


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("a r b", "--separator ' '"),
        ("<http://e.org/a> <http://e.org/r> <http://e.org/b> .", "--format ntriples"),
    ],
)
def test_files_with_blanks_between_say_the_way_on(line: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(f"{line}\n{line.replace('b', 'c')}\n")
    with pytest.raises(DataError, match=re.escape(advice)):
        load_graph(tmp_path)
    options: dict[str, Any] = (
        {"columns": ["1", "2", "3"], "separator": " "} if "sep" in advice else {"format": "ntriples"}
    )
    kgmlm.import_graph(tmp_path / "train.txt", tmp_path / "read", **options, progress=False)
    assert len(load_graph(tmp_path / "read").triples("train")) == 2


def test_a_header_of_kgtk_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("node1\tlabel\tnode2\nfilm1\tlabel\tfilm\nfilm2\tinstance_of\tfilm\n")
    with pytest.raises(DataError, match="'node1 label node2' is a header, not a triple; --skip-header"):
        load_graph(tmp_path)
    assert len(load_graph(tmp_path, skip_header=True).triples("train")) == 2


def test_attributes_from_python() -> None:
    triples = [("paris", "in", "france"), ("rome", "in", "italy")]
    graph = KnowledgeGraph.from_triples(triples, attributes=[("paris", "inhabitants", "2100000")])
    assert graph.entities[graph.entities.find("paris") or 0].description == "inhabitants 2100000"


def test_a_fourth_column_that_is_no_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\t0.5\n")
    with pytest.raises(
        DataError, match=r"the label is '0.5'; it must be 1 \(true\).* or leave the column out"
    ):
        load_graph(tmp_path)
