"""Exact scoring against FAISS indexes by number of entities: time, memory, latency, recall.

    python eval/benchmarks/retrieval.py RUN [--sizes 1000000,5000000] [--output FILE]

The run's own entities are joined by names of one to three words of theirs, a sense number behind some, all
distinct. Query states are those of the run's training queries; the encoder's time is told apart. Entity
vectors of the composed names are made up (normalized sums of two real ones and noise): reading a million
texts would take hours.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from kgmlm import EntityTable, open_predictor, runs
from kgmlm.indexing import build_index
from kgmlm.modeling import SpanOutput
from kgmlm.ranker import Ranker, Retrieval, Weights
from kgmlm.retrieval import Kind, Retriever, require_faiss

SINGLE = 100  # queries timed one by one
BATCH = 64


def compose(words: list[str], taken: set[str], count: int, seed: int) -> list[str]:
    """So many distinct names that nobody has yet."""
    rng = np.random.default_rng(seed)
    names: dict[str, None] = {}
    while len(names) < count:
        size = min(200_000, count)
        picked = rng.integers(len(words), size=(size, 3)).tolist()
        lengths = rng.choice([1, 2, 3], size, p=[0.35, 0.5, 0.15]).tolist()
        senses = rng.geometric(0.5, size).tolist()
        for row, length, sense in zip(picked, lengths, senses, strict=True):
            name = " ".join([words[i] for i in row[:length]] + ([str(sense)] if sense > 1 else []))
            if name not in taken:
                names[name] = None
    return list(names)[:count]


def made_up_vectors(real: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Unit vectors: the real ones, then sums of two of them and noise."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.empty(count, real.shape[1])
    vectors[: len(real)] = real
    for start in range(len(real), count, 100_000):
        size = min(100_000, count - start)
        a, b = torch.randint(len(real), (2, size), generator=generator)
        noise = torch.randn(size, real.shape[1], generator=generator) / real.shape[1] ** 0.5
        mixed = real[a] + 0.5 * real[b] + 0.5 * noise
        vectors[start : start + size] = torch.nn.functional.normalize(mixed, dim=1)
    return vectors


def one(span: SpanOutput, row: int) -> SpanOutput:
    """The states of one query."""
    vector = None if span.vector_BD is None else span.vector_BD[row : row + 1]
    return SpanOutput(span.hidden_BLD[row : row + 1], vector)


def timed(search: Callable[[SpanOutput], Any], spans: list[SpanOutput]) -> dict[str, float]:
    """Median and 99th percentile of single queries, and queries a second in batches."""
    singles = [one(span, row) for span in spans for row in range(len(span.hidden_BLD))][:SINGLE]
    search(singles[0])
    seconds = []
    for single in singles:
        started = time.perf_counter()
        search(single)
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    for span in spans:
        search(span)
    batched = time.perf_counter() - started
    p50, p99 = np.percentile(seconds, [50, 99])
    count = sum(len(span.hidden_BLD) for span in spans)
    return {
        "p50_ms": round(1e3 * p50, 2),
        "p99_ms": round(1e3 * p99, 2),
        "queries_a_second": round(count / batched, 1),
    }


def recalls(
    ranker: Ranker, retriever: Retriever, spans: list[SpanOutput], best: list[torch.Tensor]
) -> dict[str, float]:
    """Share of the exact top 10 in rescored shortlists of 100, and of the top 100 in those of 1,000."""
    found = {}
    for top, k in ((10, 100), (100, 1000)):
        hits = total = 0
        for span, scores_BM in zip(spans, best, strict=True):
            _, scores_BK = ranker.shortlist(span, Retrieval(retriever, k))
            hits += int((scores_BK[:, :top] > scores_BM[:, top - 1 : top] - 1e-4).sum())
            total += top * len(scores_BM)
        found[f"recall_at_{top}"] = round(hits / total, 4)
    return found


def peak_mb() -> int:
    """Of this process, so far."""
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


@torch.inference_mode()
def measure(
    predictor: Any, size: int, kinds: list[Kind], factory: str, dimensions: int | None, seed: int
) -> list[dict[str, Any]]:
    """All ways at one size."""
    surfaces = predictor.graph.entities.column("surface")
    words = sorted({w for s in surfaces for w in s.split() if w.isalpha()})
    ranker: Ranker = predictor.ranker
    graph = predictor.graph
    real = ranker.vectors if ranker.settings.vector.enabled else None
    if size > len(surfaces):
        count = size - len(surfaces)
        names = compose(words, set(surfaces), count, seed)
        wider = predictor.with_entities(EntityTable([f"new-{i}" for i in range(count)], names))
        ranker, graph = wider.ranker, wider.graph
    if real is not None:
        ranker.adopt(ranker.context.entities, made_up_vectors(real.cpu(), len(ranker.context.entities), seed))
    queries, _ = predictor.graph.unique_queries("train")
    rows = np.random.default_rng(seed + 1).choice(len(queries), 256, replace=False)
    started = time.perf_counter()
    spans = [span for _, span in ranker.states(queries[rows], BATCH)]
    encoder = {"ms_a_query": round(1e3 * (time.perf_counter() - started) / len(rows), 2)}
    tokens = round(float(ranker.candidates.lengths_N.mean()), 2)
    started = time.perf_counter()
    for span in spans:
        ranker.normalizer(span)
    normalizer = {"log_z_ms_a_query": round(1e3 * (time.perf_counter() - started) / len(rows), 2)}
    table: list[dict[str, Any]] = []

    def row(way: str, **values: Any) -> None:
        table.append({"entities": len(ranker.context.entities), "way": way, **values})
        print(json.dumps(table[-1]), flush=True)

    row("encoder", tokens_a_name=tokens, **encoder, **normalizer)
    for kind in kinds:
        ranker.weights = Weights() if kind == "likelihood" else Weights(0.0, 1.0)
        before = peak_mb()
        started = time.perf_counter()
        pairs = ranker.table(None) if kind == "likelihood" else None
        built = time.perf_counter() - started

        def exact(span: SpanOutput, pairs: Any = pairs) -> torch.Tensor:
            if pairs is not None:
                scores_BN = ranker.scores(span, pairs)
            else:
                assert span.vector_BD is not None
                scores_BN = span.vector_BD @ ranker.vectors.T
            best: torch.Tensor = scores_BN.topk(100).values
            return best

        limit = max(1, 2**26 // len(ranker.context.entities))  # bounds what is held at once
        small = [
            SpanOutput(h, v)
            for s in spans
            for h, v in zip(
                s.hidden_BLD.split(limit),
                (s.vector_BD.split(limit) if s.vector_BD is not None else [None] * len(s.hidden_BLD)),
                strict=False,
            )
        ]
        figures = timed(exact, small)
        row(f"exact {kind}", build_s=round(built, 2), **figures, peak_mb=peak_mb(), peak_mb_before=before)
        best = [torch.cat([exact(one(span, r)) for r in range(len(span.hidden_BLD))]) for span in spans]
        if kind == "entity":
            faiss = require_faiss()
            started = time.perf_counter()
            flat = faiss.IndexFlatIP(ranker.vectors.shape[1])
            flat.add(ranker.vectors.cpu().numpy())
            built = time.perf_counter() - started

            def plain(span: SpanOutput, flat: Any = flat) -> Any:
                assert span.vector_BD is not None
                return flat.search(span.vector_BD.cpu().numpy(), 100)

            row("FAISS flat, entity", build_s=round(built, 2), **timed(plain, spans))
            del flat
        started = time.perf_counter()
        index = build_index(ranker, graph, kind, factory=factory, dimensions=dimensions, seed=seed)
        spent = time.perf_counter() - started
        with tempfile.TemporaryDirectory() as folder:
            record = index.save(Path(folder) / "index").record
        row(
            f"{kind} index",
            build_s=round(spent, 1),
            mb=round(record["bytes"] / 1e6, 1),
            bytes_an_entity=round(record["bytes"] / len(index), 1),
            effort=record["effort"],
            **timed(lambda span, index=index: ranker.shortlist(span, Retrieval(index, 100)), spans),
            **recalls(ranker, index, spans, best),
            why=record["why"],
            peak_mb=peak_mb(),
        )
    return table


def main(
    run: Path,
    sizes: str = "0,1000000,5000000",
    kinds: str = "likelihood,entity",
    factory: str = "auto",
    dimensions: Annotated[int | None, typer.Option(min=0)] = None,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Measure at each size (0: the run's own entities), print a line a way, and write all as JSON."""
    predictor = open_predictor(run, device="cpu")
    chosen: list[Kind] = [k for k in ("likelihood", "entity") if k in kinds.split(",")]
    if not predictor.ranker.settings.vector.enabled:
        chosen = ["likelihood"]
    rows: list[dict[str, Any]] = []
    for size in sizes.split(","):
        rows += measure(open_predictor(run, device="cpu"), int(size), chosen, factory, dimensions, seed)
    report = {
        "rows": rows,
        "hardware": runs.hardware(),
        "versions": runs.versions(),
        "command": runs.command(),
    }
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
