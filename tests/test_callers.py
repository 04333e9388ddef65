"""Scripts, threads, forks and notebooks that call kgmlm in ways of their own."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kgmlm
from kgmlm.graphs.entities import EntityTable

pytestmark = pytest.mark.slow


TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"


def python(
    script: Path, *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], cwd=cwd,
        capture_output=True, text=True, timeout=900, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_no_job_begins_in_a_worker_that_imports_the_script(toy_run: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, kgmlm\n"
        "from multiprocessing import get_context\n"
        "kgmlm.train('toy', model='scratch', output=sys.argv[1], preset='plain', max_steps=1, progress=False,"
        " overwrite=True)\n"
        "process = get_context('spawn').Process(target=print)\n"
        "process.start(); process.join(); print(process.exitcode)\n"
    )
    done = python(script, tmp_path / "run")
    assert done.stdout.split() == ["1"], done.stderr
    assert '`if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_a_script_may_open_a_run_for_its_workers(toy_run: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, kgmlm\n"
        "from multiprocessing import get_context\n"
        "run, graph = kgmlm.open_run(sys.argv[1]), kgmlm.load_graph('toy')\n"
        "def ask(name): return len(run.rank(head=name, relation='capital', k=3))\n"
        "if __name__ == '__main__':\n"
        "    with get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map_async(ask, ['france']).get(timeout=100))\n"
    )
    done = python(script, toy_run)
    assert done.stdout == "[3]\n", done.stderr


@pytest.mark.parametrize("shared", [True, False])
def test_threads_open_a_run_at_the_same_time(shared: bool, toy_vector_run: Path) -> None:
    one, gate = kgmlm.open_run(toy_vector_run), threading.Barrier(4)
    more = EntityTable(["new"], ["Atlantis"], ["a lost island"])
    results: dict[int, object] = {}

    def best(run: kgmlm.Run) -> float:
        return float(run.rank(head="france", relation="capital", k=1)["score"][0])

    def ask(number: int) -> None:
        gate.wait()
        run = one if shared else kgmlm.open_run(toy_vector_run)
        if number % 2:
            run = run.with_entities(more)
        try:
            results[number] = best(run)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = kgmlm.open_run(toy_vector_run)
    expected = [best(alone), best(alone.with_entities(more))] * 2
    assert [results[n] for n in range(4)] == [pytest.approx(x, abs=1e-4) for x in expected]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_ranks_as_its_parent_by_torch_and_is_refused_by_onnx(toy_run: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, kgmlm, multiprocessing\n"
        "from kgmlm.core.errors import ModelError\n"
        "run = kgmlm.open_run(sys.argv[1], runtime=sys.argv[2])\n"
        "def ask(name): return float(run.rank(head=name, relation='capital', k=1)['score'][0])\n"
        "if __name__ == '__main__':\n"
        "    own = [ask(name) for name in ('france', 'spain')]\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        try:\n"
        "            asked = pool.map_async(ask, ('france', 'spain')).get(timeout=100)\n"
        "        except ModelError as error:\n"
        "            sys.exit(str(error))\n"
        "    assert all(abs(a - b) < 1e-4 for a, b in zip(own, asked)), (own, asked)\n"
    )
    done = python(script, toy_run, "torch", OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    if not (toy_run / "model" / "encoder.onnx").is_file():
        return
    refused = python(script, toy_run, "onnx", OMP_NUM_THREADS="2")
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("open the run in the fork itself, or with runtime='torch'")


def test_a_notebook_and_a_thread_serve(toy_run: Path) -> None:
    script = """
import asyncio, os, signal, sys, threading, urllib.request
import kgmlm

def stop(url):
    answer = urllib.request.urlopen(url + "/healthz").status
    print(answer, flush=True)
    os.kill(os.getpid(), signal.SIGINT)

async def cell():
    kgmlm.serve(sys.argv[1], port=0, progress=False,
                ready=lambda url: threading.Thread(target=stop, args=(url,)).start())

asyncio.run(cell())
served = threading.Event()
threading.Thread(
    target=lambda: kgmlm.serve(sys.argv[1], port=0, progress=False, ready=lambda url: served.set()),
    daemon=True,
).start()
assert served.wait(100)
print("served")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(toy_run)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["200", "served"], done.stderr


