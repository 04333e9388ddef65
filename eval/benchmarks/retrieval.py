"""Exact scoring against FAISS indexes by number of entities: time, memory, latency, recall.

    python eval/benchmarks/retrieval.py RUN [--sizes 0,1000000,5000000] [--output FILE.json]
    python eval/benchmarks/retrieval.py --draw FILE.json

The run's own entities are joined by names of one to three words of theirs that are one token each, a sense
number behind some, all distinct. Query states are those of the run's training queries; the encoder's time is
told apart. Entity vectors of the composed names are made up (normalized sums of two real ones and noise):
reading millions of texts would take hours. Each size and kind is measured in a process of its own, whose peak
memory is its own. Beside the JSON a plot is drawn, FILE.svg.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from kgmlm import open_run
from kgmlm.core.arrays import Floats, highest, top, unit
from kgmlm.graphs.datasets import read_entities
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.retrieval import Retrieval, Retriever, require_faiss, shortlist
from kgmlm.runs import provenance
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.text.reader import Reading, States

sys.path.insert(0, str(Path(__file__).parents[1]))
import store

Kind = Literal["likelihood", "entity"]  # by names, or by vectors, of which alone there is an index
QUERIES = 128
SINGLE = 64  # of them, timed one by one
BATCH = 64


@dataclass(frozen=True)
class Plan:
    """What one process measures; ``new`` is a table of composed entities, if there are any."""

    run: Path
    kind: Kind
    new: Path | None
    seed: int


def compose(path: Path, run: Path, count: int, seed: int) -> None:
    """Write a table of so many entities with distinct names that nobody has yet."""
    opened = open_folder(run)
    surfaces = opened.graph.entities.column("surface")
    words = sorted({w for s in surfaces for w in s.split() if w.isalpha()})
    tokens = tuned_ranker(opened, "cpu").reader.tokenizer.candidates(words, None, end_of_name=False).lengths_N
    words = [w for w, n in zip(words, tokens.tolist(), strict=True) if n == 1]
    taken = set(surfaces)
    rng = np.random.default_rng(seed)
    done = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("label\tname\n")
        while done < count:
            size = 200_000
            picked = rng.integers(len(words), size=(size, 3)).tolist()
            lengths = rng.choice([1, 2, 3], size, p=[0.3, 0.6, 0.1]).tolist()
            senses = rng.geometric(0.75, size).tolist()
            for row, length, sense in zip(picked, lengths, senses, strict=True):
                name = " ".join([words[i] for i in row[:length]] + ([str(sense)] if sense > 1 else []))
                if done < count and name not in taken:
                    taken.add(name)
                    file.write(f"new-{done}\t{name}\n")
                    done += 1


def made_up_vectors(real: Floats, count: int, seed: int) -> Floats:
    """Unit vectors: the real ones, then sums of two of them and noise."""
    rng = np.random.default_rng(seed)
    vectors = np.empty((count, real.shape[1]), np.float32)
    vectors[: len(real)] = real
    for start in range(len(real), count, 100_000):
        size = min(100_000, count - start)
        a, b = rng.integers(0, len(real), (2, size))
        noise = rng.standard_normal((size, real.shape[1]), np.float32) / np.float32(real.shape[1] ** 0.5)
        vectors[start : start + size] = unit(real[a] + 0.5 * real[b] + 0.5 * noise)
    return vectors


def split(batches: list[States], size: int) -> list[States]:
    """The same states in batches of at most so many queries."""
    return [
        states.take(np.arange(i, min(i + size, len(states.hidden_BLD))))
        for states in batches
        for i in range(0, len(states.hidden_BLD), size)
    ]


def timed(search: Callable[[States], Any], spans: list[States]) -> dict[str, float]:
    """Median and 99th percentile of single queries, and queries a second in batches."""
    singles = split(spans, 1)[:SINGLE]
    for single in singles[:3]:
        search(single)
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
    ranker: Ranker, retriever: Retriever, spans: list[States], best: list[Floats]
) -> dict[str, float]:
    """Share of the exact top 10 in reranked shortlists of 100, and of the top 100 in those of 1,000."""
    found = {}
    for first, k in ((10, 100), (100, 1000)):
        hits = total = 0
        for span, scores_BM in zip(spans, best, strict=True):
            _, scores_BK = shortlist(ranker, reading_of(span), Retrieval(retriever, k))
            hits += int((scores_BK[:, :first] > scores_BM[:, first - 1 : first] - 1e-4).sum())
            total += first * len(scores_BM)
        found[f"recall_at_{first}"] = round(hits / total, 4)
    return found


def reading_of(states: States) -> Reading:
    """States as a shortlist takes them; of one relation, by which nothing is weighed here."""
    nothing = np.zeros(len(states.hidden_BLD), np.int64)
    return Reading(Queries(nothing, nothing, nothing > 0), states=states)


def peak_mb() -> int:
    """Of this process, so far."""
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def measure(plan: Plan) -> list[dict[str, Any]]:
    """All ways of one kind at one size."""
    predictor = open_run(plan.run, device="cpu").predictor
    started = time.perf_counter()
    wider = predictor
    if plan.new is not None:
        wider = predictor.with_entities(read_entities(plan.new, predictor.graph))
    ranker: Ranker = wider.ranker.unconstrained()
    graph: KnowledgeGraph = wider.graph
    count = len(graph.entities)
    ranker = ranker.by("vector" if plan.kind == "entity" else "likelihood")
    queries, _ = predictor.graph.unique_queries("train")
    rows = np.random.default_rng(plan.seed + 1).choice(
        len(queries), min(QUERIES, len(queries)), replace=False
    )
    encoding = time.perf_counter()
    spans = [reading.states for _, reading in predictor.ranker.reader.readings(queries[rows], BATCH)]
    encoded = 1e3 * (time.perf_counter() - encoding) / len(rows)
    started += time.perf_counter() - encoding
    if plan.kind == "likelihood":
        tokens = {"tokens_a_name": round(float(ranker.reader.names.lengths_N.mean()), 2)}
    else:
        vectors_ND = made_up_vectors(predictor.ranker.vectors.all, count, plan.seed)
        ranker.vectors.adopt(graph.entities, vectors_ND)
        tokens = {}
    table: list[dict[str, Any]] = []

    def row(way: str, **values: Any) -> None:
        table.append({"entities": count, "way": way, **values, "peak_mb": peak_mb()})
        print(json.dumps(table[-1]), file=sys.stderr, flush=True)

    signal = ranker.signals["likelihood" if plan.kind == "likelihood" else "vector"]

    def exact(span: States) -> Floats:
        return signal.score(reading_of(span), ranker.pool())

    def found(span: States) -> list[list[int]]:
        return [top(scores_N, 100) for scores_N in exact(span)]

    built = time.perf_counter() - started
    small = split(spans, max(1, min(BATCH, 2**25 // count)))
    row(
        f"exact {plan.kind}",
        build_s=round(built, 1),
        **tokens,
        **timed(found, small),
        encoder_ms_a_query=round(encoded, 2),
    )
    size = len(small[0].hidden_BLD)
    best = [np.concatenate([highest(exact(p), 100)[0] for p in split([span], size)]) for span in spans]
    if plan.kind == "likelihood":
        return table
    faiss = require_faiss()
    started = time.perf_counter()
    flat = faiss.IndexFlatIP(vectors_ND.shape[1])
    flat.add(vectors_ND)
    built = time.perf_counter() - started

    def plain(span: States) -> Any:
        assert span.vector_BD is not None
        return flat.search(span.vector_BD, 100)

    row("FAISS flat", build_s=round(built, 1), **timed(plain, spans))
    flat.reset()  # its memory is not the index's
    started = time.perf_counter()
    index = build_index(ranker, graph, seed=plan.seed)
    spent = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        record = index.save(Path(folder) / "index").record
    row(
        f"{plan.kind} index",
        build_s=round(spent, 1),
        mb=round(record["bytes"] / 1e6, 1),
        bytes_an_entity=round(record["bytes"] / count, 1),
        visited=record["visited"],
        **timed(lambda span: shortlist(ranker, reading_of(span), Retrieval(index, 100)), spans),
        **recalls(ranker, index, spans, best),
        why=record["why"],
    )
    return table


def draw(report: dict[str, Any], path: Path) -> None:
    """Latency of a single query and throughput in batches by number of entities, as SVG."""
    plots = store.pyplot()

    figure, axes = plots.subplots(1, 2, figsize=(10, 4), layout="constrained")
    ways = list(dict.fromkeys(row["way"] for row in report["rows"]))
    panels = (
        ("p50_ms", "median latency of a query (ms)"),
        ("queries_a_second", "queries a second in batches"),
    )
    for axis, (key, title) in zip(axes, panels, strict=True):
        for way in ways:
            points = [(r["entities"], r[key]) for r in report["rows"] if r["way"] == way]
            axis.plot(*zip(*points, strict=True), marker="o", label=way if axis is axes[0] else None)
        axis.set(xscale="log", yscale="log", xlabel="entities", title=title)
        axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(ways))
    store.save_figure(figure, path)
    plots.close(figure)


def main(
    run: Annotated[Path | None, typer.Argument()] = None,
    sizes: str = "0,1000000,5000000",
    kinds: str = "likelihood,entity",
    seed: int = 0,
    output: Path | None = None,
    draw_only: Annotated[Path | None, typer.Option("--draw")] = None,
) -> None:
    """Measure at each size (0: the run's own entities), and write all as JSON and a plot."""
    if draw_only is not None:
        draw(json.loads(draw_only.read_text("utf-8")), draw_only.with_suffix(".svg"))
        return
    if run is None:
        raise typer.BadParameter("a run, or --draw FILE")
    own = len(open_folder(run).graph.entities)
    chosen: list[Kind] = [k for k in ("likelihood", "entity") if k in kinds.split(",")]
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool,
    ):
        for size in map(int, sizes.split(",")):
            new = Path(folder) / "new.tsv" if size else None
            if new is not None:
                compose(new, run, size - own, seed)
            for kind in chosen:
                rows += pool.submit(measure, Plan(run, kind, new, seed)).result()
    report = {
        "rows": rows,
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "command": provenance.command_line(),
    }
    if output is not None:
        store.write_lines(output, report)
        draw(report, output.with_suffix(".svg"))


if __name__ == "__main__":
    typer.run(main)
