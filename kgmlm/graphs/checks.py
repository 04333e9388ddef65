"""Checks of a graph, for errors, oddities and leaks: the report of ``kgmlm data check``.

Pure functions of a :class:`KnowledgeGraph`; knows no tokenizer and no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.graphs.cards import Counts
from kgmlm.graphs.entities import TYPES, by_python, split_cell
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import SPLITS, both_sides, distinct_triples, repeated

LISTED = 100  # examples of what is counted; people are shown five
OVERLAP = 0.8  # share of pairs from which two relations count as inverse or duplicate


def name_groups(names: pa.ChunkedArray) -> IntArray:
    """A group number for each entity, in order of first occurrence: equal names, equal groups."""
    if not len(names):
        return np.zeros(0, np.int64)
    groups: IntArray = names.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return groups


def ceiling(graph: KnowledgeGraph, groups_N: IntArray, split: str) -> dict[str, float]:
    """Best filtered both-side realistic MRR and Hits@1 for a scorer that sees only the group of an entity.

    Everything else is taken as perfect: an answer ties with the entities of its group that are not
    themselves known answers.
    """
    queries, answers = both_sides(graph.splits[split])
    sizes = np.bincount(groups_N)
    ties_B = sizes[groups_N[answers]] - 1
    rows, known = graph.filter_index.lookup(queries)
    same = (groups_N[known] == groups_N[answers[rows]]) & (known != answers[rows])
    ties_B = ties_B - np.bincount(rows[same], minlength=len(queries))
    ranks = 1 + ties_B / 2
    return {"mrr": float((1 / ranks).mean()), "hits_at_1": float((ranks <= 1).mean())}


class _Pairs:
    """The training triples by their (head, tail) pairs: P distinct pairs, and the relations of each.

    Attributes:
        pairs_P: distinct pairs, as integers, sorted.
        first: where the relations of each begin; one longer.
        relation_T: relations of distinct triples, by pair.
    """

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.entities, self.relations = len(graph.entities), max(1, len(graph.relations))
        triples = distinct_triples(graph.splits["train"])
        self.pairs_P, pair_T = np.unique(self.of(triples[:, 0], triples[:, 2]), return_inverse=True)
        self.keys_T = np.sort(pair_T * self.relations + triples[:, 1])
        pair_T, self.relation_T = np.divmod(self.keys_T, self.relations)
        self.first = np.concatenate([[0], np.cumsum(np.bincount(pair_T, minlength=len(self.pairs_P)))])
        self.head_T, self.tail_T = np.divmod(self.pairs_P[pair_T], max(1, self.entities))

    def of(self, heads: IntArray, tails: IntArray) -> IntArray:
        """Pairs as integers."""
        return heads * self.entities + tails

    def held(self, heads: IntArray, tails: IntArray) -> tuple[IntArray, IntArray]:
        """Return how many training relations each pair has, and where they begin in ``relation_T``."""
        if not len(self.pairs_P):
            return np.zeros_like(heads), np.zeros_like(heads)
        wanted = self.of(heads, tails)
        at = np.minimum(np.searchsorted(self.pairs_P, wanted), len(self.pairs_P) - 1)
        return np.where(self.pairs_P[at] == wanted, np.diff(self.first)[at], 0), self.first[at]

    def has(self, heads: IntArray, relations: IntArray, tails: IntArray) -> BoolArray:
        """Return which of some triples training has."""
        if not len(self.pairs_P):
            return np.zeros(len(heads), np.bool_)
        wanted = self.of(heads, tails)
        at = np.minimum(np.searchsorted(self.pairs_P, wanted), len(self.pairs_P) - 1)
        keys = at * self.relations + relations
        mask = self.keys_T[np.minimum(np.searchsorted(self.keys_T, keys), len(self.keys_T) - 1)] == keys
        mask_at: BoolArray = (self.pairs_P[at] == wanted) & mask
        return mask_at

    def shared(self, *, inverse: bool) -> tuple[IntArray, IntArray, IntArray]:
        """Relations ``r <= s``, and how many (head, tail) pairs of r are pairs of s (inverse: swapped).

        For a relation and itself, only swapped pairs count.
        """
        heads, tails = (self.tail_T, self.head_T) if inverse else (self.head_T, self.tail_T)
        counts, first = self.held(heads, tails)
        rows = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        r, s = self.relation_T[rows], self.relation_T[first[rows] + within]
        kept = r <= s if inverse else r < s
        keys, count_of_pairs = np.unique(r[kept] * self.relations + s[kept], return_counts=True)
        return *np.divmod(keys, self.relations), count_of_pairs


def overlaps(graph: KnowledgeGraph, pairs: _Pairs) -> dict[str, list[dict[str, Any]]]:
    """Pairs of relations of which one repeats the other's training pairs, forwards or backwards."""
    overlaps: dict[str, list[dict[str, Any]]] = {"inverse": [], "duplicate": []}
    sizes = np.bincount(pairs.relation_T, minlength=len(graph.relations))
    for kind, rows in overlaps.items():
        for r, other, count in zip(*pairs.shared(inverse=kind == "inverse"), strict=True):
            share = count / min(sizes[r], sizes[other])
            if share >= OVERLAP and count > 1:
                names = [graph.relations[i].label for i in (r, other)]
                rows.append({"relations": names, "pairs": int(count), "share": round(float(share), 3)})
    return overlaps


