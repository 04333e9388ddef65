"""Results on stdout: tables, bars and lines for people, JSON and CSV for programs.

People read names; labels are in JSON, CSV and files. Lines that are no result go to stderr.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kgmlm.evaluation.compare import Difference
    from kgmlm.evaluation.evaluator import Evaluation
    from kgmlm.graphs.graph import KnowledgeGraph
    from kgmlm.graphs.queries import Query
    from kgmlm.prediction.classify import Classified
    from kgmlm.ranking.predictor import Prediction

WIDTH = 120  # columns of output that goes to no terminal
KNOWN, NEW, YES, NO = "cyan", "green", "green", "red"  # colors
EIGHTHS = " ▏▎▍▌▋▊▉"


def print_json(value: Any, indent: int | None = 2) -> None:
    """JSON on stdout; where that is not UTF-8, letters beyond ASCII are escaped."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=indent, ensure_ascii=not utf8))


def tell(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr)


def stdout() -> Console:
    """Return the console for tables; wide enough for names where no terminal sets the width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH
    return Console(width=width, emoji=False, highlight=False)


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without frames, which can be copied.

    Args:
        right: the columns whose values stand to the right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    return table


def print_titled(title: str, table: Table | None = None) -> None:
    """A title, and below it a table, which may be narrower."""
    stdout().print(cell(title, "bold"), soft_wrap=True)
    if table is not None:
        stdout().print(table)


def cell(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal obeys."""
    from rich.text import Text

    from kgmlm.core.errors import printable

    return Text(printable(text), style)


def print_table(title: str, rows: pd.DataFrame) -> None:
    """A table with a title; numbers stand to the right."""
    numbers = [str(c) for c in rows.columns if rows[c].dtype.kind in "if"]
    table = plain_table(*map(str, rows.columns), right=numbers)
    for row in rows.itertuples(index=False):
        table.add_row(*(cell(f"{x:,}" if isinstance(x, int) else str(x)) for x in row))
    print_titled(title, table)


def print_lines(lines: Mapping[str, Sequence[str]], indent: str = "") -> None:
    """Lines for people, beside their headings."""
    from kgmlm.core.errors import printable

    width = max(map(len, lines))
    for heading, values in lines.items():
        for number, line in enumerate(values):
            print(f"{indent}{'' if number else heading:<{width}}  {printable(line)}")


def print_metrics(evaluation: Evaluation) -> None:
    """The metrics of an evaluation as a table for people."""
    report = evaluation.report
    wanted = {
        "MRR": "inverse_harmonic_mean_rank", "Hits@1": "hits_at_1", "Hits@3": "hits_at_3",
        "Hits@10": "hits_at_10", "MR": "arithmetic_mean_rank", "ranks": "count",
    }  # fmt: skip
    digits = {"ranks": 0, "MR": 1}

    def cells(metrics: dict[str, float], prefix: str) -> list[str]:
        values = {name: metrics.get(prefix + key) for name, key in wanted.items()}
        return ["-" if v is None else f"{v:.{digits.get(name, 4)}f}" for name, v in values.items()]

    texts = report["candidates"]
    what = {"all": "all entities", "graph": "the graph's entities", "split": "the split's entities",
            "train": "training entities"}[texts["set"]]  # fmt: skip
    kind = "realistic"
    if "negatives" in texts:
        how = texts["negatives"]["by"]
        drawn = {"drawing": "drawn ", "grail": "", "expectation": "expected "}[how]
        what = f"{texts['negatives']['count']} {drawn}negatives of {what}"
        what += ", drawn as GraIL does" if how == "grail" else ""
        kind = "expected" if how == "expectation" else "realistic"
    own = ", own entity excluded" if report["own_entity"]["excluded"] else ""
    own += "".join(f", {name}" for name in report.get("constraints", {}))
    title = f"{report['dataset']} {report['split']}: filtered, {kind}, {what}{own}"
    table = plain_table("queries", *wanted, right=list(wanted))
    one = report["protocol"]["side"]
    for side in ("tail", "head", "both") if one == "both" else (one,):
        table.add_row(side, *cells(report["metrics"], f"{side}.{kind}."))
    position = report["breakdown"]["unseen_position"]
    if position["any"]["count"]:
        table.add_row("both, seen only", *cells(position["neither"], ""))
        table.add_row("both, unseen", *cells(position["any"], ""))
    comparable = report.get("pykeen_comparable", {"metrics": {}})["metrics"]
    plain = report["own_entity"]["excluded"]
    if (plain or position["any"]["count"]) and comparable.get("both.realistic.count"):
        table.add_row("as PyKEEN", *cells(comparable, "both.realistic."))
    print_titled(title, table)
    for name, of in report.get("constraints", {}).items():
        lost = f"forbids {of['answers_forbidden']:,} of {of['ranks']:,} answers, which rank last"
        print(f"{name}: keeps {of['candidates_kept']:.1%} of the candidates; {lost}")
    if "retrieval" in report:
        retrieval = report["retrieval"]
        print(
            f"shortlists of {retrieval['k']:,} by the index hold {retrieval['recall']['both']:.2%} "
            f"of the answers; MRR {retrieval['exact']['mrr']:.4f} by exact ranking, "
            f"{retrieval['mrr_lost']:.4f} lost"
        )


