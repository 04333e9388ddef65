"""Folders of other projects, as they lay them out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.graphs.cards import folder_card
from kgmlm.graphs.datasets import read_folder
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.layouts import LAYOUTS

KG_BERT = {
    "train.tsv": "Q1\tcapital\tQ2\nQ3\tcapital\tQ4\n",
    "dev.tsv": "Q1\tborders\tQ3\n",
    "test.tsv": "Q3\tborders\tQ1\t1\nQ3\tborders\tQ2\t-1\n",
    "entity2text.txt": "Q1\tFrance\nQ2\tParis\nQ3\tItaly\nQ4\tRome\n",
    "entity2textlong.txt": "Q1\ta country of\tEurope\n",
    "relation2text.txt": "capital\thas the capital\n",
}
WORDNET = {  # name and gloss in one
    **{name: text for name, text in KG_BERT.items() if name != "entity2textlong.txt"},
    "entity2text.txt": "Q1\tland reform, a redistribution of land, by law\nQ2\treform, a change\nQ3\tlaw\n",
}
OPENKE = {
    "entity2id.txt": "4\n/m/027rn\t0\n/m/06cx9 1\nnew york\t2\nrome\t3\n",
    "relation2id.txt": "2\n/location/capital\t0\nin\t1\n",
    "train2id.txt": "2\n0 1 0\n2 3 1\n",
    "valid2id.txt": "1\n1 0 1\n",
    "test2id.txt": "1\n3\t2\t0\n",
}
SIMKGC = {
    "train.txt.json": [
        {"head_id": "00260881", "head": "land reform", "relation": "hypernym", "tail_id": "00260622",
         "tail": "reform"},
    ],
    "valid.txt.json": [
        {"head_id": "00260622", "head": "reform", "relation": "also see", "tail_id": "00260881", "tail": "x"},
    ],
    "entities.json": [
        {"entity_id": "00260881", "entity": "land reform", "entity_desc": "a redistribution of land"},
        {"entity_id": "00260622", "entity": "reform", "entity_desc": "a change"},
    ],
}  # fmt: skip
CODEX = {
    "triples/codex-s/train.txt": "Q185724\tP27\tQ183\nQ202878\tP119\tQ90\n",
    "triples/codex-s/valid.txt": "Q202878\tP27\tQ183\n",
    "triples/codex-s/valid_negatives.txt": "Q185724\tP27\tQ27\nQ202878\tP119\tQ64\n",
    "entities/en/entities.json": {
        "Q183": {"label": "Germany", "description": "country in Europe"}, "Q90": {"label": ""},
    },
    "relations/en/relations.json": {"P27": {"label": "country of citizenship", "description": "of a person"}},
    "types/entity2types.json": {"Q183": ["Q6256", "Q1"]},
    "types/en/types.json": {"Q6256": {"label": "country"}, "Q1": {}},
}  # fmt: skip
DGL_KE = {
    "entities.dict": "0\t/m/027rn\n1\t/m/06cx9\n",
    "relations.dict": "0\t/location/capital\n",
    "train.txt": "/m/027rn\t/location/capital\t/m/06cx9\n",
    "valid.tsv": "1\t0\t0\n",
}
OPENBIOLINK = {
    "train_sample.csv": "GENE:345\tGENE_PHENOTYPE\tHP:0002155\t?\tTP\tHPO\n",
    "val_sample.csv": "GENE:345\tGENE_GENE\tGENE:2\t900\tTP\tSTRING\n",
    "negative_val_sample.csv": "GENE:2\tGENE_PHENOTYPE\tHP:0002155\t?\tTN\tHPO\n",
    "train_val_nodes.csv": "GENE:345\tGENE\nHP:0002155\tPHENOTYPE\nGENE:2\tGENE\n",
}
REGISTRY = LAYOUTS
SAMPLES: dict[str, dict[str, Any]] = {
    "kg-bert": KG_BERT,
    "openke": OPENKE,
    "simkgc": SIMKGC,
    "codex": CODEX,
    "dgl-ke": DGL_KE,
    "openbiolink": OPENBIOLINK,
}


def laid(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, "utf-8")
    return folder


def imported(folder: Path, output: Path, **options: Any) -> KnowledgeGraph:
    report = kgmlm.import_graph(folder, output, progress=False, **options)
    graph = read_folder(output)
    assert report["triples"] == sum(map(len, graph.splits.values()))
    assert (report["entities"], report["relations"]) == (len(graph.entities), len(graph.relations))
    return graph


@pytest.mark.parametrize("layout", ["kg-bert", None])
def test_kg_bert(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", KG_BERT), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("train")) == [("Q1", "capital", "Q2"), ("Q3", "capital", "Q4")]
    assert graph.labeled(graph.triples("valid")) == [("Q1", "borders", "Q3")]
    assert graph.labeled(graph.negatives["test"]) == [("Q3", "borders", "Q2")]
    france = graph.entities[graph.entities.find("Q1") or 0]
    assert (france.name, france.description) == ("France", "a country of Europe")
    assert graph.relations[graph.relations.index["capital"]].name == "has the capital"


def test_kg_bert_with_names_and_glosses_in_one(tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", WORDNET), tmp_path / "out")
    told = {e.label: (e.name, e.description) for e in (graph.entities[i] for i in range(4))}
    assert told["Q1"] == ("land reform", "a redistribution of land, by law")
    assert told["Q3"] == ("law", "")


@pytest.mark.parametrize("layout", ["openke", None])
def test_openke(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", OPENKE), tmp_path / "out", format=layout)
    assert set(graph.labeled(graph.triples("train"))) == {
        ("/m/027rn", "/location/capital", "/m/06cx9"),
        ("new york", "in", "rome"),
    }
    assert graph.labeled(graph.triples("valid")) == [("/m/06cx9", "in", "/m/027rn")]
    assert graph.labeled(graph.triples("test")) == [("rome", "/location/capital", "new york")]


@pytest.mark.parametrize("layout", ["simkgc", None])
def test_simkgc(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", SIMKGC), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("train")) == [("00260881", "hypernym", "00260622")]
    assert graph.labeled(graph.triples("valid")) == [("00260622", "also see", "00260881")]
    entity = graph.entities[graph.entities.find("00260881") or 0]
    assert (entity.name, entity.description) == ("land reform", "a redistribution of land")


@pytest.mark.parametrize("layout", ["codex", None])
def test_codex(layout: str | None, tmp_path: Path) -> None:
    folder = laid(tmp_path / "data", CODEX) / "triples" / "codex-s"
    graph = imported(folder, tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("valid")) == [("Q202878", "P27", "Q183")]
    assert set(graph.labeled(graph.negatives["valid"])) == {
        ("Q185724", "P27", "Q27"),
        ("Q202878", "P119", "Q64"),
    }
    germany = graph.entities[graph.entities.find("Q183") or 0]
    assert (germany.name, germany.description) == ("Germany", "country in Europe")
    assert (graph.entities.types or [])[graph.entities.find("Q183") or 0] == ("country",)
    assert graph.relations[graph.relations.index["P27"]].name == "country of citizenship"


@pytest.mark.parametrize("layout", ["dgl-ke", None])
def test_dgl_ke(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", DGL_KE), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("train")) == [("/m/027rn", "/location/capital", "/m/06cx9")]
    assert graph.labeled(graph.triples("valid")) == [("/m/06cx9", "/location/capital", "/m/027rn")]


@pytest.mark.parametrize("layout", ["openbiolink", None])
def test_openbiolink(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", OPENBIOLINK), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("valid")) == [("GENE:345", "GENE_GENE", "GENE:2")]
    assert graph.labeled(graph.negatives["valid"]) == [("GENE:2", "GENE_PHENOTYPE", "HP:0002155")]
    assert (graph.entities.types or [])[graph.entities.find("HP:0002155") or 0] == ("PHENOTYPE",)


@pytest.mark.parametrize(
    ("files", "layout", "said"),
    [
        ({"train.tsv": "a\tr\tb\n"}, None, "laid out as none of kg-bert"),
        ({"train.tsv": "a\tr\tb\n"}, "openke", "there is no entity2id.txt"),
        ({**OPENKE, "train2id.txt": "1\n0 9 0\n"}, "openke", "train2id.txt:2: '0 9 0' is not numbers"),
        ({**OPENKE, "train2id.txt": "1\n0 1\n"}, "openke", "train2id.txt:2: '0 1' is not numbers"),
        ({**OPENKE, "entity2id.txt": "1\na\tb\n"}, "openke", "is not laid out as openke"),
        ({"train.txt.json": "[{"}, "simkgc", "cut off or not JSON"),
        ({"train.txt.json": [{"head": 1}]}, "simkgc", "is not laid out as simkgc"),
        ({**DGL_KE, "train.txt": "a\tb\n"}, "dgl-ke", "is not laid out as dgl-ke"),
        ({"train_sample.csv": "a,b,c\n"}, None, "is not laid out as openbiolink"),
        ({"entity2text.txt": "a\tb\n"}, "kg-bert", "it has no training triples"),
    ],
)
def test_a_folder_that_is_laid_out_otherwise_is_refused(
    files: Mapping[str, Any], layout: str | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        kgmlm.import_graph(laid(tmp_path / "in", files), tmp_path / "out", format=layout, progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_whose_files_are_cut_off_is_read_or_refused(layout: str, tmp_path: Path) -> None:
    for at, name in enumerate(SAMPLES[layout]):
        folder = laid(tmp_path / f"{at}", SAMPLES[layout])
        whole = (folder / name).read_bytes()
        for cut in range(0, len(whole), 7):
            (folder / name).write_bytes(whole[:cut])
            given = folder / "triples" / "codex-s" if layout == "codex" else folder
            with contextlib.suppress(DataError):
                imported(given, tmp_path / f"{at}-{cut}", format=layout)


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    folder = laid(tmp_path / "in", OPENKE)
    done = cli("data", "import", folder, "--output", tmp_path / "out", "-q")
    assert "4 triples of 4 entities and 2 relations" in done.stdout
    refused(
        cli("data", "import", folder / "train2id.txt", "--format", "openke", "--output", tmp_path / "x"),
        "no folder",
    )
    with pytest.raises(ConfigError, match="there is no format"):
        kgmlm.import_graph(folder, tmp_path / "y", format="pykg2vec", progress=False)


def test_entities_that_training_lacks_are_counted_and_missing_splits_drawn(cli: Cli, tmp_path: Path) -> None:
    files = {**KG_BERT, "dev.tsv": "Q5\tborders\tQ1\n"}
    imported(laid(tmp_path / "unseen", files), tmp_path / "out")
    card = folder_card(tmp_path / "out")
    assert card is not None
    assert card.counts.unseen == 1
    assert kgmlm.load_graph(tmp_path / "out").splits.keys() == {"train", "valid", "test"}
    del files["dev.tsv"], files["test.tsv"]
    files["train.tsv"] = "".join(f"Q{i}\tr\tQ{j}\n" for i in range(9) for j in range(9) if i != j)
    done = cli("data", "import", laid(tmp_path / "train", files), "--split", "--output", tmp_path / "drawn")
    assert "data split" not in done.stderr
    assert {s: len(x) for s, x in read_folder(tmp_path / "drawn").splits.items()} == {
        "train": 58, "valid": 7, "test": 7,
    }  # fmt: skip