def leakage(graph: KnowledgeGraph, pairs: _Pairs) -> dict[str, dict[str, int]]:
    """Return how many triples of the other splits training already has, in the same or another wording.

    ``mirrored``: training has (t, r, h) under the same relation. ``inverse``: training has (t, r', h) for
    another relation. ``parallel``: training has (h, r', t) for another relation.
    """
    report = {}
    for split in (s for s in SPLITS[1:] if s in graph.splits):
        h, r, t = graph.splits[split].T
        back, forth = pairs.has(t, r, h), pairs.has(h, r, t)
        report[split] = {
            "mirrored": int((back & (h != t)).sum()),
            "inverse": int((pairs.held(t, h)[0] > back).sum()),
            "parallel": int((pairs.held(h, t)[0] > forth).sum()),
        }
    return report


def _list(items: list[Any], count: int | None = None) -> dict[str, Any]:
    return {"count": len(items) if count is None else count, "examples": items[:LISTED]}


def _twins(groups: Iterable[pa.Array], key: Callable[[pa.Array], pa.Array]) -> list[list[str]]:
    """Different texts of the same group that have the same key, each set of them once, in order."""
    same_ends: dict[tuple[str, ...], None] = {}
    for texts in groups:
        codes = name_groups(pa.chunked_array([key(texts)]))
        twins = np.flatnonzero((np.bincount(codes) > 1)[codes]) if len(codes) else codes
        same: dict[int, list[str]] = {}
        for code, text in zip(codes[twins].tolist(), texts.take(pa.array(twins)).to_pylist(), strict=True):
            same.setdefault(code, []).append(text)
        same_ends |= dict.fromkeys(tuple(sorted(of_key)) for of_key in same.values())
    return [list(same) for same in same_ends]


def _nfc(texts: pa.Array) -> pa.Array:
    return pc.utf8_normalize(texts, "NFC")


def _casefolded(texts: pa.Array) -> pa.Array:
    """ASCII by Arrow, the rest by Python, which knows more of case."""
    return by_python(pc.ascii_lower(texts), texts, pc.invert(pc.string_is_ascii(texts)), str.casefold)


def _with_blanks(texts: pa.ChunkedArray) -> list[str]:
    """Return the labels that begin or end with a blank."""
    odd = texts.filter(pc.match_substring_regex(texts, "^[^!-~]|[^!-~]$"))
    return [x for batch in odd.chunks for x in batch.to_pylist() if x != x.strip()]


