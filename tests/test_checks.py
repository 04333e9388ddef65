from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from kgmlm.building import TextColumns, build_graph
from kgmlm.cards import read_card
from kgmlm.checks import ceiling, check_graph, lines_of, name_groups
from kgmlm.graph import KnowledgeGraph
from kgmlm.jobs.data import check_tokens
from kgmlm.kg import EntityTable, both_sides
from kgmlm.tokenization import SpanTokenizer

Real = Callable[[str], KnowledgeGraph]


def test_the_toy_graph_is_what_it_was_made_to_be(toy: KnowledgeGraph) -> None:
    report = check_graph(toy, read_card("toy").counts)
    assert report["unseen"] == 3
    assert report["collisions"] == {"bare": 2, "surface": 2}
    assert report["unseen_triples"] == {"valid": 0, "test": 4}
    assert report["mismatches"] == {}


def test_the_ceiling_is_the_one_of_counting_by_hand(toy: KnowledgeGraph) -> None:
    groups = name_groups(toy.entities.column("name"))
    known = set(map(tuple, toy.all_triples.tolist()))
    total = 0.0
    queries, answers = both_sides(toy.splits["test"])
    for query, answer in zip(queries, answers, strict=True):
        ties = 0
        for other in range(len(toy.entities)):
            triple = (
                (query.entity, query.relation, other)
                if query.target == "tail"
                else (other, query.relation, query.entity)
            )
            ties += other != answer and groups[other] == groups[answer] and triple not in known
        total += 1 / (1 + ties / 2)
    assert ceiling(toy, groups, "test")["mrr"] == pytest.approx(total / len(queries))


@pytest.mark.slow
def test_wn18rr_facts(real: Real) -> None:
    report = check_graph(real("wn18rr"))
    assert report["unseen"] == 384
    assert report["unseen_triples"] == {"valid": 210, "test": 210}
    assert report["collisions"] == {"bare": 12873, "surface": 0}
    assert round(report["ceiling"]["bare"]["mrr"], 3) == 0.800
    assert round(report["ceiling"]["bare"]["hits_at_1"], 3) == 0.616
    assert report["leakage"]["test"]["mirrored"] == 1086


@pytest.mark.slow
def test_fb15k237_facts(real: Real) -> None:
    report = check_graph(real("fb15k237"))
    assert report["collisions"]["bare"] == 499
    assert report["leakage"]["test"]["mirrored"] == 0
    assert report["unseen_triples"] == {"valid": 9, "test": 28}


def test_what_is_odd_is_found() -> None:
    rows = [
        ["a", "likes", "b"],
        ["a", "likes", "b"],
        ["c", "likes", "d"],
        ["b", "liked_by", "a"],
        ["d", "liked_by", "c"],
    ]
    graph = build_graph(
        "odd",
        {"train": rows, "test": [["a", "likes", "b"], ["d", "likes", "c"], ["x", "likes", "a"]]},
        TextColumns(names={"a": "Ann", "b": "Ann"}),
    )
    report = check_graph(graph)
    assert report["duplicates"] == {"train": 1, "test": 0}
    assert report["shared"] == {"train+test": 1}
    assert report["leakage"]["test"] == {"mirrored": 1, "inverse": 1, "parallel": 1}
    assert report["overlapping_relations"]["inverse"] == [
        {"relations": ["liked_by", "likes"], "pairs": 2, "share": 1.0}
    ]
    assert report["unseen"] == 1
    assert report["without_name"] == 3
    assert EntityTable(["old_oak", "b", "c"], ["old oak", "Ann", "c"]).unnamed == 2
    assert "mismatches" not in report


def test_what_is_counted_is_listed() -> None:
    rows = [
        ["caf\u00e9", "likes", "b"],
        ["cafe\u0301", "likes", "Bob"],
        ["bob", "Likes", "bob"],
        [" a ", "likes", "bob"],
        *(["b", "knows", f"e{i}"] for i in range(9)),
    ]
    graph = build_graph(
        "odd",
        {"train": rows, "test": [["new", "likes", "b"], ["b", "knows", "b"]]},
        TextColumns(names={"b": "Bee", "e1": "Bee", "e2": "bee", "e3": "Z"}),
    )
    found = check_graph(graph)["listed"]
    assert found["unseen"] == {"count": 1, "examples": ["new"]}
    assert found["shared_names"] == {"count": 2, "examples": [{"name": "Bee", "entities": ["b", "e1"]}]}
    assert found["unicode_twins"] == {"count": 2, "examples": [["cafe\u0301", "caf\u00e9"]]}
    assert found["case_twins"]["examples"] == [["Bob", "bob"], ["Bee", "bee"], ["Likes", "likes"]]
    assert found["case_twins"]["count"] == 6
    assert found["blanks"] == {"count": 1, "examples": [" a "]}
    assert found["self_loops"]["count"] == 2
    assert found["self_loops"]["examples"] == [
        {"relation": "Likes", "count": 1, "example": ["bob", "Likes", "bob"]},
        {"relation": "knows", "count": 1, "example": ["b", "knows", "b"]},
    ]
    printed = str(lines_of(check_graph(graph)))
    for text in ("such as new", "'Bee' (b, e1)", "' a '", "'Bob' and 'bob'", "Likes 1 (bob)"):
        assert text in printed


def test_lists_end_with_examples_for_people_and_are_longer_in_json() -> None:
    rows = [["a", "r", "b"]]
    graph = build_graph("new", {"train": rows, "test": [[f"e{i:03}", "r", "b"] for i in range(120)]})
    report = check_graph(graph)
    assert report["listed"]["unseen"]["count"] == 120
    assert len(report["listed"]["unseen"]["examples"]) == 100
    assert "such as e000, e001, e002, e003, e004, and 115 more" in lines_of(report)["entities"]


def test_long_lists_for_people_end_in_a_count(toy: KnowledgeGraph) -> None:
    report = check_graph(toy)
    report["overlapping_relations"]["inverse"] = [
        {"relations": ["a", f"b{i}"], "pairs": 10, "share": 0.9} for i in range(9)
    ]
    lines = lines_of(report)["inverse relations"]
    assert lines[4:] == ["a / b4 (10 pairs, 90%)", "and 4 more"]


def test_what_the_model_lacks_and_what_sets_the_span_are_said(toy_tokenizer: SpanTokenizer) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "|", "paris", "new"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), words, strict=False)
    )
    tokenizer = SpanTokenizer(PreTrainedTokenizerFast(tokenizer_object=core, **special))
    names = ["paris", "new paris", "\u6771 paris", "new new paris"]
    graph = build_graph("x", {"train": [(a, "r", b) for a, b in pairwise(names)]})
    report = check_graph(graph) | {"name_tokens": check_tokens(graph, tokenizer)}
    tokens = report["name_tokens"]
    assert tokens["unknown"] == {"count": 1, "examples": ["\u6771 paris"]}
    assert tokens["span"] == {"tokens": 3, "name": "new new paris"}
    assert tokens["max"] == 3
    lines = lines_of(report)
    assert lines["names with unknown tokens"] == ["1", "such as '\u6771 paris'"]
    assert lines["tokens of the span"] == ["3, for 'new new paris'"]
    own = check_tokens(graph, toy_tokenizer)
    assert own["unknown"]["count"] == 0, "byte-level tokenizers lack nothing"
