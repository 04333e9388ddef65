"""A graph that arrives statement by statement, written as a dataset folder.

Triples go through the disk; only texts are in memory.

Shapes: n triples of a part, N entities.
"""

from __future__ import annotations

import re
import shutil
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.errors import DataError
from kgmlm.core.tables import header_columns
from kgmlm.graphs.attributes import COLUMNS, TOKENS
from kgmlm.graphs.cards import Card, Counts, write_card
from kgmlm.graphs.datasets import ATTRIBUTES
from kgmlm.graphs.queries import distinct_triples
from kgmlm.importing.expressions import CLASSES, EQUIVALENT, NIL, PREDICATES, SUBCLASS, Expressions
from kgmlm.importing.vocabulary import DENIED, RELATIONS, SIGNS, SKOS, Kind, Part, Wanted, language_of

TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
SILENT, OF_BLANK, OLD = "expressions that no triple says", "triples of blank nodes", "of deprecated entities"
LATEST = 99  # order of a text that is a node's value
GIVEN = 1000  # how far texts of requested predicates rank ahead of those in other languages
_HEADS = 1 << 16  # head ids of one part on disk
_BUFFERED = 1 << 19  # triples in memory before they go to disk
_ROWS = 1 << 16  # rows of a table that are strings at one time

# A property of Wikidata in RDF is named where it is an entity.
_PROPERTY = re.compile(r"http://www\.wikidata\.org/prop/(?:[a-z-]+/)*(P[0-9]+)")


_SELVES = ("me", "this", "about", "id", "it", "i")  # fragments by which pages call what they are about
_WHOLE = re.compile(r"/(?:resource|wiki)/(.+)")  # of whose addresses all the rest is a name


def _name_part(label: str) -> str:
    """The part of an IRI that names something: its fragment, else the last part of its path.

    >>> _name_part("http://e.org/onto#AC/DC"), _name_part("https://ada.example/card#me")
    ('AC/DC', 'card')
    """
    label = label.rstrip("/#")
    base, sharp, fragment = label.partition("#")
    if sharp and fragment.casefold() not in _SELVES:
        return fragment
    return base.rstrip("/").rsplit("/", 1)[-1]


def name_of(label: str, part: str = "") -> str:
    """Words for an IRI that no text names: its last part.

    Args:
        part: the part of the label that names it, where that is known.

    >>> name_of("http://dbpedia.org/resource/S%C3%A3o_Paulo"), name_of("http://schema.org/birthPlace")
    ('São Paulo', 'birthPlace')
    >>> name_of("urn:kgmlm:S%C3%A3o_Paulo"), name_of("_:b1")
    ('São Paulo', 'b1')
    """
    last = part or _name_part(label)
    last = last if last != label else label.rsplit(":", 1)[-1]
    return " ".join(unquote(last).replace("_", " ").split()) or label


def title_of(label: str, part: str = "") -> str:
    """Words for an entity that no text names: its last part, with blanks in what is written as one word.

    >>> title_of("http://purl.org/pizza#FourSeasonsTopping"), title_of("http://dbpedia.org/resource/Rome")
    ('Four Seasons Topping', 'Rome')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name_of(label, part))


class NameParts:
    """The parts of IRIs that name something, by what the IRIs of a graph have in common.

    The name is the last part of a path, unless it is alone in its folder and a folder above has more IRIs
    directly in it, or is called "resource" or "wiki": in ``.../things/Rome``, ``.../things/Oslo`` and
    ``.../things/AC/DC``, the name of the last is "AC/DC".
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.children: Counter[str] = Counter()
        for label in labels:
            if "#" not in label and "://" in label:
                self.children[label.rstrip("/").rsplit("/", 1)[0] + "/"] += 1

    def of(self, label: str) -> str:
        """The part of a label."""
        part = _name_part(label)
        base = label.rstrip("/")
        if "#" in base or "://" not in base:
            return part
        own = self.children[base.rsplit("/", 1)[0] + "/"]
        if own <= 1 and (whole := _WHOLE.search(base)):
            return whole[1]
        folders = base.split("/")  # scheme, nothing, authority, and parts of the path
        best, most = part, max(own, 1)
        for depth in range(len(folders) - 2, 2, -1):
            above = "/".join(folders[:depth]) + "/"
            if self.children[above] > most and (own <= 1 or 100 * own <= self.children[above]):
                best, most = "/".join(folders[depth:]), self.children[above]
        return best