def _shared_names(labels: pa.ChunkedArray, groups_N: IntArray, surfaces: pa.ChunkedArray) -> dict[str, Any]:
    """Surfaces that several entities have."""
    counts = np.bincount(groups_N)
    order = np.argsort(groups_N, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])
    examples = []
    for group in np.flatnonzero(counts > 1)[:LISTED]:
        rows = order[first[group] : first[group] + min(LISTED, counts[group])]
        same = labels.take(pa.array(rows)).to_pylist()
        examples.append({"name": surfaces[int(rows[0])].as_py(), "entities": same})
    return _list(examples, int(counts[counts > 1].sum()))


def listed(graph: KnowledgeGraph, surface_groups_N: IntArray) -> dict[str, dict[str, Any]]:
    """The oddities of a graph, by name: how many, and examples.

    ``unseen`` entities; ``shared_names`` (surfaces that several entities have); labels or names that differ
    by their Unicode form (``unicode_twins``) or by case (``case_twins``) alone; labels with ``blanks`` at an
    end; ``self_loops``, by relation.
    """
    labels, surfaces = (graph.entities.table.column(c) for c in ("label", "surface"))
    relations = [r.label for r in graph.relations]
    relation_labels = pa.chunked_array([pa.array(relations, pa.large_string())])
    texts = [column.unique() for column in (labels, surfaces, relation_labels)]
    unicode_twins = _twins(texts, _nfc)
    case_twins = _twins((_nfc(part).unique() for part in texts), _casefolded)
    loops = graph.all_triples[graph.all_triples[:, 0] == graph.all_triples[:, 2]]
    by_relation = []
    for relation in np.unique(loops[:, 1]):
        part = loops[loops[:, 1] == relation]
        (example,) = graph.labeled(part[:1])
        by_relation.append({"relation": relations[relation], "count": len(part), "example": list(example)})
    by_relation.sort(key=lambda row: -int(row["count"]))
    unseen = np.flatnonzero(~graph.seen_N)
    return {
        "unseen": _list(labels.take(pa.array(unseen[:LISTED])).to_pylist(), len(unseen)),
        "shared_names": _shared_names(labels, surface_groups_N, surfaces),
        "unicode_twins": _list(unicode_twins, sum(map(len, unicode_twins))),
        "case_twins": _list(case_twins, sum(map(len, case_twins))),
        "blanks": _list([*_with_blanks(labels), *_with_blanks(relation_labels)]),
        "self_loops": _list(by_relation, len(loops)),
    }


def about_types(graph: KnowledgeGraph) -> dict[str, int] | None:
    """Return how many entities have types in the table of entities, seen in training or not, and how many
    types there are; None without any.
    """
    if TYPES not in graph.entities.columns:
        return None
    cells = graph.entities.table.column(TYPES).combine_chunks().dictionary_encode()
    types = [split_cell(cell) for cell in cells.dictionary.to_pylist()]
    typed_N = np.array([bool(x) for x in types], np.bool_)[cells.indices.to_numpy()]
    return {
        "entities": int(typed_N.sum()),
        "unseen": int((typed_N & ~graph.seen_N).sum()),
        "types": len({t for of_entity in types for t in of_entity}),
    }


def _longest(names: pa.ChunkedArray, count: int = 5) -> list[str]:
    """The names of the most words."""
    table = pa.table({"words": pc.count_substring_regex(names, r"\S+"), "name": names})
    keys = [("words", "descending"), ("name", "ascending")]
    longest: list[str] = table.take(pc.select_k_unstable(table, count, keys)).column("name").to_pylist()
    return longest


def _unseen_relations(graph: KnowledgeGraph) -> IntArray:
    """The relations that no training triple has."""
    return np.flatnonzero(np.bincount(graph.splits["train"][:, 1], minlength=len(graph.relations)) == 0)


