"""Damaged inputs by the thousand, and commands that are killed, stopped, without room or read meanwhile.

A part of `make soak`; see CONTRIBUTING.md. ``SOAK_INPUTS`` and ``SOAK_KILLS`` say how many, ``SOAK_SEED``
which.
``soak.py try KIND NUMBER`` tries one input again.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import pyarrow.parquet as pq  # noqa: E402
from conftest import TINY_SETTINGS  # noqa: E402
from fuzzing import KINDS, Fuzzer  # noqa: E402
from safetensors import safe_open  # noqa: E402

from kgmlm.core.digests import MANIFEST, sha256  # noqa: E402
from kgmlm.core.errors import RunError  # noqa: E402
from kgmlm.evaluation.metrics import COLUMNS  # noqa: E402
from kgmlm.runs.folder import ENDED  # noqa: E402
from kgmlm.runs.opened import open_folder, tuned_ranker  # noqa: E402
from kgmlm.signals.kge import KGE  # noqa: E402

PATIENCE = 180.0  # seconds that one input may take
MEMORY = 16 * 2**30  # bytes that a process that tries inputs may ask for
TRAIN = (
    "train", "--dataset", "toy", "--model", "scratch", "-q", *TINY_SETTINGS,
    "--set", "training.precision=fp32", "--set", "training.epochs=12", "--set", "training.eval_every=1",
    "--set", "training.checkpoint_minutes=0.001", "--set", "vector.enabled=true",
)  # fmt: skip


# The toy graph has fewer validation triples than probabilities are fitted to.
CALIBRATING = "from kgmlm.prediction import drawing; drawing.MIN_TRIPLES = 2"


def command(*arguments: str | Path) -> list[str]:
    """A real command."""
    run = f"{CALIBRATING}; from kgmlm.cli.app import app; app()"
    return [sys.executable, "-c", run, *map(str, arguments)]


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def must(*arguments: str | Path) -> None:
    """Run a command that has to succeed."""
    done = call(*arguments)
    if done.returncode:
        raise Bad(f"`kgmlm {' '.join(map(str, arguments))}` has exit code {done.returncode}: {done.stderr}")


def say(text: str) -> None:
    """A line at once, in logs too."""
    print(text, flush=True)


class Bad(Exception):
    """What should not have happened after a kill."""


# --- inputs ------------------------------------------------------------------------------------------------


def inputs(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Kind and number of each input, all kinds in turn."""
    kinds = list(KINDS)
    for i in range(count):
        yield kinds[i % len(kinds)], seed * 1_000_000 + i // len(kinds)


def work(plain: Path, vectors: Path, first: int, count: int, seed: int) -> None:
    """Try inputs from one on, saying before each what it is and after it what came of it."""
    _quiet()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(plain, vectors, Path(folder))
        for i, (kind, number) in enumerate(inputs(count, seed)):
            if i < first:
                continue
            say(f"{i} trying")
            try:
                outcome = "loaded" if fuzzer.attempt(kind, number) else "refused"
            except Exception as error:
                own = [at for at in traceback.extract_tb(error.__traceback__) if "/kgmlm/" in at.filename]
                where = f" in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
                outcome = f"bad {type(error).__name__}{where}: {str(error)[:200]!r}"
            say(f"{i} {outcome}")


