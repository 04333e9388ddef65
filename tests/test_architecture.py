from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_tree_lists_every_file_once() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    tree = text.split("## The tree")[1].split("```")[1]
    listed: list[str] = []
    package = ""
    for line in tree.splitlines():
        if match := re.match(r"  (\w+(?:/\w+)*)/ ", line):
            package = f"{match[1]}/"
        elif match := re.match(r"    (\w+(?:, \w+)*)  ", line):
            listed += [f"{package}{name}" for name in match[1].split(", ")]
        elif match := re.match(r"  (\w+)\.py ", line):
            listed.append(match[1])
    files = [p.relative_to(ROOT / "kgmlm").with_suffix("") for p in (ROOT / "kgmlm").rglob("*.py")]
    assert sorted(listed) == sorted(p.as_posix() for p in files if p.name != "__init__")


def test_every_package_says_what_it_is() -> None:
    for path in (ROOT / "kgmlm").rglob("__init__.py"):
        assert path.read_text("utf-8").startswith('"""'), path


def test_what_is_installed_without_torch_is_all_but_what_trains() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    needed = {re.split(r"[\[>=]", name)[0] for name in PROJECT["project"]["dependencies"] + extras["serve"]}
    lines = (ROOT / "docker" / "requirements.txt").read_text("utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    left_out = {
        "accelerate",
        "jinja2",
        "onnx",
        "pandas",
        "psutil",
        "pykeen",
        "scikit-learn",
        "torch",
        "transformers",
    }
    assert listed == needed - left_out


def test_recipes_and_protocols_are_valid() -> None:
    from kgmlm.core.config import load_protocol, load_settings

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


def test_the_command_that_is_installed_is_there() -> None:
    module, _, function = PROJECT["project"]["scripts"]["kgmlm"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
