from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kgmlm.core import machine
from kgmlm.core.config import TrainingSettings
from kgmlm.core.errors import ConfigError
from kgmlm.core.machine import Memory, fitting_threads
from kgmlm.training.loop import _precision


@pytest.mark.parametrize(
    ("found", "gain", "expected"),
    [
        ({"avx2": True, "avx512_bf16": False}, 9.0, "no"),
        ({"avx512_bf16": True}, 1.6, "bf16"),
        ({"avx512_bf16": True}, 0.5, "no"),
        ({"amx_bf16": True}, 4.0, "bf16"),
    ],
)
def test_precision_is_chosen_by_what_the_cpu_has_and_how_fast_it_is(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], gain: float, expected: str
) -> None:
    monkeypatch.delenv(machine.BF16, raising=False)
    monkeypatch.setattr(machine, "_bf16_gain", lambda: gain)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    machine.fast_bf16.cache_clear()
    try:
        assert _precision(TrainingSettings(), on_cpu=True) == expected
        assert _precision(TrainingSettings(precision="fp32"), on_cpu=True) == "no"
        assert _precision(TrainingSettings(precision="bf16"), on_cpu=True) == "bf16"
    finally:
        machine.fast_bf16.cache_clear()


def test_the_gain_of_bf16_is_measured() -> None:
    assert machine._bf16_gain() > 0


@pytest.mark.parametrize(("given", "expected"), [("0", "no"), ("1", "bf16")])
@pytest.mark.parametrize("has", [True, False])
def test_the_environment_says_whether_there_are_units(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str, has: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has})
    monkeypatch.setenv(machine.BF16, given)
    machine.fast_bf16.cache_clear()
    try:
        assert _precision(TrainingSettings(), on_cpu=True) == expected
        assert _precision(TrainingSettings(precision="fp32"), on_cpu=True) == "no"
        machine.fast_bf16.cache_clear()
        monkeypatch.setenv(machine.BF16, "yes")
        with pytest.raises(ConfigError, match="KGMLM_BF16 takes 0 or 1, not 'yes'"):
            machine.fast_bf16()
    finally:
        machine.fast_bf16.cache_clear()


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
@pytest.mark.parametrize("before", ["", "import torch; "])
def test_threads_wait_as_the_user_says_or_soon_sleep(given: dict[str, str], before: str) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {k: v for k, v in os.environ.items() if k not in names} | given
    script = f"{before}import kgmlm, os; print(*(os.environ.get(name) for name in {names}))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    expected = {"GOMP_SPINCOUNT": "1000"} if not (given or before) else given
    assert done.stdout.split() == [expected.get(name, "None") for name in names]
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_kept_memory_is_not_faulted_in_again() -> None:
    script = """
import resource, torch
from kgmlm.core.machine import keep_memory
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


MEMINFO = "MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 6000 kB\nSwapTotal: 2000 kB\nSwapFree: 1000 kB\n"


def laid(root: Path, **files: str) -> Path:
    """A file system with some files."""
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_is_what_the_machine_has_with_its_swap(tmp_path: Path) -> None:
    assert machine.memory(laid(tmp_path)) == Memory(10_000 * 1024, 7_000 * 1024)


def test_memory_is_what_the_control_group_allows(tmp_path: Path) -> None:
    """Also a group around that of the process, whose cached pages of files would be let go."""
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/memory.max": "1000000\n",
        "sys/fs/cgroup/outer/memory.swap.max": "500000\n",
        "sys/fs/cgroup/outer/memory.current": "900000\n",
        "sys/fs/cgroup/outer/memory.stat": "anon 600000\ninactive_file 300000\n",
    }
    assert machine.memory(laid(tmp_path, **files)) == Memory(1_500_000, 900_000)


def test_memory_is_what_a_control_group_of_the_first_version_allows(tmp_path: Path) -> None:
    """In a container its files lie at the top, whatever path the process is told."""
    files = {
        "proc/self/cgroup": "5:cpu,memory:/docker/abc\n2:devices:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000\n",
    }
    result = machine.memory(laid(tmp_path, **files))
    assert result == Memory(3_000_000 + 2000 * 1024, 2_000_000 + 2000 * 1024)


def test_memory_is_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.MEMORY, "1.5")
    assert machine.memory(tmp_path) == Memory(3 * 2**29, 3 * 2**29)
    for wrong in ("much", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(machine.MEMORY, wrong)
        with pytest.raises(ConfigError, match=f"GiB above 0, not '{wrong}'"):
            machine.memory()


def test_where_nothing_says_how_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    assert machine.memory(tmp_path) == Memory(10**6, 10**6)
    monkeypatch.setattr(os, "sysconf", lambda name: 0)
    assert machine.memory(laid(tmp_path, **{"proc/meminfo": "damaged"})) is None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_released_memory_goes_back_to_the_system() -> None:
    script = """
import os
import numpy as np
from kgmlm.core.machine import keep_memory, release_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_memory()
large, small = np.ones(2**25), np.ones(100)
del large
before = resident()
release_memory()
assert before - resident() > 2**27, (before, resident())
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_the_holes_of_kept_memory_are_bounded() -> None:
    script = """
import numpy as np
from kgmlm.core.machine import _resident, bound_memory, keep_memory

keep_memory()
blocks = [np.ones(2**19) for _ in range(300)]  # 1.2 GiB
blocks = blocks[::10]  # with holes between what stays
before = _resident()
bound_memory()
after = _resident()
assert before - after > 2**29, (before, after)
more = np.ones(2**24)  # 128 MiB, which are given back only once more are held
del more
held = _resident()
bound_memory()
assert _resident() == held
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("free", "threads"), [(4.0, 4), (3.6, 4), (2.2, 2), (0.3, 1), (0.0, 1), (9.0, 4)])
def test_torch_computes_on_the_cores_that_are_free(
    free: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        monkeypatch.setattr("kgmlm.core.machine.free_cores", lambda: free)
        with fitting_threads() as chosen:
            assert chosen == torch.get_num_threads() == threads
        assert torch.get_num_threads() == 4
        torch.set_num_threads(1)
        monkeypatch.setattr("kgmlm.core.machine.free_cores", None)
        with fitting_threads() as chosen:
            assert chosen == 1, "of one thread nothing is asked"
    finally:
        torch.set_num_threads(before)


def test_some_cores_are_free() -> None:
    assert 0 <= machine.free_cores() <= (os.cpu_count() or 1)
