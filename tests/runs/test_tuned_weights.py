"""The file that has all that validation chose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgmlm.core.errors import RunError
from kgmlm.ranking.ranker import Mixture, StageWeight
from kgmlm.runs.tuned import TunedWeights

SHA = "0" * 64
MIXED = Mixture.even({"likelihood": 1.0}, 3).weighed(
    "vector", np.random.default_rng(0).random((3, 2), np.float32), 0.1 + 0.2
)


def test_what_is_saved_is_opened_to_the_last_digit(tmp_path: Path) -> None:
    for stage_weights in (
        {},
        {"reverse": StageWeight(0, 0.0)},
        {"reverse": StageWeight(20, 0.125), "trees": StageWeight(100, 1.5)},
    ):
        chosen = TunedWeights(
            MIXED, stage_weights, {"likelihood": SHA}, {"command": "kgmlm tune", "valid": {"mrr": 0.5}}
        )
        chosen.save(tmp_path / "mixture.json")
        match = TunedWeights.parse((tmp_path / "mixture.json").read_bytes(), tmp_path / "mixture.json", 3)
        assert match.mixture.averages == MIXED.averages
        assert all(np.array_equal(match.mixture.tables[name], MIXED.tables[name]) for name in MIXED.tables)
        assert (match.stage_weights, match.of, match.by) == (stage_weights, chosen.of, chosen.by)
    written = json.loads((tmp_path / "mixture.json").read_text())
    assert written["signals"]["likelihood"] == {"average": 1.0, "weights": None}, "one for all is one number"


def test_weights_of_queries_about_unseen_entities_are_kept(tmp_path: Path) -> None:
    path, other = tmp_path / "mixture.json", MIXED.weighed("vector", np.ones((3, 2)), 1.0)
    mixture = replace(MIXED.damped({"vector": 0.5}), of_unseen=other.without("likelihood"))
    TunedWeights(mixture).save(path)
    read = TunedWeights.parse(path.read_bytes(), path, 3).mixture
    assert read.damping == {"vector": 0.5}
    assert read.averages == mixture.averages
    assert read.of_unseen is not None
    assert read.of_unseen.signals == ("vector",)
    assert np.array_equal(read.of_unseen.tables["vector"], np.ones((3, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signals": {}}, "'signals'"),
        ({"signals": {"likelihood": {"average": "1", "weights": None}}}, "'signals.likelihood.average'"),
        ({"signals": {"likelihood": {"average": 1.0, "weights": [[1.0, 1.0]]}}}, "3 relations"),
        ({"signals": {"likelihood": {"average": 1.0, "weights": [[1.0]] * 3}}}, "weights"),
        ({"signals": {"likelihood": {"average": 1e308, "weights": [[1e308, 1.0]] * 3}}}, "too large"),
        ({"reverse": {"k": -1, "weight": 1.0}}, "'reverse.k'"),
        ({"chosen_for": {"likelihood": "x"}}, "'chosen_for.likelihood'"),
        ({"more": 1}, "'more'"),
    ],
)
def test_what_cannot_be_right_is_one_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "mixture.json"
    TunedWeights(MIXED).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RunError, match=message) as caught:
        TunedWeights.parse(path.read_bytes(), path, 3)
    assert "\n" not in str(caught.value)


def test_others_than_it_was_chosen_for_are_named() -> None:
    chosen = TunedWeights(MIXED, of={"likelihood": "a", "kge": "b"})
    chosen.check({"likelihood": "a", "kge": "b"}, Path("runs/x"))
    chosen.check({"likelihood": "a", "kge": "c"}, Path("runs/x"), but=["kge"])
    for now, named in (
        ({"likelihood": "a", "kge": "c"}, "kge that"),
        ({"likelihood": "a"}, "kge that"),
        ({"likelihood": "x", "kge": "b", "rules": "d"}, "likelihood and rules that"),
    ):
        with pytest.raises(RunError, match=f"{named} it has now; `kgmlm tune runs/x`"):
            chosen.check(now, Path("runs/x"))
