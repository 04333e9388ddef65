"""The README's own-graph commands and its Python, run as they stand but for the model and the size."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import TINY_SETTINGS, Cli

from kgmlm.cards import cards_folder

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_readme_work(cli: Cli, tmp_path: Path) -> None:
    graph = tmp_path / "mygraph"
    graph.mkdir()
    for table in ("train", "entities", "relations"):
        shutil.copy(cards_folder() / "toy" / f"{table}.tsv", graph)
    other = tmp_path / "another-graph"
    other.mkdir()
    for split in ("train", "test"):
        (other / f"{split}.tsv").write_text(f"crater {split}\tlocated_in\tmoon\n")
    (tmp_path / "new.tsv").write_text("label\tname\tdescription\natl\tAtlantis\ta lost island\n")
    # The demo's block is what `make demo` printed.
    shown = [block for block in blocks("console") if not block.startswith("$ make demo")]
    lines = [x for block in shown for x in block.splitlines() if x.startswith("kgmlm ")]
    assert len(lines) >= 7
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if arguments[0] == "train":
            at = arguments.index("--model")
            arguments[at + 1] = "scratch"
            arguments += [*TINY_SETTINGS, "--max-steps", "3"]
        done = cli(*arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_the_python_of_the_readme_works(toy_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    code = code.replace("runs/demo", str(toy_run)).replace("virus", "France").replace("causes", "capital")
    exec(code, {})
    assert "tail_label" in capsys.readouterr().out


def test_the_settings_of_the_readme_are_settings(tmp_path: Path) -> None:
    from kgmlm.config import load_settings

    (settings,) = blocks("toml")
    path = tmp_path / "settings.toml"
    path.write_text(settings, "utf-8")
    load_settings(path)
