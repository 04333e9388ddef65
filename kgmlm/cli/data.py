"""The ``kgmlm data`` commands: list, fetch, check, show and split datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgmlm.cli.options import MOST, Json, Quiet, SkipHeader
from kgmlm.terminal import fail, handled, print_check, print_json, stdout, tell

if TYPE_CHECKING:
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.tokenization import SpanTokenizer

data_app = typer.Typer(help="List, fetch, check, show and split datasets.", no_args_is_help=True)


@data_app.command("list")
@handled
def data_list(as_json: Json = False) -> None:
    """List the built-in datasets."""
    from kgmlm.cards import card_names, read_card

    cards = [read_card(name) for name in card_names()]
    if as_json:
        print_json([{"name": c.name, "title": c.title, **c.counts.model_dump()} for c in cards])
        return
    from rich.table import Table

    table = Table()
    for column in ("name", "entities", "relations", "train", "valid", "test", "unseen"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for card in cards:
        counts = card.counts.model_dump()
        table.add_row(card.name, *(f"{counts[c.header]:,}" for c in table.columns[1:]))  # type: ignore[index]
    stdout().print(table)


@data_app.command("prepare")
@handled
def data_prepare(
    name: Annotated[str, typer.Argument(help="A built-in dataset, or `all`.")], quiet: Quiet = False
) -> None:
    """Fetch and verify a dataset's files, from $KGMLM_MIRROR where it has them."""
    from kgmlm.cards import card_names, fetch, read_card

    if name not in ("all", *card_names()) and Path(name).is_dir():
        tell(f"{name} is a folder of yours: there is nothing to fetch; `kgmlm data check {name}` checks it")
        return
    for each in card_names() if name == "all" else [name]:
        card = read_card(each)
        for source in card.source:
            path = fetch(source, progress=not quiet)
            tell(f"{each}: {source.path} is at {path}")
        tell(f"{each}: ready")


def check_tokens(graph: KnowledgeGraph, tokenizer: SpanTokenizer) -> dict[str, Any]:
    """What names are to a model: how long, which sets the span by default, which it has no tokens for."""
    from kgmlm.checks import LISTED
    from kgmlm.config import Settings
    from kgmlm.vocabulary import Vocabulary

    names = graph.entities.column("surface")
    tokens = tokenizer.candidates(names, None, end_of_name=False)
    lengths = tokens.lengths_N
    longest = lengths.argsort(kind="stable")[::-1][:5]
    unknown = tokenizer.unknown(tokens)
    span = Vocabulary.fit(tokenizer, names, graph.seen_N, Settings()).span_length
    sets = next((names[i] for i in graph.seen_N.nonzero()[0] if lengths[i] == span), None)
    return {
        "mean": round(float(lengths.mean()), 3),
        "max": int(lengths.max()),
        "longest": [{"name": names[i], "tokens": int(lengths[i])} for i in longest],
        "span": {"tokens": span, "name": sets},
        "unknown": {"count": len(unknown), "examples": [names[i] for i in unknown[:LISTED]]},
    }


