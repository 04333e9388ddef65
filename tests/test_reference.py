"""The page of all options and settings, which `docs/reference.py` writes."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgmlm.core.config import Protocol, Settings
from kgmlm.core.options import Options, described

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    made = runpy.run_path(str(DOCS / "reference.py"))
    return "\n\n".join(made["page"]()).rstrip().replace("\n\n\n", "\n\n") + "\n"


def test_it_is_up_to_date(page: str) -> None:
    assert (DOCS / "reference.md").read_text("utf-8") == page, "python docs/reference.py > docs/reference.md"


def kinds(of: type[Options] = Options) -> Iterator[type[Options]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("kgmlm."):
            yield kind
            yield from kinds(kind)


def test_each_option_of_a_command_stands_there_with_its_help(page: str) -> None:
    helps = [line.split(" | ")[-1].removesuffix(" |") for line in page.splitlines() if line.startswith("| `")]
    for kind in kinds():
        for option in described(kind):
            if option.about.command is not None and not kind.__name__.startswith(
                ("Mounted", "RankRelations")
            ):
                assert option.about.help in page, (kind, option.name)
    assert len(helps) == len([line for line in page.splitlines() if line.startswith("| `")])


def test_no_cell_breaks_its_table(page: str) -> None:
    columns = 0
    for line in page.splitlines():
        if line.startswith("| option") or line.startswith("| setting"):
            columns = line.count("|")
        elif line.startswith("|"):
            assert line.count("|") == columns, line
    settings = [f for _, part in Settings() for f in type(part).model_fields]
    rows = [line for line in page.partition("\n## Settings\n")[2].splitlines() if line.startswith("| `")]
    assert len(rows) == len(settings) + len(Protocol.model_fields)


def test_its_links_lead_somewhere(page: str) -> None:
    heads = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall("^#+ (.*)$", page, re.M)
    }
    for anchor in re.findall(r"\]\(#([\w-]+)\)", page):
        assert anchor in heads, anchor
