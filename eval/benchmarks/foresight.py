"""How well later facts are foreseen: entities and facts that come after training.

    OMP_NUM_THREADS=1 python eval/benchmarks/foresight.py GRAPH [--only kgmlm,counting,...] [--folder FOLDER]
    python eval/benchmarks/foresight.py --folder FOLDER     # collects: JSON, the table of eval/MEASURED.md

GRAPH is one of

- attack: ATT&CK's enterprise matrix up to 2023, asked what 2024 and 2025 added (`--after 2023`);
- uat: the Unified Astronomy Thesaurus 4.2, asked what the release of June 2025 adds (`--versions`);
- wn18rr-v1, fb237-v1: GraIL's small graphs, asked about entities that training lacks (`--entities 0.1`).

The first two are read from the folder `foresight` beside KGMLM_MIRROR, or from `--sources`: a folder with
`attack/` (a dataset folder with dates, as `kgmlm data import` makes of STIX) and `uat/` (uat-4.2.0.rdf.gz and
uat-2025-06.rdf.gz). Where there is none, they are fetched from their public addresses (SOURCES below).

kgmlm is `kgmlm train --preset quick` with MiniLM in one thread. Beside it:

- counting: how often an entity is on the asked side of the relation;
- nearest neighbors: what the 100 entities have whose texts MiniLM finds most similar, weighed by similarity;
- PyKEEN's ComplEx and TransE and SimKGC's objective (`rivals.py`), for as much CPU time as kgmlm took;
- kgmlm's own signals, each alone.

Ranks are filtered by all splits, realistic, of both sides, and of all triples of the split. A state says
whether training has the entity that is asked about, and whether it has the answer. Intervals are of 95 %, of
differences paired by triple. `--split valid` measures what choices were made by.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rivals import RIVALS, trainings

sys.path.insert(0, str(Path(__file__).parents[1]))
import store

import kgmlm
from kgmlm.core.arrays import FloatArray, Floats
from kgmlm.core.config import Protocol
from kgmlm.core.errors import DataError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.cards import Source, fetch
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, triple_keys
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import provenance
from kgmlm.runs.opened import tuned_ranker
from kgmlm.signals.text_vectors import read_all, texts_of
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.tokenization import model_named

HERE = Path(__file__).parent
OUTPUT, DOCS = HERE / "foresight.json", HERE.parent / "MEASURED.md"
BASELINES = ("counting", "nearest neighbors")
WHO = ("kgmlm", "list", *BASELINES, *RIVALS)
SHOWN = ("kgmlm", "kgmlm: biencoder", *BASELINES, *RIVALS)  # the record has all signals
STATES = ("known, known", "known, new", "new, known", "new, new")  # the query's entity, the answer
NEIGHBORS, LENGTH = 100, 128  # entities; tokens of a text
BEST = (10, 100, 1000)  # triples of the list
LISTED = 0.01  # probability from which on triples are listed
SAMPLE = 20_000  # questions of the list at most
UAT = "https://raw.githubusercontent.com/astrothesaurus/UAT"
ATTACK = "https://raw.githubusercontent.com/mitre-attack/attack-stix-data"
SOURCES = {
    "old": Source(
        path="foresight/uat-4.2.0.rdf",
        url=f"{UAT}/6d09aa49261bed2d9b868fadbc6167416d78338d/UAT.rdf",
        sha256="bb37ac834d696c022c549287ae7739286789e0a3f4dea8f114218930c49ebd3e",
        license="CC BY-SA 3.0",
    ),
    "new": Source(
        path="foresight/uat-2025-06.rdf",
        url=f"{UAT}/8886cf4f9b51f2d907fcc4836d00cbc7d6ac8b92/UAT.rdf",
        sha256="57e3f8b80b5519a7ed034bee8b6a9df19fb1e2d358388cbb46f7e89efc054a35",
        license="CC BY-SA 3.0",
    ),
    "attack": Source(
        path="foresight/enterprise-attack-18.1.json",
        url=f"{ATTACK}/7ad8a86f41edc91dd37de0487b0c2f44ae3a3af7/enterprise-attack/enterprise-attack-18.1.json",
        license="(c) The MITRE Corporation, reproduced and distributed with its permission",
    ),
}
ATTACK_BLOB = "c634454a95b4d761958dd9c8c60499bbb8c06a58"  # its checksum in that commit, as git makes it


def counts_of(graph: KnowledgeGraph) -> Floats:
    """How often each entity has each relation in training, as its tail and as its head ``(2, R, N)``."""
    heads, relations, tails = np.unique(graph.splits["train"], axis=0).T
    counts = np.zeros((2, len(graph.relations), len(graph.entities)), np.float32)
    np.add.at(counts, (0, relations, tails), 1)
    np.add.at(counts, (1, relations, heads), 1)
    return counts


class Counting(PlainScorer):
    """How often an entity is on the asked side of the relation."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        self.counts = counts_of(graph)

    def score(self, queries: Queries) -> Floats:
        """The counts."""
        scores_BN: Floats = self.counts[queries.side_B, queries.relation_B]
        return scores_BN


