"""How good lists of new triples are: runs complete their graph with the test split hidden.

The queries are those that training has (`--no-typed --no-functional`).

    OMP_NUM_THREADS=1 python eval/completion.py RUN ... [--sample 20000] [--ray local]
        [--workers 2] [--keep FOLDER] [--output eval/completion.json]

Training and validation count as known; every choice is made on validation. What is reported is a lower bound
of the precision: triples that no split has may be true. --sample asks a seeded sample of (entity, relation,
side) queries, of each relation and side its share. With --keep, parts stay in a folder, so that the same
command continues after an interruption. Rows are added to the JSON.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import store
import typer

import kgmlm
from kgmlm.runs import provenance

MIN_PROBABILITY = 0.1  # the least probability that is listed
KEPT = ("queries", "top", "known", "min_probability", "listed", "probabilities", "report")


def row(
    run: Path, folder: Path, sample: int, ray: str | None, workers: int | None, batch_size: int
) -> dict[str, Any]:
    """What came of completing one run's graph."""
    opened = kgmlm.open_run(run)
    made = kgmlm.complete(
        opened, folder / f"{run.stem}.parquet", min_probability=MIN_PROBABILITY, known=["train", "valid"],
        report="test", sample=sample, ray=ray, workers=workers, batch_size=batch_size,
        typed=False, functional=False,
    )  # fmt: skip
    scored = made["queries_scored"]
    return {
        "run": run.stem,
        "graph": opened.graph.name,
        "sample": sample or None,
        **{key: made[key] for key in KEPT},
        "queries_per_second": round(scored / max(made["seconds"], 1e-9), 1) if scored else None,
        "workers": workers or 1,
        "command": provenance.command_line(),
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
    }


def main(
    runs: list[Path],
    sample: Annotated[int, typer.Option(help="Queries; 0 is all.")] = 0,
    ray: str | None = None,
    workers: int | None = None,
    batch_size: int = 64,
    keep: Path | None = None,
    output: Path = Path("eval/completion.json"),
) -> None:
    """Complete, and add rows to the record."""
    for run in runs:
        with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
            new = row(run, Path(folder), sample, ray, workers, batch_size)
        store.replace_rows(output, [new], "run", "graph", "sample")
        print(f"{new['graph']}: {new['queries']:,} queries, {new['listed']:,} triples")
        for part in (*new["report"]["by_probability"], *new["report"]["best"]):
            what = f"p >= {part['probability']}" if "probability" in part else f"best {part['listed']}"
            print(what, {k: part[k] for k in ("listed", "true", "precision", "expected")}, flush=True)


if __name__ == "__main__":
    typer.run(main)
