"""``kgmlm.data.split``: split a dataset at random, by entities, by date or by version, and write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from kgmlm.core.errors import ConfigError, DataError, check_numbers, counted
from kgmlm.core.files import as_path, check_new_folder
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.core.tables import DATES
from kgmlm.graphs.cards import Counts
from kgmlm.graphs.datasets import load_graph, tell_unread, write_folder
from kgmlm.graphs.dates import day, given_period
from kgmlm.graphs.graph import Dataset, KnowledgeGraph, Validation
from kgmlm.graphs.queries import SPLITS, repeated
from kgmlm.graphs.splits import (
    SHARE,
    DatedTriples,
    New,
    describe_split,
    hold_out,
    split_dated,
    split_entities,
    split_notes,
    split_random,
)
from kgmlm.graphs.versions import Renamed, compare_versions
from kgmlm.importing.states import read_state


@dataclass(frozen=True)
class Split:
    """A dataset that was split.

    Attributes:
        path: its folder.
        counts: of entities, relations, and the triples of each split.
        new: what training knows of the ends of each split's triples.
        duplicates: how often a triple was there again, and was left out.
        later: how many triples are in no split, as they are later than what was asked for.
        removed: triples that the newer version lacks; they stay in training.
        renamed: names with one label in each version, both of which the other version lacks.
    """

    path: Path
    counts: Counts
    new: Mapping[str, New]
    duplicates: int
    later: int = 0
    removed: tuple[tuple[str, str, str], ...] = ()
    renamed: tuple[Renamed, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm data split --json`` prints."""
        new = {f"{split}_new": of._asdict() for split, of in self.new.items()}
        values = {**self.counts.model_dump(), **new}
        if self.later:
            values["later"] = self.later
        if self.removed or self.renamed:
            values["removed"] = [[*row] for row in self.removed]
            values["renamed"] = [row._asdict() for row in self.renamed]
        return values

    def tell(self, watch: Watcher) -> None:
        """Say what was written, and what the questions of each split are about."""
        if self.duplicates:
            one = self.duplicates == 1
            watch.tell(f"{counted(self.duplicates, 'duplicate triple')} count{'s' * one} once")
        sizes = ", ".join(f"{name} {getattr(self.counts, name):,}" for name in SPLITS)
        watch.tell(f"{sizes} triples written to {self.path}")
        for split, of in self.new.items():
            watch.tell(f"{split}: {of}")
        if self.later:
            watch.tell(f"{counted(self.later, 'later triple')} left out")
        removed = [" | ".join(row) for row in self.removed]
        renamed = [f"{name} ({old}, then {new})" for name, old, new in self.renamed]
        if removed:
            watch.tell(f"only in the old version, and kept: {_listed(removed, 'triple')}")
        if renamed:
            watch.tell(f"renamed, perhaps, but two entities here: {_listed(renamed, 'name')}")


NAMED = 5  # triples or names that a message lists


def _listed(rows: Sequence[str], what: str) -> str:
    more = f", and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    return f"{counted(len(rows), what)}: {'; '.join(rows[:NAMED])}{more}"


