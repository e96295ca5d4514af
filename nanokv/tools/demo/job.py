"""The jobs that the parent gives its workers, and the messages: lines of JSON over a worker's stdin and stdout."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv.config import Alloc

ROLES = ("prefill", "decode", "reference")
PREFILL_RANK = 0
DECODE_RANK = 1
PATIENCE = 60.0  #: seconds that rank 1 waits for blocks of rank 0
Tell = Callable[..., None]  #: reports an event, by its name and fields


@dataclass(frozen=True, slots=True)
class Job:
    """One run of all prompts.

    Attributes:
        alloc: "device" or "host"; a reference ignores it.
        name: of the world.
        prompts, seed: of `make_prompts`; the seed is also the model's.
        tokens: tokens to generate after each prompt.
        corrupt: for tests: flip one byte of the first prompt's block of this number before it is put.
    """

    alloc: "Alloc"
    name: str
    prompts: int
    tokens: int
    seed: int
    corrupt: int | None = None


def send(stream: IO[str], message: dict[str, Any]) -> None:
    """Write one message."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()
