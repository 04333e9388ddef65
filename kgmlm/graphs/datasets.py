"""Datasets, from cards and folders, to a :class:`KnowledgeGraph`, and back to folders."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core import files, tables
from kgmlm.core.arrays import BoolArray
from kgmlm.core.digests import sha256
from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.machine import release_memory
from kgmlm.core.tables import (
    DATES,
    ENDS,
    LABEL,
    TripleTable,
    columns_of,
    read_labels,
    read_texts,
    read_triples,
    rows_of,
    triples_in,
    truths_of,
    write_table,
)
from kgmlm.graphs.attributes import described, read_attributes
from kgmlm.graphs.cards import Card, Sources, card_names, cards_folder, folder_card, read_card, write_card
from kgmlm.graphs.dates import Dates, dates_of, written
from kgmlm.graphs.entities import EntityTable, completed
from kgmlm.graphs.given import is_pykeens
from kgmlm.graphs.graph import Dataset, KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import SPLITS

# --- readers of texts, by the name that a card gives -------------------------------------------------------

_BEGINNING = 400  # characters of an article that are kept: more than a model reads
PARTS_OF_SPEECH = {"NN": "noun", "VB": "verb", "JJ": "adjective", "RB": "adverb"}


def _mapping(data: bytes, origin: str) -> dict[str, str]:
    mapping = {}
    for number, fields in tables.parse_lines(data, origin):
        if len(fields) != 2:
            raise DataError(f"{origin}:{number}: expected 2 columns, found {len(fields)}")
        mapping[fields[0]] = fields[1]
    return mapping


def _indexed(sources: Sources, role: str) -> dict[str, str]:
    """A two-column file whose first line is its length."""
    data = sources.text(role)
    return _mapping(data.split(b"\n", 1)[1], role)


class GlossChooser:
    """Choose an entity's own gloss among several joined ones.

    Residuals of different parts of speech clash, so 232 glosses of the WN18RR texts are several in a row.
    Two cues decide: an example sentence that uses the lemma, then how much likelier the gloss's first
    words are for the entity's part of speech than for any other (counted on the unjoined glosses).
    """

    MARGIN = math.log(4)

    def __init__(self, glosses: Iterable[tuple[str, str]]) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.totals: Counter[str] = Counter()
        for part, gloss in glosses:
            self.totals[part] += 1
            self.counts[part].update(self._cues(gloss))

    @staticmethod
    def _cues(gloss: str) -> list[str]:
        words = re.findall(r"[a-z]+|[(;\"]", gloss.lower())[:2]
        return [f"{i}:{w}" for i, w in enumerate(words)] + ["manner" if "manner" in gloss else "plain"]

    def _fit(self, part: str, gloss: str) -> float:
        """Log-odds of a part of speech against the likeliest other one."""

        def log_likelihood(p: str) -> float:
            return sum(math.log((self.counts[p][c] + 0.1) / (self.totals[p] + 10)) for c in self._cues(gloss))

        return log_likelihood(part) - max(log_likelihood(p) for p in self.totals if p != part)

    def choose(self, lemma: str, part: str, glosses: Sequence[str]) -> str | None:
        """The gloss that fits, or None when it cannot be told."""
        stem = re.escape(lemma.lower()[: max(4, len(lemma) - 2)])
        used = [
            g for g in glosses if any(re.search(rf"\b{stem}", q.lower()) for q in re.findall(r'"(.*?)"', g))
        ]
        if len(used) == 1:
            return used[0]
        ranked = sorted(((self._fit(part, g), g) for g in glosses), reverse=True)
        return ranked[0][1] if ranked[0][0] - ranked[1][0] > self.MARGIN else None


def sense_name(lemma: str, part: str, sense: str) -> str:
    """The surface of a sense of WordNet, such as "run verb 7"; the first sense has no number."""
    return " ".join([lemma, part, *([sense] if sense != "1" else [])])


def read_wordnet(sources: Sources) -> TextColumns:
    """WordNet lemma, part of speech, sense and gloss; surfaces by :func:`sense_name`."""
    texts = TextColumns()
    ids = {index: label for label, index in _indexed(sources, "entities").items()}
    raw = {ids[i]: name.split(" , ") for i, name in _indexed(sources, "names").items()}
    glosses = {ids[i]: gloss.strip() for i, gloss in _indexed(sources, "descriptions").items()}
    parts = {label: PARTS_OF_SPEECH[fields[1]] for label, fields in raw.items()}
    chooser = GlossChooser((parts[x], g) for x, g in glosses.items() if "   " not in g)
    resolved = joined = 0
    for label, (lemma, _, sense) in raw.items():
        gloss = glosses[label]
        if "   " in gloss:
            joined += 1
            best = chooser.choose(lemma, parts[label], gloss.split("   "))
            resolved += best is not None
            gloss = best if best is not None else " ".join(gloss.split())
        texts.names[label] = lemma
        texts.surfaces[label] = sense_name(lemma, parts[label], sense)
        texts.descriptions[label] = gloss
    relation_names = _indexed(sources, "relation-names")
    texts.relations = {x: relation_names[i] for x, i in _indexed(sources, "relations").items()}
    texts.notes = {"glosses_joined": joined, "glosses_resolved": resolved}
    return texts


def read_freebase(sources: Sources) -> TextColumns:
    """Names of Freebase entities and relations, and short descriptions from Wikidata."""
    texts = TextColumns()
    texts.names = _mapping(sources.text("names"), "names")
    texts.relations = _mapping(sources.text("relations"), "relations")
    wikidata = files.parse_json(sources.text("descriptions"))
    texts.descriptions = {x: row.get("description") or "" for x, row in wikidata.items()}
    return texts


def read_wikidata5m(sources: Sources) -> TextColumns:
    """The first alias of Wikidata's entities and relations, and how their Wikipedia articles begin."""
    named = sources.columns("entities", {"label": r"Q\d+", "name": r"[^\t]*"})
    described = sources.columns("descriptions", {"label": r"Q\d+", "description": f".{{0,{_BEGINNING}}}"})
    labels, names = (named.column(c).combine_chunks() for c in ("label", "name"))
    rows = pc.index_in(labels, described.column("label").combine_chunks())
    descriptions = pc.fill_null(described.column("description").take(rows), "")
    empty = pa.repeat(pa.scalar("", pa.large_string()), len(labels))
    columns = {"label": labels, "name": names, "description": descriptions, "surface": empty}
    relations = sources.columns("relations", {"label": r"P\d+", "name": r"[^\t]*"})
    return TextColumns(columns=pa.table(columns), relations=dict(rows_of(relations)))


