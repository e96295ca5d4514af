"""A trace of prefix blocks, as in Mooncake's public traces: JSON lines, one request each.

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}

Only `hash_ids` counts: the blocks of the request, from its first token on, by names that are integers or strings.

Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nanokv.errors import InvalidArgument


class Trace(NamedTuple):
    """Requests one after the other. Blocks are numbered 0, 1, 2, ... as they first come."""

    name: str
    blocks: npt.NDArray[np.int64]  #: of all requests
    ends: npt.NDArray[np.int64]  #: per request, where its blocks end in `blocks`

    @property
    def different(self) -> int:
        """How many blocks there are, each counted once."""
        return int(self.blocks.max(initial=-1)) + 1

    def requests(self) -> Iterator[list[int]]:
        """The blocks of each request."""
        start = 0
        for end in self.ends.tolist():
            yield self.blocks[start:end].tolist()
            start = end


def read_trace(path: Path) -> Trace:
    """Read a file.

    Raises:
        InvalidArgument: it cannot be read, a line is not as above, or there is no block in it; it names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    return make_trace(path.name, (_names(path, number, line) for number, line in enumerate(lines, 1) if line.strip()))


def make_trace(name: str, requests: Iterable[Iterable[int | str]]) -> Trace:
    """A trace of requests, each of the names of its blocks.

    Raises:
        InvalidArgument: there is no block.
    """
    numbers: dict[int | str, int] = {}
    blocks: list[int] = []
    ends: list[int] = []
    for names in requests:
        blocks += [numbers.setdefault(block, len(numbers)) for block in names]
        ends.append(len(blocks))
    if not blocks:
        raise InvalidArgument(f"{name} has no blocks")
    return Trace(name, np.array(blocks, np.int64), np.array(ends, np.int64))


def _names(path: Path, number: int, line: str) -> list[int | str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{path}, line {number}: {error}") from None
    names = row.get("hash_ids") if isinstance(row, dict) else None
    if not isinstance(names, list) or any(type(name) not in (int, str) for name in names):
        raise InvalidArgument(f'{path}, line {number}: "hash_ids" must be a list of integers or strings')
    return names
