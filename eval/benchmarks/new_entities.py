"""How long new entities take until they can be ranked, and how much memory.

    python eval/benchmarks/new_entities.py RUN [--count 1000000] [--output FILE]

Writes a table of so many entities (names of one to five words of the run's own entities, a description of
eight), reads it, tokenizes every name, lays the scoring table and ranks one query among all of them.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer


def write_entities(path: Path, words: list[str], count: int, seed: int) -> None:
    """A seeded table of entities with names and descriptions out of these words."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        file.write("label\tname\tdescription\n")
        for start in range(0, count, 10_000):
            size = min(10_000, count - start)
            drawn = rng.integers(len(words), size=(size, 13))
            for i, (length, row) in enumerate(zip(rng.integers(1, 6, size), drawn, strict=True), start):
                picked = [words[j] for j in row]
                file.write(f"new-{i}\t{' '.join(picked[:length])}\t{' '.join(picked[5:])}\n")


def main(
    run: Path,
    count: Annotated[int, typer.Option(min=1)] = 1_000_000,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Measure and print one JSON object."""
    from kgmlm import open_run
    from kgmlm.graphs.datasets import read_entities
    from kgmlm.runs import provenance

    predictor = open_run(run, device="cpu").predictor
    words = sorted({w for s in predictor.graph.entities.column("surface") for w in s.split()})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.tsv"
        write_entities(path, words, count, seed)
        started = time.perf_counter()
        new = read_entities(path, predictor.graph)
        read = time.perf_counter()
        wider = predictor.with_entities(new)
        candidates = wider.ranker.reader.names
        tokenized = time.perf_counter()
    query = wider.graph.queries("train")[0][0]
    list(wider.predict([query], k=10))
    first = time.perf_counter()
    list(wider.predict([query], k=10))
    second = time.perf_counter()
    report = {
        "entities": count,
        "tokens_a_name": round(float(candidates.lengths_N[-count:].mean()), 2),
        "read_s": round(read - started, 1),
        "tokenize_s": round(tokenized - read, 1),
        "ready_s": round(tokenized - started, 1),
        "first_query_s": round(first - tokenized, 2),
        "second_query_s": round(second - first, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "peak_mb_before": before // 1024,
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "command": provenance.command_line(),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if output is not None:
        output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
