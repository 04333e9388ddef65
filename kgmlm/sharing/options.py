"""The options of sharing a run: packs, hubs, vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kgmlm.core.options import ProgressOptions, QuietOptions, about, option
from kgmlm.runs.options import DeviceOptions


@dataclass(frozen=True, kw_only=True)
class PackOptions(DeviceOptions, ProgressOptions):
    """Options of :func:`kgmlm.pack`."""

    output: str | Path | None = field(
        default=None,
        kw_only=False,
        metadata=about("The file to write; by default RUN.kgmlm beside the run.", command=Path),
    )
    kge: bool = option(
        True,
        "Include graph embeddings, and trees that were fitted with them. Without them, the other weights "
        "stay as they were chosen with them.",
    )
    onnx: bool = option(True, "Include what ONNX Runtime needs to rank without torch.")
    calibrate: bool = option(
        False,
        "Fit probabilities to what the pack scores and keep them in it; RUN may then be a pack.",
    )


@dataclass(frozen=True, kw_only=True)
class PushOptions(ProgressOptions):
    """Options of :func:`kgmlm.push`."""

    to: str = field(kw_only=False, metadata=about("USER/NAME of the repository.", is_argument=True))
    private: bool = option(False, "Make the repository private, where it is new.")
    license: str | None = option(
        None,
        "License of texts and triples, for the model card; by default that of the built-in dataset.",
    )
    evaluation: str | Path | None = option(
        None,
        "The report of `kgmlm evaluate --output`, for the card; without it, the card has validation figures.",
        command=Path,
        is_input=True,
    )
    message: str = option("Push a run of kgmlm", "Message of the commit.")


Embedded = Literal["biencoder", "vector", "kge"]
OF = (
    "The signal whose embeddings to use: biencoder (texts and triples), vector (texts, by the masked LM) or "
    "kge (ComplEx); by default the first of these that the run has."
)


@dataclass(frozen=True, kw_only=True)
class EmbeddingsOptions(ProgressOptions):
    """Options of :func:`kgmlm.embeddings`."""

    of: Embedded | None = field(default=None, kw_only=False, metadata=about(OF))
    relations: bool = option(False, "With --of kge: write relations instead of entities; inverses come last.")


@dataclass(frozen=True, kw_only=True)
class SimilarOptions(QuietOptions):
    """Options of :func:`kgmlm.similar`."""

    entity: str = field(kw_only=False, metadata=about("The entity's label or name.", is_argument=True))
    k: int = field(
        default=10,
        kw_only=False,
        metadata=about("How many entities.", names=("-k", "--top"), at_least=1),
    )
    of: Embedded | None = option(None, OF)
