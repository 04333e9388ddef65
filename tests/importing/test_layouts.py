"""Folders of other projects, as they lay them out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, refused
from doubles import Hears

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.graphs.cards import folder_card
from kgmlm.graphs.datasets import read_folder
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing.layouts import LAYOUTS

# From KG-BERT's data/umls (Apache 2.0), texts cut short; the labels of the test file are ours.
KG_BERT = {
    "train.tsv": (
        "acquired_abnormality\tlocation_of\texperimental_model_of_disease\n"
        "anatomical_abnormality\tmanifestation_of\tphysiologic_function\n"
    ),
    "dev.tsv": "anatomical_abnormality\taffects\torganism_function\n",
    "test.tsv": (
        "disease_or_syndrome\tresult_of\tphysiologic_function\t1\nsteroid\tcauses\tphysiologic_function\t-1\n"
    ),
    "entity2text.txt": (
        "acquired_abnormality\tacquired abnormality\nphysiologic_function\tphysiologic function\n"
        "experimental_model_of_disease\texperimental model of disease\n"
    ),
    "entity2textlong.txt": (
        "physiologic_function\tPhysiology (; from Ancient Greek  φύσις (physis), meaning 'nature, origin')\n"
    ),
    "relation2text.txt": "location_of\tlocation of\nmanifestation_of\tmanifestation of\naffects\taffects\n",
}
# Name and gloss in one, from KG-BERT's data/WN18RR (WordNet's licence).
WORDNET = {
    "train.tsv": "00260881\t_hypernym\t00260622\n",
    "entity2text.txt": (
        "14854262\tstool, solid excretory product evacuated from the bowels\n"
        "00590383\tchieftainship, the position of chieftain\n00260622\tchange\n"
    ),
}
# From OpenKE's benchmarks/WN18RR (WordNet's licence), with its line ends; validation and test are ours.
OPENKE = {
    "entity2id.txt": "8\r\n00260881\t0\r\n00260622\t1\r\n01332730\t2\r\n03122748\t3\r\n06066555\t4\r\n"
    "00645415\t5\r\n09322930\t6\r\n09360122\t7\r\n",
    "relation2id.txt": "3\r\n_hypernym\t0\r\n_derivationally_related_form\t1\r\n_instance_hypernym\t2\r\n",
    "train2id.txt": "4\n0 1 0\n2 3 1\n4 5 1\n6 7 2\n",
    "valid2id.txt": "1\n1 0 0\n",
    "test2id.txt": "1\n3\t2\t1\n",
}
# Of WN18RR as SimKGC's preprocess.py writes it: the space before the names of entities.json is there.
SIMKGC = {
    "train.txt.json": [
        {"head_id": "00260881", "head": "land_reform_NN_1", "relation": "hypernym", "tail_id": "00260622",
         "tail": "reform_NN_1"},
    ],
    "valid.txt.json": [
        {"head_id": "04270891", "head": "spear_NN_1", "relation": "has part", "tail_id": "04271371",
         "tail": "spearpoint_NN_1"},
        {"head_id": "02687172", "head": "flattop_NN_2", "relation": "has part", "tail_id": "02742468",
         "tail": "arrester_hook_NN_1"},
    ],
    "entities.json": [
        {"entity_id": "00260881", "entity": " land_reform_NN_1",
         "entity_desc": "a redistribution of agricultural land (especially by government action)"},
        {"entity_id": "01332730", "entity": " cover_VB_1",
         "entity_desc": "provide with a covering or cause to be covered; \"cover the grave with flowers\""},
        {"entity_id": "12526178", "entity": " prickle-weed_NN_1",
         "entity_desc": "perennial herb having dense heads of small white flowers"},
    ],
}  # fmt: skip
# Of FB15k-237 as SimKGC writes it; here the names are words.
SIMKGC_FREEBASE = {
    "train.txt.json": [
        {"head_id": "/m/07pd_j", "head": "American Pie", "relation": "film film genre",
         "tail_id": "/m/02l7c8", "tail": "Romance Film"},
    ],
    "valid.txt.json": [
        {"head_id": "/m/01t94_1", "head": "George Burns",
         "relation": "people person spouse s. people marriage type of union", "tail_id": "/m/04ztj",
         "tail": "Marriage"},
    ],
}  # fmt: skip
# From CoDEx (MIT), and its texts of Germany in two languages.
CODEX = {
    "triples/codex-s/train.txt": "Q7604\tP1412\tQ188\nQ78608\tP509\tQ12078\nQ739\tP463\tQ656801\n",
    "triples/codex-s/valid.txt": "Q928\tP530\tQ41\nQ443897\tP101\tQ207628\n",
    "triples/codex-s/valid_negatives.txt": "Q185724\tP27\tQ27\nQ202878\tP119\tQ64\nQ7604\tP27\tQ183\n",
    "entities/en/entities.json": {
        "Q183": {"label": "Germany", "description": "country in Europe"}, "Q90": {"label": ""},
    },
    "entities/de/entities.json": {"Q183": {"label": "Deutschland", "description": "Staat in Mitteleuropa"}},
    "relations/en/relations.json": {
        "P27": {
            "label": "country of citizenship",
            "description": "the object is a country that recognizes the subject as its citizen",
        }
    },
    "types/entity2types.json": {"Q183": ["Q6256", "Q1"]},
    "types/en/types.json": {"Q6256": {"label": "country"}, "Q1": {}},
}  # fmt: skip
# From the WN18RR that DGL-KE reads (WordNet's licence).
DGL_KE = {
    "entities.dict": "0\t00260881\n1\t00260622\n2\t01332730\n3\t03122748\n",
    "relations.dict": "0\t_hypernym\n1\t_derivationally_related_form\n",
    "train.txt": "00260881\t_hypernym\t00260622\n01332730\t_derivationally_related_form\t03122748\n",
    "valid.txt": "00260622\t_hypernym\t00260881\n",
}
# The formats of users' graphs, by DGL-KE's guide and tests (Apache 2.0): files, columns, and their triples.
USERS: dict[str, tuple[dict[str, str], list[str] | None, list[tuple[str, str, str]]]] = {
    "labels": (
        {"train.tsv": '"Beijing","is_capital_of","China"\n"UK","located_at","Europe"\n'},
        None,
        [("Beijing", "is_capital_of", "China"), ("UK", "located_at", "Europe")],
    ),
    "numbers": (
        {
            "entities.dict": "Beijing\t0\nLondon\t1\nChina\t2\nUK\t3\nEurope\t4\n",
            "relation.dict": "is_capital_of\t0\nlocated_at\t1\n",
            "train.tsv": "0\t0\t2\n1\t0\t3\n3\t1\t4\n",
        },
        None,
        [
            ("Beijing", "is_capital_of", "China"),
            ("London", "is_capital_of", "UK"),
            ("UK", "located_at", "Europe"),
        ],
    ),
    "numbers as head, tail, relation, with bars": (
        {"entity.dict": "a|0\nb|1\nc|2\n", "relation.dict": "A|0\nB|1\n", "train.tsv": "0|1|0\n1|2|1\n"},
        ["1", "3", "2"],
        [("a", "A", "b"), ("b", "B", "c")],
    ),
    "Freebase": (
        {"entity2id.txt": "3\na\t0\nb\t1\nc\t2\n", "relation2id.txt": "1\nr\t0\n", "train.txt": "0\t2\t0\n"},
        None,
        [("a", "r", "c")],
    ),
}
# From OpenBioLink's sample files (data by their own licences).
OPENBIOLINK = {
    "train_sample.csv": (
        "NCBIGENE:11200\tGENE_PHENOTYPE\tHP:0009919\t\t1\tHPO\n"
        "NCBIGENE:2649\tGENE_EXPRESSED_ANATOMY\tUBERON:0000059\tgold quality\t1\tBgee\n"
    ),
    "val_sample.csv": "NCBIGENE:2049\tGENE_REACTION_GENE\tNCBIGENE:1949\t928\t1\tSTRING\n",
    "negative_val_sample.csv": (
        "NCBIGENE:5226\tGENE_UNDEREXPRESSED_ANATOMY\tUBERON:0000997\thigh quality\t0\tBgee\n"
        "DOID:8339\tDIS_PHENOTYPE\tHP:0031298\t\t0\tGENERATED\n"
    ),
    "train_val_nodes.csv": "GO:0051505\tGO\nUBERON:0000059\tANATOMY\nPUBCHEM.COMPOUND:157838\tDRUG\n",
    "test_nodes.csv": "HP:0009919\tPHENOTYPE\n",
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
    assert set(graph.labeled(graph.triples("train"))) == {
        ("acquired_abnormality", "location_of", "experimental_model_of_disease"),
        ("anatomical_abnormality", "manifestation_of", "physiologic_function"),
    }
    assert graph.labeled(graph.triples("valid")) == [
        ("anatomical_abnormality", "affects", "organism_function")
    ]
    assert graph.labeled(graph.negatives["test"]) == [("steroid", "causes", "physiologic_function")]
    function = graph.entities[graph.entities.find("physiologic_function") or 0]
    assert function.name == "physiologic function"
    assert (
        function.description == "Physiology (; from Ancient Greek φύσις (physis), meaning 'nature, origin')"
    )
    assert graph.relations[graph.relations.index["location_of"]].name == "location of"


def test_kg_bert_with_names_and_glosses_in_one(tmp_path: Path) -> None:
    files = {**WORDNET, "train.tsv": "14854262\t_hypernym\t00590383\n00590383\t_hypernym\t00260622\n"}
    graph = imported(laid(tmp_path / "in", files), tmp_path / "out")
    results = {e.label: (e.name, e.description) for e in (graph.entities[i] for i in range(3))}
    assert results["14854262"] == ("stool", "solid excretory product evacuated from the bowels")
    assert results["00260622"] == ("change", "")


@pytest.mark.parametrize("layout", ["openke", None])
def test_openke(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", OPENKE), tmp_path / "out", format=layout)
    assert set(graph.labeled(graph.triples("train"))) == {
        ("00260881", "_hypernym", "00260622"),
        ("01332730", "_derivationally_related_form", "03122748"),
        ("06066555", "_derivationally_related_form", "00645415"),
        ("09322930", "_instance_hypernym", "09360122"),
    }
    assert graph.labeled(graph.triples("valid")) == [("00260622", "_hypernym", "00260881")]
    assert graph.labeled(graph.triples("test")) == [("03122748", "_derivationally_related_form", "01332730")]


@pytest.mark.parametrize("layout", ["simkgc", None])
def test_simkgc(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", SIMKGC), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("train")) == [("00260881", "hypernym", "00260622")]
    assert graph.labeled(graph.triples("valid")) == [
        ("04270891", "has part", "04271371"),
        ("02687172", "has part", "02742468"),
    ]
    columns = [graph.entities.column(name) for name in ("name", "surface", "description")]
    text = dict(zip(graph.entities.column("label"), zip(*columns, strict=True), strict=True))
    described = "a redistribution of agricultural land (especially by government action)"
    assert text["00260881"] == ("land reform", "land reform noun", described)
    assert text["02687172"] == ("flattop", "flattop noun 2", "")  # no entry of its own
    graph = imported(laid(tmp_path / "fb", SIMKGC_FREEBASE), tmp_path / "out-fb", format=layout)
    assert graph.entities[graph.entities.find("/m/02l7c8") or 0].name == "Romance Film"
    assert graph.labeled(graph.triples("valid")) == [
        ("/m/01t94_1", "people person spouse s. people marriage type of union", "/m/04ztj")
    ]


@pytest.mark.parametrize("layout", ["codex", None])
def test_codex(layout: str | None, tmp_path: Path) -> None:
    folder = laid(tmp_path / "data", CODEX) / "triples" / "codex-s"
    graph = imported(folder, tmp_path / "out", format=layout)
    assert set(graph.labeled(graph.triples("valid"))) == {
        ("Q928", "P530", "Q41"),
        ("Q443897", "P101", "Q207628"),
    }
    assert set(graph.labeled(graph.negatives["valid"])) == {
        ("Q185724", "P27", "Q27"),
        ("Q202878", "P119", "Q64"),
        ("Q7604", "P27", "Q183"),
    }
    germany = graph.entities[graph.entities.find("Q183") or 0]
    assert (germany.name, germany.description) == ("Germany", "country in Europe")
    assert (graph.entities.types or [])[graph.entities.find("Q183") or 0] == ("country",)
    assert graph.relations[graph.relations.index["P27"]].name == "country of citizenship"
    graph = imported(folder, tmp_path / "de", format=layout, language=["de", "en"])
    germany = graph.entities[graph.entities.find("Q183") or 0]
    assert (germany.name, germany.description) == ("Deutschland", "Staat in Mitteleuropa")
    assert graph.relations[graph.relations.index["P27"]].name == "country of citizenship"


@pytest.mark.parametrize("layout", ["dgl-ke", None])
def test_dgl_ke(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", DGL_KE), tmp_path / "out", format=layout)
    assert set(graph.labeled(graph.triples("train"))) == {
        ("00260881", "_hypernym", "00260622"),
        ("01332730", "_derivationally_related_form", "03122748"),
    }
    assert graph.labeled(graph.triples("valid")) == [("00260622", "_hypernym", "00260881")]


@pytest.mark.parametrize("kind", USERS)
def test_formats_of_users_of_dgl_ke(kind: str, tmp_path: Path) -> None:
    files, columns, triples = USERS[kind]
    graph = imported(laid(tmp_path / "in", files), tmp_path / "out", format="dgl-ke", columns=columns)
    assert set(graph.labeled(graph.triples("train"))) == set(triples)


@pytest.mark.parametrize("layout", ["openbiolink", None])
def test_openbiolink(layout: str | None, tmp_path: Path) -> None:
    graph = imported(laid(tmp_path / "in", OPENBIOLINK), tmp_path / "out", format=layout)
    assert graph.labeled(graph.triples("valid")) == [("NCBIGENE:2049", "GENE_REACTION_GENE", "NCBIGENE:1949")]
    assert set(graph.labeled(graph.negatives["valid"])) == {
        ("NCBIGENE:5226", "GENE_UNDEREXPRESSED_ANATOMY", "UBERON:0000997"),
        ("DOID:8339", "DIS_PHENOTYPE", "HP:0031298"),
    }
    assert (graph.entities.types or [])[graph.entities.find("HP:0009919") or 0] == ("PHENOTYPE",)


@pytest.mark.parametrize(
    ("files", "layout", "said"),
    [
        ({"train.tsv": "a\tr\tb\n"}, None, "laid out as none of kg-bert"),
        ({"train.tsv": "a\tr\tb\n"}, "openke", "there is no entity2id.txt"),
        ({**OPENKE, "train2id.txt": "1\n0 9 0\n"}, "openke", "train2id.txt:2: '0 9 0' is not numbers"),
        ({**OPENKE, "train2id.txt": "1\n0 1\n"}, "openke", "train2id.txt:2: '0 1' is not numbers"),
        (
            {**OPENKE, "entity2id.txt": "1\na\tb\n"},
            "openke",
            "entity2id.txt:2: .* is not a label and its number",
        ),
        ({"train.txt.json": "[{"}, "simkgc", "cut off or not JSON"),
        ({"train.txt.json": [{"head": 1}]}, "simkgc", "is not laid out as simkgc"),
        ({**DGL_KE, "train.txt": "a\tb\n"}, "dgl-ke", "train.txt:1: 'a' is no head, relation and tail"),
        ({**DGL_KE, "train.txt": "0\t1\t0\n0\t3\t1\n"}, None, "train.txt:2: 0, 3, 1 are not numbers"),
        ({**DGL_KE, "entities.dict": "0\ta\n2\tb\n"}, None, "has no column of the numbers from 0 to 1"),
        ({"train_sample.csv": "a,b,c\n"}, None, "train_sample.csv:1: expected 3 columns with tabs"),
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
    assert "6 triples of 8 entities and 3 relations" in done.stdout
    refused(
        cli("data", "import", folder / "train2id.txt", "--format", "openke", "--output", tmp_path / "x"),
        "is not a folder",
    )
    with pytest.raises(ConfigError, match="there is no format"):
        kgmlm.import_graph(folder, tmp_path / "y", format="pykg2vec", progress=False)


def test_entities_that_training_lacks_are_counted_and_missing_splits_drawn(cli: Cli, tmp_path: Path) -> None:
    files = {**KG_BERT, "dev.tsv": "virus\taffects\tphysiologic_function\n"}
    del files["test.tsv"]
    imported(laid(tmp_path / "unseen", files), tmp_path / "out")
    card = folder_card(tmp_path / "out")
    assert card is not None
    assert card.counts.unseen == 1
    assert kgmlm.load_graph(tmp_path / "out").splits.keys() == {"train", "valid"}
    del files["dev.tsv"]
    files["train.tsv"] = "".join(f"Q{i}\tr\tQ{j}\n" for i in range(9) for j in range(9) if i != j)
    done = cli("data", "import", laid(tmp_path / "train", files), "--split", "--output", tmp_path / "drawn")
    assert "data split" not in done.stderr
    assert {s: len(x) for s, x in read_folder(tmp_path / "drawn").splits.items()} == {
        "train": 58, "valid": 7, "test": 7,
    }  # fmt: skip


def test_lines_end_at_line_feeds_alone_and_marks_are_no_text(tmp_path: Path) -> None:
    mark = "\ufeff"
    for odd in "\x0b\x0c\x1c\x85\u2028":
        files = {
            "train.tsv": f"{mark}e1\tr\te2\r\ne2\tr\te{odd}3\r\n",
            "entity2text.txt": f"{mark}e1\tthe first{odd}house\ne2\tthe second\n",
            "relation2text.txt": "r\tis beside\n",
        }
        out = tmp_path / f"out{ord(odd)}"
        kgmlm.import_graph(laid(tmp_path / f"in{ord(odd)}", files), out, progress=False)
        graph = read_folder(out)
        assert graph.entities[graph.entities.index["e1"]].name == "the first house"
        assert f"e{odd}3" in graph.entities.index
        rows = {"train_sample.csv": f"e{odd}1\tr\te2\t1\tx\ne2\tr\te3\t1\tx\n"}
        kgmlm.import_graph(laid(tmp_path / f"o{ord(odd)}", rows), tmp_path / f"{ord(odd)}", progress=False)
        assert f"e{odd}1" in read_folder(tmp_path / f"{ord(odd)}").entities.index


@pytest.mark.parametrize("count", ["2\n", ""])
def test_openke_with_and_without_its_count(count: str, tmp_path: Path) -> None:
    files = {**OPENKE, "train2id.txt": f"{count}0 1 0\n1 0 0\n"}
    kgmlm.import_graph(laid(tmp_path / "in", files), tmp_path / "out", format="openke", progress=False)
    assert len(read_folder(tmp_path / "out").triples("train")) == 2
    wrong = {**files, "train2id.txt": "3\n0 1 0\n1 0 0\n"}
    with pytest.raises(DataError, match="counts 3 lines, but 2 follow"):
        kgmlm.import_graph(laid(tmp_path / "w", wrong), tmp_path / "no", format="openke", progress=False)


@pytest.mark.parametrize("name", ["entity2text.txt", "train.tsv"])
def test_a_benchmark_in_latin_1_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = laid(tmp_path / "in", {"train.tsv": "e1\tr\te2\n", "entity2text.txt": "e1\tOne\n"})
    (folder / name).write_bytes((folder / name).read_bytes() + "e3\tr\tZ\u00fcrich\n".encode("latin-1"))
    with pytest.raises(DataError, match=f"{name}:2: not UTF-8 text"):
        kgmlm.import_graph(folder, tmp_path / "out", format="kg-bert", progress=False)


def test_files_that_a_layout_does_not_read_are_named(tmp_path: Path) -> None:
    folder = laid(tmp_path / "in", OPENKE)
    for name in ("type_constrain.txt", "1-n.txt", "README.txt"):
        (folder / name).write_text("what only repeats the others, or is no data\n")
    (folder / "more2023.tsv").write_text("a\tb\tc\n")
    heard = Hears()
    kgmlm.import_graph(folder, tmp_path / "out", progress=heard)
    assert [item for item in heard.told if item.startswith("not read")] == ["not read: more2023.tsv"]
