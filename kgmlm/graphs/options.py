"""The options of reading, checking, showing and splitting datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from kgmlm.core.errors import ConfigError
from kgmlm.core.options import Options, ProgressOptions, about, option

if TYPE_CHECKING:
    from kgmlm.graphs.graph import Dataset, Validation


def dataset_names() -> Sequence[str]:
    """The built-in datasets."""
    from kgmlm.graphs.cards import card_names

    return card_names()


@dataclass(frozen=True, kw_only=True)
class HeaderOptions(Options):
    """How files of triples begin."""

    skip_header: bool = option(
        False, "Skip the first line of each file of triples, unless it names additional columns."
    )


@dataclass(frozen=True, kw_only=True)
class CheckOptions(HeaderOptions):
    """Options of :func:`kgmlm.data.check`."""

    model: str | Path | None = option(
        None, "Count the lengths of names in this model's tokens, too.", command=str
    )


@dataclass(frozen=True, kw_only=True)
class ShowOptions(HeaderOptions):
    """Options of :func:`kgmlm.data.show`."""

    entity: str | None = option(None, "Show one entity (label or name) and its training triples.")


@dataclass(frozen=True, kw_only=True)
class LinearizeOptions(HeaderOptions):
    """Options of :func:`kgmlm.linearize`."""

    relation: str = field(kw_only=False, metadata=about("The relation (label or name)."))
    head: str | None = option(None, "Ask for tails of this head.")
    tail: str | None = option(None, "Ask for heads of this tail.")
    model: str | None = option(None, "For a dataset: the model whose tokenizer to use; by default scratch.")
    template: str | None = option(None, "For a dataset: another template.")


@dataclass(frozen=True, kw_only=True)
class SplitOptions(HeaderOptions, ProgressOptions):
    """Options of :func:`kgmlm.data.split`."""

    dataset: Dataset | None = field(
        default=None,
        kw_only=False,
        metadata=about(
            "A built-in dataset or a folder; to split by date, also a file of triples. Not with --versions.",
            command=str,
            is_argument=True,
        ),
    )
    output: str | Path | None = field(
        default=None, kw_only=False, metadata=about("The dataset folder to write.", command=Path)
    )
    random: bool = option(False, "Draw the missing splits from the training triples at random.")
    entities: float | None = option(
        None,
        "Split all triples again: hold out this share of the entities, with their triples, for test, and as "
        "many for validation.",
    )
    newest: float | None = option(
        None, "Split all triples again by date: this share, the newest, is for test."
    )
    after: str | None = option(
        None,
        "Split all triples again by date: those after this date are for test. A year, a month (2023-05), a "
        "day, a time or a Unix time.",
    )
    until: str | None = option(None, "With --after: leave out triples after this date.")
    versions: tuple[Dataset, Dataset] | None = option(
        None,
        "Two states of a graph, an older and a newer one, instead of a dataset: folders, or files that `data "
        "import` reads. What the newer one adds is for test.",
        command=tuple[str, str],
        metavar="OLD NEW",
    )
    date_column: str | None = option(
        None,
        "The column of dates, or its number from 1 where triples have no header; by default date, created or "
        "time.",
    )
    valid: float | Validation | None = option(
        None,
        "The share of the triples for validation, by default 0.1; or how validation is drawn: newest, "
        "entities or random (by default newest if there are dates, else entities).",
        command=str,
    )
    test: float | None = option(None, "With --random: the share of the triples for test, by default 0.1.")
    seed: int = option(0, "Seed of the random draws.", at_least=0)

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        from kgmlm.graphs.graph import Validation

        super().__post_init__()
        ways = {
            "--random": self.random,
            "--entities": self.entities is not None,
            "--newest": self.newest is not None,
            "--after": self.after is not None,
            "--versions": self.versions is not None,
        }
        named = [way for way, is_given in ways.items() if is_given]
        if len(named) != 1:
            instead = f", not {' and '.join(named)}" if named else ""
            raise ConfigError(f"choose one way to split: {', '.join(ways)}{instead}")
        way = named[0]
        if (self.dataset is None) != (way == "--versions"):
            raise ConfigError("--versions takes OLD and NEW instead of a dataset; others take a dataset")
        if self.test is not None and way != "--random":
            raise ConfigError("--test goes with --random")
        if self.until is not None and way != "--after":
            raise ConfigError("--until goes with --after")
        if self.valid is not None and way == "--entities":
            raise ConfigError("--entities holds out as many for validation as for test; leave out --valid")
        if self.date_column is not None and way in ("--random", "--entities"):
            raise ConfigError("--date-column goes with --newest, --after and --versions")
        if isinstance(self.valid, str) and self.share is None and self.valid not in get_args(Validation):
            raise ConfigError(
                f"--valid is a share or one of {', '.join(get_args(Validation))}, not {self.valid!r}"
            )
        if way == "--random" and self.valid is not None and self.share is None:
            raise ConfigError("--valid is a share where splits are drawn at random")

    @property
    def share(self) -> float | None:
        """The share of the triples for validation, where it was given."""
        try:
            return None if self.valid is None else float(self.valid)
        except ValueError:
            return None

    def validation(self, dated: bool) -> Validation:
        """What validation is drawn by."""
        if self.valid is not None and self.share is None:
            return cast("Validation", self.valid)
        return "newest" if dated else "entities"