def test_few_entities_are_completed(tmp_path: Path) -> None:
    for count in (2, 3, 4):
        folder = tmp_path / f"graph{count}"
        folder.mkdir()
        (folder / "train.tsv").write_text("".join(f"e{i}\tr\te{(i + 1) % count}\n" for i in range(count)))
        (folder / "valid.tsv").write_text("e0\tr\te0\n")
        run = kgmlm.train(
            folder, model="scratch", output=tmp_path / f"run{count}", preset="plain", max_steps=2,
            progress=False,
        )  # fmt: skip
        made = kgmlm.complete(run, tmp_path / f"{count}.parquet", min_probability=0, progress=False)
        assert made["listed"] <= count * count


def test_a_closed_stdout_loses_no_work(toy_run: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m kgmlm evaluate {toy_run} --output {tmp_path}/test.json >&-",
        shell=True, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "test.json").read_text().startswith("{")


CALLS: dict[str, Callable[[Path, Any], object]] = {
    "train": lambda run, x: kgmlm.train(x, model="scratch", output=run / "new", max_steps=1),
    "train --output": lambda run, x: kgmlm.train("toy", model="scratch", output=x),
    "train --config": lambda run, x: kgmlm.train("toy", model="scratch", output=run / "new", config=x),
    "train --model": lambda run, x: kgmlm.train("toy", model=x, output=run / "new", max_steps=1),
    "data check": lambda run, x: kgmlm.data.check(x),
    "data split": lambda run, x: kgmlm.data.split(x, run / "new", random=True),
    "data import": lambda run, x: kgmlm.import_graph(x, run / "new"),
    "open": lambda run, x: kgmlm.open_run(x),
    "info": lambda run, x: kgmlm.info(x),
    "evaluate": lambda run, x: kgmlm.evaluate(x, progress=False),
    "evaluate --graph": lambda run, x: kgmlm.evaluate(run, graph=x, progress=False),
    "evaluate --output": lambda run, x: kgmlm.evaluate(run, output=x, progress=False),
    "evaluate --protocol": lambda run, x: kgmlm.evaluate(run, protocol=x, progress=False),
    "tune": lambda run, x: kgmlm.tune(x, progress=False),
    "complete": lambda run, x: kgmlm.complete(x, run / "new"),
    "complete --output": lambda run, x: kgmlm.complete(run, x, progress=False),
    "pack": lambda run, x: kgmlm.pack(x, run / "new.kgmlm"),
    "export": lambda run, x: kgmlm.export(x, run / "new.nt"),
    "compare": lambda run, x: kgmlm.compare(x, x),
    "feedback": lambda run, x: kgmlm.feedback(run, x),
    "report": lambda run, x: kgmlm.report(run, x, progress=False),
    "classify": lambda run, x: kgmlm.classify(run, x, progress=False),
    "entities": lambda run, x: kgmlm.open_run(run).with_entities(x),
    "rank": lambda run, x: kgmlm.open_run(run).rank(head=x, relation="capital"),
    "linearize": lambda run, x: kgmlm.linearize(x, head="France", relation="capital"),
}


@pytest.mark.parametrize("job", CALLS)
def test_what_is_of_the_wrong_kind_is_one_sentence(job: str, toy_run: Path, tmp_path: Path) -> None:
    optional = {"evaluate --graph", "evaluate --output", "evaluate --protocol", "train --config"}
    no_settings = job == "train --config"  # which may be a mapping or a list
    run = shutil.copytree(toy_run, tmp_path / "run")
    wrong: list[Any] = [3, b"x", object(), "a\0b", "\ud800"]
    if not no_settings:
        wrong += [1.5, {}, np.array([["a", "r"]]), pd.DataFrame([["a", "r"]])]
    for x in wrong + ([None] if job not in optional else []):
        with pytest.raises(kgmlm.KgmlmError) as caught:
            CALLS[job](run, x)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
    assert not (run / "new").exists()