def read_definitions(sources: Sources) -> TextColumns:
    """Names and descriptions of entities in two columns, and names of relations in JSON."""
    relations = files.parse_json(sources.text("relations"))
    return TextColumns(
        names=_mapping(sources.text("names"), "names"),
        descriptions=_mapping(sources.text("descriptions"), "descriptions"),
        relations={label: " ".join(name.split()) for label, name in relations.items()},
    )


def read_typed(sources: Sources) -> TextColumns:
    """Names and types of entities in three columns below a header."""
    table = sources.columns("entities", {"label": r"[^\t]+", "name": r"[^\t]*", "types": r"[^\t]*$"}).slice(1)
    labels = table.column("label").to_pylist()
    return TextColumns(
        names=dict(zip(labels, table.column("name").to_pylist(), strict=True)),
        types=dict(zip(labels, table.column("types").to_pylist(), strict=True)),
    )


TEXT_READERS: dict[str, Callable[[Sources], TextColumns]] = {
    "wordnet": read_wordnet,
    "freebase": read_freebase,
    "wikidata5m": read_wikidata5m,
    "definitions": read_definitions,
    "typed": read_typed,
}

# --- loading ----------------------------------------------------------------------------------------------
ATTRIBUTES, FACTS, TRIPLES = "attributes", "facts", "triples"
FURTHER = "further training triples,"  # a note on those of :data:`FACTS`
ENTITY_COLUMNS = (("label", "name"), ("description", "surface", "types", "aliases"))


def read_entities(path: Path, graph: KnowledgeGraph) -> EntityTable:
    """New entities for a graph, from a table like a dataset folder's ``entities``.

    A name that is empty is the label with blanks for underscores; descriptions may be empty.

    Raises:
        DataError: naming file and line, for a label that the graph has or that occurs twice.
    """
    taken = graph.entities.table.column("label").combine_chunks()
    table = read_texts(path, *ENTITY_COLUMNS, taken=taken)
    if not len(table):
        raise DataError(f"{path} has no entities below its header")
    entities = EntityTable.of(completed(table))
    del table
    release_memory()  # what reading and the checks held
    return entities


MISNAMED = {
    "training": "train", "trn": "train", "dev": "valid", "val": "valid", "validation": "valid",
    "validate": "valid", "testing": "test", "tst": "test", "entity": "entities", "relation": "relations",
}  # fmt: skip


