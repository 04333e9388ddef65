"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kgmlm.terminal import INPUT

MOST = 2**32 - 1  # of any number of a command


RunArgument = Annotated[
    Path, typer.Argument(help="A run folder, made by `kgmlm train`, or a pack.", show_default=False)
]
FolderArgument = Annotated[  # of commands that write the run
    Path,
    typer.Argument(help="A run folder, made by `kgmlm train`.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]


def _scores() -> list[str]:
    from kgmlm.signals import SIGNALS

    return ["all", "text", *SIGNALS]


def _datasets() -> list[str]:
    from kgmlm.cards import card_names

    return card_names()


Scores = Annotated[
    str,
    typer.Option(
        autocompletion=_scores,
        help="all that a run has; its text, without what is trained beside it; or one signal alone: "
        "likelihood, vector, kge, rules or types.",
    ),
]
Retrieve = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="Score only this many entities per query, found by the index (`kgmlm index`); 0 scores all.",
    ),
]
Effort = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="How hard the index searches; by default as hard as its build chose."),
]
Rerank = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="How many of the best candidates are asked back (`kgmlm tune --add reverse`) and reranked "
        "(`kgmlm rerank`), in runs that do so; by default as many as validation chose, 0 for none.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        help="Ask back or rerank at most this many candidates; by default reranking.candidates.",
        show_default=False,
    ),
]
ChosenOn = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="How many validation triples to choose on, a seeded sample; 0 is all. By default all, but "
        "training.eval_triples for asking back and reranking.",
        show_default=False,
    ),
]
Precision = Annotated[
    Literal["fp32", "bf16"],
    typer.Option(help="fp32, or bf16: faster on GPUs and on CPUs with units for it, slightly rounded."),
]
RuntimeOption = Annotated[
    Literal["auto", "torch", "onnx"],
    typer.Option(
        "--runtime",
        help="What reads texts: torch, or ONNX Runtime in runs that `kgmlm onnx` has made ready for it; auto "
        "takes the latter on a CPU where it can do all that is asked.",
    ),
]
EntityTriples = Annotated[
    Path | None,
    typer.Option(
        help="What is known of the new entities: a file of triples (head, relation, tail), each with one of "
        "them. They count like training triples, and are known answers.",
    ),
    INPUT,
]
BatchSize = Annotated[
    int, typer.Option(min=1, max=MOST, help="Queries, or candidates to rerank, per forward pass.")
]
Prior = Annotated[
    float,
    typer.Option(help="The share of true triples among those that are asked about; above 0 and below 1."),
]
RelationsPrior = Annotated[
    float | None,
    typer.Option(
        "--prior",
        help="Where relations are ranked: the share of true triples among those that are asked about, .5 by "
        "default.",
        show_default=False,
    ),
]
AllowSelf = Annotated[
    bool,
    typer.Option(
        "--allow-self",
        help="Let the query's entity be its own answer even where no training triple of the relation links "
        "an entity to itself.",
    ),
]
Typed = Annotated[
    bool,
    typer.Option(
        "--typed",
        help="Leave out (`evaluate`: rank last) the entities whose types do not fit: what training has of a "
        "relation's heads and tails, and given types.",
    ),
]
Functional = Annotated[
    bool,
    typer.Option(
        "--functional",
        help="Where training has one answer per entity, leave out (`evaluate`: rank last) what would be a "
        "second one.",
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read all files of the run first and see that none has changed.")
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="A built-in dataset, or a folder with train.tsv.",
        show_default=False,
        autocompletion=_datasets,
    ),
]
Decay = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="With --resume: end the training after this many more epochs, in which the learning rate falls "
        "to 0 (see training.schedule). Copy the run's folder first if you may train on from here.",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="Stop each stage after this many steps, as for a smoke test."),
]
Workers = Annotated[
    int, typer.Option(min=1, max=1024, help="Processes that score, each with the model in memory.")
]
Engines = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--engine",
        help="Who scores: processes of this machine, or actors of a Ray cluster, each with one CPU (with "
        "--device cuda also one GPU).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the Ray cluster, of which this machine is a node; by default Ray is started here.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
SkipHeader = Annotated[
    bool,
    typer.Option("--skip-header", help="Leave out the first line of each of the folder's files of triples."),
]