def _contradicted(graph: KnowledgeGraph) -> dict[str, int]:
    """Return how many false triples of each split are true in some split."""
    if not graph.negatives:
        return {}
    true = distinct_triples(graph.all_triples)
    return {
        split: repeated(np.concatenate([true, distinct_triples(false)]))
        for split, false in graph.negatives.items()
    }


def odd_columns(graph: KnowledgeGraph) -> str:
    """Ask about triples whose columns seem to be in another order than head, relation, tail; empty if not.

    The two columns of entities share more labels than either shares with the column of relations, and a graph
    has fewer relations than entities.
    """
    heads, relations, tails = (np.unique(column) for column in graph.splits["train"].T)
    named = pa.array([graph.relations[r].label for r in relations.tolist()], pa.string())
    known = pc.index_in(named, value_set=graph.entities.table.column("label").cast(pa.string()))
    both = known.drop_null().to_numpy()  # entities that are relations, too
    shared = len(np.intersect1d(heads, tails))
    entities = len(heads) + len(tails) - shared
    order = ""
    if np.isin(both, heads).sum() > shared and len(relations) > len(tails):
        order = "head, tail, relation"
    elif np.isin(both, tails).sum() > shared and len(relations) > len(heads):
        order = "relation, head, tail"
    elif not shared and len(relations) > len(tails) and 2 * len(relations) >= entities:
        order = "another order"
    if not order:
        return ""
    return (
        f"there are {len(relations):,} relations for {entities:,} entities: are the columns of the triples "
        f"{order}? They must be head, relation, tail"
    )


def _unread(name: str, remedy: str) -> str:
    return f"{name}: {remedy}" if remedy else name


def _named_by_iri(graph: KnowledgeGraph) -> int:
    """Count the entities whose name is the end of their IRI, as for those without a name of their own."""
    labels, names = (graph.entities.table.column(column) for column in ("label", "name"))
    iris = pc.match_substring(labels, "://")
    count = 0
    for label, name in zip(labels.filter(iris).to_pylist(), names.filter(iris).to_pylist(), strict=True):
        ends = (re.sub(r"[\s_#]", "", unquote(text)) for text in (label.rstrip("/#"), name))
        whole, end = ends
        at = len(whole) - len(end)
        page = re.sub(r"#(me|this|about|id|it|i)$", "", label.rstrip("/#"))
        count += (whole.endswith(end) and at > 0) or re.split("[/#]", page)[-1] == name
    return count


def _nameless_blank_nodes(graph: KnowledgeGraph) -> int:
    """Count the blank nodes of RDF that have no name but their label, such as ``_:b1``."""
    labels, names = (graph.entities.table.column(name) for name in ("label", "name"))
    blank = pc.or_(pc.starts_with(labels, "_:"), pc.match_substring(labels, "/.well-known/genid/"))
    last = pc.replace_substring_regex(labels, r"^_:|^.*/", "")
    return int(pc.sum(pc.and_(blank, pc.or_(pc.equal(names, last), pc.equal(names, labels)))).as_py() or 0)


