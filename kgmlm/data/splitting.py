"""``kgmlm.data.split``: split a dataset at random, by entities, by date or by version, and write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kgmlm.core.errors import DataError, counted
from kgmlm.core.files import as_path, check_new_folder
from kgmlm.core.options import takes_all
from kgmlm.core.progress import Watcher, watcher_of
from kgmlm.core.tables import DATES
from kgmlm.graphs.cards import Counts
from kgmlm.graphs.datasets import load_graph, tell_unread, write_folder
from kgmlm.graphs.dates import day, given_period
from kgmlm.graphs.graph import Dataset, KnowledgeGraph
from kgmlm.graphs.options import SplitOptions
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
        duplicates: how many duplicate triples were left out.
        later: how many triples are in no split, as they are later than what was asked for.
        removed: triples that the newer version lacks; they stay in training.
        renamed: names with one label in each version, each of which the other version lacks.
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


@takes_all(SplitOptions)
def split(options: SplitOptions) -> Split:
    """Split a dataset and write it as a new folder, with its card.

    Say how by one of ``random``, ``entities``, ``newest``, ``after`` and ``versions``.

    Raises:
        ConfigError: when options do not go together.
        DataError: when the dataset cannot be split so, or the folder is taken.

    Example:
        >>> split = kgmlm.data.split("attack", "attack-2023", after="2023")  # doctest: +SKIP
    """
    target, watch = as_path(options.output, "the output"), watcher_of(options.progress)
    check_new_folder(target)
    if options.versions is not None:
        return _split_versions(options.versions, target, options, watch)
    assert options.dataset is not None
    if options.newest is not None or options.after is not None:
        return _split_dated(options.dataset, target, options, watch)
    graph = source = load_graph(options.dataset, skip_header=options.skip_header)
    tell_unread(graph, watch.tell)
    share = options.share
    if options.entities is None:
        twice, shares = repeated(graph.splits["train"]), {"valid": share, "test": options.test}
        graph = split_random(graph, share, options.test, options.seed)
        how = f"split at random with seed {options.seed}"
        made = [name for name in graph.splits if name not in source.splits]
    else:
        twice, shares = repeated(graph.all_triples), {}
        graph = split_entities(graph, options.entities, options.seed)
        how = f"{options.entities:.0%} of the entities held out for each split with seed {options.seed}"
        made = [*graph.splits]
    card = describe_split(graph, _origin(options.dataset, graph), how)
    write_folder(graph, target, card)
    done = Split(target, card.counts, {name: New.of(graph, name) for name in made if name != "train"}, twice)
    done.tell(watch)
    for message in split_notes(graph, made, shares):
        watch.tell(message)
    if left := sum(map(len, source.negatives.values())) - sum(map(len, graph.negatives.values())):
        watch.tell(f"{counted(left, 'false triple')} left out: each split has those of its own entities")
    return done


def _origin(dataset: Dataset, graph: KnowledgeGraph) -> str | Path:
    return dataset if isinstance(dataset, str | Path) else graph.name


_DRAWN = {
    "newest": "validation is the newest of the older triples",
    "entities": "validation is about entities that training has not",
    "random": "validation is drawn at random from the older triples",
}
_TEXTS = (
    "texts are those of today: a description that was written later may reveal the answer to a test question"
)


def _split_dated(dataset: Dataset, target: Path, options: SplitOptions, watch: Watcher) -> Split:
    """Split by date."""
    source, dates = read_state(dataset, watch, column=options.date_column, skip_header=options.skip_header)
    tell_unread(source, watch.tell)
    if not dates:
        raise DataError(
            f"the triples of '{source.name}' have no column {', '.join(DATES[:-1])} or {DATES[-1]}; "
            "--date-column names another one"
        )
    after, until = (
        None if text is None else given_period(text, option)
        for text, option in ((options.after, "--after"), (options.until, "--until"))
    )
    kind = options.validation(True)
    made = split_dated(
        source, dates, newest=options.newest, after=after, until=until,
        validation=kind, share=SHARE if options.share is None else options.share, seed=options.seed,
    )  # fmt: skip
    later = f"what is later than {options.after}"
    of = later if options.newest is None else f"the newest {options.newest:.0%}"
    how = f"test is {of}" + (f", up to {options.until}" if options.until else "") + f"; {_DRAWN[kind]}"
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
    options: SplitOptions,
    watch: Watcher,
) -> Split:
    """Split by what a newer version of a graph adds to an older one."""
    (old, dates), (new, _) = (
        read_state(of, watch, column=options.date_column, skip_header=options.skip_header) for of in versions
    )
    for graph in (old, new):
        tell_unread(graph, watch.tell)
    both = compare_versions(old, new)
    unknown = np.full(len(old.all_triples), np.datetime64("NaT", "s"))
    every = np.concatenate([dates[name] for name in old.splits]) if dates else unknown
    dated = DatedTriples.of(old.all_triples, every)
    kind, share = options.validation(dated.moments > 1), SHARE if options.share is None else options.share
    held = hold_out(both.graph, dated, kind, share, options.seed)
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