def print_comparison(differences: Sequence[Difference], a: str, b: str) -> None:
    """Two runs side by side, a line per metric."""
    names = {"mrr": "MRR", "hits_at_1": "Hits@1", "hits_at_3": "Hits@3", "hits_at_10": "Hits@10"}
    figures = ("A", "B", "B - A", "95 % interval", "p")
    table = plain_table("queries", "metric", *figures, right=figures)
    for d in differences:
        interval = f"{d.low:+.4f} to {d.high:+.4f}"
        shown = (f"{d.a:.4f}", f"{d.b:.4f}", f"{d.difference:+.4f}", interval, f"{d.p:.4f}")
        table.add_row(d.side, names[d.metric], *shown)
    print_titled(f"A: {a}, B: {b}", table)


LINKED = "already linked"  # a sentence that need not speak for an answer
TREES = "trees: "  # begins a sentence on what they add


def percent(probability: float | None) -> str:
    """A probability, as people read it."""
    if probability is None:
        return ""
    whole = 100 * probability
    if whole >= 99.5:
        return "> 99 %"  # nothing is certain
    return "< 0.1 %" if whole < 0.1 else f"{whole:.{0 if whole >= 9.95 else 1}f} %"


def print_predictions(
    graph: KnowledgeGraph,
    asked: Sequence[Query],
    results: Sequence[Sequence[Prediction]],
    *,
    as_json: bool,
    as_csv: bool,
    many: bool,
    sureness: str,
    tokens: bool = False,
) -> None:
    """Ranked candidates for people, as JSON lines or as CSV.

    Args:
        many: add the query to each line of JSON and CSV.
        sureness: what probabilities stand for, as a sentence.
        tokens: with explanations, each token's log-likelihood.
    """
    if as_json or as_csv:
        _predictions_as_data(graph, asked, results, as_json=as_json, many=many)
        return
    bars = False
    for query, best in zip(asked, results, strict=True):
        name, relation = graph.entities[query.entity].surface, graph.relations[query.relation].name
        title = f"({name}, {relation}, ?)" if query.target == "tail" else f"(?, {relation}, {name})"
        print_titled(title)
        if any(p.parts is not None for p in best):
            bars = _print_explained(best, tokens) or bars
        else:
            _print_ranked(best)
    if bars:
        tell("bars: what a signal adds to the score, above the least that it adds to any of these answers")
    if tokens and not any(p.tokens for best in results for p in best):
        tell("no tokens: no masked LM was trained, so no name was read token by token")
    of_all = [p for best in results for p in best]
    if any(p.probability is not None for p in of_all):
        tell(f"probability: {sureness}")
    if any(not p.checked for p in of_all):
        tell("no probability for entities without training triples: validation has too few of these")


def _predictions_as_data(
    graph: KnowledgeGraph,
    asked: Sequence[Query],
    results: Sequence[Sequence[Prediction]],
    *,
    as_json: bool,
    many: bool,
) -> None:
    from kgmlm.core.tables import CsvFile

    columns = ["rank", "entity", "name", "probability", "score", "known"]
    table = None if as_json else csv.writer(CsvFile(sys.stdout))
    if table is not None:
        table.writerow([*(("head", "relation", "tail") if many else ()), *columns])
    for query, best in zip(asked, results, strict=True):
        entity, relation = graph.entities[query.entity].label, graph.relations[query.relation].label
        ends = (entity, relation, "") if query.target == "tail" else ("", relation, entity)
        lead = dict(zip(("head", "relation", "tail"), ends, strict=True)) if many else {}
        for p in best:
            if table is None:
                print_json({k: v for k, v in lead.items() if v} | p.as_json(), indent=None)
                continue
            probability = "" if p.probability is None else f"{p.probability:.6f}"
            values = (p.rank, p.label, p.name, probability, f"{p.score:.6f}", str(p.known).lower())
            table.writerow([*lead.values(), *values])