class NearestNeighbors(PlainScorer):
    """What the entities have whose texts are most similar, and a little of counting, which breaks ties."""

    def __init__(self, graph: KnowledgeGraph, address: str) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        self.vectors_NW = read_all(TextEncoder.load(address, LENGTH), texts_of(graph.entities))
        self.counts, self.known = counts_of(graph), graph.context.answers
        self.seen_N = graph.seen_N

    def score(self, queries: Queries) -> Floats:
        """The similarities of the most similar entities that training has, summed over what they have."""
        similar_BN = self.vectors_NW[queries.entity_B] @ self.vectors_NW.T
        similar_BN[:, ~self.seen_N] = -1
        similar_BN[np.arange(len(queries)), queries.entity_B] = -1
        nearest_BK = np.argsort(-similar_BN, 1, kind="stable")[:, :NEIGHBORS]
        scores_BN = 1e-6 * self.counts[queries.side_B, queries.relation_B]
        for column in nearest_BK.T:
            rows, answers = self.known.lookup(Queries(column, queries.relation_B, queries.tail_B))
            scores_BN[rows, answers] += similar_BN[rows, column[rows]]
        return scores_BN


def attack_of(folder: Path) -> Path:
    """The dataset folder of ATT&CK, imported from what MITRE publishes."""
    path = folder / "attack" / "all"
    if not path.exists():
        bundle = fetch(SOURCES["attack"])
        read = bundle.read_bytes()
        if sha1(b"blob %d\0" % len(read) + read).hexdigest() != ATTACK_BLOB:
            raise DataError(f"{bundle} is not the file that was published")
        kgmlm.import_graph(bundle, path, format="stix", progress=False)
    return path


def made(name: str, sources: Path, folder: Path) -> Path:
    """The split dataset, made where it is not there."""
    path = folder / name / "graph"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        here = sources / name
        if name == "attack":
            all_of_it = here if here.is_dir() else attack_of(folder)
            kgmlm.data.split(all_of_it, path, after="2023", progress=False)
        elif name == "uat":
            states = here / "uat-4.2.0.rdf.gz", here / "uat-2025-06.rdf.gz"
            if not here.is_dir():
                states = fetch(SOURCES["old"]), fetch(SOURCES["new"])
            kgmlm.data.split(None, path, versions=states, progress=False)
        else:
            kgmlm.data.split(name, path, entities=0.1, progress=False)
    return path


def cpu_seconds() -> float:
    """The CPU time of this process and those that it started."""
    usage = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(of.ru_utime + of.ru_stime for of in usage)


