"""Trainings that end by the clock: which stages fit, what each gets, what is said of it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import Hears
from trainings import TINY, Validation, arguments, settings

import kgmlm
from kgmlm.core.config import KGESettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import write_record
from kgmlm.signals.kge import KGE
from kgmlm.signals.text_vectors import EncoderSource
from kgmlm.text.encoder import TextEncoder
from kgmlm.training import planner, stages
from kgmlm.training.loop import Timed, TimeLimit, train, validation_steps
from kgmlm.training.planner import Clock, time_report
from kgmlm.training.recipes import GivenSettings, recipe_of
from kgmlm.training.start import start_run

SIMILAR = ("similar_entities", "similar_answers")
SMALL = {key: value for key, value in TINY.items() if key != "preset"}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


@pytest.mark.parametrize(
    ("preset", "minutes", "speed", "expected"),
    [
        (
            "quick",
            1,
            (1e-4, 1e-5),
            {"rules", "types", "linked", "mentions", "unseen", "biencoder", *SIMILAR, "reverse"},
        ),
        (
            "quick",
            0.01,
            (1.0, 0.1),
            {"rules", "types", "linked", "mentions", "unseen", "biencoder", *SIMILAR, "reverse"},
        ),
        (
            "balanced",
            1,
            (1e-4, 1e-9),
            {"text", "kge", "rules", "types", "linked", "mentions", "unseen", "biencoder", *SIMILAR},
        ),
        (
            "balanced",
            1,
            (1e-4, 1e-1),
            {"kge", "rules", "types", "linked", "mentions", "unseen", "biencoder", *SIMILAR},
        ),
        (
            "best",
            1,
            (1e-4, 1e-1),
            {"kge", "rules", "types", "linked", "mentions", "unseen", "biencoder", *SIMILAR, "reverse"},
        ),
    ],
)
def test_a_time_goes_to_the_stages_that_fit_into_it(
    toy: KnowledgeGraph,
    tiny_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    minutes: float,
    speed: tuple[float, float],
    expected: set[str],
) -> None:
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(*speed, 20.0, 16))
    given, watch = GivenSettings.of(None, ["training.precision=fp32"]), Hears()
    recipe = stages.choose_recipe(preset, toy, tiny_encoder, given, minutes, watch)
    assert recipe is not None
    assert set(recipe.stages) == expected
    assert recipe.settings.trains_text == ("text" in expected)
    messages = "\n".join(watch.told)
    assert ("the masked LM is trained from" in messages) == (preset != "quick" and "text" not in expected)
    assert (recipe.text_from is not None) == (preset != "quick" and "text" not in expected)
    assert recipe.seconds == 60 * minutes
    assert set(recipe.timed) == expected - {"types", "linked", "mentions", "unseen", *SIMILAR, "reverse"}


def test_the_masked_lm_has_what_other_stages_do_not_need() -> None:
    stages, shares = ("rules", "biencoder", "kge", "text"), planner.SHARES
    whole = sum(shares[stage] for stage in (*stages, "weights"))
    assert planner._planned("text", 100, stages, {}) == pytest.approx(100 * shares["text"] / whole)
    plenty = {"biencoder": 1000.0, "kge": 1000.0}
    assert planner._planned("text", 100, stages, plenty) == planner._planned("text", 100, stages, {})
    little = {"biencoder": 4.0, "kge": 6.0}
    left = shares["rules"] + shares["text"] + shares["weights"]
    assert planner._planned("text", 100, stages, little) == pytest.approx(90 * shares["text"] / left)
    assert planner._planned("text", 100, stages, {"kge": 6.0}) < planner._planned("text", 100, stages, little)


def test_the_masked_lm_is_trained_where_other_stages_end_early(
    toy: KnowledgeGraph, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # About 40 seconds for the masked LM, which has 30 of a minute by its share.
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(1e-4, 4e-5, 20.0, 16))
    given, took = GivenSettings.of(None, []), {"biencoder": 1.0, "kge": 1.0}
    for useful, trained in ({**took}, True), ({}, False):
        monkeypatch.setattr(planner, "_useful", lambda recipe, graph, width, useful=useful: useful)
        recipe = stages.choose_recipe("balanced", toy, tiny_encoder, given, 1, Hears())
        assert recipe is not None
        assert ("text" in recipe.stages) == trained
        assert (recipe.text_from is None) == trained


def test_a_quarter_of_an_epoch_of_the_masked_lm_has_to_fit(
    toy: KnowledgeGraph, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps of 0.03 s, and 30 seconds for the masked LM: 1,000 steps.
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(1e-6, 2e-5, 20.0, 16))
    monkeypatch.setattr(planner, "_useful", lambda recipe, graph, width: {})
    for epoch, trained in (16, True), (1200, True), (12_000, False):
        monkeypatch.setattr(planner, "steps_per_epoch", lambda *_, epoch=epoch: epoch)
        recipe = stages.choose_recipe("balanced", toy, tiny_encoder, GivenSettings.of(None, []), 1, Hears())
        assert recipe is not None
        assert ("text" in recipe.stages) == trained
        assert (recipe.text_from or 0) > 2 or trained


def test_a_few_steps_tell_how_long_other_stages_take(toy: KnowledgeGraph, tiny_encoder: str) -> None:
    recipe = recipe_of("balanced", toy, False)
    result = planner._useful(recipe, toy, 16)
    assert result.keys() == {"biencoder", "kge"}
    assert all(0 < seconds < float("inf") for seconds in result.values())


@pytest.mark.parametrize(
    ("epoch", "minutes", "given", "large"),
    [
        (60.0, 600, [], True),
        (6000.0, 600, [], False),
        (1.0, 10, [], False),
        (60.0, 600, ["kge.dimension=8"], False),
    ],
)
def test_a_long_time_has_a_larger_kge_model(
    toy: KnowledgeGraph,
    tiny_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    epoch: float,
    minutes: int,
    given: list[str],
    large: bool,
) -> None:
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(1e-4, 1e-9, 20.0, 16))
    monkeypatch.setattr(planner, "_kge_epoch", lambda graph, recipe: epoch)
    for small in (10**6, 1):  # triples up to which a graph is small
        monkeypatch.setattr(planner, "SMALL", small)
        values = GivenSettings.of(None, given)
        recipe = stages.choose_recipe("balanced", toy, tiny_encoder, values, minutes, Hears())
        assert recipe is not None
        kge = recipe.settings.kge
        expected = large and small == 1
        assert (kge.dimension == planner.LARGE_KGE["dimension"]) == expected
        assert ("kge.dimension" in recipe.reasons) == expected
        assert kge.epochs == (planner.KGE_PASSES if small == 1 else planner.PASSES)


def test_what_is_given_ends_a_stage_instead_of_the_clock(
    toy: KnowledgeGraph, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(1e-4, 1e-9, 20.0, 16))
    given = GivenSettings.of(
        None, ["kge.epochs=2", "rules.seconds=1", "biencoder.steps=3", "training.epochs=4"]
    )
    recipe = stages.choose_recipe("balanced", toy, tiny_encoder, given, 1, Hears())
    assert recipe is not None
    assert recipe.timed == ()
    assert recipe.usual == {}
    loaded = recipe.settings
    assert (loaded.kge.epochs, loaded.biencoder.steps, loaded.training.epochs) == (2, 3, 4)


def test_where_the_text_ranks_alone_it_is_trained_however_short_the_time_is(
    toy: KnowledgeGraph, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "speed", lambda source: planner.Speed(1.0, 1.0, 20.0, 16))
    alone = replace(toy, splits={"train": toy.splits["train"]})
    recipe = stages.choose_recipe("balanced", alone, tiny_encoder, GivenSettings.of(None, []), 0.01, Hears())
    assert recipe is not None
    assert recipe.stages == recipe.timed == ("text",)


def test_the_speed_of_an_encoder_is_measured(toy: KnowledgeGraph, tiny_encoder: str) -> None:
    encoder = TextEncoder.load(tiny_encoder, 16)
    result = planner.speed(EncoderSource(toy.entities, encoder))
    assert 0 < result.per_token < result.per_text
    assert 2 < result.tokens <= 16
    assert result.width == encoder.width


def test_a_stage_gets_its_share_of_what_is_left(
    tmp_path: Path, toy: KnowledgeGraph, now: list[float]
) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    run = open_folder(tmp_path / "run")
    run = write_record(run, onnx=False, recipe={"preset": "balanced", "stages": ["kge", "text"],
                       "seconds": 100.0, "timed": ["kge", "text"]})  # fmt: skip
    clock = Clock(run.path, now[0])
    shares = planner.SHARES
    now[0] += 20
    assert clock.left == 80
    run = write_record(run, onnx=True)
    assert clock.left == 75, "its structure for ONNX Runtime takes a while"
    run = write_record(run, onnx=False)
    assert clock.share("kge", ["kge", "text", "weights"]) == pytest.approx(
        80 * shares["kge"] / (shares["kge"] + shares["text"] + shares["weights"])
    )
    assert clock.share("rules", ["kge"]) is None, "it does not end by the clock"
    with clock.stage("kge"):
        now[0] += 10
    assert clock.spent == {"kge": 30}
    with suppress(KeyboardInterrupt), clock.stage("text"):
        now[0] += 5
        raise KeyboardInterrupt
    now[0] += 1000  # until somebody resumes it
    again = Clock(run.path, now[0])
    assert again.left == 65
    assert again.share("text", []) == 65 + 5, "with what it had before"
    assert again.share("texts", []) == 65, "what was read is kept, and the clock begins again"
    now[0] += 500
    assert again.share("weights", []) == 1.0, "a second, where nothing is left"


def test_reading_texts_has_a_share_of_its_own(tmp_path: Path, toy: KnowledgeGraph, now: list[float]) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    recipe = {"preset": "balanced", "stages": ["biencoder", "kge"], "seconds": 100.0}
    run = open_folder(tmp_path / "run")
    run = write_record(run, onnx=False, recipe={**recipe, "timed": ["biencoder", "kge"]})
    clock, shares = Clock(run.path, now[0]), planner.SHARES
    stages = ["texts", "biencoder", "kge"]
    assert clock.share("texts", stages) == pytest.approx(
        100 * shares["texts"] / sum(shares[stage] for stage in stages)
    )
    with clock.stage("texts"):
        now[0] += 10
    part = shares["biencoder"] / (shares["biencoder"] + shares["kge"])
    assert clock.share("biencoder", stages[1:]) == pytest.approx(90 * part), (
        "what reading left is shared, too"
    )


def test_the_time_of_a_stage_whose_process_was_killed_counts(
    tmp_path: Path, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "KEPT_EVERY", 0.01)
    start_run(tmp_path / "run", toy, "scratch", settings())
    run = write_record(open_folder(tmp_path / "run"), recipe={"preset": "best", "stages": ["kge"],
                       "seconds": 100.0, "timed": ["kge"]}, spent={"kge": 5.0})  # fmt: skip
    kept = run.path / "clock.json"
    with Clock(run.path, time.monotonic() - 7).stage("kge"):
        while not kept.is_file():
            time.sleep(0.01)
        data = kept.read_bytes()  # as it is when the process is killed here
    assert not kept.exists(), "it is counted"
    assert 12 <= Clock(run.path, time.monotonic()).spent["kge"] < 60
    write_record(run, spent={"kge": 5.0})
    kept.write_bytes(data)
    clock = Clock(run.path, time.monotonic())
    assert 12 <= clock.spent["kge"] < 60
    assert not kept.exists()


def test_without_a_time_no_stage_ends_by_the_clock(tmp_path: Path, toy: KnowledgeGraph) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    clock = Clock(tmp_path / "run", 0.0)
    assert clock.left == float("inf")
    assert clock.share("weights", ["reverse"]) is None


def test_progress_goes_by_the_time_and_leaves_some_for_the_last_validation(now: list[float]) -> None:
    timed = Timed(TimeLimit(100.0), now[0], validation=20.0, after=5.0)
    assert (timed.progress, timed.steps_left) == (0, 100_000_000)
    timed.steps.extend([5.0, 0.5, 0.5])
    assert timed.steps_left == (100 - 25 * 0.5) / 0.5
    now[0] += 43.75
    assert timed.progress == pytest.approx(0.5)
    assert not timed.validates(), "three of ten seconds are too many"
    timed.validation = 2.0
    assert timed.validates()
    assert not timed.validates(), "once per third"
    now[0] += 1000
    assert (timed.progress, timed.steps_left) == (1, 0)
    assert not timed.validates(), "the last one comes with the end"


def test_a_masked_lm_that_gets_to_too_few_steps_takes_more_time(now: list[float]) -> None:
    timed = Timed(TimeLimit(100.0, longest=150.0, least=60), now[0])
    timed.steps.extend([1.0] * 8)
    now[0] += 8
    assert timed.extended(8) == "", "100 steps fit"
    timed.steps.extend([2.0] * 20)
    now[0] += 40
    assert timed.steps_left == 26
    assert timed.extended(28), "for 6 steps of 2 s"
    assert timed.seconds == 112
    assert timed.extended(28) == ""
    timed.steps.extend([10.0] * 50)
    assert "the masked LM has 2.5 minutes instead of 1.7" in timed.extended(28), "but not all of it"
    assert timed.seconds == 150
    assert timed.extended(28) == ""
    assert Timed(TimeLimit(100.0), now[0]).extended(0) == ""


def test_a_training_ends_by_the_clock(tmp_path: Path, toy: KnowledgeGraph) -> None:
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings("training.epochs=100000"))
    began = time.monotonic()
    outcome = train(run, ranker, Validation(0.1, 0.3, 0.2), limit=TimeLimit(3.0))
    assert outcome.status == "finished"
    assert time.monotonic() - began >= 3
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "loss" in row]
    assert len(rates) == outcome.step > 3
    top = rates.index(max(rates))
    assert 0 < top < len(rates) - 1
    assert rates[-1] < rates[top] / 4, "it falls to the end"
    validations = [row["step"] for row in rows if "valid_mrr" in row]
    assert len(validations) == 3
    assert validations[-1] == outcome.step
    assert outcome.best_mrr == 0.3


def test_epochs_bound_a_training_that_has_much_time(tmp_path: Path, toy: KnowledgeGraph) -> None:
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings("training.epochs=1"))
    outcome = train(run, ranker, limit=TimeLimit(3600.0))
    assert outcome.status == "finished"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["learning_rate"] < max(row["learning_rate"] for row in rows)


def test_a_validation_takes_as_long_as_what_it_reads(tmp_path: Path, toy: KnowledgeGraph) -> None:
    vectors = ("vector.enabled=true", "vector.max_length=32", "training.eval_triples=4")
    run, _ = start_run(tmp_path / "run", toy, "scratch", settings(*vectors, "text.max_length=64"))
    step = 3 * 8 * (64 + 32)
    entities = len(toy.entities)
    assert validation_steps(run) == ((8 * 64 + entities * 32) / step, 0.0)
    few = settings(*vectors, "text.max_length=64", "training.eval_candidates=5")
    run, _ = start_run(tmp_path / "few", toy, "scratch", few)
    assert validation_steps(run) == ((8 * 64 + 5 * 32) / step, entities * 32 / step)


def test_kge_stops_after_its_seconds(toy: KnowledgeGraph) -> None:
    steps: list[int] = []
    KGE.fit(toy, KGESettings(epochs=10**6, seconds=0.2), lambda n, total: steps.append(n))
    assert 1 <= sum(steps) < 10**6


def test_a_run_says_what_its_time_was_spent_on(tmp_path: Path, tiny_encoder: str) -> None:
    watch = Hears()
    run = kgmlm.train(
        "toy",
        tiny_encoder,
        tmp_path / "run",
        minutes=0.3,
        progress=watch,
        settings={"training.precision": "fp32", "training.batch_size": 16},
    ).folder
    record = run.record
    assert record["status"] == "finished"
    first = ["planning", "types", "rules", "linked", "mentions", "unseen", "texts", "biencoder", *SIMILAR]
    assert list(record["spent"])[: len(first) + 1] == [*first, "kge"]
    assert sum(record["spent"].values()) >= 1
    assert set(run.tuned.mixture.tables) >= {
        "types",
        "rules",
        "linked",
        "mentions",
        "unseen",
        "biencoder",
        *SIMILAR,
        "kge",
    }
    assert watch.told[-5].endswith(f"of 0.3 minutes: {time_report(run)[0].partition(': ')[2]}")
    assert watch.told[-4].startswith("more time: ")
    assert watch.told[-3].startswith("next: kgmlm rank ")
    assert watch.told[-2].startswith("      kgmlm complete ")
    assert record["signals"]["kge"]["settings"]["seconds"] > 0
    heard = Hears()
    kgmlm.train(output=tmp_path / "run", resume=True, progress=heard)
    assert heard.told[-1].endswith("nothing to resume")


def test_a_run_says_which_texts_there_was_no_time_for(
    tmp_path: Path, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, share = Hears(), Clock.share
    monkeypatch.setattr(
        Clock, "share", lambda clock, stage, among: 1e-6 if stage == "texts" else share(clock, stage, among)
    )
    run = kgmlm.train(
        "toy", tiny_encoder, tmp_path / "run", minutes=1, preset="quick", cache=False, progress=watch
    ).folder
    messages, count = "\n".join(watch.told), len(run.graph.entities)
    cut = run.record["signals"]["biencoder"]["texts_cut"]
    assert 0 < cut <= count
    assert f"the time was too short for the texts of {cut} of {count} entities" in messages
    assert f"more time: the texts of {cut} of {count} entities were not read as a whole" in messages
    assert "biencoder" in run.tuned.mixture.tables
    kgmlm.tune(
        run.path, add="biencoder", overwrite=True, progress=False, settings={"biencoder": {"steps": 2}}
    )
    assert "texts_cut" not in open_folder(run.path).record["signals"]["biencoder"], "all are read now"


def test_a_time_goes_with_presets_alone(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--minutes goes with a preset"):
        kgmlm.train("toy", "scratch", tmp_path / "x", minutes=1, preset="plain", progress=False)


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [2]), (1e6, [2, 4])])
def test_weights_are_chosen_on_as_many_triples_as_the_time_allows(
    tmp_path: Path, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    asked: list[int] = []

    def choose(run: Any, count: int, *others: Any, **options: Any) -> Any:
        asked.append(count)
        return {"text": {"mrr": 0.5}}

    monkeypatch.setattr(stages, "choose", choose)
    stages._chosen(tmp_path / "run", "signals", 4, Hears(), 2, seconds)
    assert asked == expected


@pytest.mark.parametrize(("k", "expected"), [(0, [2]), (20, [2, None])])
def test_trees_of_a_quick_run_are_tried_on_a_few_triples(
    tmp_path: Path, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch, k: int, expected: list[int | None]
) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    asked: list[int | None] = []

    def choose(run: Any, count: int | None, *others: Any, **options: Any) -> Any:
        asked.append(count)
        return {"trees": {"k": k}}

    monkeypatch.setattr(stages, "choose", choose)
    stages._chosen(tmp_path / "run", "trees", None, Hears(), 2, trial=True)
    assert asked == expected


@pytest.mark.parametrize(("seconds", "chosen"), [(0.0, False), (1e6, True)])
def test_scoring_in_reverse_is_left_out_where_too_few_triples_tell_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, chosen: bool
) -> None:
    monkeypatch.setattr(stages, "SHORT_RUN_TRIPLES", 3)
    run = kgmlm.train(
        "toy", "scratch", tmp_path / "run", progress=False, **arguments(epochs=1, **TINY)
    ).folder
    run = write_record(run, recipe={"preset": "best", "stages": ["text", "reverse"]})
    figures = stages._chosen(run.path, "reverse", 4, Hears(), 1, seconds)
    run = open_folder(run.path)
    assert ("reverse" in run.tuned.stage_weights) == chosen
    assert bool(figures) == chosen
    assert (run.record["recipe"]["stages"] == ["text", "reverse"]) == chosen
