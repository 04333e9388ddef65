"""README and docs: commands exist and run, Python runs, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import TINY_SETTINGS, Cli, refused

import kgmlm
from kgmlm.cli.app import app
from kgmlm.core.config import load_settings
from kgmlm.graphs.cards import cards_folder

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, *(ROOT / x for x in ("CONTRIBUTING.md", "ARCHITECTURE.md", "eval/MEASURED.md")), *DOCS]
RUN = [README, *(ROOT / "docs" / f"{name}.md" for name in ("signals", "new-entities"))]
TREE: Any = typer.main.get_command(app)


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def commands(page: Path) -> list[str]:
    """Lines of `console` blocks that start kgmlm, but for what a block shows that something printed."""
    lines = [x for block in blocks(page, "console") if not block.startswith("$") for x in block.splitlines()]
    return [line for line in lines if line.startswith("kgmlm ")]


def mentions(page: Path) -> Iterator[list[str]]:
    """The words of each kgmlm command on a page: in blocks, after a prompt, or between backticks."""
    text = page.read_text("utf-8")
    for block in blocks(page, "console"):
        yield from (
            shlex.split(line.removeprefix("$ "), comments=True)[1:]
            for line in block.splitlines()
            if line.removeprefix("$ ").startswith("kgmlm ")
        )
    for inline in re.findall(r"`(kgmlm [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield shlex.split(inline)[1:]


def check_command(words: list[str]) -> None:
    """Say which command or option does not exist."""
    command, words = TREE, list(words)
    while hasattr(command, "commands"):
        name = words.pop(0)
        if name.startswith("-") and any(name in option.opts for option in command.params):
            return  # such as `kgmlm --version`
        if name == "...":
            return  # any of them
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {
        "--help"
    }
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            assert word.partition("=")[0] in options, f"kgmlm {command.name} has no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_that_is_named_exists(page: Path) -> None:
    for words in mentions(page):
        if words[0] in ("info",) and not hasattr(kgmlm, "info"):
            continue
        check_command(words)


@pytest.mark.parametrize(
    "wrong",
    ["fuse runs/mine", "data chek mygraph", "rank runs/mine --hed x", "evaluate runs/mine --split=x -z"],
)
def test_what_does_not_exist_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError, match=r"there is no command|has no option"):
        check_command(wrong.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands of the pages are run: a graph, another one, new entities."""
    graph = tmp_path / "mygraph"
    graph.mkdir()
    for table in ("train", "entities", "relations"):
        shutil.copy(cards_folder() / "toy" / f"{table}.tsv", graph)
    rows = (graph / "train.tsv").read_text().replace("\t", ",")
    (tmp_path / "triples.csv").write_text(f"head,relation,tail\n{rows}")
    other = tmp_path / "another-graph"
    other.mkdir()
    for split in ("train", "test"):
        (other / f"{split}.tsv").write_text(f"crater {split}\tlocated_in\tmoon\n")
    (tmp_path / "new.tsv").write_text("label\tname\tdescription\natl\tAtlantis\ta lost island\n")
    (tmp_path / "known.tsv").write_text("Atlantis\tlocated_in\teurope\n")
    return tmp_path


def save_model(triples: Path, folder: Path) -> None:
    """Write a model as PyKEEN's pipeline does."""
    import torch
    from pykeen.models import RotatE
    from pykeen.triples import TriplesFactory

    factory = TriplesFactory.from_path(triples)
    factory.to_path_binary(folder / "training_triples")
    torch.save(RotatE(triples_factory=factory, embedding_dim=8), folder / "trained_model.pkl")


