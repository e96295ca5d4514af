"""doctor: what this machine has, what works on it, and why the rest does not."""

import os
import platform
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from nanokv.errors import NanoKVError

if TYPE_CHECKING:
    import torch

State = Literal["ok", "warn", "missing"]

PACKAGES = ("torch", "triton", "numba", "llvmlite", "numpy", "xxhash")
VARIABLES = (
    "NANOKV_ALLOC",
    "NANOKV_CHECKSUM",
    "NANOKV_HEAP",
    "NANOKV_NAME",
    "NANOKV_CACHE_DIR",
    "NANOKV_SHM_DIR",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES",
    "RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TRITON_INTERPRET",
)
_ROUNDS = 200
_SMALL_SHM = 64 << 20


class Diagnosis(NamedTuple):
    """One line of doctor's table."""

    name: str
    state: State
    detail: str
    required: bool = False  #: True: nothing works without it


def examine(*, smoke: bool = True) -> list[Diagnosis]:
    """Look at this machine.

    Args:
        smoke: put and get in a small local world; compiles the protocol if it is not compiled yet.
    """
    rows = [Diagnosis("python", "ok", f"{platform.python_version()} on {platform.platform()}, {sys.executable}")]
    rows += [_package(name) for name in PACKAGES]
    if any(row.required and row.state == "missing" for row in rows):
        return rows  # the other lines need them
    rows += [_cpus(), *_gpus(), *_between_gpus(), _shared_memory(), *_heaps(), _compiled()]
    if smoke:
        rows.append(_smoke())
    return [*rows, *_variables()]


def _package(name: str) -> Diagnosis:
    required = name != "triton" or sys.platform == "linux"
    try:
        return Diagnosis(name, "ok", version(name), required)
    except PackageNotFoundError:
        return Diagnosis(name, "missing", f"pip install {name}", required)


def _cpus() -> Diagnosis:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return Diagnosis("cpus", "ok", f"{usable} usable of {os.cpu_count()}, {platform.machine()}")


def _gpus() -> Iterator[Diagnosis]:
    import torch

    if not torch.cuda.is_available():
        yield Diagnosis("gpus", "ok", "none; the protocol runs on the CPU")
        return
    platform_version = f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}{_driver()}"
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        gib = found.total_memory / 2**30
        arch = getattr(found, "gcnArchName", "") if torch.version.hip else f"sm_{found.major}{found.minor}"
        yield Diagnosis(f"gpu {i}", "ok", f"{found.name}, {arch}, {gib:.0f} GiB, {platform_version}")


def _between_gpus() -> Iterator[Diagnosis]:
    """Whether ranks can be on several GPUs, and several ranks on one GPU."""
    import torch

    from nanokv.heap.torch_symm import OVERLAPPING

    gpus = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    yield peer_access(gpus, torch.cuda.can_device_access_peer)
    if len(gpus) > 1:
        yield peer_atomics(gpus)
    if gpus:
        how = f"{OVERLAPPING}=1 is set" if os.environ.get(OVERLAPPING) == "1" else "allow_overlapping=True"
        yield Diagnosis("ranks on one gpu", "ok", f"local: always; torch_symm: {how}; iris: not known to work")


def peer_access(gpus: "list[torch.device]", can_access: "Callable[[torch.device, torch.device], bool]") -> Diagnosis:
    """Whether all GPUs reach each other's memory. `can_access`: whether the first reaches the second's."""
    from nanokv.heap.gpu_peer_access import without_access

    if len(gpus) < 2:
        return Diagnosis("gpu peer access", "ok", f"{len(gpus)} GPUs: not needed")
    pair = without_access(gpus, can_access)
    if pair is not None:
        detail = f"{pair[0]} cannot access the memory of {pair[1]}: no world can have both"
        return Diagnosis("gpu peer access", "warn", detail)
    return Diagnosis("gpu peer access", "ok", f"all {len(gpus)} GPUs access each other's memory")