def piped(arguments: Sequence[object], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """The command with something on its stdin."""
    command = [sys.executable, "-m", "kgmlm", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, timeout=300, check=False)


@pytest.mark.long
def test_every_input_may_be_a_stream(toy_run: Path, tmp_path: Path) -> None:
    """Whatever it holds: its kind is seen by its content."""
    rows = [("france", "capital", "paris"), ("spain", "capital", "paris"), ("spain", "borders", "france")]
    table = pa.table(dict(zip(("head", "relation", "tail"), zip(*rows, strict=True), strict=True)))
    pq.write_table(table, tmp_path / "t.parquet")
    tsv, comma = ("".join(end.join(row) + "\n" for row in rows).encode() for end in "\t,")
    (tmp_path / "t.tsv").write_bytes(tsv)
    run = shutil.copytree(toy_run, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    classify = ("classify", run, "-", "--csv", "-q")
    expected = piped(("classify", run, tmp_path / "t.tsv", "--csv", "-q"), b"")
    assert expected.returncode == 0, expected.stderr
    for data in (comma, gzip.compress(tsv), (tmp_path / "t.parquet").read_bytes()):
        assert piped(classify, data).stdout == expected.stdout
    assert piped(("classify", run, "/dev/stdin", "--csv", "-q"), tsv).stdout == expected.stdout
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(comma))
    writing.start()
    assert piped(("classify", run, tmp_path / "pipe", "--csv", "-q"), b"").stdout == expected.stdout
    writing.join()

    asked = ("rank", run, "--head", "Qatar", "--relation", "capital", "--csv", "-q", "--entities", "-")
    assert b"1," in piped(asked, b"label\tname\nqatar\tQatar\n").stdout
    new = ("evaluate", run, "--max-triples", "3", "-q", "--json", "--protocol", "-")
    assert json.loads(piped(new, b'split = "valid"\n').stdout)["split"] == "valid"
    kgmlm.complete(run, tmp_path / "new.parquet", min_probability=0, progress=False)
    listed = (tmp_path / "new.parquet").read_bytes()
    nt = piped(("export", "-", "--output", "-", "--format", "jsonl"), listed).stdout.splitlines()
    assert len(nt) == len(pq.read_table(tmp_path / "new.parquet"))
    statement = b"<http://a> <http://p> <http://b> .\n"
    importing = ("data", "import", "-", "--format", "ntriples", "--json", "-q", "--output")
    assert json.loads(piped((*importing, tmp_path / "new"), bz2.compress(statement)).stdout)["triples"] == 1

    twice = piped((*classify, "--entities", "/dev/stdin"), tsv)
    assert (twice.returncode, b"only one input can be read from stdin" in twice.stderr) == (2, True)
    faults = {
        b"": "stdin.tsv is empty",
        b"a\tb\n": "stdin.tsv:1: expected 3",
        b"PAR1": "stdin.parquet cannot",
    }
    for data, why in faults.items():
        done = piped(classify, data)
        assert done.returncode == 2
        assert why in done.stderr.decode()
        assert "/tmp" not in done.stderr.decode()


def run_tutorials(tmp_path: Path, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run notebooks in a kernel, and print what their cells print."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, nbformat\n"
        "from nbclient import NotebookClient\n"
        "for path in sys.argv[1:]:\n"
        "    notebook = nbformat.read(path, 4)\n"
        "    NotebookClient(notebook, timeout=900, kernel_name='python3').execute()\n"
        "    for cell in notebook.cells:\n"
        "        for output in cell.get('outputs', []):\n"
        "            print(output.get('text') or output['data'].get('text/plain'))\n"
    )
    return python(script, *(TUTORIALS / f"{name}.ipynb" for name in names), cwd=tmp_path, **environment)


@pytest.mark.long
def test_the_tutorial_on_later_facts_runs(tmp_path: Path) -> None:
    attack = Path(os.environ.get("KGMLM_MIRROR", "mirror")).resolve().parent / "foresight" / "attack"
    if not attack.is_dir():
        pytest.skip("ATT&CK is not beside KGMLM_MIRROR, and MITRE's repository is not asked by tests")
    done = run_tutorials(tmp_path, "later-facts", ATTACK=str(attack))
    assert done.returncode == 0, done.stderr
    assert "with an entity that training lacks" in done.stdout
    assert "expect 20 among the next 1,523 facts" in done.stdout


@pytest.mark.long
def test_the_tutorials_run_in_a_kernel(tmp_path: Path) -> None:
    """The notebook on new entities asks the run that the notebook on new facts has trained."""
    done = run_tutorials(tmp_path, "new-facts", "new-entities")
    assert done.returncode == 0, done.stderr
    assert "of the 56 that were kept aside are among them" in done.stdout
    assert "takoyaki" in done.stdout
    assert "Traceback" not in done.stdout
    assert "IProgress" not in done.stdout, "without widgets, bars are text"