def _check_names(folder: Path) -> None:
    """Refuse files that were meant for a table of the folder and would be overlooked."""
    stems = (*SPLITS, "entities", "relations", ATTRIBUTES, FACTS)
    for path in sorted(folder.iterdir()):
        suffix = next((s for s in tables.SUFFIXES if path.name.casefold().endswith(s)), None)
        if suffix is None or not path.is_file():
            continue
        stem = path.name[: -len(suffix)]
        meant = MISNAMED.get(stem.casefold(), stem.casefold())
        if meant in stems and path.name != f"{meant}{suffix}":
            raise DataError(f"{path} would not be read; call it {meant}{suffix}, or move it elsewhere")


def read_labeled(
    path: Path, *, skip_header: bool = False, dates: str | None = None
) -> tuple[TripleTable, BoolArray | None]:
    """The triples of a file, and whether each is true where it has a column ``label``.

    Args:
        skip_header: leave out the first line, whatever it says; not of a file that names its columns.
        dates: the column of dates, where the file has it.

    Raises:
        DataError: for a header where none is to be skipped, or a label that is neither 1 nor one of -1 and 0.
    """
    table = read_triples(path, labeled=True, dates=dates)
    if not table.named:
        first = rows_of(table.columns.select(ENDS).slice(0, 1))[0]
        named = tables.header_columns(first)
        if named not in (None, [0, 1, 2]):
            raise DataError(f"{path}:1: the columns must be head, relation and tail, in this order")
        if named and not skip_header:
            raise DataError(
                f"{path}:1: '{' '.join(first)}' is a header, not a triple; --skip-header leaves out the "
                "first line of each file of triples"
            )
        if skip_header and len(table.columns) == 1:
            raise DataError(f"{path} has no triples below its header")
    if path.suffix != ".parquet" and tables.separator_of(path) == "\t":
        _check_quotes(path, table.columns)
    if skip_header and not table.named:
        table = table.without_first()
    return table, truths_of(table.columns, str(path), table.first)


def _check_quotes(path: Path, table: pa.Table) -> None:
    """Refuse TSV whose labels are all quoted: TSV has no quoting, so quotes would be part of the labels."""
    for end in ENDS:
        labels = table.column(end).combine_chunks()
        labels = labels.dictionary if isinstance(labels, pa.DictionaryArray) else labels
        quoted = pc.and_(pc.starts_with(labels, '"'), pc.ends_with(labels, '"'))
        if not pc.all(quoted).as_py():
            return
    raise DataError(f"{path}: all fields are in quotes, but TSV has no quoting; save it unquoted, or as CSV")


def _check_headers(paths: Mapping[str, Path], graph: KnowledgeGraph, skip_header: bool) -> None:
    """Refuse a first line that is a header in words of its own.

    That is a line whose three labels occur nowhere else in the graph, in a file with no other such line.
    Labels that ``entities`` or ``relations`` list are known.
    """
    if skip_header:
        return
    every = [*graph.splits.values(), *graph.negatives.values()]
    entities = np.bincount(
        np.concatenate([x[:, [0, 2]].ravel() for x in every]), minlength=len(graph.entities)
    )
    relations = np.bincount(np.concatenate([x[:, 1] for x in every]), minlength=len(graph.relations))
    listed = set(graph.relations.index) if "relations" in paths else set()
    for split, path in paths.items():
        triples = graph.splits.get(split)
        if triples is None or len(triples) < 3 or path.suffix == ".parquet" or split in graph.negatives:
            continue
        h, r, t = triples.T
        same = sum(len(x) > 0 and (x[0] == triples[0]).all() for x in graph.splits.values())  # as a header is
        alone = (entities[h] <= same) & (entities[t] <= same) & (relations[r] <= same) & (h != t)
        if not alone[0] or alone[1:].any():
            continue
        labels = graph.labeled(triples[:1])[0]
        named = "entities" in paths and bool({labels[0], labels[2]} & _listed(paths["entities"]))
        if not named and labels[1] not in listed:
            raise DataError(
                f"{path}:1: '{' '.join(labels)}' looks like a header: its words occur nowhere else; "
                "--skip-header leaves out the first line of each file of triples, and a name in entities.tsv "
                "keeps it"
            )


def _listed(path: Path) -> set[str]:
    """The labels of a table of texts, or of a list."""
    if (labels := read_labels(path, sum(ENTITY_COLUMNS, ()))) is not None:
        return {*labels}
    return set(read_texts(path, ("label",), ()).column("label").to_pylist())


