"""What the machine can do, and how it is told to do it fast."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def fast_bf16() -> bool:
    """Whether the CPU has units for products in bf16 (AVX512-BF16, AMX, or Arm's).

    With them a training step is 1.6 times as fast and more; without them bf16 is emulated, many times slower
    than float32.
    """
    import torch

    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def only_cpu() -> bool:
    """Whether there is no accelerator: accelerate joins several CPU processes only when told so."""
    import torch

    return not torch.accelerator.is_available()


@cache
def keep_memory() -> None:
    """Let this process keep large blocks of memory that it frees, for the next of their kind.

    glibc gives them back to the kernel, which zeroes each page again on the next use: up to a tenth of a
    training step. Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # malloc.h
        mallopt(mmap_max, 0)  # no block of its own mapping, which is unmapped when freed
        mallopt(trim_threshold, 2**31 - 1)


def release_memory() -> None:
    """Give back to the system what this process has freed but kept: at the end of a large piece of work.

    Arrow and glibc keep it for the next one, which may be of another kind.
    """
    gc.collect()
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def installed(package: str) -> bool:
    """Whether a package is there, without importing it."""
    return find_spec(package) is not None


def may_have_gpu() -> bool:
    """Whether there is a sign of a GPU that torch would take, without importing it."""
    if not sys.platform.startswith("linux"):
        return sys.platform == "win32"
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