def _lines(process: subprocess.Popen[str], into: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        into.put(line)
    into.put(None)


def _counts(found: Counter[str]) -> str:
    return f"{found['loaded']:,} loaded, {found['refused']:,} refused, {found['bad']} bad"


def soak_inputs(plain: Path, vectors: Path, count: int, seed: int) -> Counter[str]:
    """Try inputs in a process of their own, which is begun again where one has ended it or takes too long."""
    result: Counter[str] = Counter()
    numbered = list(inputs(count, seed))
    first = 0
    while first < count:
        process = subprocess.Popen(
            [sys.executable, __file__, "work", plain, vectors, str(first), str(count), str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_lines, args=(process, lines), daemon=True).start()
        trying, why = first - 1, None
        while why is None:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                process.kill()
                why = f"took more than {PATIENCE:.0f} seconds"
                break
            if line is None:
                why = f"ended the process with {process.wait()}"
                break
            number, _, outcome = line.strip().partition(" ")
            if not number.isdigit():
                continue  # a library's own words
            if outcome == "trying":
                trying = int(number)
                continue
            first = int(number) + 1
            word = outcome.split()[0]
            result[word] += 1
            if word == "bad":
                say(f"BAD {' '.join(map(str, numbered[int(number)]))}: {outcome.removeprefix('bad ')}")
            if first % 500 == 0 or first == count:
                say(f"{first:,} inputs: {_counts(result)}")
        process.wait()
        if first < count:
            if trying < first:
                raise SystemExit(f"inputs cannot be tried: the process {why}")
            result["bad"] += 1
            say(f"BAD {' '.join(map(str, numbered[trying]))}: {why}")
            first = trying + 1
    return result


# --- kills and other troubles ------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A command that has trouble: from what folder it starts, how it goes on, and what must be the same."""

    base: str  # the folder of the soak that it begins with; empty is none
    start: Callable[[Path], list[str | Path]]
    go_on: Callable[[Path], None]
    result: Callable[[Path], Any]


@dataclass
class Unbroken:
    """What a command does when nobody kills it."""

    result: Any
    seconds: float  # that it takes
    begins: float  # seconds until it first writes something
    largest: int  # bytes of the largest file that it writes


def _train_again(run: Path) -> None:
    if (run / "run.json").is_file() and open_folder(run).record["status"] in ENDED:
        return
    done = call("train", "--output", run, "--resume", "-q")
    if done.returncode == 2 and not (run / "model").exists():  # it had not begun
        must(*TRAIN, "--output", run)
    elif done.returncode:
        raise Bad(f"--resume has exit code {done.returncode}: {done.stderr}")


def _losses(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{k: v for k, v in row.items() if k != "minutes"} for row in rows]


def _tensors(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """What a file holds; the order of what else it says changes from process to process."""
    with safe_open(path, "np") as opened:
        return opened.metadata(), {k: opened.get_tensor(k).tobytes() for k in opened.keys()}  # noqa: SIM118


def _model(folder: Path) -> dict[str, Any]:
    # The tokenizer's config says whether it came from a folder, as after resuming.
    there = {p.name: p for p in folder.iterdir() if p.name not in (MANIFEST, "tokenizer_config.json")}
    return {k: _tensors(p) if p.suffix == ".safetensors" else sha256(p) for k, p in there.items()}


def _members(pack: Path) -> dict[str, int]:
    """The files of a pack and their checksums, but for the one that says when it was made."""
    with zipfile.ZipFile(pack) as opened:
        return {member.filename: member.CRC for member in opened.infolist() if member.filename != "pack.json"}


ADD = ("--add", "kge", "--set", "kge.dimension=8", "--set", "kge.epochs=20")
LISTED = ("--known", "valid", "--min-probability", "0", "--part-size", "8", "-q")
COMMANDS = {
    "train": Kind(
        "",
        lambda run: [*TRAIN, "--output", run],
        _train_again,
        lambda run: (_losses(run / "metrics.jsonl"), _model(run / "model")),
    ),
    "tune": Kind(
        "trained",
        lambda run: ["tune", run, "-q", *ADD],
        lambda run: must("tune", run, "-q", *ADD, "--overwrite"),
        lambda run: (_tensors(run / KGE.file), open_folder(run).tuned.mixture.tables["kge"].tolist()),
    ),
    "index": Kind(
        "trained",
        lambda run: ["index", run, "-q"],
        lambda run: must("index", run, "-q"),
        lambda run: {p.name: sha256(p) for p in (run / "index" / "entity").iterdir() if p.suffix != ".json"},
    ),
    "calibrate": Kind(
        "trained",
        lambda run: ["calibrate", run, "-q"],
        lambda run: must("calibrate", run, "-q"),
        lambda run: {k: v for k, v in json.loads((run / "model/probabilities.json").read_bytes()).items()
                     if k not in ("made", "chosen_by", "minutes")},
    ),
    "pack": Kind(
        "trained",
        lambda run: ["pack", run, "--output", run.with_name("run.kgmlm"), "-q"],
        lambda run: must("pack", run, "--output", run.with_name("run.kgmlm"), "-q"),
        lambda run: _members(run.with_name("run.kgmlm")),
    ),
    "complete": Kind(
        "trained",
        lambda run: ["complete", run, "--output", run.with_name("new.parquet"), *LISTED],
        lambda run: must("complete", run, "--output", run.with_name("new.parquet"), *LISTED),
        lambda run: pq.read_table(run.with_name("new.parquet")).to_pylist(),
    ),
    "evaluate": Kind(
        "trained",
        lambda run: ["evaluate", run, "-q"],
        lambda run: must("evaluate", run, "-q"),
        lambda run: pq.read_table(run / "ranks" / "test.parquet", columns=COLUMNS).to_pylist(),
    ),
}  # fmt: skip


def _written(folder: Path) -> set[tuple[str, int]]:
    """All files and when they were written, without locks."""
    results = set()
    for root, folders, files in os.walk(folder):  # which passes over a folder that vanishes meanwhile
        for name in (*folders, *files):
            path = Path(root) / name
            with suppress(FileNotFoundError):
                results.add((str(path), path.lstat().st_mtime_ns))
    return {(name, at) for name, at in results if not name.endswith("-lock")}


def _begun(process: subprocess.Popen[Any], folder: Path, before: set[tuple[str, int]]) -> bool:
    """Wait until something is written; False where the process ends first."""
    while process.poll() is None:
        if _written(folder) - before:
            return True
        time.sleep(0.002)
    return False


def _start(
    kind: Kind, folder: Path, room: int | None = None
) -> tuple[subprocess.Popen[bytes], set[tuple[str, int]]]:
    """Begin a command in a folder; it may have room for files of so many bytes only."""
    if kind.base:
        shutil.copytree(folder.parent / kind.base, folder / "run")
    before = _written(folder)

    def limited() -> None:
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = subprocess.Popen(
        command(*kind.start(folder / "run")),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=limited,
    )  # fmt: skip
    return process, before


def unbroken(kind: Kind, folder: Path) -> Unbroken:
    """Let a command end, and note when it did what."""
    folder.mkdir()
    started = time.monotonic()
    process, before = _start(kind, folder)
    _begun(process, folder, before)
    begins = time.monotonic() - started
    _, message = process.communicate()
    if process.returncode:
        raise SystemExit(f"`{' '.join(map(str, kind.start(folder)))}` fails: {message.decode()}")
    seconds = time.monotonic() - started
    written = [Path(name) for name, _ in _written(folder) - before]
    largest = max(path.stat().st_size for path in written if path.is_file())
    return Unbroken(kind.result(folder / "run"), seconds, begins, largest)


def at_a_moment(
    kind: Kind, folder: Path, random: Random, usual: Unbroken
) -> tuple[subprocess.Popen[bytes], str]:
    """A command at a random moment, most often while it writes; when, in words, or nothing where it ended."""
    process, before = _start(kind, folder)
    started = time.monotonic()
    if random.random() < 0.4:
        delay = random.uniform(0, usual.seconds)
    else:
        _begun(process, folder, before)
        delay = random.choice((random.uniform(0, usual.seconds - usual.begins), random.uniform(0, 0.05)))
    try:
        process.communicate(timeout=delay)
    except subprocess.TimeoutExpired:
        return process, f"after {time.monotonic() - started:.2f} s"
    return process, ""


def killed(kind: Kind, folder: Path, random: Random, usual: Unbroken) -> str:
    """SIGKILL; half of the time, a reader opens the run before the command goes on."""
    process, when = at_a_moment(kind, folder, random, usual)
    if not when:
        return ""
    process.kill()
    process.communicate()
    if kind.base and random.random() < 0.5:
        _read(folder / "run")
    return f"killed {when}"


def stopped(kind: Kind, folder: Path, random: Random, usual: Unbroken) -> str:
    """SIGSTOP, as by Ctrl-Z; meanwhile the run is read, and then the command continues."""
    process, when = at_a_moment(kind, folder, random, usual)
    if not when:
        return ""
    process.send_signal(signal.SIGSTOP)
    try:
        if kind.base:
            _read(folder / "run")
    finally:
        process.send_signal(signal.SIGCONT)
    _, message = process.communicate()
    if process.returncode:
        raise Bad(f"stopped {when} and continued, it fails: {message.decode()}")
    return f"stopped {when}"


def without_room(kind: Kind, folder: Path, random: Random, usual: Unbroken) -> str:
    """A full disk: files can have so many bytes and no more."""
    room = int(usual.largest * random.choice((0.01, 0.1, 0.5, 0.9)) * random.random())
    process, _ = _start(kind, folder, room)
    _, message = process.communicate()
    if not process.returncode:
        return ""
    lines = message.decode().strip().splitlines()
    if (
        process.returncode != 2
        or not lines
        or "no room left" not in lines[-1]
        or "Traceback" in message.decode()
    ):
        raise Bad(f"with room for {room:,} bytes it has exit code {process.returncode}: {message.decode()}")
    if kind.base:
        _read(folder / "run")
    return f"room for {room:,} bytes"


def read_meanwhile(kind: Kind, folder: Path, random: Random, usual: Unbroken) -> str:
    """Others open the run again and again, while the command replaces what is in it."""
    process, _ = _start(kind, folder)
    reads = 0
    while process.poll() is None:
        if kind.base:
            _read(folder / "run")
            reads += 1
        time.sleep(0.01)
    _, message = process.communicate()
    if process.returncode:
        raise Bad(f"while it is read, it fails: {message.decode()}")
    return f"read {reads} times"


def _read(run: Path) -> None:
    """Open a run; between a new signal and its weights it says which command chooses them."""
    try:
        tuned_ranker(open_folder(run, verify=True), "cpu")
    except RunError as error:
        if "were not chosen for" not in str(error):
            raise


TROUBLES = {"kill": killed, "stop": stopped, "full disk": without_room, "reader": read_meanwhile}
Trouble = Callable[[Kind, Path, Random, Unbroken], str]


def check(trouble: Trouble, kind: Kind, folder: Path, random: Random, usual: Unbroken) -> str:
    """What came of one trouble, in words.

    Raises:
        Bad: when something is lost, left, or another than without it.
    """
    run = folder / "run"
    try:
        for _ in range(20):
            folder.mkdir()
            if when := trouble(kind, folder, random, usual):
                break
            shutil.rmtree(folder)
        else:
            raise Bad("there was no trouble in twenty tries")
        state = ", ".join(sorted(p.name for p in folder.rglob(".*")))
        if trouble in (killed, without_room):
            kind.go_on(run)
        if kind.result(run) != usual.result:
            raise Bad("the result is another than without the kill")
        if left := [str(p.relative_to(folder)) for p in folder.rglob(".*")]:
            raise Bad(f"left behind: {', '.join(left)}")
        if (run / "checkpoints").exists():
            raise Bad("checkpoints are left of a finished run")
        tuned_ranker(open_folder(run, verify=True), "cpu")
    except Bad:
        raise
    except Exception as error:
        raise Bad(f"{type(error).__name__}: {error}") from None
    return f"{when}{f' ({state})' if state else ''}: the same"


def soak_troubles(folder: Path, kills: int, seed: int) -> dict[str, Counter[str]]:
    """Each trouble with each command in turn, kills and a fifth as often the others; what came of them."""
    results: dict[str, Counter[str]] = {}
    usual: dict[str, Unbroken] = {}
    for name, trouble in TROUBLES.items():
        results[name] = Counter()
        count = kills if trouble is killed else kills // 5
        for i in range(count):
            of = list(COMMANDS)[i % len(COMMANDS)]
            if of not in usual:
                usual[of] = unbroken(COMMANDS[of], folder / f"unbroken-{of}")
            there = folder / f"{name.replace(' ', '-')}-{i}"
            try:
                message = check(trouble, COMMANDS[of], there, Random(f"{seed} {name} {i}"), usual[of])
                shutil.rmtree(there)
                results[name]["the same"] += 1
            except Bad as error:
                results[name]["bad"] += 1
                message = f"BAD: {error} (kept in {there})"
            say(f"{name} {i + 1}/{count}: {of} {message}")
    return results


def runs(folder: Path) -> tuple[Path, Path]:
    """Two runs on the toy graph; the second has entity vectors."""
    short = (
        "--set",
        "training.epochs=4",
        "--set",
        "training.eval_every=2",
        "--set",
        "training.precision=fp32",
    )
    for name, enabled in (("plain", "false"), ("trained", "true")):
        vectors = ("--set", f"vector.enabled={enabled}")
        must("train", "--dataset", "toy", "--model", "scratch", "-q", *TINY_SETTINGS, *short, *vectors,
             "--output", folder / name)  # fmt: skip
    return folder / "plain", folder / "trained"


def _quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> None:
    """Soak, and end with 1 where anything was bad."""
    _quiet()
    count, kills, seed = (
        int(os.environ.get(f"SOAK_{name}", default))
        for name, default in (("INPUTS", 10_000), ("KILLS", 100), ("SEED", 1))
    )
    os.environ |= {
        "PYTHONPATH": str(TESTS.parent),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "160",
    }
    folder = Path(tempfile.mkdtemp(prefix="kgmlm-soak-"))
    result = soak_inputs(*runs(folder), count, seed)
    troubles = soak_troubles(folder, kills, seed)
    say(f"{count:,} inputs: {_counts(result)}")
    for name, of in troubles.items():
        say(f"{name}: {of['the same']} the same as without, {of['bad']} bad")
    if result["bad"] or any(of["bad"] for of in troubles.values()):
        raise SystemExit(1)
    shutil.rmtree(folder)


def _once(kind: str, number: int) -> None:
    """Try one input again, with its traceback."""
    _quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        loaded = Fuzzer(*runs(folder), folder / "work").attempt(kind, number)
        say("loaded" if loaded else "refused")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:7]))
    elif sys.argv[1:2] == ["try"]:
        _once(sys.argv[2], int(sys.argv[3]))
    else:
        main()