KNOWN_FILES = {
    "entity2text.txt": "entities.tsv with the columns label and name takes such texts",
    "entity2textlong.txt": "entities.tsv with the columns label, name and description takes such texts",
    "relation2text.txt": "relations.tsv with the columns label and name takes such texts",
    "entities.json": "entities.tsv with the columns label, name, description and types takes such texts",
    "relations.json": "relations.tsv with the columns label and name takes such texts",
    "entity2id.txt": "labels are text here: no ids are needed",
    "relation2id.txt": "labels are text here: no ids are needed",
}
_NO_DATA = ("readme", "license", "licence", "card")


_DATA = (
    ".txt", ".tsv", ".csv", ".tab", ".json", ".jsonl", ".ndjson", ".dict", ".parquet", ".xlsx", ".nt", ".ttl",
)  # fmt: skip
_MEANT = {
    "types": ("type", "category", "categories", "kind", "class"),
    "aliases": ("alias", "synonym", "synonyms"),
    "description": ("desc", "definition", "comment", "text"),
}


def data_beside(folder: Path, read: Collection[Path]) -> list[str]:
    """The names of files in a folder that look like data and are not among those that were read."""
    others = (path for path in sorted(folder.iterdir()) if path.is_file() and path not in read)
    return [
        path.name
        for path in others
        if path.name.casefold().removesuffix(".gz").endswith(_DATA)
        and not path.name.casefold().startswith(_NO_DATA)
    ]


def unread(folder: Path, paths: Mapping[str, Path]) -> dict[str, str]:
    """Files beside those that were read, and columns of their texts, that :func:`read_folder` does not read.

    Returns:
        Each name, with what to do about it; empty if unknown.
    """
    left: dict[str, str] = {}
    for name in data_beside(folder, paths.values()):
        false = "a fourth column, -1, of valid and test says what is false" if "negatives" in name else ""
        left[name] = KNOWN_FILES.get(name.casefold(), false)
    for stem, path in paths.items():
        if stem not in ("entities", "relations"):
            continue
        known: Collection[str] = sum(ENTITY_COLUMNS, ()) if stem == "entities" else ("label", "name")
        for column in columns_of(path) if _has_header(path, known) else ():
            if column not in known:
                meant = next((m for m, names in _MEANT.items() if column.casefold() in names), None)
                remedy = f"the column '{meant}' has such texts" if meant in known else ""
                left[f"the column '{column}' of {path.name}"] = remedy
    return left


def _has_header(path: Path, names: Collection[str]) -> bool:
    """Return whether a table has a header with one of the names; a list of labels has none."""
    return path.suffix == ".parquet" or bool({*columns_of(path)} & {*names})


def tell_unread(graph: KnowledgeGraph, tell: Callable[[str], None]) -> None:
    """Name the files and columns beside those that were read."""
    for name, remedy in graph.unread.items():
        tell(f"not read: {name}" + (f" ({remedy})" if remedy else ""))


def training_table(folder: Path) -> Path | None:
    """The file of training triples: ``train``, or ``triples`` in a folder without splits."""
    return tables.find_table(folder, "train") or tables.find_table(folder, TRIPLES)


def read_folder(folder: Path, name: str | None = None, *, skip_header: bool = False) -> KnowledgeGraph:
    """A dataset folder: ``train`` and optional ``valid``, ``test``, ``entities``, ``relations``.

    Triples are TSV, CSV or Parquet, gzipped or not. They have a header only where they have further columns
    beside head, relation and tail: ``label`` (1 for what is true, -1 or 0 for what is known to be false; it
    may also be a fourth column without a header), or dates, which ``kgmlm data split`` reads. ``entities``
    has a header with ``label`` and ``name`` and may have ``description``, ``surface`` and ``types`` (several
    with ``|`` between them); ``relations`` has ``label`` and ``name``. Entities of ``entities`` that no
    triple has are candidates too. Names that are missing are the labels with blanks for underscores.
    ``attributes`` has ``entity``, ``attribute`` and ``value``, which descriptions tell in words. The folders
    of rule learners have further training triples in ``facts``, and lists of labels as ``entities`` and
    ``relations``. A folder without splits may call its triples ``triples``.

    Args:
        skip_header: leave out the first line of each file of triples that does not name further columns.

    Raises:
        DataError: naming file and line, also for a header among triples, or a file with a name that is nearly
            one of these.
    """
    return read_dated(folder, name, skip_header=skip_header)[0]


