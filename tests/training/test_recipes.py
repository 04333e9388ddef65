"""Recipes: stages and settings by the shape of a graph."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kgmlm.core.config import SAMPLED, Settings
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.training import recipes
from kgmlm.training.recipes import PRESETS, Shape, given_settings, recipe_of


def star(leaves: int) -> KnowledgeGraph:
    """A hub that many are in."""
    rows = [[f"e{i}", "in", "hub"] for i in range(leaves)]
    return build_graph("star", {"train": rows, "valid": rows[:1]}, TextColumns({}, {}))


def test_the_shape_of_a_graph_is_that_of_its_training_triples(toy: KnowledgeGraph) -> None:
    shape = Shape.of(star(9))
    assert (shape.entities, shape.triples, shape.queries) == (10, 9, 10)
    assert (shape.answers, shape.degree, shape.described) == (1.8, 1.0, 0.0)
    assert Shape.of(toy).described == 1.0


def test_hubs_are_asked_as_often_as_they_have_answers() -> None:
    few, many = (recipe_of("quick", graph, False).settings.training for graph in (star(2), star(200)))
    assert many.samples == few.samples == "queries"
    rows = [[f"e{i}", f"r{j}", f"e{(i + k) % 40}"] for i in range(40) for j in range(2) for k in range(1, 8)]
    hubs = recipe_of("quick", build_graph("hubs", {"train": rows}, TextColumns({}, {})), False)
    assert hubs.settings.training.samples == "triples"
    assert hubs.settings.kge.penalty == "triples"
    assert "7.0 answers per distinct query" in hubs.reasons["training.samples"]


REGISTRY = PRESETS


@pytest.mark.parametrize("preset", REGISTRY)
@pytest.mark.parametrize("scratch", [False, True])
def test_every_preset_has_stages_steps_and_reasons(toy: KnowledgeGraph, preset: str, scratch: bool) -> None:
    recipe = recipe_of(preset, toy, scratch)
    text = preset != "quick" or scratch
    assert ("text" in recipe.stages) == text == recipe.settings.trains_text
    assert ("biencoder" in recipe.stages) == (preset != "plain" and not scratch)
    assert ("kge" in recipe.stages) == (preset in ("balanced", "best"))
    assert {"rules", "types"} <= set(recipe.stages) or preset == "plain"
    asked_back = preset in ("best", "zero-shot") or (preset == "quick" and not text)
    assert ("reverse" in recipe.stages) == asked_back, "reading the text of each candidate takes long"
    if preset == "plain":
        assert recipe.settings == Settings()
        return
    assert recipe.settings.vector.enabled == (text and not scratch)
    assert ("kge.penalty" in recipe.reasons) == ("kge" in recipe.stages), "no word of what is not trained"
    assert all(recipe.reasons.values())
    if not text:
        assert (
            recipe.notes()[0]
            == "preset quick: types, then rules, then linked, then mentions, then unseen, then biencoder, "
            "then similar_entities, then similar_answers, then reverse"
        )
        return
    per_epoch = math.ceil(Shape.of(toy).queries / recipe.settings.training.batch_size)
    steps = recipe.settings.training.epochs * per_epoch
    assert steps >= 149, "never fewer steps than it takes"
    more = [
        *(["biencoder", "similar_entities", "similar_answers"] * (not scratch)),
        *(["kge"] * ("kge" in recipe.stages)),
    ]
    signals = ["types", "rules", "linked", "mentions", "unseen", *more]
    assert list(recipe.stages[: len(signals) + 1]) == [*signals, "text"], "the longest comes last"


def test_mentions_need_descriptions_that_name_others() -> None:
    recipe = recipe_of("quick", star(20), False)
    assert "mentions" not in recipe.stages
    assert "  mentions: none: descriptions name the other entity of 0.0% of the triples" in recipe.lines()


@pytest.mark.parametrize("given", [{"training": {"epochs": 2}}, {"vector": {"enabled": True}}])
def test_quick_trains_the_masked_lm_where_that_is_asked_for(given: dict[str, dict[str, Any]]) -> None:
    assert "text" in recipe_of("quick", star(20), False, given).stages
    assert "text" not in recipe_of("quick", star(20), False, {"training": {"seed": 2}}).stages


@pytest.mark.parametrize(("triples", "steps"), [(20, 60), (400, 188), (3000, 176), (60_000, 600)])
def test_the_bi_encoder_has_steps_by_the_triples(triples: int, steps: int) -> None:
    recipe = recipe_of("quick", star(triples), False)
    assert recipe.settings.biencoder.steps == steps
    assert ("maximum" in recipe.reasons["biencoder.steps"]) == (triples == 60_000)
    assert (recipe.settings.biencoder.sampled(triples) > 0) == (triples == 60_000)


def test_of_a_large_graph_a_step_and_a_validation_have_a_sample_and_the_recipe_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = recipe_of("balanced", star(20), False)
    assert (few.settings.training.candidates, few.settings.training.eval_candidates) == ("auto", "auto")
    monkeypatch.setattr(recipes, "ALL", 20)
    many = recipe_of("balanced", star(20), False, {"training": {"eval_candidates": 0}})
    assert (many.settings.training.candidates, many.settings.training.eval_candidates) == (SAMPLED, 0)
    assert many.reasons["training.candidates"].startswith("21 entities: ")
    assert "training.eval_candidates" not in many.reasons, "it was given"


def test_vectors_of_a_large_graph_are_indexed_and_names_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "LARGE", 20)
    vectors = recipe_of("balanced", star(20), False)
    assert vectors.stages[-1] == "index"
    assert vectors.reasons["index"].startswith("vectors of 21 entities: ")
    names = recipe_of("balanced", star(20), False, {"vector": {"enabled": False}})
    assert "index" not in names.stages
    best = recipe_of("best", star(20), False)
    assert "reverse" not in best.stages
    assert best.reasons["reverse"].startswith("none: ")
    assert "index" not in recipe_of("balanced", star(19), False).stages


def test_what_is_given_goes_before_the_recipe_and_its_reason(toy: KnowledgeGraph) -> None:
    recipe = recipe_of("balanced", toy, True, {"training": {"epochs": 2, "seed": 7}})
    assert (recipe.settings.training.epochs, recipe.settings.training.seed) == (2, 7)
    assert "training.epochs" not in recipe.reasons
    assert recipe.settings.text.neighbors == 4
    with pytest.raises(ConfigError, match="presets are quick, balanced, best, zero-shot or plain, not 'x'"):
        recipe_of("x", toy, True)


def test_only_what_is_given_is_given(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[text]\nneighbors = 2\n")
    assert given_settings(file, ["training.epochs=3"]) == {
        "text": {"neighbors": 2},
        "training": {"epochs": 3},
    }
    with pytest.raises(ConfigError, match="unknown key"):
        given_settings(None, ["text.neighbours=3"])


def test_an_epoch_has_a_step_at_least() -> None:
    graph = build_graph("tiny", {"train": [["a", "r", "b"]]})
    recipe = recipe_of("balanced", graph, True)
    assert recipe.settings.training.epochs == 2400
    assert recipe.reasons["training.epochs"].startswith("1 step per epoch; at least 2,400 steps")


def test_quick_scores_in_reverse_where_that_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reverse" in recipe_of("quick", star(20), False).stages
    monkeypatch.setattr("kgmlm.training.recipes.SMALL", 19)
    assert "reverse" not in recipe_of("quick", star(20), False).stages
