"""Write the tables of results into eval/README.md and README.md, from the files beside this one.

python eval/tables.py           rewrite them
python eval/tables.py --check   exit code 1 when they are not up to date
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = ("<!-- results: python eval/tables.py -->", "<!-- end of results -->")
BASELINES = ("<!-- baselines: python eval/tables.py -->", "<!-- end of baselines -->")
PUBLISHED = ("<!-- published: python eval/tables.py -->", "<!-- end of published -->")
RETRIEVAL = ("<!-- retrieval: python eval/tables.py -->", "<!-- end of retrieval -->")
HEADLINES = (  # in the README: of each graph the rows that people ask for
    "umls-demo",
    "umls-demo-allow-self",
    "wn18rr-long-minilm-neighbors-vector",
    "wn18rr-long-minilm-neighbors-vector-allow-self",
    "wn18rr-long-minilm-neighbors-vector-likelihood",
    "wn18rr-taught-minilm-neighbors-vector-rescored",
    "wn18rr-taught-minilm-neighbors-vector-complex",
    "wn18rr-taught-minilm-neighbors-vector-complex-rescored",
    "fb15k237-long-minilm-neighbors-vector-offsets",
    "fb15k237-long-minilm-neighbors-vector-offsets-allow-self",
    "fb15k237-long-minilm-neighbors-vector-offsets-likelihood",
    "fb15k237-more-complex",
    "fb15k237-taught-longer-minilm-neighbors-vector-offsets-complex",
    "wn18rr-taught-unseen-slice-minilm-neighbors-vector-rescored",
    "wn18rr-v1-minilm-neighbors",
    "wn18rr-v1-taught-minilm-neighbors-vector",
    "wn18rr-v1-minilm-neighbors-vector-complex",
    "wn18rr-v1-minilm-neighbors-vector-complex-rescored",
    "wn18rr-v1-minilm-neighbors-vector-rescored",
    "wn18rr-v1-ind-minilm-neighbors-vector-rescored",
    "fb237-v1-minilm",
    "fb237-v1-minilm-neighbors-vector-offsets-complex",
    "wn18rr-v1-ind-minilm-neighbors-vector",
    "wn18rr-v1-ind-taught-minilm-neighbors-vector",
    "wn18rr-v1-ind-minilm-neighbors-vector-50-expected",
    "fb237-v1-ind-minilm-neighbors-vector",
    "fb237-v1-ind-minilm-neighbors-vector-50-expected",
    "wn18rr-unseen-minilm-vector",
    "fb15k237-unseen-minilm-vector",
)
FIGURES = {
    "MRR": "inverse_harmonic_mean_rank",
    "H@1": "hits_at_1",
    "H@3": "hits_at_3",
    "H@10": "hits_at_10",
}


def results() -> list[dict[str, Any]]:
    """All committed reports, by name."""
    paths = sorted((HERE / "results").glob("*.json"))
    return [of_today(json.loads(path.read_text("utf-8"))) | {"file": path} for path in paths]


def of_today(report: dict[str, Any]) -> dict[str, Any]:
    """A report under the names that its parts have now.

    Commands that chose weights are ``before`` a reranker was trained, or ``after``.
    """
    scores = {
        ("kge" if k == "structure" else k): v for k, v in report.get("scores", {"likelihood": 1.0}).items()
    }
    kge, reranking, weighing = (report.get(k) for k in ("structure", "rescoring", "weighing"))
    kge = kge or report.get("signals", {}).get("kge")
    reranking = reranking or report.get("reranking")
    first = [
        *([weighing["command"]] if weighing else []),
        *([kge["command"], kge.get("chosen_by")] if kge else []),
    ]
    last = [(reranking or {}).get("chosen_by"), (report.get("chosen_by") or {}).get("command")]
    return report | {"scores": scores, "kge": kge, "reranking": reranking, "before": first, "after": last}


def candidates(report: dict[str, Any]) -> str:
    """What each answer was ranked among, in a few words."""
    found = report["candidates"]
    words = {"all": "all", "graph": "the graph's", "split": "the split's", "train": "training's"}
    entities = f"{words[found['set']]} {found['count']:,}"
    if report.get("own_entity", {}).get("excluded"):
        entities += ", own entity excluded"
    if "negatives" not in found:
        return entities
    how = {"drawing": "drawn", "grail": "drawn (GraIL)", "expectation": "expected"}[found["negatives"]["by"]]
    return f"{found['negatives']['count']} {how} of {entities}"


def model(report: dict[str, Any]) -> str:
    """The model, and what it ranks by beside the likelihood of names."""
    run = report["run"]
    first = lineage(run)[-1]["model"]
    words = ["MiniLM-L6" if "minilm" in first.lower() else first]
    if run.get("status") == "interrupted":
        words[0] += " (training interrupted)"
    if any("minilm-adapt.toml" in older["command"] for older in lineage(run)[1:]):
        words.append("adapted")
    if run["settings"]["training"]["objective"] == "token":
        words.append("token objective")
    if any(older.get("teacher") for older in lineage(run)):
        words.append("taught by ComplEx")
    if run["settings"]["text"].get("neighbors"):
        words.append("neighbors")
    weights = report["scores"]
    if weights.get("vector"):
        words.append("vectors" if weights["likelihood"] else "vectors alone")
    elif run["settings"].get("vector", {}).get("enabled") and not weights.get("kge"):
        words.append("likelihood alone")
    if weights.get("kge"):
        if not weights["likelihood"] and not weights["vector"]:
            return "ComplEx"
        words.append("ComplEx")
    if reranking := report.get("reranking"):
        words.append(f"best {reranking['k']} reranked")
    return ", ".join(words)


def lineage(run: dict[str, Any]) -> list[dict[str, Any]]:
    """A run, the run whose model it began with, and so on."""
    found = [run]
    while found[-1].get("began_from"):
        found.append(found[-1]["began_from"])
    return found


def rerankers(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The training of a report's reranker, the latest first, without the runs that its text had as well."""
    known = {run["command"] for run in lineage(report["run"])}
    reranking = report["reranking"]
    return [run for run in lineage(reranking) if run["command"] not in known] if reranking else []


