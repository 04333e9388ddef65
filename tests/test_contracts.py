"""Whatever is registered in the package has a suite that tests each entry of it, new ones too.

A suite is a test module with a ``REGISTRY``, of which some test is parametrized over that very object.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgmlm
from kgmlm.evaluation.metrics import Ranks, flat_metrics

CLOSED = {
    "TARGETS",
    "TEXT_COLUMNS",
    "RANK_TYPES",
    "SIDES",
    "SOURCES",
}  # sets of names that nobody will add to


def registries() -> dict[str, Any]:
    """Constants of the package that hold functions, classes or objects of it by name, or name kinds."""
    mapping: dict[int, tuple[str, Any]] = {}
    for module in pkgutil.walk_packages(kgmlm.__path__, "kgmlm."):
        if module.name.endswith(".__main__"):
            continue
        values = vars(importlib.import_module(module.name))
        for name, value in values.items():
            if name.startswith("_") or not name.isupper() or name in CLOSED or not value:
                continue
            kinds = str(values.get("__annotations__", {}).get(name, "")).startswith("tuple[")
            by_name = isinstance(value, dict) and all(
                callable(entry) or type(entry).__module__.startswith("kgmlm") for entry in value.values()
            )
            if kinds or by_name:
                mapping.setdefault(id(value), (name, value))
    return dict(mapping.values())


def suites() -> Iterator[tuple[str, Any]]:
    """Test modules that have a registry."""
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        if "\nREGISTRY" in path.read_text("utf-8"):
            yield path.stem, importlib.import_module(path.stem)


def parametrized(suite: Any) -> Iterator[Any]:
    """What tests and test classes of a module are parametrized over."""
    for thing in vars(suite).values():
        marks = getattr(thing, "pytestmark", [])
        for mark in marks if isinstance(marks, list) else [marks]:
            if isinstance(mark, pytest.Mark) and mark.name == "parametrize":
                yield mark.args[1]


def test_everything_registered_has_a_suite() -> None:
    result = registries()
    assert {"SIGNALS", "OBJECTIVES", "TEMPLATES", "TEXT_READERS"} <= result.keys()
    tested = [suite.REGISTRY for _, suite in suites()]
    assert [name for name, registry in result.items() if not any(t is registry for t in tested)] == []


def test_every_suite_tests_all_that_is_registered() -> None:
    names = [name for name, _ in suites()]
    assert len(names) > 5
    for name, suite in suites():
        assert any(all(x in values for x in suite.REGISTRY) for values in parametrized(suite)), name
        assert len(suite.REGISTRY), name


def test_every_metric_of_a_report_is_in_the_suite_of_metrics() -> None:
    from test_metrics import REGISTRY

    ranks = Ranks(*(np.array([1, 2, 3]) for _ in range(3)))
    flat = flat_metrics(ranks, np.array([True, False, True]))
    assert {key.split(".")[-1] for key in flat} == set(REGISTRY)
