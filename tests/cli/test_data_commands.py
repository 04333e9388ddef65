from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cli, refused

from kgmlm.graphs.graph import KnowledgeGraph


def test_data_list_show_and_prepare(cli: Cli) -> None:
    listed = json.loads(cli("data", "list", "--json").stdout)
    assert {"umls", "wn18rr", "toy"} <= {row["name"] for row in listed}
    assert "40,943" in cli("data", "list").stdout
    shown = json.loads(cli("data", "show", "toy", "--json").stdout)
    assert shown["license"]
    assert "country in the Caucasus" in cli("data", "show", "toy", "--entity", "georgia_country").stdout
    done = cli("data", "prepare", "umls", "-q")
    assert done.returncode == 0, done.stderr
    assert "umls: ready" in done.stderr


def test_data_check_counts(cli: Cli) -> None:
    report = json.loads(cli("data", "check", "umls", "--json").stdout)
    assert (report["entities"], report["relations"], report["unseen"]) == (135, 46, 0)
    assert report["triples"] == {"train": 5216, "valid": 652, "test": 661}
    people = cli("data", "check", "toy").stdout
    assert "2 entities; ceiling on test" in people


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wn18rr"])
def test_the_documented_checks_are_what_check_prints(
    cli: Cli, real: Callable[[str], KnowledgeGraph], name: str
) -> None:
    real(name)  # skips where the files are not at hand
    page = Path(__file__).parent.parent.parent / "docs" / "data.md"
    printed = cli("data", "check", name).stdout
    assert f"$ kgmlm data check {name}\n{printed}```" in page.read_text("utf-8")


def test_a_wrong_checksum_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "WN18RR.tar.gz").write_bytes(b"not the file")
    refused(cli("data", "prepare", "wn18rr", KGMLM_MIRROR=str(tmp_path)), "wrong checksum")


def test_an_entity_split_is_an_ordinary_dataset(cli: Cli, tmp_path: Path) -> None:
    done = cli("data", "split", "toy", "--entities", "0.1", "--output", tmp_path / "ind", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["test_new"]["entities"] >= 1
    check = json.loads(cli("data", "check", tmp_path / "ind", "--json").stdout)
    assert check["mismatches"] == {}
    assert check["unseen"] == report["unseen"]
    refused(cli("data", "split", "toy", "--output", tmp_path / "x"), "--entities")
    refused(cli("data", "split", "toy", "--entities", "0.7", "--output", tmp_path / "x"), "0.7")
    assert not (tmp_path / "x").exists()


def test_a_header_is_refused_and_skipped_when_told(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.tsv").write_text(
        "head\trelation\ttail\n" + "a\tr\tb\nb\tr\tc\nc\tr\ta\na\tr\tc\nb\tr\ta\n" * 2
    )
    refused(cli("data", "check", folder), "train.tsv:1", "--skip-header")
    for command in (("data", "show", folder), ("linearize", folder, "--head", "a", "--relation", "r")):
        done = cli(*command, "--skip-header")
        assert done.returncode == 0, done.stderr
    done = cli("data", "split", folder, "--random", "--skip-header", "--output", tmp_path / "split")
    assert "5 duplicate triples count once" in done.stderr
    refused(cli("linearize", tmp_path, "--head", "a", "--relation", "r", "--skip-header"), "no train.tsv")


@pytest.mark.parametrize(("lines", "advised"), [(2, False), (60, True)])
def test_an_import_says_how_to_split_where_that_works(
    cli: Cli, tmp_path: Path, lines: int, advised: bool
) -> None:
    edges = "".join(f"{n % 8}\tr\t{n % 7}\n" for n in range(lines))
    (tmp_path / "edges.tsv").write_text("head\trelation\ttail\n" + edges, "utf-8")
    folder = tmp_path / "graph"
    done = cli(
        "data", "import", tmp_path / "edges.tsv", "--columns", "head,relation,tail", "--output", folder
    )
    assert done.returncode == 0, done.stderr
    assert ("data split" in done.stderr) == advised
    assert ("too few can leave training" in done.stderr) == (not advised)
    split = cli("data", "split", folder, "--random", "--output", tmp_path / "split")
    assert (split.returncode == 0) == advised
