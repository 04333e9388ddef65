"""The machine's processor, memory and threads, and how to use them."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from statistics import median

from kgmlm.core.errors import ConfigError

GROWN, SPARE = 1.25, 2**29  # release memory above 1.25 times what the last release left, plus 512 MiB
MEMORY = "KGMLM_MEMORY"  # GiB that there are, whatever the system says
BF16 = "KGMLM_BF16"  # 0 or 1: whether the CPU is fast in bf16, whatever is measured
GAIN, TIMED = 1.1, 7  # use bf16 if it is 1.1 times as fast as fp32, timed by 7 pairs of products


@cache
def fast_bf16() -> bool:
    """Return whether the CPU multiplies faster in bf16 than in float32, unless ``KGMLM_BF16`` is 0 or 1.

    It does with AMX and with most kinds of AVX512-BF16. Some processors that have the latter are half as fast
    with it, so a few products are timed. Without units bf16 is emulated, many times slower than float32.

    Raises:
        ConfigError: when ``KGMLM_BF16`` is neither 0 nor 1.
    """
    import torch

    if given := os.environ.get(BF16):
        if given not in ("0", "1"):
            raise ConfigError(f"{BF16} takes 0 or 1, not '{given}'")
        return given == "1"

    capabilities = torch.cpu.get_capabilities()
    units = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return units and _bf16_gain() > GAIN


def _bf16_gain() -> float:
    """The CPU's speed in bf16 divided by that in float32, the median of a few pairs of products."""
    import torch

    wide = torch.ones(1024, 512)
    pair = (wide, wide.bfloat16())

    def seconds(x: torch.Tensor) -> float:
        began = time.perf_counter()
        x @ x.T
        return time.perf_counter() - began

    with torch.inference_mode():
        gains = [seconds(pair[0]) / seconds(pair[1]) for _ in range(2 + TIMED)]
    return median(gains[2:])  # the first are slower


def reduced(precision: str, on_gpu: bool) -> bool:
    """Return whether products are in bf16: as a setting says, or by ``auto`` where that is faster."""
    import torch

    if precision != "auto":
        return precision == "bf16"
    return torch.cuda.is_bf16_supported() if on_gpu else fast_bf16()


def only_cpu() -> bool:
    """Return whether there is no accelerator: accelerate joins several CPU processes only when told so."""
    import torch

    return not torch.accelerator.is_available()


@cache
def keep_memory() -> None:
    """Let this process keep large blocks of memory that it frees, for the next of their kind.

    glibc gives them back to the kernel, which zeroes each page again on the next use: three to five percent
    of a training step (eval/LOG.md). Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # malloc.h
        mallopt(mmap_max, 0)  # no block of its own mapping, which is unmapped when freed
        mallopt(trim_threshold, 2**31 - 1)


_needed = 0  # bytes that this process held when freed memory was last given back


def bound_memory() -> None:
    """Give freed memory back where this process has come to hold much more than it needs.

    What :func:`keep_memory` keeps is of no use to the next block where that is a little larger: where blocks
    are of many sizes, as those of batches of texts, the heap grows by its holes.
    """
    global _needed
    if _resident() > GROWN * _needed + SPARE:
        release_memory()
        _needed = _resident()


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def release_memory() -> None:
    """Give back to the system what this process has freed but kept: at the end of a large piece of work.

    Arrow and glibc keep it for the next one, which may be of another kind.
    """
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


@dataclass(frozen=True)
class Memory:
    """Bytes of memory for this process, with swap.

    Attributes:
        total: as much as it can ever have.
        free: as much as it can have now.
    """

    total: int
    free: int


def memory(root: Path = Path("/")) -> Memory | None:
    """Memory of the machine, or of its control group if that is less, or ``KGMLM_MEMORY`` (in GiB).

    Args:
        root: of the file system.

    Returns:
        None where nothing says it.

    Raises:
        ConfigError: when ``KGMLM_MEMORY`` is no number above 0.
    """
    if given := os.environ.get(MEMORY):
        try:
            gib = float(given)
        except ValueError:
            gib = math.nan
        if not 0 < gib < math.inf:
            raise ConfigError(f"{MEMORY} takes a number of GiB above 0, not '{given}'")
        return Memory(int(gib * 2**30), int(gib * 2**30))
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
        swap = 1024 * kib["SwapTotal"]
        bounds = [Memory(1024 * kib["MemTotal"] + swap, 1024 * (kib["MemAvailable"] + kib["SwapFree"]))]
    except (OSError, ValueError, KeyError, IndexError):
        return _installed_memory()
    bounds += _of_groups(root, swap)
    return Memory(min(x.total for x in bounds), min(x.free for x in bounds))


def _installed_memory() -> Memory | None:
    """Memory built into the machine, on systems that tell no more: macOS."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return Memory(total, total) if total > 0 else None


def _of_groups(root: Path, swap: int) -> Iterator[Memory]:
    """Memory that the control groups of this process allow, its own and those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if kinds else "")
        limit, used = ("limit_in_bytes", "usage_in_bytes") if kinds else ("max", "current")
        own = PurePosixPath(path.lstrip("/"))
        for group in (top / part for part in (own, *own.parents)):
            allowed, taken = (_number(group / f"memory.{name}") for name in (limit, used))
            if allowed is not None:
                more = _number(group / "memory.swap.max")
                total = allowed + (swap if more is None else min(swap, more))
                yield Memory(total, total - (taken or 0) + _cached(group))


def _number(path: Path) -> int | None:
    """Read a number from a file of a control group; None for "max", and where it is not there."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cached(group: Path) -> int:
    """Pages of files that a control group would let go."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, IndexError):
        return 0


@cache
def compute_in_forks() -> None:
    """Let processes that are forked from this one compute, each on one thread.

    A fork has none of its parent's threads, and OpenMP would wait for them for ever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    """Keep OpenMP of torch and FAISS from handing work to other threads."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    if faiss := sys.modules.get("faiss"):
        faiss.omp_set_num_threads(1)


LOOKED = 0.2  # seconds in which it is seen what other processes compute


@contextmanager
def fitting_threads() -> Iterator[int]:
    """Let torch compute on as many threads as cores are free, at least one.

    Threads that compute together wait for the slowest of them: beside two busy processes on two cores, two
    threads read texts at a fourth of a quiet machine's rate, and one at two fifths (eval/LOG.md).

    Yields:
        The number of threads.
    """
    import torch

    most = torch.get_num_threads()
    if most > 1:
        torch.set_num_threads(max(1, min(most, round(free_cores()))))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(most)


def free_cores() -> float:
    """The cores of this process that no process uses now; this one waits for :data:`LOOKED` meanwhile."""
    import psutil

    used = psutil.cpu_percent(LOOKED, percpu=True)
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(used))
    return float(sum(1 - used[core] / 100 for core in own if core < len(used)))


def installed(package: str) -> bool:
    """Return whether a package is there, without importing it."""
    return find_spec(package) is not None


def may_have_gpu() -> bool:
    """Return whether there is a sign of a GPU that torch would take, without importing it."""
    if not sys.platform.startswith("linux"):
        return sys.platform == "win32"
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