def split(
    dataset: Dataset | None,
    output: str | Path,
    *,
    random: bool = False,
    entities: float | None = None,
    newest: float | None = None,
    after: str | None = None,
    until: str | None = None,
    versions: tuple[Dataset, Dataset] | None = None,
    date_column: str | None = None,
    valid: float | Validation | None = None,
    test: float | None = None,
    seed: int = 0,
    skip_header: bool = False,
    progress: bool | Watcher | Advance = True,
) -> Split:
    """Split a dataset and write it as a new folder, with its card.

    Say how by one of ``random``, ``entities``, ``newest``, ``after`` and ``versions``.

    Args:
        dataset: a dataset; with dates it may also be a file of triples. None where there are ``versions``.
        output: the dataset folder to write.
        random: draw the missing splits from the training triples at random.
        entities: split all triples again so that validation and test are about entities that training has
            not: the share of the entities to hold out for each of the two.
        newest: split all triples again by date, with this share, the newest, for test.
        after, until: instead, test is what is dated after one time and not after another one, such as "2023",
            "2023-05", "2023-05-17" or a Unix time. Later triples are left out.
        versions: an older and a newer state of a graph (datasets, files of triples, or files that
            :func:`kgmlm.import_graph` reads): test is what the newer one adds.
        date_column: of dates, by its name or, where the triples have no header, by its number from 1; by
            default ``date``, ``created`` or ``time``.
        valid: the share of the triples for validation, by default a tenth; or what validation is drawn by,
            "newest", "entities" or "random": by default the newest triples where they have dates, and else
            entities.
        test: with ``random``: the share for test, by default a tenth.
        skip_header: leave out the first line of each file of triples that does not name further columns.

    Raises:
        ConfigError: when options do not go together.
        DataError: when the dataset cannot be split so, or the folder is taken.

    Example:
        >>> split = kgmlm.data.split("attack", "attack-2023", after="2023")  # doctest: +SKIP
    """
    check_numbers(seed=(seed, 0))
    asked = _Asked(random, entities, newest, after, until, versions, date_column, valid, test)
    asked.check(dataset)
    target, watch = as_path(output, "the output"), watcher_of(progress)
    check_new_folder(target)
    if versions is not None:
        return _split_versions(versions, target, asked, seed, skip_header, watch)
    assert dataset is not None
    if newest is not None or after is not None:
        return _split_dated(dataset, target, asked, seed, skip_header, watch)
    graph = source = load_graph(dataset, skip_header=skip_header)
    tell_unread(graph, watch.tell)
    share = asked.share
    if entities is None:
        twice, shares = repeated(graph.splits["train"]), {"valid": share, "test": test}
        graph, how = split_random(graph, share, test, seed), f"split at random with seed {seed}"
        made = [name for name in graph.splits if name not in source.splits]
    else:
        twice, shares = repeated(graph.all_triples), {}
        graph = split_entities(graph, entities, seed)
        how = f"{entities:.0%} of the entities held out for each split with seed {seed}"
        made = [*graph.splits]
    card = describe_split(graph, _origin(dataset, graph), how)
    write_folder(graph, target, card)
    done = Split(target, card.counts, {name: New.of(graph, name) for name in made if name != "train"}, twice)
    done.tell(watch)
    for message in split_notes(graph, made, shares):
        watch.tell(message)
    if left := sum(map(len, source.negatives.values())) - sum(map(len, graph.negatives.values())):
        watch.tell(f"{counted(left, 'false triple')} left out: each split has those of its own entities")
    return done


class _Asked(NamedTuple):
    """How a dataset is to be split, as :func:`split` takes it."""

    random: bool
    entities: float | None
    newest: float | None
    after: str | None
    until: str | None
    versions: tuple[Dataset, Dataset] | None
    date_column: str | None
    valid: float | Validation | None
    test: float | None

    def check(self, dataset: Dataset | None) -> None:
        """Refuse what does not go together.

        Raises:
            ConfigError: naming it.
        """
        ways = {
            "--random": self.random,
            "--entities": self.entities is not None,
            "--newest": self.newest is not None,
            "--after": self.after is not None,
            "--versions": self.versions is not None,
        }
        named = [way for way, given in ways.items() if given]
        if len(named) != 1:
            raise ConfigError(f"say how to split by one of {', '.join(ways)}" + _both(named))
        way = named[0]
        if (dataset is None) != (way == "--versions"):
            raise ConfigError("--versions takes OLD and NEW instead of a dataset; others take a dataset")
        if self.test is not None and way != "--random":
            raise ConfigError("--test goes with --random")
        if self.until is not None and way != "--after":
            raise ConfigError("--until goes with --after")
        if self.valid is not None and way == "--entities":
            raise ConfigError("--entities holds out as many for validation as for test; leave out --valid")
        if self.date_column is not None and way in ("--random", "--entities"):
            raise ConfigError("--date-column goes with --newest, --after and --versions")
        if isinstance(self.valid, str) and self.valid not in get_args(Validation):
            raise ConfigError(
                f"--valid is a share or one of {', '.join(get_args(Validation))}, not {self.valid!r}"
            )
        if way == "--random" and isinstance(self.valid, str):
            raise ConfigError("--valid is a share where splits are drawn at random")

    @property
    def share(self) -> float | None:
        """The share of the triples for validation, where it was given."""
        return None if isinstance(self.valid, str) else self.valid

    def validation(self, dated: bool) -> Validation:
        """What validation is drawn by."""
        if isinstance(self.valid, str):
            return self.valid
        return "newest" if dated else "entities"


