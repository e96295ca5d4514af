"""Whether a provider gives memory on this machine: a world of one rank, made, looked at, and left.

    python -m nanokv.heap.probe torch_symm

prints the reason why not, if there is one. Another process, because a library may change this one: iris chooses a GPU
and, in 2025, replaces torch's allocator.
"""

import secrets
import subprocess
import sys

from nanokv.device.segment.geometry import Geometry
from nanokv.errors import NanoKVError
from nanokv.heap import open_heap
from nanokv.heap.world_spec import WorldSpec

_PAGE = 4096
_ATTACH_SECONDS = 30.0
_LIMIT_SECONDS = 120.0  #: for the other process, with its imports


def probe(kind: str) -> str | None:
    """None if a provider made a world of one rank here, else why not."""
    geometry = Geometry.plan(_PAGE, _PAGE, 1)
    name = f"probe-{secrets.token_hex(8)}"
    spec = WorldSpec(geometry, "device", may_evict=False, water=(80, 90), name=name, timeout=_ATTACH_SECONDS)
    try:
        heap = open_heap(kind, spec, 0)
    except NanoKVError as error:
        return str(error)
    try:
        last = heap.segment(0)[-1:]
        last.fill_(7)
        return None if int(last) == 7 else f"what was stored at {heap.bases[0]:#x} is not there"
    finally:
        heap.close()


def probe_elsewhere(kind: str) -> str | None:
    """`probe` in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nanokv.heap.probe", kind],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a world of one rank was not made within {_LIMIT_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return said[-1] if said else f"the process that tried it ended with {done.returncode}"


if __name__ == "__main__":
    reason = probe(sys.argv[1])
    if reason:
        print(reason)
        sys.exit(1)
