from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kgmlm import machine
from kgmlm.config import TrainingSettings
from kgmlm.training import _precision


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"avx2": True, "avx512_bf16": False}, "no"),
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_bf16": True}, "bf16"),
    ],
)
def test_precision_is_chosen_by_what_the_cpu_has(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    machine.fast_bf16.cache_clear()
    try:
        assert _precision(TrainingSettings(), on_cpu=True) == expected
        assert _precision(TrainingSettings(precision="fp32"), on_cpu=True) == "no"
        assert _precision(TrainingSettings(precision="bf16"), on_cpu=True) == "bf16"
    finally:
        machine.fast_bf16.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_kept_memory_is_not_faulted_in_again() -> None:
    script = """
import resource, torch
from kgmlm.machine import keep_memory
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
plain = faults()
keep_memory()
for _ in range(4):  # until the heap has grown
    faults()
print(plain, faults())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    plain, kept = map(int, done.stdout.split())
    assert kept < plain / 10