def minutes(report: dict[str, Any]) -> float:
    """All training behind a report: of the runs before, of the KGE model and of the reranker too."""
    weights = report["scores"]
    text = any(weights.get(part) for part in ("likelihood", "vector"))
    runs = [*(lineage(report["run"]) if text else []), *rerankers(report)]
    made = [report["kge"], *(run.get("teacher") for run in runs)]
    once = {s["command"]: s["minutes"] for s in made if s}  # the teacher may be what is added, too
    return float(sum(run["minutes"] for run in runs) + sum(once.values()))


def row(report: dict[str, Any], to: str) -> list[str]:
    """One line of the table."""
    metrics, run = report["metrics"], report["run"]
    kind = "realistic" if "both.realistic.count" in metrics else "expected"

    def figure(key: str) -> str:
        value = metrics.get(key)
        return "" if value is None else f"{value:.4f}"

    threads = run["hardware"]["threads"]
    graph = report["dataset"] if report["split"] == "test" else f"{report['dataset']} {report['split']}"
    if report["protocol"]["triples"] != "all":
        graph += f", {report['protocol']['triples']} triples"
    return [
        f"[{report['file'].stem}]({to}{report['file'].name})",
        graph,
        model(report),
        candidates(report),
        *(figure(f"both.{kind}.{key}") for key in FIGURES.values()),
        figure("tail.realistic.inverse_harmonic_mean_rank"),
        figure("head.realistic.inverse_harmonic_mean_rank"),
        f"{metrics[f'both.{kind}.count']:.0f}",
        f"{minutes(report):.1f}",
        run["hardware"]["gpu"] or f"{threads} CPU thread{'s' if threads > 1 else ''}",
    ]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def headline(report: dict[str, Any]) -> bool:
    """Whether a result is in the README; eval/README.md has them all."""
    return report["file"].stem in HEADLINES


def table(reports: list[dict[str, Any]], to: str) -> str:
    """Reports as a Markdown table; ``to`` leads from the page to the folder of the files."""
    head = ["result", "graph", "model", "candidates", *FIGURES, "tail MRR", "head MRR", "ranks",
            "training minutes", "trained on"]  # fmt: skip
    return markdown(head, [row(r, to) for r in reports])


