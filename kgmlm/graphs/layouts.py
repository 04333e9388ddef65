"""Folders of benchmarks as other projects lay them out, read as graphs.

Each reader knows a project's names of files and what stands in them: splits, names and descriptions, types,
and triples that are known to be false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgmlm.core import files
from kgmlm.core.errors import DataError
from kgmlm.core.tables import read_triples, triples_of
from kgmlm.graphs.datasets import read_labeled
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph

Read = tuple[dict[str, pa.Table], dict[str, pa.Table], TextColumns]  # splits, false triples, texts


def _pairs(path: Path) -> dict[str, str]:
    """The texts of a file of labels and texts, a tab between them; empty where there is no such file."""
    if not path.is_file():
        return {}
    lines = path.read_text("utf-8").splitlines()
    return {
        label: " ".join(text.split()) for label, _, text in (line.partition("\t") for line in lines) if text
    }


def _json(path: Path) -> Any:
    """The JSON of a file.

    Raises:
        DataError: when it is none.
    """
    try:
        return files.parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is cut off or not JSON: {error}") from None


def kg_bert(folder: Path) -> Read:
    """KG-BERT's: ``train.tsv``, ``dev.tsv``, ``test.tsv``, ``entity2text.txt`` and ``relation2text.txt``.

    ``entity2textlong.txt`` has descriptions; without it, a text such as "land reform, a redistribution of
    land" is a name and a description where most texts have a comma.
    """
    splits, false = dict[str, pa.Table](), dict[str, pa.Table]()
    for split, stem in (("train", "train"), ("valid", "dev"), ("test", "test")):
        if (path := folder / f"{stem}.tsv").is_file():
            table, true = read_labeled(path)
            splits[split] = table if true is None else table.filter(pa.array(true))
            if true is not None and not true.all():
                false[split] = table.filter(pa.array(~true))
    names, long = _pairs(folder / "entity2text.txt"), _pairs(folder / "entity2textlong.txt")
    texts = TextColumns(names, long, relations=_pairs(folder / "relation2text.txt"))
    if not long and sum(", " in text for text in names.values()) > len(names) / 2:
        both = {label: text.partition(", ") for label, text in names.items()}
        texts.names = {label: name for label, (name, _, _) in both.items()}
        texts.descriptions = {label: said for label, (_, _, said) in both.items() if said}
    return splits, false, texts


def openke(folder: Path) -> Read:
    """OpenKE's: ``entity2id.txt``, ``relation2id.txt``, and triples as numbers: head, tail, relation."""

    def labels(stem: str) -> list[str]:
        found = dict[int, str]()
        for line in (folder / f"{stem}2id.txt").read_text("utf-8").splitlines()[1:]:
            label, _, number = line.rpartition("\t" if "\t" in line else " ")
            found[int(number)] = label
        return [found[i] for i in range(len(found))]

    entities, relations = labels("entity"), labels("relation")

    def triples(path: Path) -> Iterator[tuple[str, str, str]]:
        for number, line in enumerate(path.read_text("utf-8").splitlines()[1:], 2):
            try:
                h, t, r = (int(field) for field in line.split())
                yield entities[h], relations[r], entities[t]
            except (ValueError, IndexError):
                raise DataError(
                    f"{path}:{number}: '{line}' is not numbers of head, tail and relation"
                ) from None

    found = {s: folder / f"{s}2id.txt" for s in ("train", "valid", "test")}
    return {s: triples_of(triples(path)) for s, path in found.items() if path.is_file()}, {}, TextColumns()


def simkgc(folder: Path) -> Read:
    """SimKGC's: ``train.txt.json``, ``valid.txt.json``, ``test.txt.json``, ``entities.json``."""
    splits = {}
    names = dict[str, str]()
    for split in ("train", "valid", "test"):
        if (path := folder / f"{split}.txt.json").is_file():
            rows = _json(path)
            splits[split] = triples_of((row["head_id"], row["relation"], row["tail_id"]) for row in rows)
            for row in rows:
                names |= {row["head_id"]: row["head"], row["tail_id"]: row["tail"]}
    texts = TextColumns(names)
    if (path := folder / "entities.json").is_file():
        for row in _json(path):
            texts.names[row["entity_id"]] = row["entity"]
            texts.descriptions[row["entity_id"]] = row.get("entity_desc", "")
    return splits, {}, texts


