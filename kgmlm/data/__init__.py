"""``kgmlm.data``: list, fetch, check, show and split datasets; show what a model reads of a query.

``dataset`` is what :func:`kgmlm.load_graph` takes: a name, the path of a folder, triples in memory.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from kgmlm.core.config import load_settings
from kgmlm.core.errors import ConfigError, quoted
from kgmlm.core.options import ProgressOptions, takes
from kgmlm.core.progress import Watcher, watcher_of
from kgmlm.core.results import Result
from kgmlm.data.splitting import Split as Split
from kgmlm.data.splitting import split as split
from kgmlm.graphs.cards import Card, card_names, fetch, find_card, read_card
from kgmlm.graphs.checks import LISTED, check_graph, lines_of
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.entities import Entity
from kgmlm.graphs.graph import Dataset
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.options import CheckOptions, LinearizeOptions, ShowOptions
from kgmlm.graphs.queries import Queries
from kgmlm.graphs.storage import CHECKING, check_dataset
from kgmlm.runs.opened import open_folder
from kgmlm.runs.packs import find_pack, is_pack
from kgmlm.runs.run import Run, path_of
from kgmlm.text.linearization import linearize as linearize_queries
from kgmlm.text.tokenization import (
    SpanTokenizer,
    Vocabulary,
    load_tokenizer,
    scratch_texts,
    train_tokenizer,
)

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.graphs.graph import KnowledgeGraph

Triple = tuple[str, str, str]  # labels


@dataclass(frozen=True)
class Cards(Result):
    """The built-in datasets, by name."""

    cards: Mapping[str, Card]

    def as_json(self) -> tuple[dict[str, Any], ...]:
        """The objects that ``kgmlm data list --json`` prints."""
        return tuple({"name": c.name, "title": c.title, **c.counts.model_dump()} for c in self.cards.values())

    def to_frame(self) -> pd.DataFrame:
        """A row per dataset: title, and how many entities, relations and triples it has."""
        import pandas as pd

        return pd.DataFrame(self.as_json()).set_index("name")


@dataclass(frozen=True)
class Check:
    """The findings about a graph: errors, oddities, leaks.

    Attributes:
        values: the report, as JSON has it: counts, duplicates, leakage, colliding names and the ceiling that
            they impose, unseen entities, examples of what is odd.
    """

    values: Mapping[str, Any]

    @property
    def mismatches(self) -> Mapping[str, Mapping[str, int]]:
        """Counts that differ from those of the dataset's card: what the card says, and what was found."""
        mismatches: Mapping[str, Mapping[str, int]] = self.values.get("mismatches", {})
        return mismatches

    def __repr__(self) -> str:
        name, entities = self.values["dataset"], self.values["entities"]
        return f"<check of {name}: {entities:,} entities, {sum(self.values['triples'].values()):,} triples>"

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm data check --json`` prints."""
        return dict(self.values)

    def lines(self) -> Mapping[str, Sequence[str]]:
        """The findings for people, by heading."""
        return lines_of(self.values)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{key}</th><td>{'<br>'.join(map(html.escape, lines))}</td></tr>"
            for key, lines in self.lines().items()
        )
        return f"<p>{html.escape(self.values['dataset'])}</p><table>{rows}</table>"


SHOWN = 20  # triples of an entity that people are shown


@dataclass(frozen=True)
class Shown:
    """A dataset, or one of its entities.

    Attributes:
        name: of the dataset.
        card: where it has one.
        relations: their labels and names.
        entity: the one that was asked for, if one was.
        triples: training triples: five, or all of the entity; by their labels.
        named: the first of them by their names.
    """

    name: str
    card: Card | None
    relations: Mapping[str, str]
    entity: Entity | None
    triples: tuple[Triple, ...]
    named: tuple[Triple, ...]

    def __repr__(self) -> str:
        of = f" of {self.entity.surface}" if self.entity else ""
        return f"<{self.name}: {len(self.triples):,} triples{of}>"

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm data show --json`` prints."""
        if self.entity is not None:
            return {**asdict(self.entity), "train": [*self.triples]}
        card = self.card.model_dump(exclude={"source", "splits", "texts", "example"}) if self.card else {}
        return {**card, "name": self.name, "relations": [*self.relations], "examples": [*self.triples]}

    def lines(self) -> Mapping[str, Sequence[str]]:
        """Lines for people, by heading."""
        triples, more = [" | ".join(row) for row in self.named], len(self.triples) - SHOWN
        triples += [f"and {more:,} more"] if more > 0 else []
        if (of := self.entity) is not None:
            shown = {"entity": of.surface, "name": of.name, "label": of.label, "description": of.description,
                     "types": ", ".join(of.types)}  # fmt: skip
            return {key: [value] for key, value in shown.items() if value} | {"training": triples}
        lines = {"dataset": [self.name]}
        if self.card is not None:
            counts = self.card.counts.model_dump()
            lines["dataset"] = [f"{self.name}: {self.card.title}", *wrap(self.card.description, 70)]
            lines["counts"] = [", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts.items())]
            lines |= {"license": [self.card.license], "citation": wrap(self.card.citation, 70)}
        return lines | {"relations": wrap(", ".join(self.relations.values()), 70), "triples": triples}


class _Download:
    """Pooch's progress bar, passed on to a watcher."""

    def __init__(self, watch: Watcher, name: str) -> None:
        self.watch, self.name = watch, name
        self.total = self.done = 0

    def update(self, n: int) -> None:
        """Count ``n`` more bytes, up to the total, which pooch reports once more at the end."""
        n = min(n, self.total - self.done)
        self.done += n
        if n:
            self.watch(f"fetching {self.name}", n, self.total)

    def reset(self) -> None:
        """Do nothing; pooch calls it before it reports the total."""

    def close(self) -> None:
        """Do nothing; pooch calls it at the end."""


@takes(ProgressOptions)
def prepare(name: str, options: ProgressOptions) -> Mapping[str, Sequence[Path]]:
    """Fetch and verify the files of a built-in dataset, from ``$KGMLM_MIRROR`` where it has them.

    Args:
        name: of a dataset, or "all", which leaves out large ones.

    Returns:
        The files of each dataset.

    Raises:
        DataError: when there is no such dataset, or a file cannot be found or has a wrong checksum.
    """
    watch = watcher_of(options.progress)
    if name not in ("all", *card_names()) and Path(name).is_dir():
        watch.tell(
            f"{name} is a folder of yours: there is nothing to fetch; `kgmlm data check {quoted(name)}` "
            "checks it"
        )
        return {}
    files: dict[str, Sequence[Path]] = {}
    for each in [x for x in card_names() if not read_card(x).large] if name == "all" else [name]:
        paths = []
        for source in read_card(each).source:
            with watch:
                paths.append(fetch(source, progress=_Download(watch, source.path)))
            unverified = "" if source.sha256 else ", unverified: nobody has published its checksum"
            watch.tell(f"{each}: {source.path} is at {paths[-1]}{unverified}")
        watch.tell(f"{each}: ready")
        files[each] = tuple(paths)
    return files


@takes(CheckOptions)
def check(dataset: Dataset, options: CheckOptions) -> Check:
    """Count what a dataset has, and what is wrong, odd or leaky about it.

    Raises:
        DataError: when there is no such dataset, or its files are wrong.
    """
    if options.model == "scratch":
        raise ConfigError("'scratch' has no tokenizer before it is trained; name a pretrained model")
    check_dataset(dataset, CHECKING, watcher_of(True).tell)
    graph = load_graph(dataset, skip_header=options.skip_header)
    card = _card_of(dataset)
    report = check_graph(graph, card.counts if card else None)
    report["unread"] = dict(graph.unread)
    if options.model is not None:
        from kgmlm.core.progress import quiet_transformers

        quiet_transformers()
        report["name_tokens"] = check_tokens(graph, load_tokenizer(str(options.model)))
    return Check(report)


def _card_of(dataset: Dataset) -> Card | None:
    """The card of a dataset, if it has one; a graph has none."""
    return find_card(dataset) if isinstance(dataset, str | Path) else None


def check_tokens(graph: KnowledgeGraph, tokenizer: SpanTokenizer) -> dict[str, Any]:
    """Check names as a model's tokens: their lengths, which set the span, and characters without a token."""
    import pyarrow as pa

    from kgmlm.core.config import Settings

    names = graph.entities.table.column("surface")
    tokens = tokenizer.candidates(names, None, end_of_name=False)
    lengths = tokens.lengths_N
    longest = lengths.argsort(kind="stable")[::-1][:5]
    unknown = tokenizer.unknown(tokens)
    span = Vocabulary.fit(tokens, graph.seen_N, Settings()).span_length
    sets = (graph.seen_N & (lengths == span)).nonzero()[0][:1]
    return {
        "mean": round(float(lengths.mean()), 3),
        "max": int(lengths.max()),
        "longest": [{"name": names[int(i)].as_py(), "tokens": int(lengths[i])} for i in longest],
        "span": {"tokens": span, "name": names[int(sets[0])].as_py() if len(sets) else None},
        "unknown": {"count": len(unknown), "examples": names.take(pa.array(unknown[:LISTED])).to_pylist()},
    }


@takes(ShowOptions)
def show(dataset: Dataset, options: ShowOptions) -> Shown:
    """A dataset's card and a few triples, or one entity with its training triples.

    Raises:
        DataError: when there is no such dataset, or its files are wrong.
        QueryError: for an unknown or ambiguous entity.
    """
    graph = load_graph(dataset, skip_header=options.skip_header)
    train, shown_entity = graph.splits["train"], None
    if options.entity is None:
        triples = train[:5]
    else:
        at = Resolver(graph).entity(options.entity)
        shown_entity, triples = graph.entities[at], train[(train[:, [0, 2]] == at).any(1)]
    relations = {r.label: r.name for r in graph.relations}
    labeled, named = tuple(graph.labeled(triples)), tuple(graph.named(triples[:SHOWN]))
    return Shown(graph.name, _card_of(dataset), relations, shown_entity, labeled, named)


def list() -> Cards:
    """The built-in datasets. (In this module it hides Python's own ``list``.)"""
    return Cards({name: read_card(name) for name in card_names()})


@dataclass(frozen=True)
class Linearized:
    """A query as the model sees it.

    Attributes:
        text: for people.
        pieces: the text of each token.
        span_start, span_length: where the hole is, in tokens.
        vector: whether a mask for the query's vector follows the hole.
        tokens_cut: how many did not fit.
    """

    text: str
    input_ids: Sequence[int]
    tokens: Sequence[str]
    pieces: Sequence[str]
    span_start: int
    span_length: int
    vector: bool
    tokens_cut: int

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm linearize --json`` prints."""
        return asdict(self)


@takes(LinearizeOptions)
def linearize(source: Run | str | Path, options: LinearizeOptions) -> Linearized:
    """The exact text and tokens that the model sees for a query.

    Args:
        source: a run or a pack, a built-in dataset, or a dataset folder.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
        ConfigError: when a model or a template is given for a run, which has its own.
    """
    path = path_of(source)
    is_run = (path / "run.json").is_file() or is_pack(path)
    if is_run or (path.name not in card_names() and find_pack(path) is not None):
        run = open_folder(path_of(source))
        for option, value in (("--template", options.template), ("--model", options.model)):
            if value is not None:
                raise ConfigError(f"{option} is for datasets; a run has its own")
        graph, settings, vocabulary = run.graph, run.settings, run.vocabulary
        tokenizer = load_tokenizer(run.model_folder)
    else:
        graph = load_graph(str(source), skip_header=options.skip_header)
        settings = load_settings(None, [f"text.template={options.template}"] if options.template else [])
        if options.model in (None, "scratch"):
            texts = scratch_texts(graph, settings.text)
            tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        else:
            from kgmlm.core.progress import quiet_transformers

            quiet_transformers()
            tokenizer = load_tokenizer(options.model)
        surfaces = graph.entities.table.column("surface")
        names = tokenizer.candidates(surfaces, None, settings.scoring.end_of_name)
        vocabulary = Vocabulary.fit(names, graph.seen_N, settings)
    query = Resolver(graph).query(options.relation, options.head, options.tail)
    (text,) = linearize_queries(graph.context, Queries.of([query]), settings.text)
    (encoded,) = tokenizer.encode_queries(
        [text], vocabulary.span_length, settings.text.max_length, vector=settings.vector.enabled
    )
    return Linearized(
        tokenizer.render(text, encoded),
        encoded.input_ids,
        tokenizer.tokens(encoded.input_ids),
        tokenizer.texts(encoded.input_ids),
        encoded.span_start,
        encoded.span_length,
        encoded.vector,
        encoded.cut,
    )
