"""Dataset cards: what a built-in graph is, where its files come from, and the fetching of them.

A card is ``data/<name>/card.toml``: addresses, checksums, license, citation, expected counts.
Knows files, not graphs.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import tomllib
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from kgmlm.core import digests, files
from kgmlm.core.errors import DataError, first_line
from kgmlm.core.files import cache_folder
from kgmlm.core.progress import Watcher


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """One file: at an address, or inside an installed package (``path`` is then relative to it).

    Without a ``sha256``, none is known, and the file is used unverified.
    """

    path: str
    sha256: str = ""
    url: str = ""
    package: str = ""
    license: str = ""


class Texts(_Strict):
    """The texts of entities and relations: a reader's name and the files that it reads, by role."""

    reader: str
    files: dict[str, str] = {}


class WhatIf(_Strict):
    """An entity that the graph does not have, and the label or name of the relation to ask for tails."""

    name: str
    description: str = ""
    types: tuple[str, ...] = ()
    relation: str


class Counts(_Strict):
    """The counts that a graph must have; ``unseen`` counts the entities that occur in no training triple."""

    entities: int
    relations: int
    unseen: int
    train: int
    valid: int
    test: int


class Card(_Strict):
    """A built-in dataset.

    ``splits`` maps a split to a source's path, with ``:member`` behind it for a file in an archive.
    ``negatives`` names likewise the files of triples that are known to be false.
    A card without splits describes an ordinary dataset folder: the one that it lies in. The page of
    `kgmlm serve` proposes ``example``, a query by labels or names, and the new entities of ``what_if``. A
    ``large`` one is fetched only by its own name, not with all others. ``validation`` says how the
    validation triples were drawn, if kgmlm drew them.
    """

    name: str
    title: str
    description: str
    license: str
    citation: str
    counts: Counts
    source: tuple[Source, ...] = ()
    splits: dict[str, str] = {}
    negatives: dict[str, str] = {}
    texts: Texts | None = None
    example: dict[Literal["head", "relation"], str] = {}
    what_if: tuple[WhatIf, ...] = ()
    large: bool = False
    validation: Literal["newest", "entities", "random"] | None = None


def cards_folder() -> Path:
    """``data/`` of an installed wheel, or of the checkout."""
    installed = Path(__file__).parents[1] / "_data"  # `kgmlm.data` is what the commands of that name do
    return installed if installed.is_dir() else Path(__file__).parents[2] / "data"


def card_names() -> list[str]:
    """Names of the built-in datasets, sorted."""
    return sorted(p.parent.name for p in cards_folder().glob("*/card.toml"))


def read_card(name: str) -> Card:
    """The card of a built-in dataset.

    Raises:
        DataError: when there is none of that name, or it is malformed.
    """
    if name not in card_names():
        raise DataError(f"'{name}' is neither a folder nor a built-in dataset ({', '.join(card_names())})")
    path = cards_folder() / name / "card.toml"
    card = _parse(path)
    if card.name != name:
        raise DataError(f"{path} is not a valid card: its name is '{card.name}', that of its folder '{name}'")
    return card


def find_card(dataset: str | Path) -> Card | None:
    """The card of a built-in dataset or a folder, if it has one; a ``Path`` is a folder if that exists."""
    folder = Path(dataset)
    if str(dataset) in card_names() and not (isinstance(dataset, Path) and folder.is_dir()):
        return read_card(str(dataset))
    return folder_card(folder)


def folder_card(folder: Path) -> Card | None:
    """The card of a dataset folder, if it has one.

    Raises:
        DataError: when it is malformed.
    """
    path = folder / "card.toml"
    return _parse(path) if path.is_file() else None


def write_card(card: Card, folder: Path) -> None:
    """Write a card into a dataset folder."""
    values = card.model_dump(mode="json", exclude_defaults=True)
    files.write_atomic(folder / "card.toml", tomli_w.dumps(values))


def _parse(path: Path) -> Card:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return Card.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{path} is not a valid card: {digests.fault(error)}") from None
    except (OSError, ValueError, RecursionError) as error:  # what is no TOML is a ValueError
        raise DataError(f"{path} is not a valid card: {error}") from None


def _verify(path: Path, source: Source) -> Path:
    actual = digests.sha256(path)
    if source.sha256 and actual != source.sha256:
        raise DataError(
            f"{path} has the wrong checksum (sha256 {actual[:12]}…, the card says {source.sha256[:12]}…); "
            "delete it and run `kgmlm data prepare` again"
        )
    return path


