"""What tests keep from one run to the next, beside NanoKV's compiled code: any clone of the project finds it again.

stamps of what was proved (`stamps`), and Triton's cache. Both are named by content, so nothing old is ever used; what
was not looked at for KEPT_DAYS is removed.

python -m tests.support.kept triton      prints the folder of Triton's cache
"""

import os
import shutil
import sys
import time
from pathlib import Path

KEPT_DAYS = 10
KEPT = ("stamps", "triton")


def kept(what: str) -> Path:
    """The folder of one of KEPT."""
    assert what in KEPT, what
    root = os.environ.get("NANOKV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "nanokv" / what


def forget_old() -> None:
    """Remove what was not looked at for KEPT_DAYS. Who looks at it meanwhile makes it again."""
    oldest = time.time() - KEPT_DAYS * 86400
    for what in KEPT:
        for each in kept(what).iterdir() if kept(what).is_dir() else ():
            inside = [path.stat() for path in each.iterdir()] if each.is_dir() else []
            if max((max(at.st_atime, at.st_mtime) for at in [each.stat(), *inside]), default=0.0) < oldest:
                shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    print(kept(sys.argv[1]))
