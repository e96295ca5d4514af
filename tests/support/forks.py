"""Calls in a child of a fork, which has no thread of its parent, and none of its rights."""

import json
import os
import signal
from collections.abc import Callable, Mapping

PATIENCE = 30  #: seconds; then the child is killed, and the answers are missing


def answers_of_a_child(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Per call: the error that it raised in a child of a fork of this process, or what it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(PATIENCE)
            for name, call in calls.items():
                try:
                    answer = f"returned {call()!r}"
                except BaseException as error:
                    answer = f"{type(error).__name__}: {error}"
                os.write(writer, json.dumps([name, answer]).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        found = dict(json.loads(line) for line in lines)
    os.waitpid(child, 0)
    return found


def check_refused(calls: Mapping[str, Callable[[], object]]) -> None:
    """Each call is refused in a child of a fork as a cache's own calls are, and names both processes."""
    answers = answers_of_a_child(calls)
    wrong = {name: answers.get(name, "it hung, or died") for name in calls if not _is_refused(answers.get(name, ""))}
    assert not wrong, wrong


def _is_refused(answer: str) -> bool:
    return answer.startswith("Forked: this cache was made in process ") and f"process {os.getpid()}, " in answer