def peer_atomics(gpus: "list[torch.device]") -> Diagnosis:
    """Whether the GPUs' atomics work on each other's memory."""
    from nanokv.errors import HeapUnavailable
    from nanokv.heap import gpu_driver
    from nanokv.heap.gpu_peer_access import check_pairs

    if gpu_driver.is_amd():
        detail = "in fine-grained memory: local allocates it, torch_symm and iris warn where they do not"
        return Diagnosis("gpu peer atomics", "ok", detail)
    try:
        check_pairs("several GPUs", gpus)
    except HeapUnavailable as error:
        return Diagnosis("gpu peer atomics", "warn", str(error))
    return Diagnosis("gpu peer atomics", "ok", f"native between all {len(gpus)} GPUs")


def _driver() -> str:
    """The version of NVIDIA's kernel driver, as the driver states it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return f", driver {found.group()}" if found else ""


def _shared_memory() -> Diagnosis:
    from nanokv.heap.world_file import directory

    where = directory()
    try:
        usage = shutil.disk_usage(where)
    except OSError as error:
        return Diagnosis("shared memory", "warn", f"{where}: {error}")
    detail = f"{where}: {usage.free / 2**20:.0f} MiB free of {usage.total / 2**20:.0f} MiB"
    if usage.free < _SMALL_SHM:
        return Diagnosis("shared memory", "warn", detail + "; in a container give more, e.g. docker run --shm-size=8g")
    return Diagnosis("shared memory", "ok", detail)


def _heaps() -> Iterator[Diagnosis]:
    from nanokv.heap import available
    from nanokv.heap.probe import probe, probe_elsewhere

    tries = {"shm": probe, "torch_symm": probe_elsewhere, "iris": probe_elsewhere}  # the smoke test tries local
    for name, why_not in available().items():
        why = why_not or (tries[name](name) if name in tries else None)
        works = "works: a world of one rank was made" if name in tries else "works"
        yield Diagnosis(f"heap {name}", "ok" if why is None else "missing", why or works, name == "local")


def _compiled() -> Diagnosis:
    """Which functions load from the cache: tried, not concluded from the names of files."""
    from nanokv.device.machines.code_cache import cache_directory
    from nanokv.device.machines.native_code import CompiledEntries
    from nanokv.device.machines.native_entries import NATIVE_ENTRIES

    try:
        where = cache_directory()
        code = CompiledEntries()
        count = sum(code.load(name) for name in NATIVE_ENTRIES)
    except NanoKVError as error:
        return Diagnosis("compiled code", "warn", str(error))
    if count < len(NATIVE_ENTRIES):
        found = f"{count} of {len(NATIVE_ENTRIES)} functions load from {where}"
        return Diagnosis("compiled code", "warn", f"{found}; `nanokv warmup` compiles the rest (one to two minutes)")
    return Diagnosis("compiled code", "ok", f"{count} functions load from {where}")


def _smoke() -> Diagnosis:
    """Put and get 1 KiB in a world of this process."""
    puts, gets = [], []
    try:
        import torch

        from nanokv import local_world

        data = torch.arange(256, dtype=torch.int32, device="cpu")
        began = time.perf_counter()
        (cache,) = local_world(1, 1 << 20, page_bytes=4096)
        with cache:
            ready = time.perf_counter() - began
            for i in range(_ROUNDS):
                start = time.perf_counter_ns()
                cache.put(f"doctor {i}", data)
                middle = time.perf_counter_ns()
                back = cache.get(f"doctor {i}")
                puts.append(middle - start)
                gets.append(time.perf_counter_ns() - middle)
                if not torch.equal(back, data):
                    return Diagnosis("smoke test", "missing", "what was read is not what was stored", required=True)
    except Exception as error:  # any error at all is a result of the test
        return Diagnosis("smoke test", "missing", f"{type(error).__name__}: {error}", required=True)
    put, get = statistics.median(puts) / 1000, statistics.median(gets) / 1000
    return Diagnosis(
        "smoke test", "ok", f"1 KiB: put {put:.1f} us, get {get:.1f} us (median); ready in {ready:.1f} s", True
    )


def _variables() -> Iterator[Diagnosis]:
    for name in VARIABLES:
        if name in os.environ:
            yield Diagnosis(f"${name}", "ok", os.environ[name])
