"""STIX 2.0 and 2.1 (OASIS), read as a graph: bundles, files of one object, and folders of these.

Relationship objects are triples, dated by when they were created. What is revoked or deprecated is left out.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kgmlm.core.errors import DataError
from kgmlm.graphs.dates import Dates, dates_of
from kgmlm.graphs.entities import humanize
from kgmlm.graphs.graph import TextColumns, build_graph
from kgmlm.importing.edges import ReadEdges, is_json
from kgmlm.importing.statements import HEAD, Advance, Utf8, unpacked
from kgmlm.importing.vocabulary import Wanted

STIX = "stix"  # the format's name
_LINKS = ("relationship", "sighting")  # objects that link others
_BUNDLE = re.compile(rb'"type"\s*:\s*"bundle"|"spec_version"\s*:\s*"2\.')
_ID = re.compile(r"[a-z0-9-]+--[0-9a-fA-F-]{36}")
_NAMES = ("name", "value", "path", "display_name", "account_login", "user_id", "subject", "key")
_CITED = re.compile(r"\s*\((?:Citation|citation):[^)]*\)")
_LINK = re.compile(r"!?\[([^\]]*)\]\((?:[^()]|\([^()]*\))*\)")
_TAG = re.compile(r"(?i)</?(?:code|br|p|b|i|em|strong|ul|ol|li|pre|a|h[1-6]|table|t[rdh])\b[^<>]*>")


class ReadStix(NamedTuple):
    """A graph of STIX, and when each of its triples was created."""

    edges: ReadEdges
    dates: Dates


def is_stix(path: Path) -> bool:
    """Return whether a file, or the first JSON file of a folder, begins as STIX does."""
    files = stix_files(path)
    if not files or not is_json(files[0]):
        return False
    try:
        with unpacked(files[0]) as file:
            return _BUNDLE.search(file.peek(HEAD)[:HEAD]) is not None
    except DataError:
        return False


def stix_files(path: Path) -> list[Path]:
    """A file, or the JSON files below a folder."""
    return sorted(x for x in path.rglob("*") if is_json(x) and x.is_file()) if path.is_dir() else [path]


def read_stix(paths: Sequence[Path], name: str, wanted: Wanted, advance: Advance) -> ReadStix:
    """The graph of STIX files.

    An entity's label is the id that its first external reference gives ("T1059"), if no other object has it,
    and else its STIX id. Its types are the object's type. If an object has several versions, the last one
    counts, and a duplicate triple has its earliest date.

    Args:
        wanted: says which relations to skip or to keep alone.

    Raises:
        DataError: naming the file, when it is cut off or no STIX; when there is no triple.
    """
    objects, left_out = dict[str, Mapping[str, Any]](), Counter[str]()
    for each in chain.from_iterable(_objects(path, advance) for path in paths):
        known = objects.get(each["id"])
        if known is None or str(known.get("modified", "")) <= str(each.get("modified", "")):
            objects[each["id"]] = each
    gone = {key for key, each in objects.items() if each.get("revoked") or each.get("x_mitre_deprecated")}
    labels = _labels([x for key, x in objects.items() if x["type"] not in _LINKS and key not in gone])
    left_out["sightings"] = sum(x["type"] == "sighting" for x in objects.values())
    left_out["revoked or deprecated objects"] = sum(objects[key]["type"] not in _LINKS for key in gone)
    dates, repeated = dict[tuple[str, str, str], str](), 0
    for key, each in objects.items():
        if each["type"] != "relationship":
            continue
        ends = [str(each.get(end, "")) for end in ("source_ref", "target_ref")]
        relation = str(each.get("relationship_type", ""))
        if key in gone:
            left_out["revoked or deprecated relationships"] += 1
        elif any(end in gone for end in ends):
            left_out["relationships of revoked or deprecated objects"] += 1
        elif relation in wanted.skip or (wanted.keep and relation not in wanted.keep):
            left_out["relationships of types that were skipped"] += 1
        elif not relation or any(end not in labels for end in ends):
            left_out["relationships of objects that are not there"] += 1
        else:
            triple = (labels[ends[0]], relation, labels[ends[1]])
            repeated += triple in dates
            known_dates = (dates.get(triple, ""), str(each.get("created") or ""))
            dates[triple] = min(filter(None, known_dates), default="")
    if not dates:
        raise DataError(f"{', '.join(map(str, paths))}: there is no relationship object of STIX")
    used = {end for head, _, tail in dates for end in (head, tail)}
    texts = _texts({label: objects[key] for key, label in labels.items() if label in used})
    texts.relations = {relation: humanize(relation.replace("-", "_")) for _, relation, _ in dates}
    graph = build_graph(name, {"train": list(dates)}, texts)
    created = dates_of(pa.chunked_array([pa.array(dates.values(), pa.string())]), "the date of triple ")
    undated = int(np.isnat(created).sum())
    notes = {"triples without a date": undated} if undated else {}
    return ReadStix(ReadEdges(graph, repeated, +left_out, notes), created)


def _objects(path: Path, advance: Advance) -> Iterator[Mapping[str, Any]]:
    """The objects of a file: of a bundle, of a list, or itself one.

    Raises:
        DataError: naming the file, where it is none of these.
    """
    with unpacked(path, advance) as packed:
        try:
            content = json.load(io.BufferedReader(Utf8(packed, False), 1 << 16))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is cut off or not JSON: {error}") from None
    objects = content.get("objects", [content]) if isinstance(content, dict) else content
    if not isinstance(objects, list):
        raise DataError(f"{path} is no STIX: it has no objects")
    for number, each in enumerate(objects, 1):
        if not isinstance(each, dict) or not _ID.fullmatch(str(each.get("id", ""))) or "type" not in each:
            raise DataError(f"{path} is no STIX: object {number} has no type or no id such as malware--...")
        yield each


def _labels(objects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The label of each object by its STIX id."""
    given = dict[str, str]()
    for each in objects:
        references = each.get("external_references") or [{}]
        first = references[0] if isinstance(references, list) and isinstance(references[0], dict) else {}
        given[each["id"]] = str(first.get("external_id") or each["id"]).strip()
    times = Counter(given.values())
    return {key: label if label and times[label] == 1 else key for key, label in given.items()}


def _texts(objects: Mapping[str, Mapping[str, Any]]) -> TextColumns:
    """Names, descriptions, types and aliases by label."""
    texts = TextColumns()
    for label, each in objects.items():
        name = " ".join(next((str(each[key]) for key in _NAMES if each.get(key)), "").split())
        if name:
            texts.names[label] = texts.surfaces[label] = name
        texts.descriptions[label] = plain(str(each.get("description") or ""))
        texts.types[label] = str(each["type"])
        aliases = each.get("aliases") or each.get("x_mitre_aliases") or []
        if isinstance(aliases, list):
            tidied = [" ".join(str(alias).split()) for alias in aliases]
            texts.aliases[label] = "|".join(x for x in tidied if x and x != name and "|" not in x)
    return texts


def plain(text: str) -> str:
    """A description without citations and markup.

    >>> plain("[Empire](https://x.org/S0363) is a <code>shell</code>.(Citation: GitHub)\\n\\nIt **is**.")
    'Empire is a shell. It is.'
    """
    text = _LINK.sub(r"\1", _CITED.sub("", text))
    text = html.unescape(_TAG.sub(lambda tag: " " if tag[0][1:3].lower() in ("br", "li") else "", text))
    return " ".join(text.replace("**", "").replace("`", "").split())