def fetch(source: Source, *, download: bool = True, progress: Any = True) -> Path:
    """The verified local path of a source: package, then ``$KGMLM_MIRROR``, then cache, then download.

    Args:
        progress: whether to show a bar, or one of your own, as ``pooch`` takes it.

    Raises:
        DataError: when it cannot be found anywhere, or its checksum is wrong.
    """
    if source.package:
        spec = find_spec(source.package)  # finds the folder without importing the package
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"the package '{source.package}' is not installed; it carries {source.path}")
        return _verify(Path(spec.submodule_search_locations[0]) / source.path, source)
    mirror = os.environ.get("KGMLM_MIRROR")
    if mirror and (path := Path(mirror) / source.path).is_file():
        return _verify(path, source)
    path = cache_folder() / source.path
    if path.is_file():
        return _verify(path, source)
    if not download:
        raise DataError(f"{source.path} is not on this machine; `kgmlm data prepare` downloads it")
    import pooch

    try:
        known = f"sha256:{source.sha256}" if source.sha256 else None
        got = pooch.retrieve(source.url, known, path.name, path.parent, progressbar=progress)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
        reason = str(error).split("\n", 1)[0][:200]
        raise DataError(
            f"{source.path} could not be downloaded: {reason}; "
            "set KGMLM_MIRROR to a folder that holds it to work offline"
        ) from None
    return Path(got)


def address_of(given: object) -> str | None:
    """The address of a file of the web; None for anything else.

    >>> address_of("https://example.org/a.ttl"), address_of("a.ttl")
    ('https://example.org/a.ttl', None)
    """
    address = re.fullmatch(r"(https?):/+(.+)", str(given))  # a path has lost a slash
    return f"{address[1]}://{address[2]}" if address else None


def downloaded(address: str, watch: Watcher) -> Path:
    """A file of the web, fetched into the cache where it is not there yet.

    Raises:
        DataError: when it cannot be fetched.
    """
    import pooch

    name = unquote(urlsplit(address).path).rpartition("/")[2]
    name = re.sub(r"[^\w.,+=@-]", "-", name).lstrip(".")[-80:] or "file"  # its end tells the format
    path = cache_folder() / "imports" / sha256(address.encode()).hexdigest()[:12] / name
    if path.is_file():
        day = date.fromtimestamp(path.stat().st_mtime)
        watch.tell(f"{address}: using the copy of {day} in {path}; delete it to fetch the file again")
        return path
    watch.tell(f"fetching {address}")
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(address, None, name, path.parent)
    except (OSError, ValueError) as error:
        raise DataError(f"{address} could not be fetched: {first_line(error)[:200]}") from None
    return path


class Sources:
    """The files of one card, fetched when first asked for."""

    def __init__(self, card: Card, *, download: bool = True, progress: bool = True) -> None:
        self.card = card
        self._by_path = {s.path: s for s in card.source}
        self._options = {"download": download, "progress": progress}

    def path(self, name: str) -> Path:
        """Local path of the source with that path on the card."""
        if name not in self._by_path:
            raise DataError(f"the card of '{self.card.name}' names no source '{name}'")
        return fetch(self._by_path[name], **self._options)

    def read(self, address: str) -> bytes:
        """Bytes of a source, or of ``archive:member``."""
        name, _, member = address.partition(":")
        path = self.path(name)
        if not member:
            return files.read_bytes(path)
        try:
            with tarfile.open(path) as archive:
                file = archive.extractfile(member)
                if file is None:
                    raise KeyError(member)
                return file.read()
        except (KeyError, tarfile.TarError) as error:
            raise DataError(f"{path} has no readable member '{member}': {error}") from None

    def text(self, role: str) -> bytes:
        """Bytes of the text file that plays a role for the card's reader."""
        return self.read(self._of(role))

    def columns(self, role: str, kinds: Mapping[str, str]) -> pa.Table:
        """Match a regular expression against each line of the text file of a role, block by block.

        Args:
            kinds: name of each column to the expression for its cells, in order; tabs separate the columns.
        """
        import pyarrow.compute as pc
        import pyarrow.csv as csv

        pattern = "^" + r"\t".join(f"(?P<{name}>{kind})" for name, kind in kinds.items())
        name, _, member = self._of(role).partition(":")
        data = io.BytesIO(self.read(self._of(role))) if member else str(self.path(name))
        parse = csv.ParseOptions(delimiter="\x01", quote_char=False, double_quote=False)
        parse.invalid_row_handler = lambda row: "skip"  # a line with that character in it
        read = csv.ReadOptions(column_names=["line"], block_size=2**24)
        convert = csv.ConvertOptions(column_types={"line": pa.large_string()}, null_values=[])
        batches = []
        try:
            with csv.open_csv(data, read, parse, convert) as lines:
                for batch in lines:
                    groups = pc.extract_regex(batch.column(0), pattern)
                    batches.append(pa.RecordBatch.from_struct_array(groups.filter(pc.is_valid(groups))))
        except (OSError, pa.ArrowException) as error:
            why = first_line(error)
            raise DataError(f"{self.path(name)} cannot be read: {why}") from None
        return pa.Table.from_batches(batches, pa.schema([(name, pa.large_string()) for name in kinds]))

    def _of(self, role: str) -> str:
        assert self.card.texts is not None  # only a reader asks, and only texts name a reader
        if role not in self.card.texts.files:
            raise DataError(f"the card of '{self.card.name}' names no file for '{role}'")
        return self.card.texts.files[role]
