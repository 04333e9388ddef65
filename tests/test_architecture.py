from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = (p.relative_to(ROOT / "kgmlm").with_suffix("") for p in (ROOT / "kgmlm").rglob("*.py"))
MODULES = {".".join(p.parts) for p in FILES if p.name != "__init__"}  # of a package "cli": "cli.train"

MOST = {"module": 700, "class": 250, "function": 80}  # lines


def test_the_map_lists_exactly_the_modules_that_exist() -> None:
    tables = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("## The map")[1].split("## Shapes")[0]
    rooms, lines = tables.split("| module | one line |")
    assert set(re.findall(r"`([\w.]+)`", rooms.split("|---|---|")[1])) == {m.split(".")[0] for m in MODULES}
    assert set(re.findall(r"^\| `([\w.]+)` \|", lines, re.M)) == MODULES


def lengths() -> Iterator[tuple[str, str, int]]:
    """Kind, name and lines of all modules, classes and functions."""
    for path in (ROOT / "kgmlm").rglob("*.py"):
        text = path.read_text("utf-8")
        yield "module", path.stem, len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                yield kind, f"{path.stem}.{node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_nothing_is_too_long() -> None:
    assert [found for found in lengths() if found[2] > MOST[found[0]]] == []


def test_the_map_has_the_order_that_the_linter_enforces() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = [set(row.split(" | ")) for row in config["tool"]["importlinter"]["contracts"][0]["layers"]]
    table = (ROOT / "ARCHITECTURE.md").read_text("utf-8").split("| rooms | modules |")[1].split("\n\n")[0]
    rows = [set(re.findall(r"`([\w.]+)`", line)) for line in table.splitlines() if "`" in line]
    assert rows == layers


def test_every_module_has_its_tests() -> None:
    tested = {p.stem.removeprefix("test_") for p in (ROOT / "tests").glob("test_*.py")}
    assert {m for m in MODULES if not {m.replace(".", "_"), m.split(".")[0]} & tested} == set()


def test_what_is_installed_without_torch_is_all_but_what_trains() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {
        re.split(r"[\[>=]", name)[0] for name in project["dependencies"] + extras["serve"] + extras["onnx"]
    }
    lines = (ROOT / "docker" / "requirements.txt").read_text("utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    left_out = {"accelerate", "jinja2", "pandas", "pykeen", "scikit-learn", "torch", "transformers"}
    assert listed == needed - left_out


def test_recipes_and_protocols_are_valid() -> None:
    from kgmlm.config import load_protocol, load_settings

    recipes, protocols = (list((ROOT / "eval" / f).glob("*.toml")) for f in ("recipes", "protocols"))
    assert recipes
    assert protocols
    for path in recipes:
        load_settings(path)
    for path in protocols:
        load_protocol(path)


def test_every_locked_version_is_plain() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