def _names(predictions: Sequence[Prediction]) -> list[str]:
    """The names of answers, with the label of those that share one."""
    from kgmlm.core.errors import printable

    times = Counter(p.name for p in predictions)
    return [printable(p.name if times[p.name] == 1 else f"{p.name} ({p.label})") for p in predictions]


def _sureness(p: Prediction, probable: bool) -> str:
    """The probability of an answer; its score where no answer of the query has a probability."""
    return percent(p.probability) if probable else f"{p.score:.3f}"


def _mark(known: bool) -> Text:
    return cell("known", KNOWN) if known else cell("new", NEW)


def _print_ranked(predictions: Sequence[Prediction]) -> None:
    probable = any(p.probability is not None for p in predictions)
    sure = "probability" if probable else "score"
    table = plain_table("rank", "name", sure, "", right=("rank", sure))
    for p, name in zip(predictions, _names(predictions), strict=True):
        table.add_row(str(p.rank), cell(name), _sureness(p, probable), _mark(p.known))
    stdout().print(table)


def _print_explained(predictions: Sequence[Prediction], tokens: bool) -> bool:
    """Print for each answer a line with a bar for each signal, and under it the reason; return whether there
    are bars.
    """
    from rich.text import Text

    console, probable = stdout(), any(p.probability is not None for p in predictions)
    gains = _gains(predictions)
    names, sure = _names(predictions), [_sureness(p, probable) for p in predictions]
    header = "probability" if probable else "score"
    room_for_sure = max(len(header), *map(len, sure))
    places = max(len("rank"), *(len(str(p.rank)) for p in predictions))
    fixed = places + len("  ") + room_for_sure + len("  known  ")
    longest = max(_width(name) for name in names)
    room = (console.width - fixed - min(longest, 24) - 2) // max(1, len(gains)) - 1
    bar = min(10, max(5, room))
    width = max(10, min(longest, console.width - fixed - 2 - (bar + 1) * len(gains)))
    heads = [f"{name if len(name) <= bar else name[: bar - 1] + '.':<{bar}}" for name in gains]
    first = f"{'rank':>{places}}  {'name':<{width}}  {header:>{room_for_sure}}         {' '.join(heads)}"
    console.print(Text(first.rstrip(), "dim"), no_wrap=True, overflow="crop", crop=False)
    for n, p in enumerate(predictions):
        name, place = names[n], f"{p.rank:>{places}}"
        if _width(name) > width:  # on a line of its own
            for row in _wrapped(name, console.width, places + 2):
                console.print(Text(f"{place:>{places}}{row[places:]}"), no_wrap=True, crop=False)
                place = ""
            name, place = "", " " * places
        line = Text(f"{place}  {_filled(name, width)}  {sure[n]:>{room_for_sure}}  ")
        line.append_text(_mark(p.known)).append(" " * (7 - len("known" if p.known else "new")))
        for of in gains.values():
            line.append(_bar(of[n], bar, console.options.ascii_only), "blue").append(" ")
        line.rstrip()
        console.print(line, no_wrap=True, overflow="crop", crop=False)
        reasons = [reason for reason in p.because if not reason.startswith(TREES)]
        sentences = [reason if reason.startswith(LINKED) else f"because {reason}" for reason in reasons[:1]]
        sentences += [reason for reason in p.because if reason.startswith(TREES)]
        if tokens and p.tokens:
            pieces = (f"{t['text'].strip() or t['token']} {t['log_likelihood']:.2f}" for t in p.tokens)
            sentences.append(f"tokens: {', '.join(pieces)}")
        for sentence in sentences:
            for row in _wrapped(sentence, console.width):
                console.print(cell(row), no_wrap=True, overflow="crop", crop=False)
    return bool(gains)


def _gains(predictions: Sequence[Prediction]) -> dict[str, list[float]]:
    """Return what each signal adds to each answer above its least for any of them, as a share of the largest
    such gain; without signals that do not tell the answers apart.
    """
    signals = dict.fromkeys(name for p in predictions for name in p.parts or {})
    added = {
        name: [x.weight * x.value if (x := (p.parts or {}).get(name)) else 0.0 for p in predictions]
        for name in signals
    }
    beyond = {name: [x - min(of) for x in of] for name, of in added.items()}
    largest = max((max(of) for of in beyond.values()), default=0.0)
    return {name: [x / largest for x in of] for name, of in beyond.items() if max(of) > 0.005 * largest}


