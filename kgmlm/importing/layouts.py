"""Folders of benchmarks as other projects lay them out, read as graphs.

Each reader knows a project's file names and what the files contain: splits, names and descriptions, types,
and triples that are known to be false.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kgmlm.core import files
from kgmlm.core.errors import DataError
from kgmlm.core.tables import ENDS, parse_lines, read_triples, triples_of
from kgmlm.graphs.datasets import PARTS_OF_SPEECH, data_beside, read_labeled, sense_name
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph

Read = tuple[dict[str, pa.Table], dict[str, pa.Table], TextColumns]  # splits, false triples, texts


class How(NamedTuple):
    """Languages of a folder's texts, and the columns of head, relation and tail, counted from 0."""

    languages: Sequence[str] = ("en",)
    order: tuple[int, int, int] | None = None


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file with their numbers; blank ones at its end do not count.

    Raises:
        FileNotFoundError: when there is no such file.
        DataError: naming the line, for one that is blank or not UTF-8.
    """
    path.stat()
    lines = [(number, "\t".join(fields)) for number, fields in parse_lines(files.read_bytes(path), str(path))]
    for number, line in lines:
        if not line.strip():
            raise DataError(f"{path}:{number}: the line is blank")
    return lines


def _pairs(path: Path) -> dict[str, str]:
    """The texts of a file of labels and texts, a tab between them; empty where there is no such file.

    Raises:
        DataError: naming the line, for a label that has another text already.
    """
    pairs: dict[str, str] = {}
    for number, line in _lines(path) if path.is_file() else ():
        label, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{path}:{number}: '{line[:60]}' is not a label and its text, with a tab between")
        text = " ".join(text.split())
        if pairs.get(label, text) != text:
            raise DataError(f"{path}:{number}: '{label}' has another text already")
        if text:
            pairs[label] = text
    return pairs


def _json(path: Path) -> Any:
    """The JSON of a file.

    Raises:
        DataError: when it is none.
    """
    try:
        return files.parse_json(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise DataError(f"{path} is cut off or not JSON: {error}") from None


def kg_bert(folder: Path, how: How) -> Read:
    """KG-BERT's: ``train.tsv``, ``dev.tsv``, ``test.tsv``, ``entity2text.txt`` and ``relation2text.txt``.

    ``entity2textlong.txt`` has descriptions; without it, a text such as "land reform, a redistribution of
    land" is a name and a description where most texts have a comma.
    """
    splits, false = dict[str, pa.Table](), dict[str, pa.Table]()
    for split, stem in (("train", "train"), ("valid", "dev"), ("test", "test")):
        if (path := folder / f"{stem}.tsv").is_file():
            labeled, true = read_labeled(path)
            table = labeled.columns.select(ENDS)
            splits[split] = table if true is None else table.filter(pa.array(true))
            if true is not None and not true.all():
                false[split] = table.filter(pa.array(~true))
    names, long = _pairs(folder / "entity2text.txt"), _pairs(folder / "entity2textlong.txt")
    texts = TextColumns(names, long, relations=_pairs(folder / "relation2text.txt"))
    if not long and sum(", " in text for text in names.values()) > len(names) / 2:
        both = {label: text.partition(", ") for label, text in names.items()}
        texts.names = {label: name for label, (name, _, _) in both.items()}
        texts.descriptions = {
            label: description for label, (_, _, description) in both.items() if description
        }
    return splits, false, texts


def openke(folder: Path, how: How) -> Read:
    """OpenKE's: ``entity2id.txt``, ``relation2id.txt``, and triples as numbers: head, tail, relation.

    The first line of each file is the number of the others; it may be missing.
    """

    def lines(path: Path) -> list[tuple[int, str]]:
        """Lines but for the first, which counts the others."""
        lines = _lines(path)
        if not lines or not lines[0][1].strip().isdecimal():
            return lines
        (_, count), *others = lines
        if int(count) != len(others):
            raise DataError(f"{path}: its first line counts {int(count):,} lines, but {len(others):,} follow")
        return others

    def labels(stem: str) -> dict[int, str]:
        path, numbered = folder / f"{stem}2id.txt", dict[int, str]()
        for number, line in lines(path):
            label, _, index = line.rpartition("\t" if "\t" in line else " ")
            if not label or not index.strip().isdecimal():
                raise DataError(f"{path}:{number}: '{line}' is not a label and its number")
            if int(index) in numbered:
                raise DataError(f"{path}:{number}: the number {int(index)} is taken already")
            numbered[int(index)] = label
        return numbered

    entities, relations = labels("entity"), labels("relation")

    def triples(path: Path) -> Iterator[tuple[str, str, str]]:
        for number, line in lines(path):
            try:
                h, t, r = (int(field) for field in line.split())
                yield entities[h], relations[r], entities[t]
            except (ValueError, KeyError):
                raise DataError(
                    f"{path}:{number}: '{line}' is not numbers of head, tail and relation"
                ) from None

    files = {s: folder / f"{s}2id.txt" for s in ("train", "valid", "test")}
    return {s: triples_of(triples(path)) for s, path in files.items() if path.is_file()}, {}, TextColumns()


def simkgc(folder: Path, how: How) -> Read:
    """SimKGC's: ``train.txt.json``, ``valid.txt.json``, ``test.txt.json``, ``entities.json``.

    WN18RR's names are WordNet's, such as "land_reform_NN_1": lemma, part of speech and number of the sense.
    """
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
    senses = {
        label: re.fullmatch(r"\s*(\S+)_(JJ|NN|RB|VB)_(\d+)\s*", name) for label, name in texts.names.items()
    }
    for label, sense in senses.items():
        if sense is not None:
            lemma, part = sense[1].replace("_", " "), PARTS_OF_SPEECH[sense[2]]
            texts.names[label], texts.surfaces[label] = lemma, sense_name(lemma, part, sense[3])
    return splits, {}, texts


def codex(folder: Path, how: How) -> Read:
    """CoDEx's: a folder such as ``data/triples/codex-s``; texts and types of a language
    are in ``data/entities/en`` and so on.

    The texts of entities are there once CoDEx's ``prepare.sh`` has unpacked them.
    """
    splits, false = dict[str, pa.Table](), dict[str, pa.Table]()
    for split in ("train", "valid", "test"):
        if (path := folder / f"{split}.txt").is_file():
            splits[split] = read_triples(path).columns
        if (path := folder / f"{split}_negatives.txt").is_file():
            false[split] = read_triples(path).columns
    data, texts = folder.parent.parent, TextColumns()

    def of(kind: str) -> Path:
        """The file of texts in the first language that has one."""
        paths = [data / kind / language / f"{kind}.json" for language in how.languages]
        return next((path for path in paths if path.is_file()), data / kind / "none")

    if (path := of("entities")).is_file():
        in_language = _json(path)
        texts.names = {label: text.get("label") or label for label, text in in_language.items()}
        texts.descriptions = {label: text.get("description") or "" for label, text in in_language.items()}
    if (path := of("relations")).is_file():
        texts.relations = {label: text.get("label") or label for label, text in _json(path).items()}
    types = data / "types" / "entity2types.json"
    if types.is_file() and (path := of("types")).is_file():
        named: Mapping[str, Any] = _json(path)
        for label, kinds in _json(types).items():
            known = [named[x]["label"] for x in kinds if named.get(x, {}).get("label")]
            texts.types[label] = "|".join(known)
    return splits, false, texts


def dgl_ke(folder: Path, how: How) -> Read:
    """DGL-KE's: triples in ``train.txt`` (or ``.tsv``) and so on, as labels or as numbers whose labels are in
    ``entities.dict`` and ``relations.dict`` (or ``.tsv``, or ``entity2id.txt``); columns are separated by
    tabs, commas, ``;`` or ``|``.

    Raises:
        DataError: naming the line that is not a triple of labels or numbers that are known.
    """

    def lines(*names: str) -> tuple[Path, list[str]]:
        file = next((path for name in names if (path := folder / name).is_file()), folder / names[0])
        return file, [line for _, line in _lines(file)]

    def labels(of: str, plural: str) -> dict[str, str]:
        """Labels by number; the numbers are those from 0 on, before or after the labels."""
        names = [*(f"{stem}{end}" for stem in (plural, of) for end in (".dict", ".tsv")), f"{of}2id.txt"]
        if not any((folder / name).is_file() for name in names):
            return {}
        path, file_lines = lines(*names)
        rows = [_cells(line) for line in file_lines]
        if rows and len(rows[0]) == 1:  # their number
            rows = rows[1:]
        numbers = {str(i) for i in range(len(rows))}
        for number, label in ((0, 1), (1, 0)):
            if all(len(row) > 1 for row in rows) and {row[number] for row in rows} == numbers:
                return {row[number]: row[label] for row in rows}
        raise DataError(f"{path} has no column of the numbers from 0 to {len(rows) - 1}")

    entities, relations = labels("entity", "entities"), labels("relation", "relations")
    known = (set(entities.values()), set(relations.values()), set(entities.values()))
    freebase = (folder / "entity2id.txt").is_file()
    head, relation, tail = how.order or ((0, 2, 1) if freebase else (0, 1, 2))
    splits, numbered = dict[str, pa.Table](), True
    for split in ("train", "valid", "test"):
        if not any((folder / f"{split}{end}").is_file() for end in (".txt", ".tsv")):
            continue
        path, file_lines = lines(f"{split}.txt", f"{split}.tsv")
        rows_of_cells = [_cells(line) for line in file_lines]
        for number, cells in enumerate(rows_of_cells, 1):
            if len(cells) < 3:
                raise DataError(f"{path}:{number}: '{cells[0]}' is no head, relation and tail")
        rows = [(cells[head], cells[relation], cells[tail]) for cells in rows_of_cells]
        if split == "train" and entities:
            numbered = not all(x in of for row in rows for x, of in zip(row, known, strict=True))
        if entities and numbered:
            for number, (h, r, t) in enumerate(rows, 1):
                if h not in entities or r not in relations or t not in entities:
                    raise DataError(
                        f"{path}:{number}: {h}, {r}, {t} are not numbers of entity, relation and entity; "
                        "--columns says which columns have head, relation and tail, such as 1,3,2"
                    )
            rows = [(entities[h], relations[r], entities[t]) for h, r, t in rows]
        splits[split] = triples_of(rows)
    return splits, {}, TextColumns()


def _cells(line: str) -> list[str]:
    """The cells of a line, separated by tabs, ``|``, ``;`` or commas, without quotes around them."""
    between = next((x for x in ("\t", "|", ";", ",") if x in line), "\t")
    return [cell.strip().strip('"') for cell in line.split(between)]


def openbiolink(folder: Path, how: How) -> Read:
    """OpenBioLink's: ``train_sample.csv``, ``val_sample.csv``, ``test_sample.csv``, the false triples in
    ``negative_train_sample.csv`` and so on, and types in ``train_val_nodes.csv`` and ``test_nodes.csv``."""

    def rows(path: Path, count: int) -> list[list[str]]:
        rows = []
        for number, line in _lines(path):
            cells = line.split("\t")[:count]
            if len(cells) < count or not all(cells):
                raise DataError(f"{path}:{number}: expected {count} columns with tabs between, none empty")
            rows.append(cells)
        return rows

    splits, false, texts = dict[str, pa.Table](), dict[str, pa.Table](), TextColumns()
    for split, stem in (("train", "train"), ("valid", "val"), ("test", "test")):
        for of, name in ((splits, f"{stem}_sample.csv"), (false, f"negative_{stem}_sample.csv")):
            if (path := folder / name).is_file():
                of[split] = triples_of((h, r, t) for h, r, t in rows(path, 3))
    for name in ("train_val_nodes.csv", "train_nodes.csv", "test_nodes.csv"):
        if (path := folder / name).is_file():
            texts.types |= dict(rows(path, 2))
    return splits, false, texts


LAYOUTS: dict[str, Callable[[Path, How], Read]] = {
    "kg-bert": kg_bert,
    "openke": openke,
    "simkgc": simkgc,
    "codex": codex,
    "dgl-ke": dgl_ke,
    "openbiolink": openbiolink,
}
# The files that each reads, and those that only repeat them: lists of labels, kinds of relations.
FILES: dict[str, tuple[str, ...]] = {
    "kg-bert": ("*.tsv", "*2text*.txt", "entities.txt", "relations.txt"),
    "openke": ("*2id.txt", "[1n]-[1n].txt", "type_constrain.txt", "test2id_all.txt"),
    "simkgc": ("*.txt.json", "entities.json", "relations.json"),
    "codex": ("*.txt",),
    "dgl-ke": ("train.*", "valid.*", "test.*", "entit*.dict", "entit*.tsv", "relation*.dict", "relation*.tsv",
               "*2id.txt"),
    "openbiolink": ("*_sample.csv", "*_nodes.csv"),
}  # fmt: skip
SIGNS = {
    "entity2text.txt": "kg-bert",
    "entity2id.txt": "openke",
    "train.txt.json": "simkgc",
    "entities.dict": "dgl-ke",
    "entity.dict": "dgl-ke",
    "train_sample.csv": "openbiolink",
}


def layout_of(folder: Path) -> str:
    """The layout that a folder has, by its files.

    Raises:
        DataError: when it has none of these.
    """
    for name, layout in SIGNS.items():
        if (folder / name).is_file():
            return "dgl-ke" if layout == "openke" and not (folder / "train2id.txt").is_file() else layout
    if folder.parent.name == "triples" and (folder / "train.txt").is_file():
        return "codex"
    raise DataError(
        f"{folder} is laid out as none of {', '.join(LAYOUTS)}; a folder with train.tsv needs no import"
    )


def read_layout(folder: Path, layout: str, name: str, how: How = How()) -> KnowledgeGraph:  # noqa: B008
    """The graph of a folder.

    Raises:
        DataError: when a file is missing or damaged.
    """
    try:
        splits, false, texts = LAYOUTS[layout](folder, how)
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
    read = [path for path in folder.iterdir() if any(path.match(name) for name in FILES[layout])]
    unread = dict.fromkeys(data_beside(folder, read), "")
    return replace(build_graph(name, splits, texts, negatives=false), unread=unread)