@pytest.mark.long
def test_the_commands_of_the_pages_work(cli: Cli, folder: Path, tiny_encoder: str) -> None:
    """As they stand but for the model and the size, one page after the other."""
    split = "kgmlm data split mygraph --random --output mygraph-split"  # the other pages go on with it
    again = "kgmlm train --dataset mygraph-split --model minilm --output runs/mine --overwrite"
    lines = [*commands(README), split, again, *(line for page in RUN[1:] for line in commands(page))]
    assert len(lines) >= 20
    save_model(folder / "mygraph" / "train.tsv", folder / "rotate-folder")
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if arguments[0] == "train" and "--model" in arguments:
            at = arguments.index("--model")
            arguments[at + 1] = "scratch"
            preset = ("--preset", "plain") if "--preset" in arguments else ()
            small = [x for x in TINY_SETTINGS if x not in preset]
            arguments += [*small, "--set", "vector.enabled=true", "--max-steps", "3"]
        if "biencoder" in arguments and arguments[0] == "tune":
            arguments += ["--set", f"biencoder.encoder={tiny_encoder}", "--set", "biencoder.steps=3"]
        done = cli(*arguments, cwd=folder)
        if "trees" in arguments:
            refused(done, "at least 300 validation triples")
            continue
        assert done.returncode == 0, f"{line}: {done.stderr}"


SMALL = 'model="scratch", max_steps=3'


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `kgmlm.train` train a tiny model."""
    train = kgmlm.train
    tiny = {"scratch": {"hidden_size": 32, "heads": 2, "vocabulary": 400}, "vector.enabled": True}

    def trained(*given: Any, settings: Any = (), **more: Any) -> kgmlm.Run:
        return train(*given, settings=tiny | dict(settings), **more)

    monkeypatch.setattr(kgmlm, "train", trained)


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pages", [["README.md"], ["docs/python.md", "docs/pykeen.md"]], ids=" ".join)
def test_the_python_of_the_pages_works(cli: Cli, folder: Path, pages: list[str]) -> None:
    """As it stands but for the model and the size, in one process."""
    code = "\n".join(block for page in pages for block in blocks(ROOT / page, "python"))
    code, replaced = re.subn('model="(bert-base-uncased|minilm)"', SMALL, code)
    assert replaced
    with chdir(folder):
        exec(code, {"__name__": "__main__"})


@pytest.mark.long
def test_the_search_of_settings_works(tiny_encoder: str, tmp_path: Path) -> None:
    """As it stands but for the graph, the model and the number of trials; a second time it goes on."""
    (code,) = blocks(ROOT / "docs" / "choosing.md", "python")
    model = f"{tiny_encoder!r}"
    small = {'"world"': '"toy"', '"minilm"': model, "n_trials=20": "n_trials=1", "50, 400": "5, 10"}
    for of, by in small.items():
        assert of in code
        code = code.replace(of, by, 1)
    with chdir(tmp_path):
        for trials in (1, 2):
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(code, names)
            assert len(names["study"].trials) == trials
    assert 0 < names["study"].best_value <= 1


SMALLER = {
    'model="bert-base-uncased"': SMALL,
    'model="minilm"': SMALL,
    "resume=True": "resume=True, max_steps=4",
}


def same_from_python() -> dict[str, str]:
    """The table of docs/python.md: Python by command."""
    return dict(
        re.findall(r"^\| `(kgmlm .+?)` \| `(.+?)` \|$", (ROOT / "docs" / "python.md").read_text(), re.M)
    )


def test_each_command_of_the_readme_has_its_line_of_python() -> None:
    assert set(commands(README)) <= set(same_from_python())


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_the_python_beside_each_command_works(folder: Path) -> None:
    """As it stands but for the model and the size, one line after the other."""
    names: dict[str, Any] = {"kgmlm": kgmlm}
    with chdir(folder):
        for code in same_from_python().values():
            for of, small in SMALLER.items():
                code = code.replace(of, small)
            exec(code, names)
    assert names["report"].metrics["mrr"] > 0
    assert names["other"].path == Path("runs/other")


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda p: p.name)
def test_python_blocks_are_python(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


def test_the_settings_of_the_page_on_training_are_settings(tmp_path: Path) -> None:
    (settings,) = blocks(ROOT / "docs" / "train.md", "toml")
    path = tmp_path / "settings.toml"
    path.write_text(settings, "utf-8")
    load_settings(path)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_every_page_of_the_docs_is_in_the_menu() -> None:
    menu = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert menu == {page.name for page in DOCS} | {
        f"{x}.md" for x in ("index", "architecture", "contributing", "changelog", "measured")
    }
