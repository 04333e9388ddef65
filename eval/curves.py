"""Validation MRR against minutes of training: the curves of runs, as JSON and SVG.

python eval/curves.py NAME=RUN ... --output eval/curves.json     read runs, join the curves that the file has
python eval/curves.py --output eval/curves.json                  draw the file again
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import store
import typer

from kgmlm.runs.opened import open_folder


def curve(path: Path) -> dict[str, Any]:
    """The validations of a run, and what it was trained with and on."""
    run = open_folder(path)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text("utf-8").splitlines()]
    # By one weight of vectors for all relations: chosen for each on few triples it is flattered.
    points = [
        [row["minutes"], row.get("valid_mrr_one_weight", row["valid_mrr"])]
        for row in rows
        if "valid_mrr" in row
    ]
    minutes, before = 0.0, run.record.get("began_from")
    while before:
        minutes, before = minutes + before["minutes"], before["began_from"]
    return {
        "dataset": run.graph.name,
        "points": points,
        "minutes_before": round(minutes, 2),
        "triples": run.settings.training.eval_triples or len(run.graph.splits["valid"]),
        "hardware": run.record["hardware"],
        "command": run.record["command"],
    }


def draw(curves: dict[str, dict[str, Any]], path: Path) -> None:
    """One panel a graph."""
    plots = store.pyplot()

    graphs = list(dict.fromkeys(c["dataset"] for c in curves.values()))
    figure, axes = plots.subplots(
        1, len(graphs), figsize=(5 * len(graphs), 4), layout="constrained", squeeze=False
    )
    for axis, graph in zip(axes[0], graphs, strict=True):
        for name, found in curves.items():
            if found["dataset"] == graph:
                times = [found["minutes_before"] + minutes for minutes, _ in found["points"]]
                axis.plot(times, [mrr for _, mrr in found["points"]], marker="o", label=name)
        axis.set(xlabel="minutes of training", ylabel="validation MRR", title=graph)
        axis.grid(alpha=0.3)
        axis.legend()
    store.save_figure(figure, path)
    plots.close(figure)


def main(
    named: Annotated[list[str] | None, typer.Argument(metavar="NAME=RUN")] = None,
    output: Path = Path("eval/curves.json"),
) -> None:
    """Read runs, write the JSON and draw it."""
    curves: dict[str, dict[str, Any]] = {}
    if output.exists():
        curves = json.loads(output.read_text("utf-8"))
    for item in named or []:
        name, equals, path = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{item}' is not NAME=RUN")
        curves[name] = curve(Path(path))
    if not curves:
        raise typer.BadParameter("no runs, and no file to draw again")
    store.write_lines(output, curves)
    draw(curves, output.with_suffix(".svg"))


if __name__ == "__main__":
    typer.run(main)