class Bench:
    """Measures on a graph, and keeps reciprocal ranks and rows in a folder.

    Args:
        split: of which triples.
    """

    def __init__(self, name: str, path: Path, folder: Path, split: str) -> None:
        self.name, self.path, self.split = name, path, split
        self.graph = kgmlm.load_graph(path)
        self.folder = folder / name
        self.protocol = Protocol(split=split)
        if split == "valid":
            self.protocol = Protocol(split=split, filter=("train", "valid"))
        task = RankingTask.of(self.graph, self.protocol)
        seen_N = self.graph.seen_N
        self.tail_B = task.queries.tail_B
        self.state_B = 2 * ~seen_N[task.queries.entity_B] + ~seen_N[task.answers]

    def file(self, who: str) -> Path:
        """Where something's reciprocal ranks are kept."""
        return self.folder / f"{self.split} {who}.npy"

    def keep(self, who: str, scorer: Any, **about: Any) -> FloatArray:
        """Rank by a scorer; keep the ranks, and a row."""
        ranks_B: FloatArray = 1 / evaluate(scorer, self.graph, self.protocol).ranks.of_type("realistic")
        np.save(self.file(who), ranks_B.astype(np.float32))
        row = {"graph": self.name, "split": self.split, "who": who, "ranks": len(ranks_B)}
        self.write(who, row | self.figures(ranks_B) | about)
        return ranks_B

    def write(self, who: str, row: dict[str, Any]) -> None:
        """Keep a row and print it."""
        row |= {"versions": provenance.versions(), "hardware": provenance.hardware()}
        self.file(who).with_suffix(".json").write_text(json.dumps(row), "utf-8")
        print({k: v for k, v in row.items() if k not in ("versions", "hardware")}, flush=True)

    def figures(self, ranks_B: FloatArray) -> dict[str, Any]:
        """MRR, Hits@10, both sides, and MRR by state with the number of ranks."""
        states = {
            name: [round(float(ranks_B[self.state_B == at].mean()), 4), int((self.state_B == at).sum())]
            for at, name in enumerate(STATES)
            if (self.state_B == at).any()
        }
        sides = {"tail": ranks_B[self.tail_B].mean(), "head": ranks_B[~self.tail_B].mean()}
        figures = {"mrr": ranks_B.mean(), "hits_at_10": (ranks_B >= 0.1).mean(), **sides}
        return {**{name: round(float(x), 4) for name, x in figures.items()}, "states": states}

    def kgmlm(self, preset: str) -> None:
        """Train a run, and rank by all of it and by each of its signals."""
        path = self.folder / "run"
        if not (path / "run.json").is_file():
            began = time.monotonic(), cpu_seconds()
            kgmlm.train(self.path, "minilm", path, preset=preset, progress=False)
            taken = {"wall": round(time.monotonic() - began[0]), "cpu": round(cpu_seconds() - began[1])}
            (self.folder / "taken.json").write_text(json.dumps(taken), "utf-8")
        run = kgmlm.open_run(path, device="cpu")
        ranker = tuned_ranker(run.folder)
        self.keep(
            "kgmlm", ranker, seconds=self.taken, stages={n: use.k for n, use in ranker.stage_weights.items()}
        )
        self.keep("kgmlm: first stage", ranker.unreranked())
        for name in ranker.mixture.signals:
            self.keep(f"kgmlm: {name}", ranker.by(name))

    @property
    def taken(self) -> dict[str, int]:
        """Seconds of kgmlm's training."""
        taken: dict[str, int] = json.loads((self.folder / "taken.json").read_text("utf-8"))
        return taken

    def list(self) -> None:
        """What `kgmlm complete` lists, training and validation known: how much of it is in test."""
        file, run = self.folder / "list.parquet", kgmlm.open_run(self.folder / "run", device="cpu")
        kgmlm.complete(
            run, file, known=["train", "valid"], min_probability=LISTED, sample=SAMPLE, progress=False
        )
        table, graph = pd.read_parquet(file), self.graph
        size = len(graph.entities), len(graph.relations)
        heads, tails = (table[end].map(graph.entities.index).to_numpy() for end in ("head", "tail"))
        relations = table["relation"].map(graph.relations.index).to_numpy()
        keys = triple_keys(np.stack([heads, relations, tails], 1).astype(np.int64), *size)
        hit, p = np.isin(keys, triple_keys(graph.splits["test"], *size)), table["probability"].to_numpy()
        known = graph.seen_N[heads] & graph.seen_N[tails]
        rows = []
        for among, mask in (("all entities", np.ones_like(known)), ("known entities", known)):
            shown = {f"{most} best": np.flatnonzero(mask)[:most] for most in BEST}
            shown["p >= .1"] = np.flatnonzero(mask & (p >= 0.1))
            for what, at in shown.items():
                expected = round(float(p[at].sum()), 1)
                rows.append({"among": among, "what": what, "triples": len(at), "expected": expected,
                             "found": int(hit[at].sum())})  # fmt: skip
        self.write("list", {"graph": self.name, "split": self.split, "who": "list", "lists": rows})

    def baseline(self, who: str) -> None:
        """Rank by a baseline."""
        address = model_named("minilm")
        scorer = Counting(self.graph) if who == "counting" else NearestNeighbors(self.graph, address)
        self.keep(who, scorer)

    def rival(self, who: str) -> None:
        """Train a rival for as long as kgmlm took, and rank by it."""
        minutes = self.taken["cpu"] / 120  # of two cores

        def snapshot(at: float, scorer: PlainScorer) -> None:
            self.keep(who, scorer, minutes=round(at, 2))

        trainings(who, model_named("minilm"))(self.graph, [minutes], snapshot)


