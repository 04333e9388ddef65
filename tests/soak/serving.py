"""A service under load and under malformed requests: `make soak`. See CONTRIBUTING.md.

``SOAK_REQUESTS`` says how many questions are asked, and how many malformed requests are sent. All go to
a process on this machine that this script starts.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx2
import psutil
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.transport import Response
from soak import call, runs, say

import kgmlm

CLIENTS = 8
CLOSE = 1e-4  # scores alone and in batches differ by rounding
HALF = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
WARM = 2_000  # requests before memory is measured
GROWTH = 1.05


class Bad(Exception):
    """What should not have happened."""


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A serving process on a free port: its URL, and the process."""
    command = [sys.executable, "-m", "kgmlm", "serve", str(run), "--port", "0", "-q", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        message = ""
        for line in process.stderr:
            message += line
            if url := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            raise Bad(message)
        yield url[0], psutil.Process(process.pid)
        if process.poll() is not None:
            raise Bad(f"the service has ended with {process.returncode}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def check(answer: dict[str, Any], expected: list[tuple[str, float]]) -> None:
    """See that an answer is that of the run, where no other score is within rounding of one."""
    got = [(row["entity"], row["score"]) for row in answer["predictions"]]
    if any(abs(a - b) > CLOSE for (_, a), (_, b) in zip(got, expected, strict=True)):
        raise Bad(f"{answer}: scores are not those of `kgmlm rank`, {expected}")
    for i, (label, score) in enumerate(expected[:-1]):
        near = any(abs(score - other) <= CLOSE for j, (_, other) in enumerate(expected) if j != i)
        if not near and got[i][0] != label:
            raise Bad(f"{answer}: ranks are not those of `kgmlm rank`, {expected}")


async def ask(
    url: str, queries: list[dict[str, str]], expected: list[list[tuple[str, float]]], count: int
) -> None:
    """Ask so many questions, some at a time, and check every answer."""
    left = iter(range(count))
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:

        async def client_asks() -> None:
            for i in left:
                at = i % len(queries)
                answer = await client.post("/rank", json={"queries": [queries[at]], "k": 10})
                if answer.status_code != 200:
                    raise Bad(f"{queries[at]}: {answer.status_code} {answer.text}")
                check(answer.json()["results"][0], expected[at])

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(client_asks())


async def disturb(url: str, queries: list[dict[str, str]], seconds: Random) -> None:
    """Ask much, and leave at any moment; send half of a request, and wait."""
    host, port = url.removeprefix("http://").split(":")
    much = {"queries": (queries * 256)[:256], "k": 31}
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds.uniform(0, 0.5)):
                    answer = await client.post("/explain", json=much)
                    if answer.status_code not in (200, 503):  # too much at once is asked to come again
                        raise Bad(f"/explain: {answer.status_code} {answer.text}")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(HALF[: seconds.randint(1, len(HALF))])
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds.uniform(0, 0.5)):
                    await writer.drain()
            writer.close()


async def ask_beside(
    url: str, queries: list[dict[str, str]], expected: list[list[tuple[str, float]]], count: int
) -> None:
    """As :func:`ask`, while others ask much and leave."""
    others = [asyncio.create_task(disturb(url, queries, Random(n))) for n in range(4)]
    await ask(url, queries, expected, count)
    for other in others:
        if other.done():
            other.result()
        other.cancel()


def load(run: Path, count: int) -> None:
    """Answers are those of the run, memory does not grow, and those who ask much and leave disturb nobody."""
    opened = kgmlm.open_run(run)
    triples = list(islice(opened.graph.labeled(opened.graph.splits["train"]), 200))
    asked = [(h, r, None) for h, r, _ in triples] + [(None, r, t) for _, r, t in triples]
    asked = list(dict.fromkeys(asked))
    table = opened.rank(asked, k=10)
    expected = []
    for head, relation, tail in asked:
        of = table[(table["relation"] == relation) & (table["head" if head else "tail"] == (head or tail))]
        expected.append(list(zip(of["entity"], of["score"], strict=True)))
    names = ("head", "relation", "tail")
    queries = [{k: v for k, v in zip(names, query, strict=True) if v is not None} for query in asked]
    with served(run) as (url, process):
        asyncio.run(ask(url, queries, expected, min(WARM, count)))
        before = process.memory_info().rss
        asyncio.run(ask(url, queries, expected, count))
        asyncio.run(ask_beside(url, queries, expected, count // 10))
        after = process.memory_info().rss
    say(f"{count:,} questions: memory {before / 2**20:.0f} to {after / 2**20:.0f} MiB")
    say(f"{count // 10:,} more beside clients that ask much and leave: the same answers")
    if after > before * GROWTH:
        raise Bad("memory grows with the number of requests")


def send(url: str, operation: Any, mode: schemathesis.GenerationMode, most: int) -> Counter[int]:
    """Requests of one path, right or wrong by its schema, some of which exist once only: answers by code."""
    codes: Counter[int] = Counter()

    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        answer: Response = case.call(base_url=url)
        codes[answer.status_code] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            raise Bad(f"{case.as_curl_command()}: {answer.status_code}")
        if "Traceback" in answer.text:
            raise Bad(f"{case.as_curl_command()}: a traceback")

    with suppress(Unsatisfiable):  # no request of this path can be wrong
        each()
    return codes


def malformed(run: Path, count: int) -> None:
    """No request breaks the service: no 500, no traceback, and it answers afterwards."""
    codes: Counter[int] = Counter()
    with served(run, "--writable") as (url, process):
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        asked = [
            (cast(Any, item).ok(), mode)
            for item in schema.get_all_operations()
            for mode in schemathesis.GenerationMode
        ]
        before = process.memory_info().rss
        while (left := count - codes.total()) > 0:  # again, as paths that take little are soon through
            for operation, mode in asked:
                codes += send(url, operation, mode, -(-left // len(asked)))
        after = process.memory_info().rss
        if httpx2.get(f"{url}/healthz").status_code != 200:
            raise Bad("the service does not answer any more")
    messages = ", ".join(f"{code}: {n:,}" for code, n in sorted(codes.items()))
    say(f"{codes.total():,} requests by the schema, right and wrong: {messages}")
    say(f"memory {before / 2**20:.0f} to {after / 2**20:.0f} MiB, with the entities that were added")


def main() -> None:
    """Soak a service on the toy graph; an exception is a failure."""
    count = int(os.environ.get("SOAK_REQUESTS", 20_000))
    with tempfile.TemporaryDirectory(prefix="kgmlm-soak-") as folder:
        _, run = runs(Path(folder))
        load(run, count)
        malformed(run, count // 2)
        if call("info", run).returncode:
            raise Bad("the run cannot be opened any more")


if __name__ == "__main__":
    main()