def read_dated(
    folder: Path, name: str | None = None, *, skip_header: bool = False, dates: str | None = None
) -> tuple[KnowledgeGraph, dict[str, Dates]]:
    """A dataset folder, as of :func:`read_folder`, and when the triples of each split were made.

    Args:
        dates: the column of dates, in the files that have it; None reads none.
    """
    _check_names(folder)
    paths = {s: p for s in SPLITS[1:] if (p := tables.find_table(folder, s))}
    train = training_table(folder)
    if train is None:
        raise DataError(f"{folder} has no train.tsv (nor .txt, .csv, .parquet, gzipped or not)")
    paths = {"train": train, **paths}
    splits, negatives, notes = dict[str, pa.Table](), {}, dict[str, int]()
    made, further, headed = dict[str, Dates](), dict[str, str](), set[str]()
    if path := tables.find_table(folder, FACTS):
        paths[FACTS] = path
    for split, file in paths.items():
        table, true = read_labeled(file, skip_header=skip_header, dates=dates)
        further |= {f"the column '{column}' of {file.name}": "" for column in table.unread}
        headed |= {split} if table.named else set()
        columns = table.columns.select(ENDS)
        date_n = np.zeros(0, "M8[s]") if dates is None else _dates(table, file, dates)
        if true is not None and split == FACTS:
            raise DataError(f"{file} has labels of truth; they belong in {train.name}")
        if true is not None and not true.all():
            negatives[split] = columns.filter(pa.array(~true))
            columns = columns.filter(pa.array(true))
            date_n = date_n[true] if dates is not None else date_n
        if split == FACTS:
            notes[f"{FURTHER} of {file.name}"] = len(columns)
            columns = pa.concat_tables([splits["train"], columns])
            split, date_n = "train", np.concatenate([made["train"], date_n])
        splits[split], made[split] = columns, date_n
        del table, true, columns  # what holds the whole file
    texts, card = TextColumns(notes=notes), folder_card(folder)
    extra: Any = ()
    if path := tables.find_table(folder, "entities"):
        paths["entities"] = path
        extra = read_labels(path, sum(ENTITY_COLUMNS, ()))
        if extra is None:
            texts.columns = read_texts(path, *ENTITY_COLUMNS)
            extra = texts.columns.column("label")
    if path := tables.find_table(folder, "relations"):
        paths["relations"] = path
        if read_labels(path, ("label", "name")) is None:
            texts.relations = dict(rows_of(read_texts(path, ("label", "name"), ())))
    graph = build_graph(
        name or (card.name if card else folder.resolve().name),
        splits,
        texts,
        extra_entities=extra,
        sources={p.name: sha256(p) for p in paths.values()},
        negatives=negatives,
    )
    _check_headers({stem: path for stem, path in paths.items() if stem not in headed}, graph, skip_header)
    if path := tables.find_table(folder, ATTRIBUTES):
        paths[ATTRIBUTES] = path
        graph = _with_attributes(graph, path)
    validation = card.validation if card is not None else None
    graph = replace(graph, unread=unread(folder, paths) | further, validation=validation)
    del splits, negatives, texts
    release_memory()
    return graph, made if dates is not None else {}


def _dates(table: TripleTable, path: Path, column: str) -> Dates:
    """When each triple of a file was made; not known where it has no such column."""
    if column not in table.columns.column_names:
        return np.full(len(table.columns), np.datetime64("NaT", "s"))
    return dates_of(table.columns.column(column), f"{path}:", table.first)


def _with_attributes(graph: KnowledgeGraph, path: Path) -> KnowledgeGraph:
    """A graph whose descriptions tell the attributes of a table."""
    attributes = read_attributes(path)
    unknown = sum(graph.entities.find(label) is None for label in attributes)
    notes = {"entities with attributes": len(attributes) - unknown}
    if unknown:
        notes["attributes of unknown entities"] = unknown
    return replace(
        graph,
        entities=described(graph.entities, attributes),
        notes={**graph.notes, **notes},
        sources={**graph.sources, path.name: sha256(path)},
    )


