"""The commands behind an evaluation, under their names of today: parents first, the evaluation last.

python eval/reproduce.py wn18rr-05              print them
python eval/reproduce.py wn18rr-05 --recorded   print them as they were recorded
python eval/reproduce.py wn18rr-05 --run        run them, from the root of the repository
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import store
import typer

TODAY = (  # how recorded commands are called today
    (r"^kgmlm weigh (\S+)", r"kgmlm tune \1"),
    (r"^kgmlm fuse (\S+)", r"kgmlm tune \1 --add kge"),
    (r"^kgmlm rescore (\S+) --from \1(?= |$)", r"kgmlm tune \1"),
    (r"^kgmlm rescore (\S+) --from (\S+)", r"kgmlm tune \1 --add reranker --from \2 --overwrite"),
    (r"^kgmlm rescore", "kgmlm rerank"),
    (r"--rescore ", "--rerank "),
    (r"--scores structure", "--scores kge"),
    (r"--set structure\.", "--set kge."),
    (r"vector\.offset_rate", "vector.residual_rate"),
    (r"training\.teaching", "training.distillation"),
    (r"minilm-rescore\.toml", "minilm-rerank.toml"),
    (r"/rescorer/", "/reranker/"),
    (r"lib/python3\.\d+/", f"lib/python3.{sys.version_info.minor}/"),
    (r" --ranks \S+", ""),
)


# Deleted features: the commands that need one, its name, the last commit that has it.
DELETED = (
    (r"training\.distillation|--teacher |minilm-taught\.toml", "distillation", "a756c7f"),
    (r"minilm-adapt\.toml", 'the objective "masked"', "42c59dc"),
    (r"^kgmlm rerank|(--add|--drop) reranker|reranking\.|minilm-rerank\.toml", "the reranker", "211a5af"),
    (r"--preset (best|zero-shot)", "the reranker of this preset", "211a5af"),
)


def deleted(command: str) -> str:
    """A comment that names the commit to check out for a command that needs deleted code; else empty."""
    for pattern, what, commit in DELETED:
        if re.search(pattern, command):
            return f"# - {what} is deleted: git checkout {commit} for the next command"
    return ""


def today(command: str) -> str:
    """A recorded command under the names of today."""
    for old, new in TODAY:
        command = re.sub(old, new, command)
    return command


def today_of(record: dict[str, Any]) -> list[str]:
    """The commands of a run or a part under the names and with the settings of today."""
    if "today" in record:
        return list(record["today"])
    settings = "".join(f" --set {setting}" for setting in record.get("set_today", []))
    commands = map(today, record["commands"])
    return [c + settings * c.startswith(("kgmlm train", "kgmlm tune")) for c in commands]


def steps(name: str, runs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What comes before a run, or before a part that was added to it (``run.part``), then itself."""
    run, _, part = name.partition(".")
    record = runs[run]
    if part:
        yield from steps(run, runs)
        record = record["added"][part]
    for earlier in filter(None, [record.get("parent"), *record.get("needs", [])]):
        yield from steps(earlier, runs)
    yield name, record


def evaluation(line: dict[str, Any]) -> str:
    """The command of an evaluation today: its report beside the runs, with the own-entity rule of then."""
    command = re.sub(r" --output \S+", f" --output runs/{line['id']}.json", today(line["command"]))
    rule = line["own_entity"] == "allowed" and "--allow-self" not in command
    return command + " --allow-self" * rule


def chain(name: str, recorded: bool = False) -> list[str]:
    """The commands behind an evaluation and what to know of them, as comments."""
    line, runs = store.evaluations()[name], store.runs()
    order: dict[str, dict[str, Any]] = {}
    for wanted in (line["run"], *(f"{line['run']}.{part}" for part in line["after"])):
        order |= dict(steps(wanted, runs))
    found = []
    for step, record in order.items():
        commands = record["commands"] if recorded else today_of(record)
        found += [f"# {step}", *(f"# - {caveat}" for caveat in record.get("caveats", []))]
        for command in commands:
            found += [*filter(None, [deleted(command)]), command]
    return [*found, f"# {name}", line["command"] if recorded else evaluation(line)]


def main(
    name: Annotated[str, typer.Argument(metavar="ID")],
    recorded: Annotated[bool, typer.Option("--recorded", help="As they were recorded.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Run them, one after another.")] = False,
) -> None:
    """Print the commands behind an evaluation, or run them."""
    if name not in store.evaluations():
        raise typer.BadParameter(f"results.jsonl has no '{name}'")
    for command in chain(name, recorded):
        print(command, flush=True)
        if run and not command.startswith("#"):
            subprocess.run(command, shell=True, check=True)


if __name__ == "__main__":
    typer.run(main)