def baselines(path: Path) -> str:
    """What rules reach, as a table with its command."""
    report = json.loads(path.read_text("utf-8"))
    rows = [
        [r["dataset"], r["rule"]]
        + [f"{r['metrics'][f'both.realistic.{key}']:.4f}" for key in FIGURES.values()]
        + [f"{r['metrics'][f'{side}.realistic.inverse_harmonic_mean_rank']:.4f}" for side in ("tail", "head")]
        for r in report["rows"]
    ]
    head = ["graph", "rule", *FIGURES, "tail MRR", "head MRR"]
    return f"{markdown(head, rows)}\n\n```console\n{report['command']}\n```"


def published(path: Path) -> str:
    """What others report, by graph, best first."""
    rows = tomllib.loads(path.read_text("utf-8"))["rows"]
    rows.sort(key=lambda r: (r["graph"] != "wn18rr", -r["mrr"]))
    keys = ("mrr", "hits_at_1", "hits_at_3", "hits_at_10")
    cells = [
        [r["graph"], r["method"], r["uses"], *(f"{r[k]:.3f}" if k in r else "" for k in keys), r["source"]]
        for r in rows
    ]
    return markdown(["graph", "method", "uses", *FIGURES, "source"], cells)


def retrieval(path: Path) -> str:
    """The benchmark of indexes as a table, its plot and its command."""
    report = json.loads(path.read_text("utf-8"))
    keys = {
        "entities": "entities",
        "way": "way",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "queries_a_second": "queries a second",
        "recall_at_10": "recall@10",
        "recall_at_100": "recall@100",
        "build_s": "build s",
        "bytes_an_entity": "bytes an entity",
        "peak_mb": "peak MiB",
        "encoder_ms_a_query": "encoder ms a query",
    }

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    rows = [[cell(r.get(key)) for key in keys] for r in report["rows"]]
    threads = report["hardware"]["threads"]
    return (
        f"{markdown(list(keys.values()), rows)}\n\n![latency and throughput](benchmarks/{path.stem}.svg)\n\n"
        f"On {threads} CPU thread{'s' if threads > 1 else ''}:\n\n```console\n{report['command']}\n```"
    )


def commands(reports: list[dict[str, Any]]) -> str:
    """The commands behind each result, from the first training on."""
    found = []
    for report in reports:
        lines = []
        for run in reversed(lineage(report["run"])):
            lines += [made["command"] for made in (run.get("teacher"), run) if made]
        lines += [
            *report["before"],
            *(run["command"] for run in reversed(rerankers(report))),
            *report["after"],
        ]
        lines = [*dict.fromkeys(filter(None, lines)), report["command"]]
        commit = report["run"]["versions"].get("git", "no commit recorded")
        code = "\n".join(lines)
        found.append(f"`{report['file'].stem}` ({commit}):\n\n```console\n{code}\n```")
    return "\n\n".join(found)


def filled(text: str, marks: tuple[str, str], content: str) -> str:
    """A page with the content between its two marks."""
    begin, end = marks
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Rewrite or check both pages."""
    reports = results()
    pages = {
        HERE / "README.md": {
            RESULTS: table(reports, "results/") + "\n\n" + commands(reports),
            PUBLISHED: published(HERE / "published.toml"),
            BASELINES: baselines(HERE / "baselines.json"),
            RETRIEVAL: retrieval(HERE / "benchmarks" / "retrieval.json"),
        },
        HERE.parent / "README.md": {RESULTS: table([r for r in reports if headline(r)], "eval/results/")},
    }
    stale = {}
    for page, contents in pages.items():
        old = new = page.read_text("utf-8")
        for marks, content in contents.items():
            new = filled(new, marks, content)
        if new != old:
            stale[page] = new
    if "--check" in sys.argv:
        for page in stale:
            print(f"{page} is not up to date: run python eval/tables.py", file=sys.stderr)
        return int(bool(stale))
    for page, text in stale.items():
        page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
