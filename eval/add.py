"""Record an evaluation: its report becomes a line of results.jsonl, its ranks a compressed file.

    kgmlm evaluate runs/mine --output report.json
    python eval/add.py report.json runs/mine/ranks/test.parquet --id mygraph-01 --run mine

What results.jsonl has of a run that it does not know is in the report, too: the script writes it into
runs/RUN.toml, to be completed by hand (`about`, `parent`, `needs`, `caveats`).
"""

from __future__ import annotations

import json
import shlex
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import store
import tomli_w
import typer

METRICS = {
    "mrr": "inverse_harmonic_mean_rank",
    "hits_at_1": "hits_at_1",
    "hits_at_3": "hits_at_3",
    "hits_at_10": "hits_at_10",
    "mr": "arithmetic_mean_rank",
}
SLICES = {  # of ranks, by which entities training has not
    "seen": ("unseen_position", "neither"),
    "any": ("unseen_position", "any"),
    "answer": ("unseen_role", "answer"),
    "known": ("unseen_role", "known"),
    "both": ("unseen_role", "both"),
}


def few(metrics: dict[str, float], kind: str, side: str = "both") -> dict[str, float]:
    """The metrics that a line has of one side, six digits each."""
    keys = {short: f"{side}.{kind}.{key}" for short, key in METRICS.items()}
    return {short: round(metrics[key], 6) for short, key in keys.items() if key in metrics}


def all_metrics(report: dict[str, Any]) -> dict[str, float]:
    """Both sides together; MRR by side (or Hits@10, where negatives are not drawn) and by how ties count."""
    metrics = report["metrics"]
    if report["protocol"]["negatives_by"] == "expectation" and report["protocol"]["negatives"]:
        hits = {side: few(metrics, "expected", side)["hits_at_10"] for side in ("head", "tail")}
        return few(metrics, "expected") | {f"hits_at_10_{side}": value for side, value in hits.items()}
    sides = {f"mrr_{side}": few(metrics, "realistic", side)["mrr"] for side in ("head", "tail")}
    ties = {f"mrr_{kind}": few(metrics, kind)["mrr"] for kind in ("optimistic", "pessimistic")}
    return few(metrics, "realistic") | sides | ties


def unseen(report: dict[str, Any]) -> dict[str, Any] | str:
    """The ranks of triples with entities that training has not, beside the others."""
    if report["breakdown"]["unseen_position"]["any"]["count"] == 2 * report["triples"]:
        return "all"
    found = {}
    for name, (by, key) in SLICES.items():
        part = report["breakdown"][by][key]
        if part["count"]:
            keys = ("count", "mrr", "hits_at_1", "hits_at_10")
            found[name] = {k: int(part[k]) if k == "count" else round(part[k], 6) for k in keys}
    return found if "any" in found else {}


def on(hardware: dict[str, Any]) -> str:
    """A GPU, or so many threads of a CPU."""
    threads = hardware["threads"]
    return str(hardware["gpu"] or f"{threads} CPU thread{'s' if threads > 1 else ''}")


def commit(made: dict[str, Any]) -> str:
    """The commit of the code that made something."""
    return str((made.get("versions") or {}).get("git", "not recorded"))


def line(report: dict[str, Any], name: str, run: str, after: list[str], day: str) -> dict[str, Any]:
    """What results.jsonl has of a report.

    Args:
        after: what had been added to the run by then, as runs/RUN.toml calls it.
    """
    protocol, own = report["protocol"], report.get("own_entity") or {}
    candidates = {k: v for k, v in report["candidates"].items() if k in ("set", "count", "negatives")}
    found = {
        "id": name,
        "run": run,
        "after": after,
        "date": day,
        "dataset": report["dataset"],
        "split": report["split"],
        "triples": protocol["triples"],
        "count": 2 * report["triples"],
        "scores": {k: v for k, v in report["scores"].items() if v},
        "candidates": candidates,
        "filter": protocol["filter"],
        "own_entity": "excluded" if own.get("excluded") else "allowed",
        "asked_back": (report.get("reverse") or {}).get("k"),
        "trees": (report.get("trees") or {}).get("k"),
        "retrieval": report.get("retrieval"),
        "metrics": all_metrics(report),
        "unseen": unseen(report),
        "precision": report.get("precision") or "fp32",
        "command": report["command"],
        "commit": commit(report),
        "hardware": on(report["hardware"]),
        "seconds": report["seconds"],
    }
    if comparable := report.get("pykeen_comparable"):
        count = int(comparable["metrics"]["both.realistic.count"])
        found["as_pykeen"] = {"count": count, **few(comparable["metrics"], "realistic")}
    return {key: value for key, value in found.items() if value not in (None, {})}


def record_of(report: dict[str, Any], run: str) -> dict[str, Any]:
    """A run as its toml has it, but for what a report does not know."""
    made = report["run"]
    return {
        "id": run,
        "about": "",
        "parent": "",
        "needs": [],
        "dataset": report["trained_on"],
        "seed": made["seed"],
        "commands": [made["command"]],
        "minutes": made["minutes"],
        "hardware": on(made["hardware"]),
        "commit": commit(made),
        "caveats": [],
    }


def add_parts(report: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """What was added to the run before the report was made; what its record has not yet is put there."""
    kge, weights = (report.get("signals") or {}).get("kge"), report.get("chosen_by")
    parts = record.setdefault("added", {})
    after: list[str] = []
    for name, made in (("kge", kge), ("weights", weights)):
        if not made or made["command"] in record["commands"]:
            continue
        known = next((key for key, part in parts.items() if made["command"] in part["commands"]), None)
        if known is None:
            known = name if name not in parts else f"{name}-{len(parts) + 1}"
            parts[known] = {"commands": [made["command"]]}
            if "minutes" in made:
                parts[known] |= {
                    "minutes": made["minutes"],
                    "hardware": on(made["hardware"]),
                    "commit": commit(made),
                }
        after += [known] if known not in after else []
    return after


def check_paths(record: dict[str, Any], command: str) -> None:
    """Refuse commands that only work on one machine."""
    added = [c for part in record["added"].values() for c in part["commands"]]
    for each in (command, *record["commands"], *added):
        if any(word.startswith("/") for word in shlex.split(each)):
            raise typer.BadParameter(f"a path of one machine: {each}")


def main(
    report_file: Annotated[Path, typer.Argument(metavar="REPORT")],
    ranks_file: Annotated[Path | None, typer.Argument(metavar="[RANKS]")] = None,
    name: Annotated[str, typer.Option("--id")] = "",
    run: Annotated[str, typer.Option("--run")] = "",
) -> None:
    """Record an evaluation under an id, and its run where that is new."""
    report = json.loads(report_file.read_text("utf-8"))
    if not name or not run or name in store.evaluations():
        raise typer.BadParameter("--id is a new one, and --run names a run")
    record = store.runs().get(run) or record_of(report, run)
    after = add_parts(report, record)
    check_paths(record, report["command"])
    new = line(report, name, run, after, date.today().isoformat())
    if ranks_file is not None:
        store.RANKS.mkdir(exist_ok=True)
        pq.write_table(
            pq.read_table(ranks_file),
            store.RANKS / f"{name}.parquet",
            compression="zstd",
            compression_level=19,
        )
    (store.RUNS / f"{run}.toml").write_text(tomli_w.dumps(record, multiline_strings=False), "utf-8")
    with store.RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(new, ensure_ascii=False) + "\n")
    print(f"{name} is recorded; now complete eval/runs/{run}.toml and run `python eval/tables.py`")


if __name__ == "__main__":
    typer.run(main)
