"""What tests keep from one run to the next, beside NanoKV's compiled code: any clone of the project finds it again.

Stamps of what was proved (`stamps`), and Triton's cache. Both are named by content, so nothing old is ever used. What
was not looked at for KEPT_DAYS is removed, and of a folder beyond MOST_BYTES what was not looked at for longest.

python -m tests.support.kept triton      prints the folder of Triton's cache
"""

import os
import shutil
import sys
import time
from pathlib import Path

KEPT_DAYS = 10
MOST_BYTES = 4 << 30  #: all kernels for all GPUs are 0.6 GB
KEPT = ("stamps", "triton")


def kept(what: str) -> Path:
    """The folder of one of KEPT."""
    assert what in KEPT, what
    root = os.environ.get("NANOKV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "nanokv" / what


def forget_old() -> None:
    """Remove what is too old or too much. Who looks for it meanwhile makes it again."""
    now = time.time()
    for what in KEPT:
        entries = [each for each in kept(what).iterdir() if each.is_dir()] if kept(what).is_dir() else []
        total = 0
        for used, nbytes, folder in sorted(((*_use_of(each, now), each) for each in entries), reverse=True):
            total += nbytes
            if used < now - KEPT_DAYS * 86400 or total > MOST_BYTES:
                shutil.rmtree(folder, ignore_errors=True)


def _use_of(folder: Path, now: float) -> tuple[float, int]:
    """When a folder's files were last used, and their bytes. One that changes meanwhile is in use now."""
    try:
        found = [path.stat() for path in folder.iterdir()]
    except OSError:
        return now, 0
    return max((max(at.st_atime, at.st_mtime) for at in found), default=now), sum(at.st_size for at in found)


if __name__ == "__main__":
    print(kept(sys.argv[1]))
