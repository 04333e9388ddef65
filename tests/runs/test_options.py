from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kgmlm
from kgmlm.core.errors import ConfigError
from kgmlm.core.options import takes
from kgmlm.evaluation.options import EvaluateOptions
from kgmlm.runs.opened import open_folder, open_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.run import Run


def test_what_is_not_given_stays_as_the_run_was_opened(toy_run: Path) -> None:
    @takes(EvaluateOptions)
    def asked(run: Run, options: EvaluateOptions) -> RankingOptions:
        return run.options.updated(options)

    run = kgmlm.open_run(toy_run, scores="text", typed=True, rerank=3)
    assert asked(run) == run.options
    changed = asked(run, typed=False, rerank=0, device="cpu")
    assert changed == RankingOptions(scores="text", rerank=0, device="cpu")
    assert not changed.reranks
    assert not asked(run, scores="likelihood").reranks


def test_unknown_scores_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"scores are all, text, likelihood, .* or .*, not 'names'"):
        RankingOptions(scores="names")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precision": "fp8"}, "--precision is fp32 or bf16, not 'fp8'"),
        ({"runtime": "tf"}, "--runtime is auto or torch or onnx, not 'tf'"),
        ({"retrieve": -5}, "--retrieve is a whole number from 0 on, not -5"),
        ({"rerank": 1.5}, "--rerank is a whole number from 0 on, not 1.5"),
    ],
)
def test_what_cannot_be_is_refused_at_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RankingOptions(**given)


def test_each_way_has_words_of_its_own() -> None:
    ways = [
        RankingOptions(),
        RankingOptions(scores="text"),
        RankingOptions(allow_self=True),
        RankingOptions(rerank=0),
        RankingOptions(retrieve=9),
        RankingOptions(precision="bf16"),
    ]
    assert [way.words() for way in ways] == [
        [], ["text"], ["allow-self"], ["rerank-0"], ["retrieve-9"],
        ["bf16"],
    ]  # fmt: skip


def test_what_a_run_does_not_have_is_refused(toy_run: Path) -> None:
    run = open_folder(toy_run)
    for way, message in (
        (RankingOptions(rerank=5), "has no second stage.*--add reverse"),
        (RankingOptions(scores="likelihood", rerank=5), "goes with --scores all or text"),
        (RankingOptions(scores="vector"), "no entity vectors"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_ranker(run, way, run.graph)
