"""A process at its limit of descriptors: a try is refused in NanoKV's words, nothing stays, and the next one works."""

import subprocess
import sys

import pytest

TRIES = """
import os, resource, sys, warnings
warnings.simplefilter("ignore")
import nanokv, torch
from nanokv.heap.shm_tools import list_worlds

kind, limit = sys.argv[1], 200
options = {"shm": {}, "lazy": {"elastic": True, "heap_options": {"lazy": True}}, "v1": {"alloc": "host"}}[kind]

def attach(name):
    return nanokv.NanoKVCache(1 << 20, page_bytes=4096, name=name, rank=0, world_size=1, **options)

def opened():
    return {int(each) for each in os.listdir("/proc/self/fd")}

attach("loads").close()  # code and modules
for spare in range(5):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = opened()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(spare):
        os.close(taken.pop())
    try:
        attach("w").close()
        answer = "works"
    except nanokv.NanoKVError as error:
        answer = type(error).__name__
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(answer, len(opened() - before) - len(before - opened()), *list_worlds())
    attach("w").close()
"""


@pytest.mark.parametrize("kind", ["shm", "lazy", "v1"])
def test_without_descriptors_a_world_is_refused_and_nothing_stays(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRIES, kind], capture_output=True, text=True, timeout=300, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 5, done.stderr
    assert lines[0] == "HeapUnavailable 0" and lines[-1] == "works 0", lines
    assert set(lines) == {"HeapUnavailable 0", "works 0"}
