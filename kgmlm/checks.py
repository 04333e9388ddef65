"""What is wrong, odd or leaky about a graph: the report behind ``kgmlm data check``.

Pure functions of a :class:`KnowledgeGraph`; knows no tokenizer and no model.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kgmlm.cards import Counts
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import SPLITS, IntArray, both_sides

LISTED = 100  # examples of what is counted; people are shown five
OVERLAP = 0.8  # share of pairs from which two relations count as inverse or duplicate


def name_groups(names: list[str]) -> IntArray:
    """A group number for each entity: equal names, equal groups."""
    groups: dict[str, int] = {}
    return np.array([groups.setdefault(name, len(groups)) for name in names], np.int64)


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


def _rows(triples: IntArray) -> set[tuple[int, int, int]]:
    return set(map(tuple, triples.tolist()))


def overlaps(graph: KnowledgeGraph) -> dict[str, list[dict[str, Any]]]:
    """Pairs of relations of which one repeats the other's training pairs, forwards or backwards."""
    pairs: dict[int, set[tuple[int, int]]] = {}
    for r in np.unique(graph.splits["train"][:, 1]):
        part = graph.splits["train"][graph.splits["train"][:, 1] == r]
        pairs[int(r)] = set(map(tuple, part[:, [0, 2]].tolist()))
    holders: dict[tuple[int, int], list[int]] = {}
    for r, part_pairs in pairs.items():
        for pair in part_pairs:
            holders.setdefault(pair, []).append(r)
    found: dict[str, list[dict[str, Any]]] = {"inverse": [], "duplicate": []}
    for kind in found:
        shared: Counter[tuple[int, int]] = Counter()
        for (h, t), relations in holders.items():
            for other in holders.get((t, h) if kind == "inverse" else (h, t), []):
                shared.update((r, other) for r in relations if r <= other)
        for (r, other), count in sorted(shared.items()):
            if r == other and kind == "duplicate":
                continue
            share = count / min(len(pairs[r]), len(pairs[other]))
            if share >= OVERLAP and count > 1:
                names = [graph.relations[i].label for i in (r, other)]
                found[kind].append({"relations": names, "pairs": count, "share": round(share, 3)})
    return found


def leakage(graph: KnowledgeGraph) -> dict[str, dict[str, int]]:
    """How many triples of the other splits training already has, in the same or another wording.

    ``mirrored``: training has (t, r, h) under the same relation. ``inverse``: training has (t, r', h) for
    another relation. ``parallel``: training has (h, r', t) for another relation.
    """
    train = graph.splits["train"]
    by_pair: dict[tuple[int, int], set[int]] = {}
    for h, r, t in train.tolist():
        by_pair.setdefault((h, t), set()).add(r)
    report = {}
    for split in ("valid", "test"):
        if split not in graph.splits:
            continue
        counts = {"mirrored": 0, "inverse": 0, "parallel": 0}
        for h, r, t in graph.splits[split].tolist():
            back, forth = by_pair.get((t, h), set()), by_pair.get((h, t), set())
            counts["mirrored"] += r in back and h != t
            counts["inverse"] += bool(back - {r})
            counts["parallel"] += bool(forth - {r})
        report[split] = counts
    return report


def _list(found: list[Any], count: int | None = None) -> dict[str, Any]:
    return {"count": len(found) if count is None else count, "examples": found[:LISTED]}


def _twins(groups: Iterable[Iterable[str]], key: Callable[[str], str]) -> list[list[str]]:
    """Different texts of the same group that have the same key, each set of them once, in order."""
    found: dict[tuple[str, ...], None] = {}
    for texts in groups:
        by_key: dict[str, set[str]] = {}
        for text in texts:
            by_key.setdefault(key(text), set()).add(text)
        found |= dict.fromkeys(tuple(sorted(same)) for same in by_key.values() if len(same) > 1)
    return [list(same) for same in found]


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def listed(graph: KnowledgeGraph) -> dict[str, dict[str, Any]]:
    """What is odd, by name: how many, and examples.

    ``unseen`` entities; ``shared_names`` (surfaces that several entities have); labels or names that differ
    by their Unicode form (``unicode_twins``) or by case (``case_twins``) alone; labels with ``blanks`` at an
    end; ``self_loops``, by relation.
    """
    labels, surfaces = (graph.entities.column(c) for c in ("label", "surface"))
    relations = [r.label for r in graph.relations]
    texts = (labels, surfaces, relations)
    named: dict[str, list[str]] = {}
    for label, surface in zip(labels, surfaces, strict=True):
        named.setdefault(surface, []).append(label)
    shared = [{"name": name, "entities": same[:LISTED]} for name, same in named.items() if len(same) > 1]
    unicode_twins = _twins(texts, _nfc)
    case_twins = _twins((dict.fromkeys(map(_nfc, part)) for part in texts), str.casefold)
    loops = graph.all_triples[graph.all_triples[:, 0] == graph.all_triples[:, 2]]
    by_relation = []
    for relation in np.unique(loops[:, 1]):
        part = loops[loops[:, 1] == relation]
        (example,) = graph.labeled(part[:1])
        by_relation.append({"relation": relations[relation], "count": len(part), "example": list(example)})
    by_relation.sort(key=lambda row: -int(row["count"]))
    return {
        "unseen": _list([labels[i] for i in np.flatnonzero(~graph.seen_N)]),
        "shared_names": _list(shared, sum(len(same) for same in named.values() if len(same) > 1)),
        "unicode_twins": _list(unicode_twins, sum(map(len, unicode_twins))),
        "case_twins": _list(case_twins, sum(map(len, case_twins))),
        "blanks": _list([x for x in (*labels, *relations) if x != x.strip()]),
        "self_loops": _list(by_relation, len(loops)),
    }