def check_graph(graph: KnowledgeGraph, expected: Counts | None = None) -> dict[str, Any]:
    """Everything that ``kgmlm data check`` reports, as one JSON-ready object.

    Args:
        expected: the card's counts; differences come back under ``mismatches``.
    """
    unseen = int((~graph.seen_N).sum())
    groups = {
        kind: name_groups(names)
        for kind, names in (
            ("bare", graph.entities.table.column("name")),
            ("surface", graph.entities.table.column("surface")),
        )
    }
    rank_split = next((s for s in ("test", "valid") if graph.has(s)), "train")
    distinct = {split: distinct_triples(triples) for split, triples in graph.splits.items()}
    pairs = _Pairs(graph)
    report: dict[str, Any] = {
        "dataset": graph.name,
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "triples": {split: len(triples) for split, triples in graph.splits.items()},
        "unseen": unseen,
        "unseen_relations": [graph.relations[r].label for r in _unseen_relations(graph)],
        "unseen_triples": {
            split: int((~graph.seen_N[triples[:, [0, 2]]]).any(1).sum())
            for split, triples in graph.splits.items()
            if split != "train"
        },
        "false": {split: len(triples) for split, triples in graph.negatives.items()},
        "false_and_true": _contradicted(graph),
        "duplicates": {split: len(t) - len(distinct[split]) for split, t in graph.splits.items()},
        "shared": {
            f"{a}+{b}": repeated(np.concatenate([distinct[a], distinct[b]]))
            for i, a in enumerate(SPLITS)
            for b in SPLITS[i + 1 :]
            if a in distinct and b in distinct
        },
        "leakage": leakage(graph, pairs),
        "linked": linked(graph, pairs),
        "overlapping_relations": overlaps(graph, pairs),
        "collisions": {k: int((np.bincount(g)[g] > 1).sum()) for k, g in groups.items()},
        "ceiling": {"split": rank_split, **{k: ceiling(graph, g, rank_split) for k, g in groups.items()}},
        "without_name": graph.entities.unnamed,
        "named_by_iri": _named_by_iri(graph),
        "columns": odd_columns(graph),
        "nameless_blank_nodes": _nameless_blank_nodes(graph),
        "without_description": graph.entities.undescribed,
        "types": about_types(graph),
        "longest_names": _longest(graph.entities.table.column("surface")),
        "listed": listed(graph, groups["surface"]),
        "notes": dict(graph.notes),
    }
    if expected is not None:
        actual = {
            "entities": report["entities"], "relations": report["relations"], "unseen": unseen,
            **{s: report["triples"].get(s, 0) for s in SPLITS},
        }  # fmt: skip
        wanted = expected.model_dump()
        report["mismatches"] = {
            k: {"card": wanted[k], "found": actual[k]} for k in wanted if wanted[k] != actual[k]
        }
    return report


def linked(graph: KnowledgeGraph, pairs: _Pairs) -> dict[str, int]:
    """Return how many triples of each split link two entities that another training triple links, by any
    relation in either direction; self-loops are left out.
    """
    shares = {}
    for split, triples in graph.splits.items():
        h, r, t = triples[triples[:, 0] != triples[:, 2]].T
        others = pairs.held(h, t)[0] + pairs.held(t, h)[0] - pairs.has(h, r, t)
        shares[split] = int((others > 0).sum())
    return shares


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:,}" for k, v in values.items()) or "none"


def _listed(items: list[str], most: int = 5) -> list[str]:
    more = [f"and {len(items) - most:,} more"] if len(items) > most else []
    return [*items[:most], *more] or ["none"]


def _examples(listed: dict[str, Any], say: Callable[[Any], str], of: int | None = None) -> list[str]:
    """A line with the first of what is counted, none where nothing is."""
    shown = [say(x) for x in listed["examples"][:5]]
    more = len(listed["examples"]) - len(shown)
    rest = [f"and {of - len(shown):,} more" if of is not None else "and others"] if more > 0 else []
    return [f"such as {', '.join([*shown, *rest])}"] if shown else []