def _bar(share: float, width: int, ascii_only: bool) -> str:
    """A bar of eighths of characters.

    >>> _bar(0.5, 5, False), _bar(1.0, 3, True)
    ('██▌  ', '###')
    """
    eighths = round(8 * width * share)
    if ascii_only:
        return ("#" * round(eighths / 8)).ljust(width)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(width)


def _width(text: str) -> int:
    """The columns of a terminal that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def _filled(text: str, width: int) -> str:
    """A text padded with spaces to a number of columns."""
    return text + " " * (width - _width(text))


def _wrapped(text: str, width: int, indent: int = 6) -> list[str]:
    """The lines of a text, indented."""
    from rich.text import Text

    from kgmlm.core.errors import printable

    lines = Text(printable(text)).wrap(stdout(), max(20, width - indent))
    return [" " * indent + line.plain.rstrip() for line in lines]


def print_reasoned(rows: Sequence[Mapping[str, Any]]) -> None:
    """Listed triples by their names, and below each the reason for it.

    Names stand in columns where the longest of each fit the terminal side by side.
    """
    from kgmlm.core.errors import printable

    console = stdout()
    sure = [percent(row["probability"]) for row in rows]
    room = max(map(len, sure))
    triples = [[printable(row[f"{end}_name"]) for end in ("head", "relation", "tail")] for row in rows]
    widths = [max(_width(triple[n]) for triple in triples) for n in range(3)]
    if room + sum(widths) + 3 * len("  ") > console.width:
        widths = [0, 0, 0]
    for row, triple, probability in zip(rows, triples, sure, strict=True):
        names = [_filled(name, width) for name, width in zip(triple, widths, strict=True)]
        console.print(cell("  ".join([f"{probability:>{room}}", *names]).rstrip()), soft_wrap=True)
        if row["because"]:
            for line in _wrapped(f"because {row['because'].split('; ')[0]}", console.width):
                console.print(cell(line), no_wrap=True, overflow="crop", crop=False)


def print_classified(classified: Classified, *, as_json: bool, as_csv: bool, explain: bool) -> None:
    """Triples with their probabilities for people, as JSON lines or as CSV."""
    rows = classified.as_json(explain)
    if as_json:
        for row in rows:
            print_json(row, indent=None)
        return
    labeled = ["label"] if classified.labels is not None else []
    if as_csv:
        from kgmlm.core.tables import CsvFile

        names = ("head_name", "relation_name", "tail_name")
        sure = ("probability", "probability_if_half_true")
        fields = ["head", "relation", "tail", *sure, "true", "known", *labeled, *names]
        writer = csv.DictWriter(CsvFile(sys.stdout), fields, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            words = {name: "" if row[name] is None else f"{row[name]:.6f}" for name in sure}
            words |= {name: str(row[name]).lower() for name in ("true", "known")}
            words |= {name: str(int(row[name])) for name in labeled}  # as files of triples have it
            writer.writerow(row | words)
        return

    def answer(yes: bool) -> Text:
        return cell("yes", YES) if yes else cell("no", NO)

    numbers = ("probability", f"if {percent(classified.prior)} are true")
    columns = ("head", "relation", "tail", *numbers, "true", *labeled)
    table = plain_table(*columns, right=numbers)
    for row in rows:
        number = (row["probability"], row["probability_if_half_true"])
        shown = [cell("known", KNOWN), cell("")] if row["known"] else [cell(percent(x)) for x in number]
        ends = [cell(row[f"{end}_name"]) for end in ("head", "relation", "tail")]
        label = [answer(row["label"])] if labeled else []
        table.add_row(*ends, *shown, answer(row["true"]), *label)
    print_titled("triples", table)
    for row in rows if explain else ():
        if parts := row.get("parts"):
            print_lines({"": [" ".join(row[f"{end}_name"] for end in ("head", "relation", "tail"))]})
            part = {
                f"as {side}": [
                    f"{of['adds']:+.2f}: rank {of['rank']:g}, softmax {of['softmax']:.3f}, "
                    f"margin {of['margin']:+.2f}, question {of['state']}"
                ]
                for side, of in parts.items()
                if side in ("tail", "head")
            }
            rest = {name: [f"{parts[name]['adds']:+.2f}"] for name in ("relation", "calibration")}
            print_lines(part | rest, indent="    ")
    if not rows:
        return
    tell(f"probability: {classified.calibration.stands_for(classified.graph.validation)}")
    if explain:
        tell("the numbers add up to the log odds that the triple is true, known or not")