def about_types(graph: KnowledgeGraph) -> dict[str, int] | None:
    """How many entities have types in the table of entities, seen in training or not, and how many types
    there are; None without any.
    """
    if (types := graph.entities.types) is None:
        return None
    typed_N = np.array([bool(x) for x in types], np.bool_)
    return {
        "entities": int(typed_N.sum()),
        "unseen": int((typed_N & ~graph.seen_N).sum()),
        "types": len({t for of_entity in types for t in of_entity}),
    }


def check_graph(graph: KnowledgeGraph, expected: Counts | None = None) -> dict[str, Any]:
    """Everything that ``kgmlm data check`` reports, as one JSON-ready object.

    Args:
        expected: the card's counts; differences come back under ``mismatches``.
    """
    unseen = int((~graph.seen_N).sum())
    groups = {
        kind: name_groups(names)
        for kind, names in (
            ("bare", graph.entities.column("name")),
            ("surface", graph.entities.column("surface")),
        )
    }
    rank_split = next(s for s in ("test", "valid", "train") if s in graph.splits)
    rows = {split: _rows(triples) for split, triples in graph.splits.items()}
    names = graph.entities.column("surface")
    report: dict[str, Any] = {
        "dataset": graph.name,
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "triples": {split: len(triples) for split, triples in graph.splits.items()},
        "unseen": unseen,
        "unseen_triples": {
            split: int((~graph.seen_N[triples[:, [0, 2]]]).any(1).sum())
            for split, triples in graph.splits.items()
            if split != "train"
        },
        "duplicates": {split: len(t) - len(rows[split]) for split, t in graph.splits.items()},
        "shared": {
            f"{a}+{b}": len(rows[a] & rows[b])
            for i, a in enumerate(SPLITS)
            for b in SPLITS[i + 1 :]
            if a in rows and b in rows
        },
        "leakage": leakage(graph),
        "overlapping_relations": overlaps(graph),
        "collisions": {k: int((np.bincount(g)[g] > 1).sum()) for k, g in groups.items()},
        "ceiling": {"split": rank_split, **{k: ceiling(graph, g, rank_split) for k, g in groups.items()}},
        "without_name": graph.entities.unnamed,
        "without_description": sum(not d for d in graph.entities.column("description")),
        "types": about_types(graph),
        "longest_names": sorted(names, key=lambda n: (-len(n.split()), n))[:5],
        "listed": listed(graph),
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


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:,}" for k, v in values.items()) or "none"


def _listed(items: list[str], most: int = 5) -> list[str]:
    more = [f"and {len(items) - most:,} more"] if len(items) > most else []
    return [*items[:most], *more] or ["none"]


def _examples(found: dict[str, Any], say: Callable[[Any], str], of: int | None = None) -> list[str]:
    """A line with the first of what is counted, none where nothing is."""
    shown = [say(x) for x in found["examples"][:5]]
    more = len(found["examples"]) - len(shown)
    rest = [f"and {of - len(shown):,} more" if of is not None else "and others"] if more > 0 else []
    return [f"such as {', '.join([*shown, *rest])}"] if shown else []


def lines_of(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """The report of :func:`check_graph` as people read it: lines, by heading."""
    top, odd = report["ceiling"], report["listed"]
    shared = _examples(
        odd["shared_names"], lambda x: f"'{x['name']}' ({', '.join(_listed(x['entities'], 3))})"
    )
    lines: dict[str, list[str]] = {
        "entities": [
            f"{report['entities']:,}, of which {report['unseen']:,} occur in no training triple",
            *_examples(odd["unseen"], str, odd["unseen"]["count"]),
        ],
        "relations": [f"{report['relations']:,}"],
        "triples": [_pairs(report["triples"])],
        "with an unseen entity": [_pairs(report["unseen_triples"])],
        "duplicate triples": [_pairs(report["duplicates"])],
        "shared between splits": [_pairs(report["shared"])],
        "entities named by their label": [f"{report['without_name']:,}"],
        "entities without a description": [f"{report['without_description']:,}"],
        **(
            {}
            if report["types"] is None
            else {
                "entities with types": [
                    f"{report['types']['entities']:,}, of which {report['types']['unseen']:,} are unseen; "
                    f"{report['types']['types']:,} types"
                ]
            }
        ),
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
                [f"{' / '.join(o['relations'])} ({o['pairs']:,} pairs, {o['share']:.0%})" for o in found]
            )
            for kind, found in report["overlapping_relations"].items()
        },
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
