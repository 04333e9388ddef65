"""What training steps, evaluations, answers and starts of commands cost, in CPU seconds on one thread.

    python eval/benchmarks/speed.py --model MODEL [--run RUN] [--against CHECKOUT] [--rounds 7]

Each round is a process of its own. With --against, rounds of this checkout and of another one alternate; each
runs its own copy of this file. The ratios are this checkout's seconds by the other's, round by round: their
median, and the interval in which it lies with 95 % (of the order statistics). A training step is one of the
recipe ``minilm-whole``, with the same queries in both. Without --against it is measured beside a step of a
bi-encoder as SimKGC trains it (two encoders, three readings per triple, in-batch negatives and the head
itself) and beside pairs read as by KG-BERT (one pass per candidate), on the same texts.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).parents[2]
RECIPE = Path("eval/recipes/minilm-whole.toml")


class Costs:
    """CPU seconds of parts of the work; of what is measured often, the median without the first time."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Measure a part once."""
        before = time.process_time()
        yield
        self.seconds.setdefault(part, []).append(time.process_time() - before)

    def medians(self) -> dict[str, float]:
        """By part."""
        return {part: statistics.median(values[1:] or values) for part, values in self.seconds.items()}


def measure(model: str, dataset: str, run: str | None, steps: int, baselines: bool) -> dict[str, float]:
    """One round: CPU seconds by part."""
    costs = Costs()
    if run is not None:
        answers(run, costs)
    training_steps(model, dataset, steps, costs)
    if baselines:
        others(model, dataset, steps, costs)
    return costs.medians()