@data_app.command("check")
@handled
def data_check(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    model: Annotated[str | None, typer.Option(help="Count name lengths in this model's tokens.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Report counts, duplicates, leakage, name collisions and their ceiling, unseen entities, long names.

    Examples are listed of what is odd: five, or up to a hundred with --json.
    Exit code 2 when the counts differ from the card's.
    """
    from kgmlm.cards import find_card
    from kgmlm.checks import check_graph
    from kgmlm.datasets import load_graph

    graph = load_graph(dataset, skip_header=skip_header)
    card = find_card(dataset)
    report = check_graph(graph, card.counts if card else None)
    if model is not None:
        from kgmlm.tokenizer_sources import load_tokenizer
        from kgmlm.watching import quiet_transformers

        quiet_transformers()
        report["name_tokens"] = check_tokens(graph, load_tokenizer(model))
    if as_json:
        print_json(report)
    else:
        print_check(report)
    if report.get("mismatches"):
        wrong = ", ".join(f"{k} {v['found']} instead of {v['card']}" for k, v in report["mismatches"].items())
        fail(f"{dataset} differs from its card: {wrong}")


@data_app.command("show")
@handled
def data_show(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    entity: Annotated[str | None, typer.Option(help="Show one entity and its training triples.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Show a dataset's card and a few triples, or one entity."""
    from kgmlm.cards import find_card
    from kgmlm.datasets import load_graph

    graph = load_graph(dataset, skip_header=skip_header)
    if entity is not None:
        from dataclasses import asdict

        from kgmlm.resolver import Resolver

        at = Resolver(graph).entity(entity)
        train_triples = graph.splits["train"]
        touching = train_triples[(train_triples[:, [0, 2]] == at).any(1)]
        shown: dict[str, Any] = {**asdict(graph.entities[at]), "train": graph.labeled(touching)}
    else:
        found = find_card(dataset)
        card = found.model_dump(exclude={"source", "splits", "texts"}) if found else {}
        shown = {**card, "name": graph.name, "relations": [r.label for r in graph.relations]}
        shown["examples"] = graph.labeled(graph.splits["train"][:5])
    if as_json:
        print_json(shown)
        return
    for key, value in shown.items():
        if isinstance(value, list):
            print(f"{key}:")
            for row in value[:20]:
                print("  " + (row if isinstance(row, str) else " | ".join(row)))
            if len(value) > 20:
                print(f"  and {len(value) - 20:,} more")
        else:
            print(f"{key}: {value}")


def count_unseen(graph: KnowledgeGraph, split: str) -> dict[str, int]:
    """Entities of a split that training has not, and triples that have one as head, as tail, as both."""
    ends = graph.splits[split][:, [0, 2]]
    new = ~graph.seen_N[ends]
    return {
        "entities": len(set(ends[new].tolist())),
        "head": int((new[:, 0] & ~new[:, 1]).sum()),
        "tail": int((new[:, 1] & ~new[:, 0]).sum()),
        "both": int(new.all(1).sum()),
    }


@data_app.command("split")
@handled
def data_split(
    dataset: Annotated[str, typer.Argument(help="A dataset folder.")],
    output: Annotated[Path, typer.Option(help="The dataset folder to write.", show_default=False)],
    random: Annotated[bool, typer.Option("--random", help="Draw triples at random.")] = False,
    unseen_entities: Annotated[
        float | None,
        typer.Option(
            help="Hold out this share of the entities for test, as many for validation, with their triples."
        ),
    ] = None,
    valid: Annotated[
        float | None,
        typer.Option(help="With --random: share of the triples for validation, by default 0.1."),
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="With --random: share of the triples for test, by default 0.1.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST)] = 0,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Split a dataset and write it as a new folder, with its card.

    --random makes the splits that are missing. --unseen-entities splits all triples again, so that
    validation and test are about entities that training has not.
    """
    from kgmlm.datasets import load_graph, repeated, write_folder
    from kgmlm.kg import ConfigError, counted
    from kgmlm.splits import describe_split, split_random, split_unseen

    if random == (unseen_entities is not None):
        raise ConfigError("say how to split: either --random or --unseen-entities SHARE")
    if unseen_entities is not None and (valid, test) != (None, None):
        raise ConfigError("--valid and --test go with --random")
    graph = load_graph(dataset, skip_header=skip_header)
    if unseen_entities is None:
        twice = repeated(graph.splits["train"])
        graph = split_random(graph, valid, test, seed)
        how = f"split at random with seed {seed}"
    else:
        twice = repeated(graph.all_triples)
        graph = split_unseen(graph, unseen_entities, seed)
        how = f"{unseen_entities:.0%} of the entities held out for each split with seed {seed}"
    card = describe_split(graph, dataset, how)
    write_folder(graph, output, card)
    if twice:
        tell(f"{counted(twice, 'duplicate triple')} count{'s' * (twice == 1)} once")
    report: dict[str, Any] = card.counts.model_dump()
    tell(", ".join(f"{s} {len(t):,}" for s, t in graph.splits.items()) + f" triples written to {output}")
    for split in ("valid", "test") if unseen_entities is not None else ():
        counts = count_unseen(graph, split)
        report[f"{split}_unseen"] = counts
        tell(
            f"{split}: {counted(counts['entities'], 'unseen entity')}, "
            f"in {counted(counts['head'], 'triple')} as the head, "
            f"in {counts['tail']:,} as the tail, in {counts['both']:,} as both"
        )
    if as_json:
        print_json(report)
