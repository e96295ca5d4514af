"""The machine and the versions of a run: without them a figure says nothing."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nanokv

_PACKAGES = ("torch", "numpy", "numba", "llvmlite", "triton", "xxhash")
_ROOT = Path(__file__).parents[3]  # of the checkout, or where packages are installed


def machine() -> dict[str, Any]:
    """The processor, its cores, the memory in bytes, the kernel, and the load."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": os.getloadavg()[0],
    }


def versions() -> dict[str, str | None]:
    """The versions of NanoKV, Python and the packages below; None: not installed."""
    found: dict[str, str | None] = {"nanokv": nanokv.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The git commit of this checkout, with "-dirty" if files differ from it; None without git."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def child_environment() -> dict[str, str]:
    """The environment of child processes, run with -P: from any folder they import the modules of this one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in (str(_ROOT), *sys.path) if path)}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the block with `count` of torch's intra-op threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
