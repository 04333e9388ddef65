"""A report as one page of HTML: all that is shown, and the template that shows it.

Texts of graphs are data: the template escapes whatever it is given. The page runs its own script and style,
known by their digests, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgmlm.reporting.charts import Chart
from kgmlm.reporting.figures import ShownQuestion
from kgmlm.reporting.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup

_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Result:
    """What an evaluation says.

    Attributes:
        asked, candidates: how many of what, in words.
        keys: name, value and note of the figures that are seen first.
        unseen: None where training has all entities.
    """

    asked: str
    candidates: str
    keys: Sequence[tuple[str, str, str]]
    sides: Table
    distribution: Chart
    answers: Chart
    unseen: Table | None
    relations: Table


@dataclass(frozen=True)
class Probabilities:
    """How good probabilities are, and what their false triples are."""

    chart: Chart
    table: Table
    negatives: str


@dataclass(frozen=True)
class Compared:
    """Another run beside this one: its name, the differences, and what both are."""

    name: str
    chart: Chart
    facts: Table


@dataclass(frozen=True)
class Contents:
    """All that a page shows. What is None or empty is not there, and sentences say why.

    Attributes:
        unranked, uncalibrated: why there is no result, and no measured probabilities.
        example: a question that the introduction shows.
        moved: a sentence where ranks are no longer what they were when they were evaluated.
    """

    name: str
    graph: str
    made: str
    version: str
    command: str
    facts: Sequence[tuple[str, Sequence[str]]]
    stages: Table
    curves: Sequence[Chart]
    validated: bool
    weights: Sequence[Table]
    audit: Sequence[tuple[str, Sequence[str]]]
    result: Result | None = None
    unranked: str = ""
    measured: Probabilities | None = None
    uncalibrated: str = ""
    reranked: str = ""
    worst: Sequence[ShownQuestion] = ()
    typical: Sequence[ShownQuestion] = ()
    example: ShownQuestion | None = None
    moved: str = ""
    compared: Compared | None = None

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The headings of the page, by their anchors."""
        found = [
            ("made", "What was trained", True),
            ("curves", "How it learned", True),
            ("metrics", "How well it ranks", self.result),
            ("compared", "Against another run", self.compared),
            ("relations", "By relation", self.result),
            ("probabilities", "Probabilities", True),
            ("weights", "What a score is made of", True),
            ("questions", "Questions", self.result),
            ("audit", "The graph, audited", True),
            ("words", "Words", True),
        ]
        return [(anchor, title) for anchor, title, there in found if there]


def render(contents: Contents) -> str:
    """The page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    style, script = ((_FOLDER / name).read_text("utf-8") for name in ("style.css", "sort.js"))
    page = environment.get_template("page.html").render(
        c=contents,
        style=Markup(style),
        script=Markup(script),
        style_hash=_digest(style),
        script_hash=_digest(script),
    )
    return page + "\n"


def _with_code(sentence: str) -> Markup:
    """A sentence of ours, in which commands stand between backticks, as HTML."""
    from markupsafe import Markup

    parts = sentence.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def _digest(text: str) -> str:
    """What a content security policy knows a script or a style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
