"""`python -m bench [NAME...]`: ask questions, print tables, write JSON and a report; `compare` judges a change."""

import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from nanokv.bench.suite.arguments import parse
from nanokv.bench.suite.settings import Settings

BAD, STOPPED = 2, 130  #: exit codes


def main(arguments: Sequence[str] | None = None, prog: str = "python -m bench") -> int:
    """Run, print, write.

    Returns:
        0; 1 if a question failed; 2 if the run cannot be; 130 if Ctrl-C or SIGTERM ended it, and its figures so far
        are written.

    Raises:
        SystemExit: with code 2 if the arguments are wrong.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["compare"]:
        from nanokv.bench.suite.compare import main as compare

        return compare(arguments[1:], f"{prog} compare")
    given, settings = parse(arguments, prog)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a run as Ctrl-C does
    try:
        return _run(given, settings, prog)
    except KeyboardInterrupt:
        print("stopped before anything was measured", file=sys.stderr)
        return STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(given: Namespace, settings: Settings, prog: str) -> int:
    from nanokv.bench.suite import command

    if given.list:
        return command.show_list()
    why = command.why_not(given, settings)
    if why is not None:
        print(f"{prog}: error: {why}", file=sys.stderr)
        return BAD
    return command.run(given, _possible(settings))


def _possible(settings: Settings) -> Settings:
    """Leave worlds of processes out on a machine where they do not work, and say so."""
    from nanokv.heap import shm

    why = shm.why_not() if "shm" in settings.heaps else None
    if why is None:
        return settings
    print(f"heap shm is left out: {why}", file=sys.stderr)
    return replace(settings, heaps=tuple(heap for heap in settings.heaps if heap != "shm"))


if __name__ == "__main__":
    sys.exit(main())
