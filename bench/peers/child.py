"""One system in a process of its own, which takes a turn whenever it is told to.

`python -m nanokv.bench.peers.child WISHES`, a line of JSON. It answers each line of its input with a line of JSON on
what was its standard output: what the system itself prints goes to standard error.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch

from nanokv.bench.peers import isolation
from nanokv.bench.peers.base import Ring
from nanokv.bench.peers.systems import SYSTEMS
from nanokv.bench.peers.turns import Turns


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a child is to measure.

    Attributes:
        system: a name of SYSTEMS.
        size, slots: of the ring.
        seed: of the payload.
        threads: torch's.
        control: also time what does not depend on the size.
        isolated: this process is in a network namespace of its own.
    """

    system: str
    size: int
    slots: int
    seed: int
    threads: int
    control: bool
    isolated: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def measure(wishes: Wishes, answers: TextIO) -> None:
    """Start the system, fill its ring, say so, and take a turn for each line of the input until it ends.

    Raises:
        SystemFailed, and errors of the systems' own.
    """
    if wishes.isolated:
        isolation.enter()
    torch.set_num_threads(wishes.threads)
    with SYSTEMS[wishes.system](Ring(wishes.size, wishes.slots)) as system:
        turns = Turns(system, wishes.seed, control=wishes.control)
        turns.fill()
        turns.check()
        _say(answers, ready=True)
        for line in sys.stdin:
            _say(answers, found=turns.run(**json.loads(line)))
        turns.check()


def _say(answers: TextIO, **what: Any) -> None:
    print(json.dumps(what), file=answers, flush=True)


def main(arguments: list[str]) -> None:
    """Never returns: some of the systems' libraries fault in the interpreter's own end."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = 0
    try:
        measure(Wishes(**json.loads(arguments[0])), answers)
    except Exception as error:
        traceback.print_exc()
        _say(answers, error=f"{type(error).__name__}: {error}")
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