def _about_false(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Lines on false triples, where there are any."""
    if not report["false"]:
        return {}
    about = {"false triples": report["false"], "of these, true in some split": report["false_and_true"]}
    return {what: [_pairs(counts)] for what, counts in about.items()}


def _about_types(types: Mapping[str, int] | None) -> dict[str, list[str]]:
    """A line on types, where there are any."""
    if types is None:
        return {}
    seen = f"{types['entities']:,}, of which {types['unseen']:,} are unseen; {types['types']:,} types"
    return {"entities with types": [seen]}


def _about_linked(report: Mapping[str, Any]) -> str:
    """Shares of triples whose entities another training triple links."""
    shares = ((s, report["linked"][s] / max(1, n)) for s, n in report["triples"].items() if n)
    return ", ".join(f"{split} {share:.1%}" for split, share in shares) or "none"


def lines_of(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """The report of :func:`check_graph` as people read it: lines, by heading."""
    top, odd, new = report["ceiling"], report["listed"], report["unseen_relations"]
    nameless, unread = report["nameless_blank_nodes"], report.get("unread", {})
    shared = _examples(
        odd["shared_names"], lambda x: f"'{x['name']}' ({', '.join(_listed(x['entities'], 3))})"
    )
    lines: dict[str, list[str]] = {
        "entities": [
            f"{report['entities']:,}, of which {report['unseen']:,} occur in no training triple",
            *_examples(odd["unseen"], str, odd["unseen"]["count"]),
        ],
        "relations": [
            f"{report['relations']:,}, of which {len(new):,} occur in no training triple",
            *([f"such as {', '.join(_listed(new))}"] if new else []),
        ],
        "triples": [_pairs(report["triples"]), *([report["columns"]] if report["columns"] else [])],
        "with an unseen entity": [_pairs(report["unseen_triples"])],
        **_about_false(report),
        "duplicate triples": [_pairs(report["duplicates"])],
        "shared between splits": [_pairs(report["shared"])],
        "entities named by their label": [f"{report['without_name']:,}"],
        **({"names that are the end of an IRI": [f"{named:,}"]} if (named := report["named_by_iri"]) else {}),
        **({"blank nodes without a name": [f"{nameless:,}"]} if nameless else {}),
        **({"not read": [_unread(*x) for x in unread.items()]} if unread else {}),
        "entities without a description": [f"{report['without_description']:,}"],
        **_about_types(report["types"]),
        **{
            f"{kind} names shared": [
                f"{report['collisions'][kind]:,} entities; ceiling on {top['split']} "
                f"MRR {top[kind]['mrr']:.4f}, Hits@1 {top[kind]['hits_at_1']:.4f}",
                *(shared if kind == "surface" else []),
            ]
            for kind in ("bare", "surface")
        },
        **{
            what: [
                f"{odd[kind]['count']:,}",
                *_examples(odd[kind], lambda same: " and ".join(map(repr, same))),
            ]
            for what, kind in (
                ("alike but for Unicode form", "unicode_twins"),
                ("alike but for case", "case_twins"),
            )
        },
        "labels with blanks at an end": [f"{odd['blanks']['count']:,}", *_examples(odd["blanks"], repr)],
        "self-loops": [
            f"{odd['self_loops']['count']:,}",
            *_examples(odd["self_loops"], lambda x: f"{x['relation']} {x['count']:,} ({x['example'][0]})"),
        ],
        **{f"{split} triples in training": [_pairs(counts)] for split, counts in report["leakage"].items()},
        **{
            f"{kind} relations": _listed(
                [f"{' / '.join(o['relations'])} ({o['pairs']:,} pairs, {o['share']:.0%})" for o in pairs]
            )
            for kind, pairs in report["overlapping_relations"].items()
        },
        "triples of linked pairs": [_about_linked(report)],
        "longest names": _listed(report["longest_names"][:3]),
    }
    if "name_tokens" in report:
        tokens = report["name_tokens"]
        lines["tokens per name"] = [
            f"mean {tokens['mean']:.2f}, at most {tokens['max']} ({tokens['longest'][0]['name']})"
        ]
        sets = tokens["span"]["name"]
        what = "" if sets is None else f", for '{sets}'"
        lines["tokens of the span"] = [f"{tokens['span']['tokens']}{what}"]
        lines["names with unknown tokens"] = [
            f"{tokens['unknown']['count']:,}",
            *_examples(tokens["unknown"], repr, tokens["unknown"]["count"]),
        ]
    if report["notes"]:
        lines["notes"] = [_pairs(report["notes"])]
    if "mismatches" in report:
        lines["against the card"] = ["as expected" if not report["mismatches"] else "DIFFERENT"]
    return lines
