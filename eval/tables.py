"""Write the tables of results into eval/README.md and README.md, from the files in eval/results.

python eval/tables.py           rewrite them
python eval/tables.py --check   exit code 1 when they are not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGIN, END = "<!-- results: python eval/tables.py -->", "<!-- end of results -->"
FIGURES = {
    "MRR": "inverse_harmonic_mean_rank",
    "H@1": "hits_at_1",
    "H@3": "hits_at_3",
    "H@10": "hits_at_10",
}


def results() -> list[dict[str, Any]]:
    """All committed reports, by name."""
    return [json.loads(p.read_text("utf-8")) | {"file": p} for p in sorted((HERE / "results").glob("*.json"))]


def candidates(report: dict[str, Any]) -> str:
    """The candidate set in a few words."""
    return f"{report['candidates']['count']:,} ({report['candidates']['set']})"


def row(report: dict[str, Any], to: str) -> list[str]:
    """One line of the table."""
    metrics, run = report["metrics"], report["run"]
    model = (
        "scratch" if run["model"] == "scratch" else "MiniLM-L6" if "minilm" in run["model"] else run["model"]
    )
    device = run["hardware"]["gpu"] or f"{run['hardware']['threads']} CPU threads"
    return [
        f"[{report['file'].stem}]({to}{report['file'].name})",
        report["dataset"],
        model,
        candidates(report),
        *(f"{metrics['both.realistic.' + key]:.4f}" for key in FIGURES.values()),
        f"{metrics['tail.realistic.inverse_harmonic_mean_rank']:.4f}",
        f"{metrics['head.realistic.inverse_harmonic_mean_rank']:.4f}",
        str(int(metrics["both.realistic.count"])),
        f"{run['minutes']:.1f}",
        device,
    ]


def table(reports: list[dict[str, Any]], to: str) -> str:
    """Reports as a Markdown table; ``to`` leads from the page to the folder of the files."""
    head = ["result", "graph", "model", "candidates", *FIGURES, "tail MRR", "head MRR", "ranks",
            "training minutes", "on"]  # fmt: skip
    lines = [head, ["---"] * len(head), *(row(r, to) for r in reports)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def commands(reports: list[dict[str, Any]]) -> str:
    """The two commands behind each result."""
    return "\n\n".join(
        f"`{r['file'].stem}` ({r['run']['versions'].get('git', 'no commit recorded')}):\n\n"
        f"```console\n{r['run']['command']}\n{r['command']}\n```"
        for r in reports
    )


def filled(page: Path, content: str) -> str:
    """The page with the content between its two marks."""
    before, rest = page.read_text("utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Rewrite or check both pages."""
    reports = results()
    pages = {
        HERE / "README.md": table(reports, "results/") + "\n\n" + commands(reports),
        HERE.parent / "README.md": table(reports, "eval/results/"),
    }
    stale = {
        page: new
        for page, content in pages.items()
        if (new := filled(page, content)) != page.read_text("utf-8")
    }
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page} is not up to date: run python eval/tables.py", file=sys.stderr)
        return int(bool(stale))
    for page, text in stale.items():
        page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
