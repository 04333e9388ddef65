from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from kgmlm.core.digests import sha256
from kgmlm.core.errors import DataError
from kgmlm.graphs.cards import (
    Card,
    Counts,
    Source,
    Sources,
    card_names,
    cards_folder,
    fetch,
    find_card,
    folder_card,
    read_card,
)
from kgmlm.graphs.datasets import TEXT_READERS

EXPECTED = {
    "umls",
    "wn18rr",
    "fb15k237",
    "wn18rr-v1",
    "wn18rr-v1-ind",
    "fb237-v1",
    "fb237-v1-ind",
    "toy",
    "europe",
    "world",
    "fb15k237-n",
    "kg20c",
    "wikidata5m",
    "wikidata5m-ind",
}
UNVERIFIED = {"wikidata5m_text.txt.gz"}  # nobody has published their checksums


def test_every_promised_dataset_has_a_card() -> None:
    assert set(card_names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_card_is_whole(name: str) -> None:
    card = read_card(name)
    assert card.name == name
    assert card.license
    assert card.citation
    paths = {s.path for s in card.source}
    for source in card.source:
        assert len(source.sha256) == 64 or source.path in UNVERIFIED
        assert source.url.startswith("https://") or source.package
        assert source.license
    for addresses in (card.splits, card.negatives):
        assert {address.partition(":")[0] for address in addresses.values()} <= paths
    if card.texts:
        assert card.texts.reader in TEXT_READERS
        assert {a.partition(":")[0] for a in card.texts.files.values()} <= paths


def test_an_unknown_dataset_lists_the_known() -> None:
    with pytest.raises(DataError, match="wn18rr"):
        read_card("wn18")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "x.txt").write_text("a\tr\tb\n")
    monkeypatch.setenv("KGMLM_MIRROR", str(mirror))
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path / "cache"))
    return Source(path="x.txt", sha256=sha256(mirror / "x.txt"), url="http://127.0.0.1:9/x.txt")


def test_the_mirror_comes_first(source: Source, tmp_path: Path) -> None:
    assert fetch(source) == tmp_path / "mirror" / "x.txt"


def test_a_wrong_checksum_is_refused(source: Source) -> None:
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(source.model_copy(update={"sha256": "0" * 64}))


def test_no_download_unless_allowed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGMLM_MIRROR")
    with pytest.raises(DataError, match="kgmlm data prepare"):
        fetch(source, download=False)


@pytest.mark.filterwarnings("ignore")
def test_a_failed_download_names_the_way_out(
    source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KGMLM_MIRROR")
    with pytest.raises(DataError, match="KGMLM_MIRROR"):
        fetch(source, progress=False)
    assert not (tmp_path / "cache" / "x.txt").exists()


def test_a_missing_package_is_named() -> None:
    with pytest.raises(DataError, match="no_such_package"):
        fetch(Source(path="x", sha256="0" * 64, package="no_such_package"))


def test_archives_are_read_by_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("train.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    monkeypatch.setenv("KGMLM_MIRROR", str(tmp_path))
    card = Card(
        name="x", title="x", description="x", license="x", citation="x",
        counts=Counts(entities=1, relations=1, unseen=0, train=1, valid=0, test=0),
        source=(Source(path="a.tar.gz", sha256=sha256(tmp_path / "a.tar.gz")),),
    )  # fmt: skip
    sources = Sources(card)
    assert sources.read("a.tar.gz:train.txt") == b"abc"
    with pytest.raises(DataError, match=r"no readable member 'test\.txt'"):
        sources.read("a.tar.gz:test.txt")
    with pytest.raises(DataError, match="names no source"):
        sources.read("b.tar.gz")


def test_a_path_is_a_folder_and_a_name_is_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (built_in := find_card("toy")) is not None
    assert find_card(Path("toy")) == built_in
    Path("toy").mkdir()
    assert find_card("toy") == built_in
    assert find_card(Path("toy")) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('name = "x"', "is not a valid card: 'title': Field required"),
        ("name = ", "is not a valid card: Invalid value"),
        (b"\xff", "is not a valid card: 'utf-8' codec"),
    ],
)
def test_a_malformed_card_is_one_sentence(tmp_path: Path, content: str | bytes, message: str) -> None:
    (tmp_path / "card.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        folder_card(tmp_path)
    assert "pydantic" not in str(caught.value)


def test_a_built_in_card_has_the_name_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(cards_folder() / "toy", tmp_path / "mine")
    monkeypatch.setattr("kgmlm.graphs.cards.cards_folder", lambda: tmp_path)
    with pytest.raises(DataError, match="its name is 'toy', that of its folder 'mine'"):
        read_card("mine")
