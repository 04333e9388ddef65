"""Tables of edges, any and those that projects publish."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.graphs.datasets import read_folder
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing import edges
from kgmlm.importing.edges import EDGES as FORMATS

# From Hetionet 1.0 (CC0): nodes have Windows' line ends, and a metaedge with a direction is written with ">".
NODES = (
    "id\tname\tkind\r\nAnatomy::UBERON:0000002\tuterine cervix\tAnatomy\r\nGene::5987\tTRIM27\tGene\r\n"
    "Gene::7428\tVHL\tGene\r\nGene::801\tCALM1\tGene\r\nGene::9412\tMED21\tGene\r\n"
)
EDGES = (
    "source\tmetaedge\ttarget\nGene::801\tGiG\tGene::7428\nGene::5987\tGr>G\tGene::9412\n"
    "Gene::5987\tGr>G\tGene::9412\n"
)
METAEDGES = (
    "metaedge\tabbreviation\tedges\tsource_nodes\ttarget_nodes\tunbiased\n"
    "Compound - treats - Disease\tCtD\t755\t387\t77\t0\n"
    "Gene - interacts - Gene\tGiG\t147164\t9526\t14084\t15517\n"
    "Gene > regulates > Gene\tGr>G\t265672\t4634\t7048\t265672\n"
)
STYLES = (
    "metaedge\tunicode_metaedge\tstandard_metaedge\tabbreviation\tstandard_abbreviation\tsource\ttarget\t"
    "inverted\n"
    "Anatomy - downregulates - Gene\tAnatomy–downregulates–Gene\tAnatomy - downregulates - Gene\tAdG\tAdG"
    "\tAnatomy\tGene\t0\n"
)
# The first edge of PrimeKG (MIT), in both directions; the second is its own in kind, with a comma in a name.
PRIMEKG = (
    "relation,display_relation,x_index,x_id,x_type,x_name,x_source,y_index,y_id,y_type,y_name,y_source\n"
    "protein_protein,ppi,0,9796,gene/protein,PHYHIP,NCBI,8889,56992,gene/protein,KIF15,NCBI\n"
    'drug_protein,target,1,DB00158,drug,"Acid, folic",DrugBank,0,9796,gene/protein,PHYHIP,NCBI\n'
    "drug_protein,carrier,2,DB09130,drug,Copper,DrugBank,3,2157,gene/protein,F8,NCBI\n"
    "protein_protein,ppi,8889,56992,gene/protein,KIF15,NCBI,0,9796,gene/protein,PHYHIP,NCBI\n"
    'drug_protein,target,0,9796,gene/protein,PHYHIP,NCBI,1,DB00158,drug,"Acid, folic",DrugBank\n'
)
CONCEPTNET = (
    '/a/[w]\t/r/IsA\t/c/en/land_reform/n/wn/act\t/c/en/reform\t{"weight": 1.0}\n'
    '/a/[x]\t/r/Synonym\t/c/en/reform/n\t/c/fr/r\u00e9forme\t{"weight": 1.0}\n'
    '/a/[y]\t/r/ExternalURL\t/c/en/reform\thttp://example.org/reform\t{"weight": 1.0}\n'
)  # fmt: skip
REGISTRY = FORMATS
SAMPLES = {"table": "a\tr\tb\n" * 2, "hetionet": EDGES, "primekg": PRIMEKG, "conceptnet": CONCEPTNET}


def imported(
    tmp_path: Path, *files: tuple[str, str], **options: Any
) -> tuple[KnowledgeGraph, dict[str, Any]]:
    paths = []
    for name, text in files:
        (path := tmp_path / name).write_bytes(
            gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        )
        paths.append(path)
    report = kgmlm.import_graph(paths, tmp_path / "out", progress=False, **options)
    return read_folder(tmp_path / "out"), dict(report)


def labeled(graph: KnowledgeGraph) -> set[tuple[str, str, str]]:
    return set(graph.labeled(graph.triples("train")))


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        (
            "a.tsv",
            "source\tw\ttype\ttarget\na\t1\tr\tb c\nb c\t2\tr\t\u00e9\n",
            {"columns": "source,type,target"},
        ),
        (
            "a.csv",
            'target,"type, of",source\n"b c",r,a\n\u00e9,r,b c\n',
            {"columns": "source|type, of|target"},
        ),
        (
            "a.csv.gz",
            "\ufefftarget,type,source\r\nb c,r,a\r\n\u00e9,r,b c\r\n",
            {"columns": "source,type,target"},
        ),
        ("a.txt", "a|b c|r\nb c|\u00e9|r\n", {"columns": "1,3,2", "separator": "|"}),
        ("a.dat", "a\tr\tb c\nb c\tr\t\u00e9\n", {"separator": r"\t"}),
        ("a.tsv", "a\tr\tb c\nb c\tr\t\u00e9\na\tr\tb c\n", {"format": "table"}),
        ("a.tsv", "h\tr\tt\na\tr\tb c\n\tr\tx\nb c\tr\t\u00e9\n", {"columns": "h,r,t"}),
    ],
)
def test_tables(name: str, text: str, options: dict[str, Any], tmp_path: Path) -> None:
    if "columns" in options:
        options["columns"] = options["columns"].split("|" if "|" in options["columns"] else ",")
    graph, report = imported(tmp_path, (name, text), **options)
    assert labeled(graph) == {("a", "r", "b c"), ("b c", "r", "\u00e9")}
    assert report["triples"] == 2
    assert report["repeated"] == (text.count("a\tr\tb c") == 2)
    assert report["left_out"] == ({"rows with an empty cell": 1} if "\n\tr\tx" in text else {})


@pytest.mark.parametrize("size", [1, 7, 2**24])
def test_rows_are_whole_wherever_a_block_ends(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "_BLOCK", size)
    text = 'h,r,t\n"a\nb",says,"""c"""\nd,r,e\n' + "d,r,f\n" * 9 + '"g, h",r,i'
    (path := tmp_path / "a.csv").write_text(text)
    given = edges.EdgeFiles([path], ("h", "r", "t"), ",", ("en",), lambda n: None)
    rows = pa.concat_tables(edges._batches(path, given, given.columns, ",", edges.Edges.none()))
    assert rows.column("h").to_pylist() == ["a\nb", "d", *["d"] * 9, "g, h"]
    assert rows.column("t").to_pylist() == ['"c"', "e", *["f"] * 9, "i"]


def test_quotes_in_tsv_are_characters(tmp_path: Path) -> None:
    graph, _ = imported(tmp_path, ("a.tsv", 'a "b\tr\tc\nNA\tr\t"\n'), columns=["1", "2", "3"])
    assert labeled(graph) == {('a "b', "r", "c"), ("NA", "r", '"')}


def test_a_split_of_a_table(tmp_path: Path) -> None:
    rows = "".join(f"e{i}\tr\te{j}\n" for i in range(12) for j in range(12) if i != j)
    graph, report = imported(tmp_path, ("a.tsv", rows), format="table", split=True)
    assert report["splits"] == {s: len(x) for s, x in graph.splits.items()}
    assert len(graph.splits["test"]) == 13
    assert sum(report["splits"].values()) == report["triples"] == 132


def test_hetionet(tmp_path: Path) -> None:
    files = (
        ("nodes.tsv", NODES),
        ("edges.sif.gz", EDGES),
        ("metaedges.tsv", METAEDGES),
        ("metaedge-styles.tsv", STYLES),
    )
    graph, report = imported(tmp_path, *files, format="hetionet")
    assert labeled(graph) == {("Gene::801", "GiG", "Gene::7428"), ("Gene::5987", "Gr>G", "Gene::9412")}
    gene = graph.entities.find("Gene::801") or 0
    assert graph.entities[gene].name == "CALM1"
    assert (graph.entities.types or [])[gene] == ("Gene",)
    assert [r.name for r in graph.relations] == ["interacts", "regulates"]
    assert sorted(graph.entities.table.column("name").to_pylist()) == ["CALM1", "MED21", "TRIM27", "VHL"]
    assert report["repeated"] == 1


def test_primekg_keeps_one_direction_of_each_edge(tmp_path: Path) -> None:
    graph, report = imported(tmp_path, ("kg.csv", PRIMEKG), format="primekg")
    assert labeled(graph) == {
        ("NCBI:9796", "protein_protein", "NCBI:56992"),
        ("DrugBank:DB00158", "drug_protein", "NCBI:9796"),
        ("DrugBank:DB09130", "drug_protein", "NCBI:2157"),
    }
    assert graph.entities[graph.entities.find("DrugBank:DB00158") or 0].name == "Acid, folic"
    assert graph.relations[graph.relations.index["drug_protein"]].name == "drug protein"  # shown in two ways
    assert graph.relations[graph.relations.index["protein_protein"]].name == "ppi"
    assert report["left_out"] == {"edges in the other direction": 2}


@pytest.mark.parametrize(("language", "count"), [("en", 1), (["en", "fr"], 2)])
def test_conceptnet(language: str | list[str], count: int, tmp_path: Path) -> None:
    graph, report = imported(
        tmp_path, ("assertions.csv.gz", CONCEPTNET), format="conceptnet", language=language
    )
    assert ("/c/en/land_reform", "/r/IsA", "/c/en/reform") in labeled(graph)
    assert graph.entities[graph.entities.find("/c/en/land_reform") or 0].name == "land reform"
    assert graph.relations[graph.relations.index["/r/IsA"]].name == "is a"
    assert (report["triples"], sum(report["left_out"].values())) == (count, 3 - count)


# From the build test of ConceptNet 5 (CC BY 4.0).
WHEAT = (
    "/a/[/r/AtLocation/,/c/en/wheat/,/c/en/field/]\t/r/AtLocation\t/c/en/wheat\t/c/en/field\t"
    '{"dataset": "/d/conceptnet/4/en", "license": "cc:by/4.0", "surfaceEnd": "a field", "weight": 1.0}\n'
)


def test_an_assertion_of_conceptnet(tmp_path: Path) -> None:
    graph, _ = imported(tmp_path, ("assertions.csv", WHEAT), format="conceptnet")
    assert labeled(graph) == {("/c/en/wheat", "/r/AtLocation", "/c/en/field")}
    assert [r.name for r in graph.relations] == ["at location"]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a\tb\tc\n", {"columns": ["x", "b", "c"]}, "has no column 'x', but the columns a, b, c"),
        ("a\tb\tc\n", {"columns": ["1", "2", "4"]}, "has no column '4', but 3 columns"),
        ("a\tb\tc\n", {"columns": ["a", "b", "c"]}, "there is no triple"),
        ("", {"columns": ["1", "2", "3"]}, "has no column"),
        ("a\tb\tc\na\tb\n", {"columns": ["1", "2", "3"]}, "Expected 3 columns, got 2"),
        ("a\tb\tc\n", {"format": "hetionet"}, "is not Hetionet's"),
        ("a\tb\tc\n", {"format": "primekg"}, "has no column 'relation'"),
        ("a\tb\n", {"format": "conceptnet"}, "has no column '3'"),
        ("\t\t\n", {"columns": ["1", "2", "3"]}, "there is no triple"),
    ],
)
def test_other_tables_are_refused(text: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        imported(
            tmp_path,
            ("a.tsv", text + ("d\te\tf\n" if options.get("format") == "hetionet" else "")),
            **options,
        )
    assert not (tmp_path / "out").exists()


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    (path := tmp_path / "a.tsv").write_bytes(b"a\tr\t\xff\n")
    with pytest.raises(DataError, match=r"a\.tsv cannot be read"):
        kgmlm.import_graph(path, tmp_path / "out", format="table", progress=False)
    (path := tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"a\tr\tb\n" * 9999)[:-20])
    with pytest.raises(DataError, match="cut off or damaged"):
        kgmlm.import_graph(path, tmp_path / "out", format="table", progress=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["a", "b"]}, "columns are three"),
        ({"columns": ["a", "2", "3"]}, "three names of a header, or three numbers"),
        ({"separator": "||"}, "one character"),
        ({"separator": "|", "format": "primekg"}, "those of a table"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        imported(tmp_path, ("a.tsv", "a\tb\tc\n"), **options)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_cut_off_is_read_or_refused(format: str, tmp_path: Path) -> None:
    whole = SAMPLES[format].encode()
    for cut in range(0, len(whole), 11):
        (path := tmp_path / "a.tsv").write_bytes(whole[:cut])
        with contextlib.suppress(DataError):
            kgmlm.import_graph(path, tmp_path / f"{cut}", format=format, progress=False)
            assert len(read_folder(tmp_path / f"{cut}").triples("train"))


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text("from,how,to\nparis,capital of,france\n")
    done = cli("data", "import", path, "--columns", "from, how, to", "--output", tmp_path / "out", "-q")
    assert "1 triple of 2 entities and 1 relation" in done.stdout
    refused(cli("data", "import", path, "--output", tmp_path / "x"), "--columns reads a table")


def read(
    folder: Path, *files: tuple[str, str | bytes], **options: Any
) -> tuple[KnowledgeGraph, dict[str, Any]]:
    """The graph of the first of some files, and the report of its import."""
    for name, text in files:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    report = kgmlm.import_graph(folder / files[0][0], folder / "out", progress=False, **options)
    return read_folder(folder / "out"), report


HEADED = ["source", "type", "target"]


@pytest.mark.parametrize(
    ("name", "separator", "text"),
    [
        (
            "a.csv",
            ";",
            'source;type;target\nFrance;borders;"Spain"\n"Trinidad; Tobago";borders;"Cote d""Ivoire"\n',
        ),
        (
            "a.csv",
            None,
            'sep=;\nsource;type;target\nFrance;borders;Spain\n"Trinidad; Tobago";borders;"Cote d""Ivoire"\n',
        ),
        (
            "a.csv",
            None,
            'source,type,target\nFrance,borders,Spain\nTrinidad; Tobago,borders,"Cote d""Ivoire"\n',
        ),
        (
            "a.tsv",
            None,
            '"source"\t"type"\t"target"\n"France"\t"borders"\t"Spain"\n"Trinidad; Tobago"\tborders\t"Cote d""Ivoire"\n',
        ),
    ],
)
def test_quotes_are_those_of_csv_whatever_the_separator(
    name: str, separator: str | None, text: str, tmp_path: Path
) -> None:
    graph, _ = read(tmp_path, (name, text), columns=HEADED, separator=separator)
    expected = {("France", "borders", "Spain"), ("Trinidad; Tobago", "borders", 'Cote d"Ivoire')}
    assert labeled(graph) == expected


def test_a_quote_that_nothing_closes_takes_no_rows(tmp_path: Path) -> None:
    rows = "".join(f"a{i};r;b{i}\n" for i in range(9))
    with pytest.raises(DataError, match="is a quote"):
        read(
            tmp_path,
            ("a.csv", f'source;type;target\n"France;borders;Spain\n{rows}x";r;y\n'),
            columns=HEADED,
            separator=";",
        )


@pytest.mark.parametrize(
    "header", ["source\ttype\ttarget", "#source\ttype\ttarget", "#note\n# source \t type\ttarget"]
)
def test_lines_of_comments_are_counted(header: str, tmp_path: Path) -> None:
    text = f"#mapping_set_id: https://example.org/m\n#license: CC0\n{header}\na\tr\tb\n"
    graph, report = read(tmp_path, ("a.tsv", text), columns=HEADED)
    assert labeled(graph) == {("a", "r", "b")}
    assert report["notes"] == {"lines of comments": 2 + header.count("#note")}


def test_blanks_in_cells_are_normalized_and_counted(tmp_path: Path) -> None:
    text = " source ,type,target\nwork,is  a,thing\nrest ,is a,\u00a0thing\n"
    graph, report = read(tmp_path, ("a.csv", text), columns=HEADED)
    assert labeled(graph) == {("work", "is a", "thing"), ("rest", "is a", "thing")}
    assert report["notes"] == {"cells whose blanks were normalized": 3}


def test_a_table_in_another_encoding(tmp_path: Path) -> None:
    text = "source,type,target\nZ\u00fcrich,is in,Schweiz\n"
    for data in (text.encode("cp1252"), text.replace("source", "s\u00f6urce").encode("cp1252")):
        with pytest.raises(DataError, match="--encoding says what it is"):
            read(tmp_path, ("a.csv", data), columns=HEADED)
    graph, _ = read(tmp_path, ("a.csv", text.encode("cp1252")), columns=HEADED, encoding="cp1252")
    assert labeled(graph) == {("Z\u00fcrich", "is in", "Schweiz")}
    with pytest.raises(ConfigError, match="no encoding 'latin-99'"):
        read(tmp_path, ("a.csv", text), columns=HEADED, encoding="latin-99")


def test_columns_of_parquet_json_and_workbooks(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        [("Paris", "capital of", "France", 1), ("Rome", "capital of", None, 2)], columns=[*HEADED, "n"]
    )
    frame.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(frame.to_json(orient="records", lines=True))
    (tmp_path / "a.json").write_text(frame.to_json(orient="records"))
    for name in ("a.parquet", "a.jsonl", "a.json"):
        report = kgmlm.import_graph(tmp_path / name, tmp_path / f"{name}.out", columns=HEADED, progress=False)
        assert labeled(read_folder(tmp_path / f"{name}.out")) == {("Paris", "capital of", "France")}
        assert report["left_out"] == {"rows with an empty cell": 1}
        with pytest.raises(DataError, match=r"no .*'to'"):
            kgmlm.import_graph(
                tmp_path / name, tmp_path / "no", columns=["source", "type", "to"], progress=False
            )
    with pytest.raises(DataError, match=r"workbook|openpyxl"):
        read(tmp_path, ("a.xlsx", b"PK"), columns=HEADED)


def test_json_lines_of_triples_are_read(tmp_path: Path) -> None:
    text = '{"head":"Paris","relation":"capital of","tail":"France"}\n{"head":7,"relation":"r","tail":"x"}\n'
    assert labeled(read(tmp_path, ("a.jsonl", text))[0]) == {
        ("Paris", "capital of", "France"),
        ("7", "r", "x"),
    }
    with pytest.raises(DataError, match=r"a\.jsonl:2: .* is no text or number"):
        read(tmp_path / "..", ("a.jsonl", text.replace("7", "[7]")))


NODE_TABLES = {
    "kgx": "id\tcategory\tname\tdescription\nX:1\tGene|Thing\tABC1\ta transporter\nX:3\tGene\tNew\t\n",
    "kgtk": "id\tname\tdescription\ttype\nX:1\t'ABC1'@en\t\"a transporter\"\tGene|Thing\nX:3\tNew\t\tGene\n",
    "neo4j": ":ID\tname\tdescription\t:LABEL\nX:1\tABC1\ta transporter\tGene;Thing\nX:3\tNew\t\tGene\n",
    "apoc": "_id\t_labels\tname\tdescription\nX:1\t:Gene:Thing\tABC1\ta transporter\nX:3\t:Gene\tNew\t\n",
    "gephi": "Id\tLabel\ttype\tdescription\nX:1\tABC1\tGene|Thing\ta transporter\nX:3\tNew\tGene\t\n",
}


@pytest.mark.parametrize("kind", NODE_TABLES)
def test_a_table_of_nodes_gives_names_types_and_descriptions(kind: str, tmp_path: Path) -> None:
    edges_file = ("edges.tsv", "id\tsubject\tpredicate\tobject\ne1\tX:1\tbiolink:affects\tX:2\n")
    columns = ["subject", "predicate", "object"]
    nodes = (f"{kind}.tsv", NODE_TABLES[kind])
    graph, report = read(tmp_path, edges_file, nodes, columns=columns, nodes=tmp_path / nodes[0])
    entity = graph.entities[graph.entities.index["X:1"]]
    assert (entity.name, entity.types, entity.description) == ("ABC1", ("Gene", "Thing"), "a transporter")
    assert graph.entities.index.keys() == {"X:1", "X:2", "X:3"}, "a node without edges is a candidate"
    assert report["notes"]["entities without a row in the table of nodes"] == 1


def test_columns_of_nodes_are_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "edges.csv").write_text("subject,predicate,object\nX:1,r,X:2\n")
    (tmp_path / "nodes.csv").write_text("code,what,called\nX:1,Gene,ABC1\n")
    given = (
        "data",
        "import",
        tmp_path / "edges.csv",
        "--columns",
        "subject,predicate,object",
        "--nodes",
        tmp_path / "nodes.csv",
    )
    refused(cli(*given, "--output", tmp_path / "no"), "has no column of labels such as id")
    done = cli(*given, "--node-columns", "code,called,what", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    entity = read_folder(tmp_path / "out").entities[0]
    assert (entity.name, entity.types) == ("ABC1", ("Gene",))
    refused(
        cli(
            "data",
            "import",
            tmp_path / "nodes.csv",
            "--nodes",
            tmp_path / "nodes.csv",
            "--output",
            tmp_path / "n",
        ),
        "--nodes",
    )


def test_names_of_a_query_service_and_of_kgtk(tmp_path: Path) -> None:
    text = "item,itemLabel,prop,propLabel,value,valueLabel\nQ90,Paris,P1376,capital of,Q142,France\n"
    graph, _ = read(tmp_path, ("a.csv", text), columns=["item", "prop", "value"])
    assert graph.named(graph.triples("train")) == [("Paris", "capital of", "France")]
    kgtk = "node1\tlabel\tnode2\nf1\tlabel\t'A Film'@en\nf1\tlabel\t'Ein Film'@de\nf1\tP31\tfilm\nf1\tP577\t^2001-01-01T00:00:00Z/11\n"
    (tmp_path / "k").mkdir()
    graph, report = read(tmp_path / "k", ("a.tsv", kgtk), columns=["node1", "label", "node2"])
    assert labeled(graph) == {("f1", "P31", "film")}
    assert graph.entities[graph.entities.index["f1"]].name == "A Film"
    assert report["left_out"] == {"texts in other languages": 1, "literals": 1}


@pytest.mark.parametrize(
    "text",
    [
        'source,type,target\nA,r,"B\nC,r,D\nE,r,F\n',
        'source,type,target\nA,r,"B\nC,r,D\nE,r,F"\nG,r,H\n',
        "source,type,target\rA,r,B\r",
    ],
)
def test_rows_are_never_taken_into_a_cell(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a quote is not closed|is a quote missing|carriage returns alone"):
        read(tmp_path, ("a.csv", text), columns=HEADED)


def test_cells_of_several_lines_are_read(tmp_path: Path) -> None:
    note = "\n".join(f"line {n}, with a comma" for n in range(6))
    text = f'source,type,target,note\nA,r,"B\nb","{note}"\n'
    assert labeled(read(tmp_path, ("a.csv", text), columns=HEADED)[0]) == {("A", "r", "B b")}
    nodes = 'conceptUri,preferredLabel,altLabels\nA,lead,"plumb\nlead metal\nPb\npencil lead"\n'
    (tmp_path / "n.csv").write_text(nodes)
    (tmp_path / "x").mkdir()
    graph, _ = read(
        tmp_path / "x", ("a.csv", "source,type,target\nA,r,B\n"), columns=HEADED, nodes=tmp_path / "n.csv"
    )
    assert graph.entities[graph.entities.index["A"]].aliases == ("plumb", "lead metal", "Pb", "pencil lead")


def test_lists_of_json_and_parquet_are_several_values(tmp_path: Path) -> None:
    edge = ("a.csv", "source,type,target\nX:1,r,X:2\n")
    row = {"id": "X:1", "name": "ABC1", "category": ["Gene", "Thing"], "xref": [{"a": 1}]}
    (tmp_path / "n.jsonl").write_text(json.dumps(row) + "\n")
    pd.DataFrame([{**row, "xref": ["y"]}]).to_parquet(tmp_path / "n.parquet")
    for nodes in ("n.jsonl", "n.parquet"):
        (folder := tmp_path / f"of {nodes}").mkdir()
        graph, _ = read(folder, edge, columns=HEADED, nodes=tmp_path / nodes)
        assert graph.entities[graph.entities.index["X:1"]].types == ("Gene", "Thing")


def test_a_header_in_another_order_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the first line names its columns"):
        read(tmp_path, ("a.csv", "source,type,target\nA,r,B\n"), columns=["3", "2", "1"])
    with pytest.raises(DataError, match="--separator ';' divides them"):
        read(tmp_path, ("b.csv", "source;type;target\nA;r;B\n"), columns=HEADED)
