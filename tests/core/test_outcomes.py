"""What functions give back: short in a shell, a table in notebooks."""

from __future__ import annotations

import pandas as pd
import pytest

from kgmlm.core.results import Outcome, names_first


def test_an_outcome_is_a_dict_with_a_table() -> None:
    made = Outcome({"output": "x" * 500, "highest": 0.123456, "b<c": 1, "report": {"found": 3}})
    assert dict(made) == made
    assert repr(made).startswith("<output='xxx")
    assert len(repr(made)) < 100
    assert "highest=0.1235" in repr(made)
    assert list(made.to_frame().index) == ["output", "highest", "b<c"]
    assert "b&lt;c" in made._repr_html_()


def test_a_table_of_triples_has_names_first() -> None:
    row = {"head": "a", "head_name": "A", "probability": 0.5, "tail": "b", "tail_name": "B"}
    assert list(names_first(pd.DataFrame([row]))) == ["head_name", "tail_name", "probability", "head", "tail"]


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ({"kge": {"mrr": 0.3}, "rules": {"mrr": 0.4, "weight": 1.0}}, ["kge", "rules"]),
        ({"entities": 3, "bytes": 5, "shape": [1, 2]}, ["entities", "bytes"]),
        ({}, []),
    ],
)
def test_the_table_is_of_the_values(values: dict[str, object], index: list[str]) -> None:
    made = Outcome(values)
    assert list(made.to_frame().index) == index
    assert repr(made).startswith("<")
    assert made._repr_html_()