def load_graph(
    dataset: Dataset,
    *,
    download: bool = True,
    progress: bool = True,
    skip_header: bool = False,
) -> KnowledgeGraph:
    """A graph of the name of a built-in dataset, the path of a folder, or triples in memory.

    Args:
        dataset: such as "wn18rr", or a folder with ``train.tsv``; see :func:`read_folder`. Or training
            triples by label: a list, an array, a DataFrame; or a ``TriplesFactory`` or ``Dataset`` of PyKEEN.
            A graph is returned as it is.
        download: fetch what neither ``$KGMLM_MIRROR`` nor the cache has.
        progress: show the progress of a download.
        skip_header: of a folder, leave out the first line of each file of triples.

    Raises:
        DataError: when there is no such dataset or its files are wrong.

    Example:
        >>> graph = load_graph("toy")
        >>> len(graph.entities), len(graph.triples("test"))
        (31, 8)
    """
    if isinstance(dataset, KnowledgeGraph):
        return dataset
    if not isinstance(dataset, str | Path):
        if skip_header:
            raise DataError("skip_header is for files, not for triples in memory")
        return KnowledgeGraph.from_pykeen(dataset) if is_pykeens(dataset) else _of_triples(dataset)
    if dataset == "":
        raise DataError("the dataset's name is empty")
    folder = Path(dataset)
    named = str(dataset) in card_names()
    if folder.is_dir() and (isinstance(dataset, Path) or not named):
        return read_folder(folder, skip_header=skip_header)
    if folder.exists() and not named:
        raise DataError(f"{folder} is a file; a dataset is a folder that holds train.tsv")
    built_in = cards_folder() / str(dataset)
    if training_table(folder) is not None and folder.resolve() != built_in.resolve():
        raise DataError(
            f"'{dataset}' is a built-in dataset and a folder here; write ./{dataset} for the folder"
        )
    card = read_card(str(dataset))
    if skip_header:
        raise DataError(f"'{dataset}' is built in and has no header; leave out --skip-header")
    if not card.splits:
        return read_folder(cards_folder() / card.name, card.name)
    sources = Sources(card, download=download, progress=progress)
    splits, negatives = (
        {split: triples_in(sources.read(address), address).columns for split, address in of.items()}
        for of in (card.splits, card.negatives)
    )
    texts = TEXT_READERS[card.texts.reader](sources) if card.texts else TextColumns()
    return build_graph(
        card.name,
        splits,
        texts,
        sources={s.path: s.sha256 or sha256(sources.path(s.path)) for s in card.source},
        negatives=negatives,
    )


def _of_triples(triples: Any) -> KnowledgeGraph:
    """A graph of training triples in memory.

    Raises:
        DataError: when they are none.
    """
    try:
        return KnowledgeGraph.from_triples(triples)
    except QueryError as error:
        raise DataError(
            f"a dataset is a name, the path of a folder, a graph, or triples in memory: {error}"
        ) from None


# --- writing ----------------------------------------------------------------------------------------------


def write_splits(graph: KnowledgeGraph, folder: Path, dates: Mapping[str, Dates] | None = None) -> None:
    """Write the triples of each split into a folder, with labels where some are false.

    Args:
        dates: of the triples of each split; files that have some name their columns.
    """
    for split, triples in graph.splits.items():
        table = graph.labels(triples)
        dated = dates is not None and not np.isnat(dates[split]).all()
        if dated and dates is not None:
            table = table.append_column(DATES[0], written(dates[split]))
        if len(false := graph.negatives.get(split, ())):
            negatives = graph.labels(np.asarray(false))
            if dated:
                empty = pa.array([""] * len(negatives), pa.large_string())
                negatives = negatives.append_column(DATES[0], empty)
            table = pa.concat_tables(
                part.append_column(LABEL, pa.array([label] * len(part), pa.large_string()))
                for part, label in ((table, "1"), (negatives, "-1"))
            )
        write_table(folder / split, table, header=dated)


def write_folder(
    graph: KnowledgeGraph,
    folder: Path,
    card: Card | None = None,
    dates: Mapping[str, Dates] | None = None,
) -> None:
    """Write a graph as a dataset folder that :func:`read_folder` reads back; whole or not at all.

    Args:
        dates: of the triples of each split.
    """
    with files.new_folder(folder) as temporary:
        write_splits(graph, temporary, dates)
        write_table(temporary / "entities", graph.entities.table)
        relations = [(r.label, r.name) for r in graph.relations]
        labels, names = map(list, zip(*relations, strict=True)) if relations else ([], [])
        schema = pa.schema([("label", pa.large_string()), ("name", pa.large_string())])
        write_table(temporary / "relations", pa.table({"label": labels, "name": names}, schema))
        if card is not None:
            write_card(card, temporary)