def interval(difference_B: FloatArray, mask_B: FloatArray) -> list[float]:
    """The mean difference of reciprocal ranks of some questions, and half of its 95 % interval."""
    n = len(difference_B) // 2
    sums, counts = ((x * mask_B).reshape(2, n).sum(0) for x in (difference_B, np.ones(2 * n)))
    mean = sums.sum() / counts.sum()
    half = 1.96 * np.sqrt(((sums - mean * counts) ** 2).sum()) / counts.sum()
    return [round(float(mean), 4), round(float(half), 4)]


def compared(bench: Bench) -> list[dict[str, Any]]:
    """How far kgmlm is ahead of everything else that was measured, in all and by state."""
    own, rows = np.load(bench.file("kgmlm")), []
    for path in sorted(bench.folder.glob(f"{bench.split} *.npy")):
        who = path.stem.removeprefix(f"{bench.split} ")
        row = json.loads(path.with_suffix(".json").read_text("utf-8"))
        if who != "kgmlm":
            ahead = own - np.load(path)
            row["ahead"] = interval(ahead, np.ones_like(own))
            row["ahead_by_state"] = {
                name: interval(ahead, bench.state_B == STATES.index(name)) for name in row["states"]
            }
        rows.append(row)
    if (listed := bench.file("list").with_suffix(".json")).is_file():
        rows.append(json.loads(listed.read_text("utf-8")))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """MRR of each graph, in all and by state."""
    lines = ["| | | MRR | kgmlm ahead | " + " | ".join(STATES) + " |", "|---" * (4 + len(STATES)) + "|"]
    for row in rows:
        if row["split"] != "test" or "mrr" not in row or row["who"] not in SHOWN:
            continue
        states = [f"{row['states'][name][0]:.3f}" if name in row["states"] else "" for name in STATES]
        ahead = "{:+.3f} ± {:.3f}".format(*row["ahead"]) if "ahead" in row else ""
        cells = [row["graph"], row["who"], f"{row['mrr']:.3f}", ahead, *states]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    graph: Annotated[str | None, typer.Argument(help="None collects what the folder has.")] = None,
    only: str = ",".join(WHO),
    preset: str = "quick",
    split: str = "test",
    sources: Annotated[Path | None, typer.Option(help="Where `attack` and `uat` are.")] = None,
    folder: Annotated[Path, typer.Option(help="Where graphs, runs, ranks, rows go.")] = Path("foresight"),
) -> None:
    """Train and measure, and print a line each."""
    if graph is None:
        rows = [
            row
            for at in sorted(folder.iterdir())
            for kind in ("valid", "test")
            if (at / f"{kind} kgmlm.npy").is_file()
            for row in compared(Bench(at.name, at / "graph", folder, kind))
        ]
        store.write_rows(OUTPUT, rows)
        marks = "<!-- foresight: python eval/benchmarks/foresight.py -->", "<!-- end of foresight -->"
        store.replace_between(DOCS, *marks, table(rows))
        return
    beside = Path(os.environ.get("KGMLM_MIRROR", "mirror")).resolve().parent / "foresight"
    bench = Bench(graph, made(graph, sources or beside, folder), folder, split)
    measure: dict[str, Callable[[], None]] = {"kgmlm": lambda: bench.kgmlm(preset), "list": bench.list}
    measure |= {who: lambda who=who: bench.baseline(who) for who in BASELINES}  # type: ignore[misc]
    measure |= {who: lambda who=who: bench.rival(who) for who in RIVALS}  # type: ignore[misc]
    for who in only.split(","):
        if who != "list" or split == "test":
            measure[who]()


if __name__ == "__main__":
    typer.run(main)
