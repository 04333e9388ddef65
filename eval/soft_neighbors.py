"""Neighbors as vectors, one soft token each, against neighbors as words: an experiment, not part of kgmlm.

    OMP_NUM_THREADS=1 python eval/soft_neighbors.py GRAPH --model MODEL [--told 4+0,0+16,4+16] [--seeds 1]
        [--epochs 3] [--unseen GRAPH-ind] [--output eval/soft_neighbors.json]

"4+16" tells four neighbors in words, as kgmlm does, and sixteen more as soft tokens behind the first token:
a small network maps (vector of the entity's text by the untrained encoder, learned vector of relation and
direction) to an input embedding (after MoCoKGC, EMNLP 2024, whose entity vectors are trained). Otherwise as
recipes/minilm-neighbors-vector.toml. Figures are of validation, of GRAPH and of the unseen graph, by the text
after the last step. Test is not looked at.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import store
import torch
import typer
from torch import nn

import kgmlm
from kgmlm import provenance
from kgmlm.config import Protocol, load_settings
from kgmlm.graph import ContextGraph
from kgmlm.kg import Queries
from kgmlm.linearization import get_template, neighborhood
from kgmlm.mixture import Mixture
from kgmlm.modeling import SpanModel
from kgmlm.ranker import Ranker
from kgmlm.reader import Reader, padded
from kgmlm.starting import start_run
from kgmlm.tokenization import Encoded
from kgmlm.training import train
from kgmlm.tuning import weigh

RECIPE = Path(__file__).parent / "recipes" / "minilm-neighbors-vector.toml"


class SoftTokens(nn.Module):
    """Input embeddings of neighbors, which have the ids behind the vocabulary.

    Shapes: N entities, R relations, D width of the model.
    """

    def __init__(self, model: SpanModel, context: ContextGraph, count: int) -> None:
        super().__init__()
        self.count = count
        words = model.mlm.get_input_embeddings()
        self.first, width = words.num_embeddings, words.embedding_dim
        self.known = {name: i for i, name in enumerate(context.relation_names)}
        self.relations = nn.Embedding(2 * len(self.known), width)
        self.network = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))
        nn.init.normal_(self.relations.weight)
        self.scale = float(words.weight.std())
        self.vectors_ND: torch.Tensor | None = None
        self.encoder = [deepcopy(model.mlm.base_model)]  # in a list: its weights are not trained
        words.register_forward_pre_hook(self._hide)
        words.register_forward_hook(self._show)
        self._asked: torch.Tensor | None = None

    def use(self, reader: Reader) -> None:
        """Read the texts of a graph's entities by the untrained encoder: means of its states, scaled to 1."""
        encoder, tokenizer = self.encoder[0].eval(), reader.tokenizer
        encoded = reader.encode_entities(np.arange(len(reader.context.entities)))
        vectors_ND = torch.zeros(len(encoded), self.relations.embedding_dim)
        for rows, batch in padded(tokenizer, encoded, 64, torch.device("cpu")):
            ids_BT, there_BT = batch.input_ids_BT, batch.attention_mask_BT
            there_BT1 = (there_BT * (ids_BT != tokenizer.mask_id))[..., None]
            with torch.inference_mode():
                states_BTD = encoder(input_ids=ids_BT, attention_mask=there_BT).last_hidden_state
            mean_BD = (states_BTD * there_BT1).sum(1) / there_BT1.sum(1)
            vectors_ND[rows] = nn.functional.layer_norm(mean_BD, mean_BD.shape[1:])
        self.vectors_ND = vectors_ND
        self.relation_R = torch.tensor([self.known[name] for name in reader.context.relation_names])

    def ids(self, edges: list[Any], entities: int) -> list[int]:
        """Ids of neighbors of the graph in use."""
        return [self.first + (2 * e.relation + (e.target == "tail")) * entities + e.other for e in edges]

    def _hide(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._asked = args[0]
        return (args[0].masked_fill(args[0] >= self.first, 0),)

    def _show(self, module: nn.Module, args: Any, words_BTD: torch.Tensor) -> torch.Tensor:
        assert self._asked is not None
        soft_BT = self._asked >= self.first
        if not soft_BT.any():
            return words_BTD
        assert self.vectors_ND is not None
        sides_M, others_M = (
            (self._asked[soft_BT] - self.first).div(len(self.vectors_ND), rounding_mode="floor"),
            (self._asked[soft_BT] - self.first) % len(self.vectors_ND),
        )
        own_M = 2 * self.relation_R[sides_M // 2] + sides_M % 2
        told_MD = self.network(torch.cat([self.vectors_ND[others_M], self.relations(own_M)], -1))
        told_MD = self.scale * nn.functional.layer_norm(told_MD.float(), told_MD.shape[1:])
        return words_BTD.masked_scatter(soft_BT[..., None], told_MD.to(words_BTD.dtype))


def encode(reader: Reader, queries: Queries, rng: np.random.Generator | None = None) -> list[Encoded]:
    """As :meth:`Reader.encode`, with the neighbors behind the first few as soft tokens."""
    soft: SoftTokens = reader.model.soft
    text, template = reader.settings.text, get_template(reader.settings.text.template)
    written, told = [], []
    for query in queries:
        limit = text.neighbors + soft.count
        edges = neighborhood(reader.context, query, limit, text.neighbor_dropout, rng) if limit else []
        written.append(template(reader.context, query, text.descriptions, edges[: text.neighbors]))
        told.append(soft.ids(edges[text.neighbors :], len(reader.context.entities)))
    plain = reader.tokenizer.encode_queries(
        written, reader.vocabulary.span_length, text.max_length, vector=reader.settings.vector.enabled
    )
    begin = len(reader.tokenizer.prefix)
    return [
        Encoded(
            e.input_ids[:begin] + ids + e.input_ids[begin:],
            e.span_start + len(ids),
            e.span_length,
            e.cut,
            e.vector,
        )
        for e, ids in zip(plain, told, strict=True)
    ]


def measured(
    graph: str, model: str, told: str, seed: int, epochs: float, unseen: str | None, steps: int | None
) -> dict[str, Any]:
    """A row of the record."""
    words, soft = map(int, told.split("+"))
    settings = load_settings(
        RECIPE,
        [f"text.neighbors={words}", f"training.seed={seed}"]
        + [f"training.{key}={epochs}" for key in ("epochs", "eval_every")],
    )
    figures: dict[str, Mapping[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cpu = time.process_time()
        run, ranker = start_run(Path(temporary) / "run", kgmlm.load_graph(graph), model, settings)
        reader = ranker.reader
        torch.manual_seed(seed)
        reader.model.soft = SoftTokens(reader.model, reader.context, soft)
        reader.model.soft.use(reader)

        def validate(current: Ranker) -> tuple[Mixture, dict[str, float]]:
            mixture, by_stage = weigh(current, run.graph, Protocol(split="valid", max_triples=0, seed=seed))
            figures[graph] = by_stage["text"]
            return mixture, by_stage["text"]

        with patch.object(Reader, "encode", encode):
            outcome = train(run, ranker, validate, max_steps=steps)
            if unseen is not None:
                other = kgmlm.load_graph(unseen)
                there = ranker.over(other.context)
                reader.model.soft.use(there.reader)
                _, by_stage = weigh(there, other, Protocol(split="valid", max_triples=0, seed=seed))
                figures[unseen] = by_stage["text"]
        return {
            "graph": graph,
            "model": Path(model).parent.name if "/" in model else model,
            "told": told,
            "seed": seed,
            "epochs": epochs,
            "steps": outcome.step,
            "valid": {
                name: {k: round(v, 5) for k, v in found.items() if k.startswith(("mrr", "hits"))}
                for name, found in figures.items()
            },
            "cpu_minutes": round((time.process_time() - cpu) / 60, 2),
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
        }


def main(
    graph: Annotated[str, typer.Argument()],
    model: Annotated[str, typer.Option()],
    told: str = "4+0,0+16,4+16",
    seeds: int = 1,
    epochs: float = 3,
    unseen: str | None = None,
    max_steps: int | None = None,
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    rows = store.rows(output)
    there = {(r["graph"], r["told"], r["seed"], r["epochs"]) for r in rows}
    for seed in range(seeds):
        for one in told.split(","):
            if (graph, one, seed, epochs) in there:
                continue
            row = measured(graph, model, one, seed, epochs, unseen, max_steps)
            mrr = {name: found["mrr"] for name, found in row["valid"].items()}
            print(graph, one, seed, mrr, row["cpu_minutes"], "min", flush=True)
            rows.append(row)
            if output is not None:
                store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