def codex(folder: Path) -> Read:
    """CoDEx's: a folder such as ``data/triples/codex-s``; texts and types are in ``data/entities/en`` etc.

    The texts of entities are there once CoDEx's ``prepare.sh`` has unpacked them.
    """
    splits, false = dict[str, pa.Table](), dict[str, pa.Table]()
    for split in ("train", "valid", "test"):
        if (path := folder / f"{split}.txt").is_file():
            splits[split] = read_triples(path)
        if (path := folder / f"{split}_negatives.txt").is_file():
            false[split] = read_triples(path)
    data, texts = folder.parent.parent, TextColumns()
    if (path := data / "entities" / "en" / "entities.json").is_file():
        said = _json(path)
        texts.names = {label: of.get("label") or label for label, of in said.items()}
        texts.descriptions = {label: of.get("description") or "" for label, of in said.items()}
    if (path := data / "relations" / "en" / "relations.json").is_file():
        texts.relations = {label: of.get("label") or label for label, of in _json(path).items()}
    types = data / "types" / "entity2types.json"
    if types.is_file() and (path := data / "types" / "en" / "types.json").is_file():
        named: Mapping[str, Any] = _json(path)
        for label, of in _json(types).items():
            known = [named[x]["label"] for x in of if named.get(x, {}).get("label")]
            texts.types[label] = "|".join(known)
    return splits, false, texts


def dgl_ke(folder: Path) -> Read:
    """DGL-KE's: ``entities.dict`` and ``relations.dict`` (or ``.tsv``) of numbers and labels, and triples of
    labels or of these numbers in ``train.txt`` (or ``.tsv``) and so on."""

    def table(stem: str, *suffixes: str) -> list[list[str]]:
        path = next(
            (x for s in suffixes if (x := folder / f"{stem}{s}").is_file()), folder / f"{stem}{suffixes[0]}"
        )
        return [line.split("\t") for line in path.read_text("utf-8").splitlines()]

    entities, relations = (dict(table(of, ".dict", ".tsv")) for of in ("entities", "relations"))
    splits = dict[str, pa.Table]()
    for split in ("train", "valid", "test"):
        if any((folder / f"{split}{suffix}").is_file() for suffix in (".txt", ".tsv")):
            rows = [(h, r, t) for h, r, t, *_ in table(split, ".txt", ".tsv")]
            if all(h in entities and r in relations and t in entities for h, r, t in rows):
                rows = [(entities[h], relations[r], entities[t]) for h, r, t in rows]
            splits[split] = triples_of(rows)
    return splits, {}, TextColumns()


def openbiolink(folder: Path) -> Read:
    """OpenBioLink's: ``train_sample.csv``, ``val_sample.csv``, ``test_sample.csv``, the false triples in
    ``negative_train_sample.csv`` and so on, and types in ``train_val_nodes.csv`` and ``test_nodes.csv``."""

    def rows(path: Path, count: int) -> list[list[str]]:
        return [line.split("\t")[:count] for line in path.read_text("utf-8").splitlines()]

    splits, false, texts = dict[str, pa.Table](), dict[str, pa.Table](), TextColumns()
    for split, stem in (("train", "train"), ("valid", "val"), ("test", "test")):
        for of, name in ((splits, f"{stem}_sample.csv"), (false, f"negative_{stem}_sample.csv")):
            if (path := folder / name).is_file():
                of[split] = triples_of((h, r, t) for h, r, t in rows(path, 3))
    for name in ("train_val_nodes.csv", "train_nodes.csv", "test_nodes.csv"):
        if (path := folder / name).is_file():
            texts.types |= dict(rows(path, 2))
    return splits, false, texts


LAYOUTS: dict[str, Callable[[Path], Read]] = {
    "kg-bert": kg_bert,
    "openke": openke,
    "simkgc": simkgc,
    "codex": codex,
    "dgl-ke": dgl_ke,
    "openbiolink": openbiolink,
}
SIGNS = {
    "entity2text.txt": "kg-bert",
    "entity2id.txt": "openke",
    "train.txt.json": "simkgc",
    "entities.dict": "dgl-ke",
    "train_sample.csv": "openbiolink",
}


def layout_of(folder: Path) -> str:
    """The layout that a folder has, by its files.

    Raises:
        DataError: when it has none of these.
    """
    for name, layout in SIGNS.items():
        if (folder / name).is_file():
            return layout
    if folder.parent.name == "triples" and (folder / "train.txt").is_file():
        return "codex"
    raise DataError(
        f"{folder} is laid out as none of {', '.join(LAYOUTS)}; a folder with train.tsv needs no import"
    )


def read_layout(folder: Path, layout: str, name: str) -> KnowledgeGraph:
    """The graph of a folder.

    Raises:
        DataError: when a file is missing or damaged.
    """
    try:
        splits, false, texts = LAYOUTS[layout](folder)
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is not laid out as {layout}: there is no {Path(error.filename).name}"
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} is not laid out as {layout}: {error!r}") from None
    if "train" not in splits:
        raise DataError(f"{folder} is not laid out as {layout}: it has no training triples")
    return build_graph(name, splits, texts, humanize_labels=True, negatives=false)
