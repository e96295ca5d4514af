"""A world in a container whose limit of processes and threads is reached is refused, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, threading
import nanokv
from nanokv.errors import HeapUnavailable
asked = {"page_bytes": 4096, "rank": 0, "world_size": 1, "heap": sys.argv[1]}
if sys.argv[1] == "shm":
    asked["name"] = "no-threads"
threading.stack_size(1 << 44)  # the system cannot give that: as if it gave no thread
for _ in range(2):
    try:
        nanokv.NanoKVCache(1 << 20, **asked)
    except HeapUnavailable as error:
        assert "rank 0 cannot have its poller" in str(error), error
    else:
        sys.exit("it was made")
threading.stack_size(0)
with nanokv.NanoKVCache(1 << 20, **asked) as cache:
    cache.put("k", __import__("torch").zeros(4))
print("right")
"""


@pytest.mark.parametrize("heap", ["local", "shm"])
def test_a_world_without_threads_is_refused(heap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CODE, heap], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    assert list(tmp_path.iterdir()) == []
