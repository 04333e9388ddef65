"""What growing graphs cost: CPU seconds on one thread and peak memory of each part, and how these grow.

    python eval/benchmarks/scale.py --model MODEL --folder FOLDER [--sizes 20k,200k] [--parts read,check]

Each part is a process of its own, whose start is in its seconds. Graphs and runs are made once in FOLDER.
"vectors" makes a run with entity vectors of one without: 4,096 are read, the others are drawn around them,
since reading five million takes 83 hours of one core. Its recall is therefore that of made-up vectors.
"step" is a training step with entity vectors. "train" are two steps without them, a validation of 1,000
triples, and all around that; its run is opened and asked. "update" are 1,000 triples of 200 new entities that
are added to it. "rank" is the first query and "again" the median of
twenty more, all entities scored. Rows go to scale.json, a plot with fitted exponents to scale.svg, a
table to eval/MEASURED.md.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))
import store

HERE = Path(__file__).parent
SIZES = {
    "20k": (20_000, 100_000),
    "200k": (200_000, 1_000_000),
    "1m": (1_000_000, 5_000_000),
    "5m": (5_000_000, 20_000_000),
}
VECTORS = ("vectors", "rank-vectors", "index-vectors", "retrieve-vectors")
PARTS = (
    "read",
    "check",
    "step",
    "train",
    "open",
    "rank",
    "evaluate",
    "update",
    *VECTORS,
)
SHOWN = (
    ("read the dataset", "read", "seconds"),
    ("`data check`", "check", "seconds"),
    ("a training step, with vectors", "step", "step"),
    ("`train --max-steps 2`", "train", "seconds"),
    ("open a run", "open", "seconds"),
    ("rank one, cold", "rank", "seconds"),
    ("rank one, warm", "rank", "again"),
    ("evaluate 200 triples", "evaluate", "seconds"),
    ("update by 1,000 triples", "update", "seconds"),
    ("rank one with vectors, cold", "rank-vectors", "seconds"),
    ("rank one with vectors, warm", "rank-vectors", "again"),
    ("index vectors", "index-vectors", "seconds"),
    ("rank one by the index of vectors, cold", "retrieve-vectors", "seconds"),
    ("rank one by the index of vectors, warm", "retrieve-vectors", "again"),
)
DOCS = HERE.parent / "MEASURED.md"
STEPS = 10


def cpu() -> float:
    """CPU seconds of this process so far."""
    return time.process_time()


def read(graph: Path, run: Path, model: str) -> dict[str, float]:
    """Open a dataset folder."""
    from kgmlm.graphs.datasets import load_graph

    load_graph(graph)
    return {"seconds": cpu()}


def check(graph: Path, run: Path, model: str) -> dict[str, float]:
    """``kgmlm data check``."""
    from kgmlm import data

    data.check(graph)
    return {"seconds": cpu()}


def step(graph: Path, run: Path, model: str) -> dict[str, float]:
    """Training steps with entity vectors, by the settings that are the default."""
    import torch

    from kgmlm.core.config import load_settings
    from kgmlm.core.machine import fast_bf16, keep_memory
    from kgmlm.graphs.datasets import load_graph
    from kgmlm.ranking.ranker import Ranker
    from kgmlm.text.tokenization import Vocabulary, load_tokenizer
    from kgmlm.text.torch_model import load_model, reduced_products
    from kgmlm.training.objectives import objective

    opened, settings = load_graph(graph), load_settings(None, ["vector.enabled=true"])
    reader, tokenizer = load_model(model), load_tokenizer(model)
    names = tokenizer.candidates(opened.entities.table.column("surface"), None, end_of_name=False)
    vocabulary = Vocabulary.fit(names, opened.seen_N, settings)
    ranker = Ranker.initial(opened.context, tokenizer, reader, settings, vocabulary)
    ranker.reader.adopt_names(names.cut(vocabulary.span_length))
    keep_memory()
    stream, losses = objective(ranker, opened, settings.training, (0, 1))
    optimizer = torch.optim.AdamW(reader.parameters(), lr=1e-5, fused=True)
    reader.train()
    reader.attend("eager" if fast_bf16() else "sdpa")
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=fast_bf16())
    seconds = []
    with reduced_products(fast_bf16()):
        for _, batch in zip(range(STEPS), stream.from_position(0), strict=False):
            before = cpu()
            losses(autocast(reader), batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(cpu() - before)
    return {"seconds": cpu(), "step": statistics.median(seconds[2:])}


def train(graph: Path, run: Path, model: str) -> dict[str, float]:
    """``kgmlm train --max-steps 2`` of a text model alone, without entity vectors."""
    import kgmlm

    kgmlm.train(graph, model, run, preset="plain", max_steps=2, progress=False, overwrite=True)
    return {"seconds": cpu()}


def open_(graph: Path, run: Path, model: str) -> dict[str, float]:
    """Open a run, without its model."""
    import kgmlm

    opened = kgmlm.open_run(run)
    assert len(opened.graph.entities)
    return {"seconds": cpu()}


def rank(graph: Path, run: Path, model: str, retrieve: int | None = None) -> dict[str, float]:
    """Rank all entities for one query, and for others after it."""
    import kgmlm

    opened = kgmlm.open_run(run, retrieve=retrieve)
    train, entities, relations = opened.graph.triples("train"), opened.graph.entities, opened.graph.relations
    seconds: list[float] = []
    for h, r, _ in train[:21].tolist():
        before = cpu() if seconds else 0.0
        opened.rank(head=entities[h].label, relation=relations[r].label)
        seconds.append(cpu() - before)
    return {"seconds": seconds[0], "again": statistics.median(seconds[1:]), "anonymous": anonymous()}


def anonymous() -> float:
    """GiB of this process that no file backs; what is mapped is not among them."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 2**20