def _both(named: Sequence[str]) -> str:
    return f", not by {' and '.join(named)}" if named else ""


def _origin(dataset: Dataset, graph: KnowledgeGraph) -> str | Path:
    return dataset if isinstance(dataset, str | Path) else graph.name


_DRAWN = {
    "newest": "validation is the newest of the older triples",
    "entities": "validation is about entities that training has not",
    "random": "validation is drawn at random from the older triples",
}
_TEXTS = (
    "texts are those of today: a description that was written later may tell the answer to a question of test"
)


def _split_dated(
    dataset: Dataset, target: Path, asked: _Asked, seed: int, skip_header: bool, watch: Watcher
) -> Split:
    """Split by date."""
    source, dates = read_state(dataset, watch, column=asked.date_column, skip_header=skip_header)
    tell_unread(source, watch.tell)
    if not dates:
        raise DataError(
            f"the triples of '{source.name}' have no column {', '.join(DATES[:-1])} or {DATES[-1]}; "
            "--date-column names another one"
        )
    after, until = (
        None if text is None else given_period(text, option)
        for text, option in ((asked.after, "--after"), (asked.until, "--until"))
    )
    kind = asked.validation(True)
    made = split_dated(
        source, dates, newest=asked.newest, after=after, until=until,
        validation=kind, share=SHARE if asked.share is None else asked.share, seed=seed,
    )  # fmt: skip
    of = f"the newest {asked.newest:.0%}" if asked.newest is not None else f"what is later than {asked.after}"
    how = f"test is {of}" + (f", up to {asked.until}" if asked.until else "") + f"; {_DRAWN[kind]}"
    card = describe_split(made.graph, _origin(dataset, source), how)
    write_folder(made.graph, target, card, made.dates)
    new = {name: New.of(made.graph, name) for name in SPLITS[1:]}
    done = Split(target, card.counts, new, repeated(source.all_triples), later=made.later)
    done.tell(watch)
    for name in SPLITS:
        known = made.dates[name][~np.isnat(made.dates[name])]
        if len(known):
            watch.tell(f"{name}: dated {day(known.min())} to {day(known.max())}")
    if undated := sum(int(np.isnat(of).sum()) for of in dates.values()):
        watch.tell(
            f"{counted(undated, 'triple')} without a date {'stay' if undated > 1 else 'stays'} in training"
        )
    if source.negatives:
        watch.tell(f"{counted(sum(map(len, source.negatives.values())), 'false triple')} left out")
    watch.tell(_TEXTS)
    return done


def _split_versions(
    versions: tuple[Dataset, Dataset],
    target: Path,
    asked: _Asked,
    seed: int,
    skip_header: bool,
    watch: Watcher,
) -> Split:
    """Split by what a newer version of a graph adds to an older one."""
    (old, dates), (new, _) = (
        read_state(of, watch, column=asked.date_column, skip_header=skip_header) for of in versions
    )
    for graph in (old, new):
        tell_unread(graph, watch.tell)
    both = compare_versions(old, new)
    unknown = np.full(len(old.all_triples), np.datetime64("NaT", "s"))
    every = np.concatenate([dates[name] for name in old.splits]) if dates else unknown
    dated = DatedTriples.of(old.all_triples, every)
    kind, share = asked.validation(dated.moments > 1), SHARE if asked.share is None else asked.share
    held = hold_out(both.graph, dated, kind, share, seed)
    splits = {**held.graph.splits, "test": both.graph.splits["test"]}
    graph = replace(held.graph, splits=splits)
    how = f"test is what {new.name} adds to {old.name}; {_DRAWN[kind]}"
    test_dates = np.full(len(splits["test"]), np.datetime64("NaT", "s"))
    card = describe_split(graph, _origin(versions[1], new), how)
    write_folder(graph, target, card, {**held.dates, "test": test_dates} if dates else None)
    removed = tuple(graph.labeled(both.removed))
    counts = {name: New.of(graph, name) for name in SPLITS[1:]}
    twice = repeated(old.all_triples) + repeated(new.all_triples)
    done = Split(target, card.counts, counts, twice, removed=removed, renamed=tuple(both.renamed))
    done.tell(watch)
    if false := sum(len(of) for each in (old, new) for of in each.negatives.values()):
        watch.tell(f"{counted(false, 'false triple')} left out")
    return done
