"""Takes a layout of namespaces away even if its maker is killed: `python -m nanokv.check.lab.guard NAME`.

The guard is a process in a session of its own, which waits for the end of its input.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

from nanokv.check.lab.layout import LayoutError, down

_END_SECONDS = 60.0


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    """When the block ends, or this process does, the layout of this name is taken down."""
    command = [sys.executable, "-m", __name__, name]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(_END_SECONDS)


def main() -> int:
    """The guard: 1 if it failed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    try:
        down(sys.argv[1])
    except LayoutError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