def vectors(graph: Path, run: Path, model: str) -> dict[str, float]:
    """A run with made-up entity vectors, of one without."""
    import numpy as np

    from kgmlm.core import digests, files
    from kgmlm.core.config import dump_settings
    from kgmlm.runs.entity_vectors import PART, PARTS_FOLDER, read_entities
    from kgmlm.runs.models import open_text
    from kgmlm.runs.opened import open_folder
    from kgmlm.runs.writing import save_tuned

    plain = run.with_name(run.name.removesuffix("-vectors"))
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(plain, run, copy_function=os.link, ignore=shutil.ignore_patterns("index", "ranks"))
    settings = open_folder(plain).settings
    settings = settings.model_copy(update={"vector": settings.vector.model_copy(update={"enabled": True})})
    with files.atomic_file(run / "config.toml") as temporary:
        temporary.write_text(dump_settings(settings), "utf-8")
    record = json.loads((run / "run.json").read_bytes())
    record["files"]["config.toml"] = [digests.Digest.of(run / "config.toml").model_dump()]
    files.write_json(run / "run.json", record)
    opened = open_folder(run)
    rng, count = np.random.default_rng(0), len(opened.graph.entities)
    read = open_text(opened, "cpu").vectors.of(np.sort(rng.choice(count, 4096, replace=False)))
    energy, axes = np.linalg.eigh(np.cov(read.T))
    spread = (axes * np.sqrt(energy.clip(0))).T.astype(np.float32) / 2
    parts = run / PARTS_FOLDER
    parts.mkdir()
    model_sha = digests.sha256(opened.model_folder / "model.safetensors")
    files.write_json(parts / "about.json", {"model": model_sha, "size": PART})
    for start in range(0, count, PART):
        size = min(PART, count - start)
        drawn = (
            rng.standard_normal((size, len(spread)), np.float32) @ spread
            + read[rng.integers(4096, size=size)]
        )
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        np.save(parts / f"part-{start // PART:06}.npy", drawn)
    opened = read_entities(opened, "cpu")  # which finds all of them read
    save_tuned(opened, replace(opened.tuned, mixture=opened.tuned.mixture.evenly("vector", 10.0)))
    return {"seconds": cpu()}


def index(graph: Path, run: Path, model: str) -> dict[str, float]:
    """``kgmlm index`` of entity vectors."""
    import kgmlm

    recall = kgmlm.index(run, progress=False)["recall_at_10"]
    return {"seconds": cpu(), "recall": recall}


def retrieve(graph: Path, run: Path, model: str) -> dict[str, float]:
    """As :func:`rank`, scoring 100 entities that the index finds."""
    return rank(graph, run, model, 100)


def evaluate(graph: Path, run: Path, model: str) -> dict[str, float]:
    """Both sides of 200 validation triples among all entities, by all signals."""
    import kgmlm

    kgmlm.evaluate(run, split="valid", max_triples=200)
    return {"seconds": cpu()}


def update(graph: Path, run: Path, model: str) -> dict[str, float]:
    """``kgmlm update``: each of 200 new entities has five triples with others."""
    import numpy as np

    import kgmlm

    opened, rng = kgmlm.open_run(run).graph, np.random.default_rng(0)
    labels, relations = opened.entities.column("label"), [r.label for r in opened.relations]
    others = rng.integers(len(labels), size=(200, 5)).tolist()
    triples = [
        (f"new entity {n}", relations[int(rng.integers(len(relations)))], labels[other])
        for n, of in enumerate(others)
        for other in of
    ]
    output = run.with_name(f"{run.name}-updated")
    shutil.rmtree(output, ignore_errors=True)
    before = cpu()
    kgmlm.update(run, triples, output=output, progress=False)
    taken = cpu() - before
    shutil.rmtree(output)
    return {"seconds": taken}