def words_of(label: str) -> str:
    """Words for a relation that no text names.

    >>> words_of("http://dbpedia.org/ontology/birthPlace"), words_of("P31")
    ('birth place', 'P31')
    >>> words_of("http://ex.org/versionIRI")
    'version IRI'
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z]{2})", " ", name_of(label))
    return re.sub(r"(?<=[a-z])([A-Z])", lambda letter: f" {letter[1].lower()}", words)


class Texts:
    """The best text of each entity and kind, by language, then by predicate, then by which came first; those
    of predicates that were asked for (of orders below 0) go before the others.

    Args:
        languages: those that are wanted, the best first. ``mul`` (Wikidata's for any language) and texts
            without a language come after them, other languages do not count.
    """

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = [language_of(language) for language in languages]
        self.best: dict[Kind, dict[int, tuple[int, int, str]]] = {"name": {}, "description": {}}
        self.aliases: dict[int, dict[str, None]] = {}
        self.foreign: dict[int, dict[str, None]] = {}  # names of thesauri in other languages

    def rank(self, language: str) -> int | None:
        """Return a language's place among those that are wanted, 0 the best; None for others.

        ``en`` wants ``en-GB`` and ``eng``, too; and ``en-GB`` ``en``.
        """
        language = language_of(language)
        for at, wanted in enumerate(self.languages):
            if language == wanted:
                return 2 * at
            if language and (language.startswith(f"{wanted}-") or wanted.startswith(f"{language}-")):
                return 2 * at + 1
        return 2 * len(self.languages) + (language == "") if language in ("mul", "") else None

    def add(self, entity: int, kind: Kind, value: str, language: str, order: int) -> bool:
        """Keep a text, single-spaced, if it is the best so far; return whether its language is wanted."""
        rank = self.rank(language)
        if rank is None:
            return False
        text = " ".join(value.encode(errors="replace").decode().split())  # JSON may hold lone surrogates
        if not text:
            return True
        self.take(entity, kind, order, (rank, order, text))
        return True

    def take(self, entity: int, kind: Kind, order: int, text: tuple[int, int, str]) -> None:
        """Keep the text of a node, ``(rank, order, text)``, as a text of an entity, if it is the best."""
        if kind == "alias":
            self.aliases.setdefault(entity, {})[text[2]] = None
            return
        best, rank = self.best[kind].get(entity), text[0] - GIVEN * (order < 0)
        if best is None or (rank, order) < best[:2]:
            self.best[kind][entity] = (rank, order, text[2])

    def of(self, entity: int, kind: Kind) -> str:
        """The text of an entity; empty where there is none."""
        return self.best[kind].get(entity, (0, 0, ""))[2]

    def further(self, entity: int, name: str) -> str:
        """The aliases of an entity but for its name, as a cell of a table; foreign ones go last."""
        own = self.aliases.get(entity, {}) | self.foreign.get(entity, {})
        cells = dict.fromkeys(" ".join(x.replace("|", "/").split()) for x in own if x != name)
        return "|".join(cell for cell in cells if cell)


class Importer:
    """A listener that makes a dataset folder: texts and labels in memory, triples in files by head.

    Args:
        folder: where it writes; nothing else is there.
        languages: as of :class:`Texts`.
    """

    def __init__(self, folder: Path, languages: Sequence[str], wanted: Wanted | None = None) -> None:
        self.folder = folder
        self.texts = Texts(languages)
        self.wanted = wanted or Wanted()
        self.texts_by: Mapping[str, tuple[Kind, int]] = self.wanted.texts_by
        self.kept = self.wanted.keep
        self.expressions = Expressions()
        self.text_nodes: list[tuple[int, str, int]] = []
        self.inner: set[int] = set()  # nodes that stand for an expression or a text
        self.foreign: set[int] = set()  # nodes with a text in a language that is not wanted
        self.names_in: Counter[str] = Counter()  # names in languages that are not wanted
        self.old: set[int] = set()  # entities that are deprecated
        self.ids: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.by: dict[str, Counter[str]] = {}  # what is left out, by predicate (and language)
        self.reifiers: set[int] = set()
        self.attributes: dict[int, list[tuple[int, str]]] = {}
        self.types: dict[int, dict[str, None]] = {}
        self.repeated = 0
        self.properties: set[int] = set()
        self.associations: dict[int, dict[Part, list[int]]] = {}
        self.aligned: set[int] = set()  # associations whose relation may be left out: their ends are the same
        self.classes: dict[int, int] = {}  # relations whose tails are class expressions
        self._parts = folder / "parts"
        self._buffer = array("q")

    # --- what a listener is told

    def triple(self, head: str, relation: str, tail: str) -> None:
        """Keep a triple."""
        ids = self.ids
        if relation in PREDICATES:
            self.expressions.add(ids.setdefault(head, len(ids)), relation, ids.setdefault(tail, len(ids)))
            return
        self._buffer.extend([ids.setdefault(label, len(ids)) for label in (head, relation, tail)])
        if len(self._buffer) >= 3 * _BUFFERED:
            self._spill()

    def text(self, subject: str, kind: Kind, value: str, language: str, order: int, predicate: str) -> None:
        """Keep a text, where it is wanted."""
        if self.texts.rank(language) is None:
            own = predicate.startswith(SKOS) and not subject.startswith("http://www.wikidata.org/")
            if own and kind != "description":
                self.names_in[language] += kind == "name"
                self.texts.foreign.setdefault(self.ids.setdefault(subject, len(self.ids)), {})[value] = None
                return
            self.left_out("texts in other languages", f"{predicate} ({language})")
            self.names_in[language] += kind == "name"
            return
        self.texts.add(self.ids.setdefault(subject, len(self.ids)), kind, value, language, order)

    def value(self, node: str, value: str, language: str) -> None:
        """Keep the text of a node, which becomes its name unless the node is a text of another one."""
        own = self.ids.setdefault(node, len(self.ids))
        if not self.texts.add(own, "name", value, language, LATEST):
            self.foreign.add(own)

    def text_node(self, subject: str, predicate: str, node: str) -> None:
        """Keep it until all texts are known."""
        ids = self.ids
        own, of = ids.setdefault(subject, len(ids)), ids.setdefault(node, len(ids))
        self.text_nodes.append((own, predicate, of))

    def attribute(self, subject: str, predicate: str, value: str) -> None:
        """Keep a number or a date, of the first few of an entity."""
        if predicate in self.wanted.skip:
            self.left_out("of predicates that are skipped", predicate)
            return
        own = self.attributes.setdefault(self.ids.setdefault(subject, len(self.ids)), [])
        attribute = (self.ids.setdefault(predicate, len(self.ids)), value)
        if len(own) < TOKENS and attribute not in own:  # more have no room in a text
            own.append(attribute)

    def kind(self, label: str, name: str) -> None:
        """Keep a type of an entity."""
        self.types.setdefault(self.ids.setdefault(label, len(self.ids)), {})[name] = None

    def none(self, node: str) -> None:
        """Keep a restriction of none, which says nothing."""
        self.expressions.none.add(self.ids.setdefault(node, len(self.ids)))

    def deprecated(self, label: str) -> None:
        """Keep which entities are deprecated."""
        self.old.add(self.ids.setdefault(label, len(self.ids)))

    def left_out(self, why: str, predicate: str, count: int = 1) -> None:
        """Count it, by predicate, too."""
        self.counts[why] += count
        self.by.setdefault(why, Counter())[predicate] += count

    def reifier(self, label: str) -> None:
        """Leave out the triples of what stands for a statement."""
        self.reifiers.add(self.ids.setdefault(label, len(self.ids)))

    def property(self, label: str) -> None:
        """Keep which labels are declared as properties: they are relations, and no entities."""
        self.properties.add(self.ids.setdefault(label, len(self.ids)))

    def association(self, node: str, part: Part, value: str) -> None:
        """Keep a part of the triple that a node stands for."""
        own = self.ids.setdefault(node, len(self.ids))
        values = self.associations.setdefault(own, {}).setdefault(part, [])
        values.append(-1 if value == DENIED else self.ids.setdefault(value, len(self.ids)))

    def alignment(self, node: str) -> None:
        """Keep that a node is a cell of an alignment."""
        self.aligned.add(self.ids.setdefault(node, len(self.ids)))

    def new_blank(self) -> str:
        """``_:b1`` and so on, through all files."""
        self.counts["blank_nodes"] += 1
        return f"_:b{self.counts['blank_nodes']}"

    # --- triples on disk

    def _spill(self) -> None:
        """Append the triples in memory to their parts."""
        if not self._buffer:
            return
        triples = np.frombuffer(self._buffer, np.int64).reshape(-1, 3)
        self._parts.mkdir(exist_ok=True)
        parts = triples[:, 0] // _HEADS
        order = np.argsort(parts, kind="stable")
        triples, parts = triples[order], parts[order]
        starts = np.flatnonzero(np.diff(parts, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(parts)], strict=True):
            with (self._parts / str(parts[start])).open("ab") as file:
                file.write(triples[start:end].tobytes())
        self._buffer = array("q")

    def _distinct(self, labels: Sequence[str] = ()) -> Iterator[IntArray]:
        """All triples, each once, sorted; a part at a time.

        Args:
            labels: if given, triples that are left out and duplicates are counted.
        """
        for part in sorted(self._parts.iterdir(), key=lambda path: int(path.name)):
            triples = np.fromfile(part, np.int64).reshape(-1, 3)
            about = self.reified_N[triples[:, [0, 2]]].any(1)
            triples = triples[~about]
            triples = triples[~self.inner_N[triples[:, 0]]]
            once = distinct_triples(triples)
            kept, silent = self.expressions.expanded(once, self.classes, self.equivalent)
            kept = kept[~self.inner_N[kept[:, 2]]]
            of_property = self.property_N[kept[:, [0, 2]]].any(1)
            if labels:
                for relation in kept[of_property, 1].tolist():
                    self.left_out("triples of properties", labels[relation])
            kept = kept[~of_property]
            of_blank = self.unwanted_N[kept[:, [0, 2]]].any(1)
            old = ~of_blank & self.old_N[kept[:, [0, 2]]].any(1)
            refused = np.isin(kept[:, 1], self.skipped)
            if self.wanted.keep:
                refused |= ~np.isin(kept[:, 1], self.only)
            if labels:
                self.counts["triples about statements"] += int(about.sum())
                self.repeated += len(triples) - len(once)
                apart = ((SILENT, silent), (OF_BLANK, kept[of_blank & ~refused]), (OLD, kept[old & ~refused]))
                for why, rows in apart:
                    for relation in rows[:, 1].tolist():
                        self.left_out(why, labels[relation])
                for relation in kept[refused, 1].tolist():
                    self.left_out(self.wanted.refuses(labels[relation]), labels[relation])
            if len(kept := kept[~(of_blank | old | refused)]):
                yield kept

    def _settle(self) -> list[str]:
        """After the last statement, decide what nodes stand for; return the labels by id."""
        ids = self.ids
        subclass, kind = (ids.setdefault(name, len(ids)) for name in (SUBCLASS, TYPE))
        labels = list(ids)
        for own, predicate, node in self.text_nodes:
            text = self.texts.best["name"].get(node)
            if text is None and node in self.foreign:
                self.inner.add(node)
                self.left_out("texts in other languages", predicate)
            elif text is None or not (text[1] == LATEST or labels[node].startswith("_:")):
                self._buffer.extend(
                    [own, ids[predicate] if predicate in ids else self._new(predicate, labels), node]
                )
            else:
                self.texts.take(own, *self.texts_by[predicate], text)
                self.inner.add(node)
        for node, parts in self.associations.items():
            self.reifiers.add(node)
            if node in self.aligned and "relation" not in parts:
                same = SIGNS["="]
                parts["relation"] = [ids[same] if same in ids else self._new(same, labels)]
            if not parts.keys() >= {"head", "relation", "tail"}:
                self.left_out("associations without a head, a relation or a tail", labels[node])
            elif -1 in parts["relation"]:
                self.left_out("associations that are negated", labels[node])
            else:
                for triple in product(*(parts[part] for part in ("head", "relation", "tail"))):
                    self._buffer.extend(triple)
        named = self.expressions.settle(ids.get(NIL), labels)
        for triple in self.expressions.of_named(subclass, kind, named):
            self._buffer.extend(triple)
        self.inner |= self.expressions.blank
        self.classes = {ids[name]: ids[own] for name, own in CLASSES.items() if name in ids}
        self.equivalent = ids.get(EQUIVALENT)
        self.skipped, self.only = (
            [ids[x] for x in some if x in ids] for some in (self.wanted.skip, self.wanted.keep)
        )
        self.reified_N, self.inner_N, self.unwanted_N, self.old_N, self.property_N = (
            np.zeros(len(labels), np.bool_) for _ in range(5)
        )
        self.property_N[list(self.properties)] = True
        self.reified_N[list(self.reifiers)] = True
        self.inner_N[list(self.inner)] = True
        if self.wanted.skip_deprecated:
            self.old_N[list(self.old)] = True
        if self.wanted.skip_blank:
            self.unwanted_N[:] = [label.startswith("_:") for label in labels]
        self._spill()
        standing = self.inner | self.reifiers
        self.counts["blank_nodes"] -= sum(labels[i].startswith("_:") for i in standing)
        return labels

    def _new(self, label: str, labels: list[str]) -> int:
        """The id of a label that no triple had until now."""
        labels.append(label)
        return self.ids.setdefault(label, len(self.ids))

    # --- the folder

    def write(self, card_of: tuple[str, str]) -> dict[str, Any]:
        """Write the dataset; return what is in it and what was left out.

        Args:
            card_of: the name of the dataset, and a sentence on where it is from.

        Raises:
            DataError: when no file had a triple.
        """
        labels = self._settle()
        self.ids = {}
        distinct = sum(map(len, self._distinct(labels))) if self._parts.is_dir() else 0
        if not distinct:
            left = ", ".join(f"{count:,} {what}" for what, count in self.counts.items() if count)
            kept = "; --keep-only IRI keeps what it names" if any(self.by.values()) else ""
            raise DataError(
                f"no triple links two entities in what was read (left out: {left or 'nothing'}){kept}"
            )
        entity_N, relation_N = (np.zeros(len(labels), np.bool_) for _ in range(2))
        written = self._write_triples(labels, entity_N, relation_N)
        shutil.rmtree(self._parts)
        unnamed = self._write_entities(labels, entity_N)
        unnamed_relations = self._write_relations(labels, relation_N)
        attributes = self._write_attributes(labels, entity_N)
        entities, relations = int(entity_N.sum()), int(relation_N.sum())
        name, origin = card_of
        counts = Counts(entities=entities, relations=relations, unseen=0, train=written, valid=0, test=0)
        license = "that of the original data"
        card = Card(name=name, title=name, description=origin, license=license, citation="", counts=counts)
        write_card(card, self.folder)
        return {
            "entities": entities,
            "relations": relations,
            "triples": written,
            "repeated": self.repeated,
            "unnamed_entities": unnamed,
            "unnamed_relations": unnamed_relations,
            "undescribed_entities": entities
            - len(self.texts.best["description"].keys() & set(np.flatnonzero(entity_N).tolist())),
            "deprecated": int(entity_N[list(self.old)].sum()),
            "attributes": attributes,
            "left_out": {what: n for what, n in self.counts.items() if what != "blank_nodes" and n},
            "left_out_by": {what: dict(by.most_common()) for what, by in self.by.items()},
            "blank_nodes": self.counts["blank_nodes"],
            "notes": {},
        }

    def write_described(self) -> int:
        """Write ``entities`` alone: what has a name, a description or a type, whether a triple has it or not.

        Returns:
            How many triples there are, which are not written.
        """
        labels = self._settle()
        described_N = np.zeros(len(labels), np.bool_)
        for ids in (self.texts.best["name"], self.texts.best["description"], self.types):
            described_N[list(ids)] = True
        described_N &= ~(self.inner_N | self.reified_N | self.property_N)
        described_N &= [not label.startswith("_:") for label in labels]
        self._write_entities(labels, described_N)
        return sum(map(len, self._distinct())) if self._parts.is_dir() else 0

    def _write_triples(self, labels: list[str], entity_N: BoolArray, relation_N: BoolArray) -> int:
        """Write ``train``, and mark what it has."""
        column = pa.array(labels, pa.large_string())
        first = next(self._distinct())[0]
        written = 0
        tsv = header_columns([labels[i] for i in first]) is None
        with _Table(self.folder / "train", ("head", "relation", "tail"), tsv) as table:
            for triples in self._distinct():
                entity_N[triples[:, [0, 2]]] = True
                relation_N[triples[:, 1]] = True
                written += len(triples)
                for start in range(0, len(triples), _ROWS):
                    table.write([column.take(pa.array(ids)) for ids in triples[start : start + _ROWS].T])
        return written

    def _write_entities(self, labels: list[str], entity_N: BoolArray) -> int:
        """Write ``entities``; how many have no name but their label's."""
        texts = self.texts
        unnamed = 0
        lists = [
            name for name, of in (("types", self.types), ("aliases", texts.aliases or texts.foreign)) if of
        ]
        header = ("label", "name", "description", *lists)
        nameless = (labels[i] for i in np.flatnonzero(entity_N).tolist() if not texts.of(i, "name"))
        parts = NameParts(nameless)
        with _Table(self.folder / "entities", header, header=True) as table:
            for ids in _chunks(np.flatnonzero(entity_N)):
                names = [texts.of(i, "name") for i in ids]
                titles = [title_of(labels[i], parts.of(labels[i])) for i in ids]
                unnamed += sum(not name for name in names)
                columns = [
                    [labels[i] for i in ids],
                    [name or title for name, title in zip(names, titles, strict=True)],
                    [texts.of(i, "description") for i in ids],
                ]
                if self.types:
                    columns.append(
                        ["|".join(x.replace("|", "/") for x in self.types.get(i, ())) for i in ids]
                    )
                if "aliases" in lists:
                    columns.append([texts.further(i, name) for i, name in zip(ids, names, strict=True)])
                table.write([pa.array(column, pa.large_string()) for column in columns])
        return unnamed

    def _write_attributes(self, labels: list[str], entity_N: BoolArray) -> int:
        """Write ``attributes`` where entities of triples have any; how many there are."""
        rows = [(i, of) for i, of in self.attributes.items() if entity_N[i]]
        if not rows:
            return 0
        names = self._names(labels, sorted({predicate for _, of in rows for predicate, _ in of}))
        count = 0
        with _Table(self.folder / ATTRIBUTES, COLUMNS, header=True) as table:
            for i, of in rows:
                attribute_names = [
                    names[labels[predicate]] or words_of(labels[predicate]) for predicate, _ in of
                ]
                values = [" ".join(value.split()) or "none" for _, value in of]
                columns = [[labels[i]] * len(of), attribute_names, values]
                table.write([pa.array(column, pa.large_string()) for column in columns])
                count += len(of)
        return count

    def _names(self, labels: list[str], ids: list[int]) -> dict[str, str]:
        """Names of relations by label, empty where there is none; of Wikidata those of the properties."""
        names = {labels[i]: self.texts.of(i, "name") for i in ids}
        properties: dict[str, list[str]] = {}
        for label in (label for label, name in names.items() if not name):
            if property_match := _PROPERTY.fullmatch(label):
                properties.setdefault(f"http://www.wikidata.org/entity/{property_match[1]}", []).append(label)
        for i in (i for i, label in enumerate(labels) if label in properties):
            names |= dict.fromkeys(properties[labels[i]], self.texts.of(i, "name"))
        return {label: name or RELATIONS.get(label, "") for label, name in names.items()}

    def _write_relations(self, labels: list[str], relation_N: BoolArray) -> int:
        """Write ``relations``; how many have no name but their label's."""
        names = self._names(labels, np.flatnonzero(relation_N).tolist())
        with _Table(self.folder / "relations", ("label", "name"), header=True) as table:
            columns = [list(names), [name or words_of(label) for label, name in names.items()]]
            table.write([pa.array(column, pa.large_string()) for column in columns])
        return sum(not name for name in names.values())


def _chunks(ids: IntArray) -> Iterator[list[int]]:
    """Ids, a table's worth of rows at a time."""
    for start in range(0, len(ids), _ROWS):
        yield ids[start : start + _ROWS].tolist()


class _Table:
    """A table written a chunk at a time: TSV, or Parquet where TSV is not safe.

    No field has a tab or a line break: IRIs cannot, and texts are cleaned of them.
    """

    def __init__(self, path: Path, columns: Sequence[str], tsv: bool = True, header: bool = False) -> None:
        self.schema = pa.schema([(name, pa.large_string()) for name in columns])
        self.tsv = tsv
        if tsv:
            self.file: Any = path.with_name(f"{path.name}.tsv").open("w", encoding="utf-8", newline="")
            if header:
                self.file.write("\t".join(columns) + "\n")
        else:
            self.file = pq.ParquetWriter(path.with_name(f"{path.name}.parquet"), self.schema)

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Append rows."""
        if not self.tsv:
            self.file.write_table(pa.table(list(columns), schema=self.schema))
            return
        lines = pc.binary_join_element_wise(*columns, pa.scalar("\t", pa.large_string()))
        self.file.writelines(f"{line}\n" for line in lines.to_pylist())
