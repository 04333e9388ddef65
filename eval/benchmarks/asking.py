"""What a client of `kgmlm serve` asks, for locust: queries drawn from the file in KGMLM_QUERIES.

eval/benchmarks/serving.py starts it.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from locust import FastHttpUser, constant, task

QUERIES = [json.loads(line) for line in Path(os.environ["KGMLM_QUERIES"]).read_text("utf-8").splitlines()]


class Client(FastHttpUser):
    """Asks as soon as it is answered."""

    wait_time = constant(0)

    @task
    def rank(self) -> None:
        """The ten best of one query."""
        self.client.post("/rank", json={"queries": [random.choice(QUERIES)], "k": 10}, name="/rank")