def measured(part: str, graph: Path, run: Path, model: str) -> dict[str, float]:
    """What a part costs, in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--only",
        part,
        "--folder",
        str(graph),
        "--run",
        str(run),
        "--model",
        model,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def fitted(rows: list[dict[str, Any]], key: str) -> float:
    """The exponent of a power law through the points, by entities."""
    import numpy as np

    points = np.log([(row["entities"], row[key]) for row in rows])
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table of seconds and GiB, for eval/MEASURED.md."""
    sizes = [size for size in SIZES if any(row["size"] == size for row in rows)]
    lines = ["| | " + " | ".join(f"{SIZES[x][0]:,} / {SIZES[x][1]:,}" for x in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for name, part, key in SHOWN:
        if not any(row["part"] == part and key in row for row in rows):
            continue
        cells = []
        for size in sizes:
            row = next((x for x in rows if (x["size"], x["part"]) == (size, part) and key in x), None)
            cells.append(
                ""
                if row is None
                else f"{row[key]:.3g} s" + (f", {row['gib']:.1f}" if key == "seconds" else "")
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds by entities, on logarithmic axes."""
    plots = store.pyplot()

    figure, axes = plots.subplots(figsize=(7, 4.5))
    for part, key in [(part, "seconds") for part in PARTS if part != "step"] + [
        ("step", "step"),
        ("rank", "again"),
    ]:
        of_part = [row for row in rows if row["part"] == part and key in row]
        if len(of_part) > 1:
            name = {"step": "a training step", "again": f"{part} again"}.get(key, part)
            label = f"{name} (N^{fitted(of_part, key):.2f})"
            axes.loglog(
                [row["entities"] for row in of_part], [row[key] for row in of_part], "o-", label=label
            )
    axes.set(xlabel="entities", ylabel="CPU seconds, one thread")
    axes.grid(visible=True, alpha=0.3)
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.tight_layout()
    store.save_figure(figure, path)


def main(
    folder: Annotated[Path, typer.Option(help="Where graphs and runs are.")],
    model: Annotated[str, typer.Option(help="A masked LM.")],
    sizes: Annotated[str, typer.Option(help="Which graphs.")] = ",".join(SIZES),
    parts: Annotated[str, typer.Option(help="What is measured.")] = ",".join(PARTS),
    only: Annotated[str | None, typer.Option(hidden=True)] = None,
    output: Annotated[
        Path, typer.Option(help="Rows; the plot is beside them, the table in eval/MEASURED.md.")
    ] = (HERE / "scale.json"),
    run: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Measure parts of the work on graphs of several sizes."""
    of = {
        "read": read,
        "check": check,
        "step": step,
        "train": train,
        "open": open_,
        "rank": rank,
        "evaluate": evaluate,
        "update": update,
        "vectors": vectors,
        "rank-vectors": rank,
        "index-vectors": index,
        "retrieve-vectors": retrieve,
    }
    if only is not None:
        found = of[only](folder, run, model)
        found["gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({key: round(value, 3) for key, value in found.items()}))
        return
    rows = json.loads(output.read_text("utf-8"))["rows"] if output.is_file() else []
    for size in sizes.split(","):
        entities, triples = SIZES[size]
        if not (folder / size).is_dir():
            options = ["--entities", str(entities), "--triples", str(triples)]
            subprocess.run(
                [sys.executable, str(HERE / "graphs.py"), str(folder / size), *options], check=True
            )
        for part in parts.split(","):
            name = f"run-{size}" + ("-vectors" if part in VECTORS else "")
            found = measured(part, folder / size, folder / name, model)
            row = {"size": size, "entities": entities, "triples": triples, "part": part, **found}
            print(row, file=sys.stderr)
            rows = [x for x in rows if (x["size"], x["part"]) != (size, part)] + [row]
            rows.sort(key=lambda x: (PARTS.index(x["part"]), x["entities"]))
            store.write_rows(output, rows)
    draw(rows, output.with_suffix(".svg"))
    if output.parent == HERE:
        marks = "<!-- scale: python eval/benchmarks/scale.py -->", "<!-- end of scale -->"
        store.replace_between(DOCS, *marks, table(rows))


if __name__ == "__main__":
    typer.run(main)
