"""What functions give back: short in a shell, a table in notebooks."""

from __future__ import annotations

import pytest

from kgmlm.core.results import Outcome

FACT = {"head": "a", "head_name": "A", "probability": 0.5, "tail": "b<c", "tail_name": "B <c"}


def test_an_outcome_is_a_dict_with_a_table() -> None:
    made = Outcome({"output": "x" * 500, "highest": 0.123456, "best": [FACT], "report": {"found": 3}}, "best")
    assert dict(made) == made
    assert repr(made).startswith("<output='xxx")
    assert len(repr(made)) < 100
    assert repr(made).endswith(", highest=0.1235>")
    assert list(made.to_frame()) == ["head_name", "tail_name", "probability", "head", "tail"]
    assert "B &lt;c" in made._repr_html_()


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ({"kge": {"mrr": 0.3}, "rules": {"mrr": 0.4, "weight": 1.0}}, ["kge", "rules"]),
        ({"entities": 3, "bytes": 5, "shape": [1, 2]}, ["entities", "bytes"]),
        ({}, []),
    ],
)
def test_without_rows_the_table_is_of_the_values(values: dict[str, object], index: list[str]) -> None:
    made = Outcome(values)
    assert list(made.to_frame().index) == index
    assert repr(made).startswith("<")
    assert made._repr_html_()