def training_steps(model_name: str, dataset: str, steps: int, costs: Costs) -> None:
    """Steps of the masked LM in fp32, and in bf16 where this CPU multiplies by it."""
    import torch

    from kgmlm.core.config import load_settings
    from kgmlm.core.machine import fast_bf16, keep_memory
    from kgmlm.graphs.datasets import load_graph
    from kgmlm.ranking.ranker import Ranker
    from kgmlm.text.tokenization import Vocabulary, load_tokenizer, model_named
    from kgmlm.text.torch_model import load_model, reduced_products
    from kgmlm.training.objectives import objective

    keep_memory()
    torch.set_num_threads(1)
    graph = load_graph(dataset)
    settings = load_settings(RECIPE)
    location = model_named(model_name)
    model, tokenizer = load_model(location), load_tokenizer(location)
    surfaces = graph.entities.column("surface")
    vocabulary = Vocabulary.fit(tokenizer.candidates(surfaces, None, False), graph.seen_N, settings)
    ranker = Ranker.initial(graph.context, tokenizer, model, settings, vocabulary)
    stream, losses = objective(ranker, graph, settings.training, (0, 1))
    model.set_dropout(0.0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    source = stream.from_position(0)
    with costs("texts to tokens, of 50 batches"):  # a bucket is tokenized at once
        batches = [next(source) for _ in range(50)][: steps + 1]
    for precision in ("fp32", "bf16") if fast_bf16() else ("fp32",):
        model.attend("eager" if precision == "bf16" else "sdpa")
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with reduced_products(precision == "bf16"):
            for batch in batches:
                with costs(f"training step, {precision}"):
                    losses(autocast(model), batch).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()


def answers(run_path: str, costs: Costs) -> None:
    """50 test triples evaluated twice by an opened run, and 50 questions to it, one by one."""
    import kgmlm

    run = kgmlm.open_run(run_path)
    with costs("open, and the first answer"):
        graph = run.graph
        questions = [
            (graph.entities[h].label, graph.relations[r].label) for h, r, _ in graph.splits["train"][:51]
        ]
        run.rank(*questions[0], k=10)
    for head, relation in questions:
        with costs("a warm query"):
            run.rank(head, relation, k=10)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            with costs("evaluate, 50 triples"):
                run.evaluate(max_triples=50, ranks=Path(folder) / "ranks.parquet", progress=False)


def others(model_name: str, dataset: str, steps: int, costs: Costs) -> None:
    """A bi-encoder's training step of 64 triples, and 64 pairs of a cross-encoder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from kgmlm.graphs.datasets import load_graph
    from kgmlm.text.tokenization import model_named

    graph, location = load_graph(dataset), model_named(model_name)
    tokenizer = AutoTokenizer.from_pretrained(location)
    both = [AutoModel.from_pretrained(location).train() for _ in range(2)]
    parameters = [p for m in both for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    columns = (graph.entities.column(c) for c in ("surface", "description"))
    texts = [": ".join(row) for row in zip(*columns, strict=True)]
    names = [r.name for r in graph.relations]
    rows = np.random.default_rng(0).permutation(graph.splits["train"])[: 64 * (steps + 1)]

    def read(model: Any, first: list[str], second: list[str] | None = None, most: int = 50) -> Any:
        batch = tokenizer(first, second, max_length=most, truncation=True, padding=True, return_tensors="pt")
        states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

    for triples in rows.reshape(-1, 64, 3):
        heads, tails = [texts[h] for h in triples[:, 0]], [texts[t] for t in triples[:, 2]]
        relations = [names[r] for r in triples[:, 1]]
        with costs("SimKGC: training step"):
            query = read(both[0], heads, relations)
            answer, itself = read(both[1], tails), read(both[1], heads)
            logits = torch.cat([query @ answer.T, (query * itself).sum(1, keepdim=True)], 1) / 0.05
            torch.nn.functional.cross_entropy(logits, torch.arange(len(triples))).backward()
            optimizer.step()
            optimizer.zero_grad()
        asked = [" ".join(row) for row in zip(heads, relations, strict=True)]
        with costs("KG-BERT: 64 pairs"), torch.inference_mode():
            read(both[0], asked, tails, 128)


def starts(run: str, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """CPU seconds of commands of a checkout, from their start to their end."""
    import kgmlm

    graph = kgmlm.open_run(run).graph
    h, r, _ = graph.splits["train"][0]
    question = ["--head", graph.entities[h].label, "--relation", graph.relations[r].label]
    commands = {
        "--version": ["--version"],
        "a misspelled relation": ["rank", run, *question, "?"],
        "linearize": ["linearize", run, *question],
        "rank": ["rank", run, *question],
    }
    seconds = {}
    for name, arguments in commands.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "kgmlm", *arguments]
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds[f"start, {name}"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds


def compared(this: list[float], other: list[float]) -> dict[str, float]:
    """The median of the ratios of paired rounds, and its interval.

    The k-th smallest and the k-th largest of n ratios enclose the median with 1 - 2 P(Binomial(n, 1/2) < k);
    k is the largest for which that is .95 or more (seven rounds: 1, all of them).
    """
    from scipy.stats import binom

    ratios = sorted(a / b for a, b in zip(this, other, strict=True))
    n = len(ratios)
    k = max([1, *(k for k in range(1, n // 2 + 1) if 1 - 2 * binom.cdf(k - 1, n, 0.5) >= 0.95)])
    return {
        "median": round(statistics.median(ratios), 3),
        "from": round(ratios[k - 1], 3),
        "to": round(ratios[-k], 3),
    }


def main(
    model: Annotated[str, typer.Option(help="A masked LM.")] = "minilm",
    dataset: str = "wn18rr",
    against: Annotated[Path | None, typer.Option(help="Another checkout, measured in turn.")] = None,
    run: Annotated[str | None, typer.Option(help="A run or pack that both checkouts can open.")] = None,
    rounds: int = 3,
    steps: int = 5,
    output: Path | None = None,
    one_round: Annotated[bool, typer.Option("--one-round", hidden=True)] = False,
) -> None:
    """Measure and print one JSON object."""
    if one_round:
        print(json.dumps(measure(model, dataset, run, steps, against is None)))
        return
    run = run and str(Path(run).resolve())
    checkouts = {"this": ROOT, **({} if against is None else {"other": against.resolve()})}
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(rounds):
        for name, folder in checkouts.items():
            environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "eval/benchmarks/speed.py", "--one-round", "--model", model]
            command += ["--dataset", dataset, "--steps", str(steps), *(["--run", run] if run else [])]
            command += ["--against", "."] if against is not None else []
            done = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(done.stderr)
            cost = json.loads(done.stdout.splitlines()[-1])
            costs[name].append(cost | (starts(run, folder, environment) if run else {}))
            print(name, costs[name][-1], file=sys.stderr)
    from kgmlm.runs import provenance

    report: dict[str, Any] = {
        "cpu_seconds": {
            name: {part: round(statistics.median(r[part] for r in measured), 4) for part in measured[0]}
            for name, measured in costs.items()
        },
        "rounds": rounds,
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "command": provenance.command_line(),
    }
    if against is not None:
        this, other = costs["this"], costs["other"]
        report["ratios"] = {
            part: compared([r[part] for r in this], [r[part] for r in other])
            for part in this[0]
            if part in other[0]
        }
    print(json.dumps(report, indent=2))
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
