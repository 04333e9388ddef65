"""What a training step, an evaluated query and a start of the command cost, in CPU seconds on one thread.

    python eval/benchmarks/speed.py --model MODEL [--run RUN] [--against CHECKOUT] [--other-run RUN]

Each round is a process of its own. With --against, rounds of this checkout and of the other one alternate,
and ratios are of medians. A training step is one of the recipe ``minilm-whole``, with the same queries in
both. Beside it, on the same texts: a step of a bi-encoder as SimKGC trains it (two encoders, three readings
per triple, in-batch negatives and the head itself), and pairs read as by KG-BERT (one pass per candidate).
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "eval" / "recipes" / "minilm-whole.toml"


class Costs:
    """CPU seconds of parts of the work; of what is measured often, the median without the first time."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Measure a part once."""
        before = time.process_time()
        yield
        self.of.setdefault(part, []).append(time.process_time() - before)

    def medians(self) -> dict[str, float]:
        """By part."""
        return {part: statistics.median(values[1:] or values) for part, values in self.of.items()}


def measure(model_path: str, dataset: str, steps: int, baselines: bool) -> dict[str, float]:
    """One round: CPU seconds by part."""
    import torch

    from kgmlm.core.config import load_settings
    from kgmlm.graphs.datasets import load_graph
    from kgmlm.ranking.ranker import Ranker
    from kgmlm.signals.likelihood_torch import entity_loss
    from kgmlm.text.reader import SpanOutput
    from kgmlm.text.tokenization import load_tokenizer
    from kgmlm.text.torch_model import load_model, reduced_products
    from kgmlm.training.objectives import objective

    try:
        from kgmlm.text.tokenization import Vocabulary
    except ImportError:  # an older checkout
        from kgmlm.text.tokenization import Vocabulary  # type: ignore[attr-defined,no-redef]
    try:
        from kgmlm.core.machine import fast_bf16, keep_memory

        keep_memory()
        reduced = fast_bf16()
    except ImportError:
        reduced = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    torch.set_num_threads(1)
    graph = load_graph(dataset)
    settings = load_settings(RECIPE)
    model, tokenizer = load_model(model_path), load_tokenizer(model_path)
    surfaces = graph.entities.column("surface")
    if "names" in inspect.signature(Vocabulary.fit).parameters:
        vocabulary = Vocabulary.fit(tokenizer.candidates(surfaces, None, False), graph.seen_N, settings)
    else:  # an older checkout
        vocabulary = Vocabulary.fit(tokenizer, surfaces, graph.seen_N, settings)
    ranker = getattr(Ranker, "fresh", Ranker)(graph.context, tokenizer, model, settings, vocabulary)
    likelihood = getattr(ranker, "likelihood", ranker)  # an older checkout has all in one
    stream, losses = objective(ranker, graph, settings.training, (0, 1))
    model.set_dropout(0.0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    costs = Costs()
    source = stream.from_position(0)
    with costs("texts to tokens, of 50 batches"):  # a bucket is tokenized at once
        batches = [next(source) for _ in range(50)][: steps + 1]
    for precision in ("fp32", "bf16") if reduced else ("fp32",):
        model.attend("eager" if precision == "bf16" else "sdpa")
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
        with reduced_products(precision == "bf16"):
            for batch in batches:
                with costs(f"training step, {precision}"):
                    losses(autocast(model), batch).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                with costs(f"of it queries, {precision}"):
                    span = autocast(model)(batch.queries)
                    (span.hidden_BLD.sum() + span.vector_BD.sum()).backward()
                with costs(f"of it queries and entity texts, {precision}"):
                    span = autocast(model)(batch.queries, batch.entities)
                    (span.hidden_BLD.sum() + span.vector_BD.sum() + span.entities_ED.sum()).backward()
                hidden = torch.randn_like(span.hidden_BLD).requires_grad_()
                at = torch.arange(len(hidden))
                with costs(f"of it likelihoods, {precision}"):
                    scores = likelihood.scores(SpanOutput(hidden), losses.table)
                    entity_loss(scores, (at, at), 0.25).backward()
                with costs("of it the optimizer"):
                    optimizer.step()
                optimizer.zero_grad()
    model.attend("sdpa")
    evaluation_parts(ranker, graph, steps, costs)
    if baselines:
        others(model_path, graph, steps, costs)
    return costs.medians()


def evaluation_parts(ranker: Any, graph: Any, steps: int, costs: Costs) -> None:
    """64 test queries by part, and reading 64 entity texts."""
    import torch

    from kgmlm.evaluation.metrics import rank_answers

    queries, answers = graph.queries("test")
    chosen = np.random.default_rng(0).permutation(len(queries))[: 64 * (steps + 1)]
    reader, likelihood = getattr(ranker, "reader", ranker), getattr(ranker, "likelihood", ranker)
    table = likelihood._all
    padded = getattr(reader, "padded", None) or reader._padded
    for rows in chosen.reshape(-1, 64):
        with costs("evaluation: queries"):
            if reader is ranker:
                ((at, span),) = ranker.states(queries[rows])
            else:
                ((at, reading),) = reader.readings(queries[rows])
                span = reading.span
        with torch.inference_mode():
            with costs("evaluation: likelihoods"):
                scores = likelihood.scores(span, table)
            with costs("evaluation: filter and ranks"):
                known = graph.filter_index.lookup(queries[rows[at]])
                known_at = (torch.from_numpy(known[0]), torch.from_numpy(known[1]))
                rank_answers(scores, torch.from_numpy(answers[rows[at]]), known_at)
            encoded = reader.encode_entities(rows % len(graph.entities))
            with costs("evaluation: entity texts"):
                for _, batch in padded(encoded, 64):
                    reader.model(batch)


def others(model_path: str, graph: Any, steps: int, costs: Costs) -> None:
    """A bi-encoder's training step of 64 triples, and 64 pairs of a cross-encoder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    both = [AutoModel.from_pretrained(model_path).train() for _ in range(2)]
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


def starts(run: Path, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """CPU seconds of commands of a checkout, from their start to their end."""
    from kgmlm.runs.opened import open_folder

    run = run.resolve()
    graph = open_folder(run).graph
    h, r, _ = graph.splits["train"][0]
    head, relation = graph.entities[h].label, graph.relations[r].label
    commands = {
        "--version": ["--version"],
        "a misspelled entity": ["rank", str(run), "--head", f"{head}?", "--relation", relation],
        "linearize": ["linearize", str(run), "--head", head, "--relation", relation],
        "rank": ["rank", str(run), "--head", head, "--relation", relation],
    }
    found = {}
    for name, arguments in commands.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "kgmlm", *arguments]
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[f"start, {name}"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def main(
    model: Annotated[str, typer.Option(help="A masked LM, such as all-MiniLM-L6-v2.")],
    dataset: str = "wn18rr",
    against: Annotated[Path | None, typer.Option(help="Another checkout, measured in turn.")] = None,
    run: Annotated[Path | None, typer.Option(help="A run, to measure starts of commands.")] = None,
    other_run: Annotated[Path | None, typer.Option(help="One that the other checkout can open.")] = None,
    rounds: int = 3,
    steps: int = 5,
    output: Path | None = None,
    one_round: Annotated[bool, typer.Option("--one-round", hidden=True)] = False,
) -> None:
    """Measure and print one JSON object."""
    if one_round:
        print(json.dumps(measure(model, dataset, steps, against is None)))
        return
    checkouts = {"this": ROOT, **({} if against is None else {"other": against.resolve()})}
    opened = {"this": run, "other": other_run or run}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(rounds):
        for name, folder in checkouts.items():
            environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--model", model, "--dataset", dataset, "--one-round"]
            command += ["--steps", str(steps), *(["--against", "."] if name == "other" else [])]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr)
            cost = json.loads(done.stdout.splitlines()[-1])
            begun = opened[name]
            found[name].append(cost | (starts(begun, folder, environment) if begun else {}))
            print(name, found[name][-1], file=sys.stderr)
    from kgmlm.runs import provenance

    medians = {
        name: {part: statistics.median(cost[part] for cost in costs) for part in costs[0]}
        for name, costs in found.items()
    }
    report: dict[str, Any] = {
        "cpu_seconds": {n: {p: round(v, 4) for p, v in parts.items()} for n, parts in medians.items()},
        "rounds": rounds,
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "command": provenance.command_line(),
    }
    if against is not None:
        shared = [p for p in medians["this"] if p in medians["other"]]
        report["times_as_fast"] = {p: round(medians["other"][p] / medians["this"][p], 2) for p in shared}
        if "training step, bf16" in medians["this"]:  # what "auto" was, and what it is
            step = medians["other"]["training step, fp32"] / medians["this"]["training step, bf16"]
            report["times_as_fast"]["training step, from fp32 to bf16"] = round(step, 2)
    print(json.dumps(report, indent=2))
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
