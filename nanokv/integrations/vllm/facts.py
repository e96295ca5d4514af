"""What engines say that their KV means, so that users are told which setting differs when two engines share nothing.

Keys of engines that differ never meet, whatever becomes of what is said here. The workers of a world say it in files of
this host, one for each rank, in the folder of the look-ups (`lookup.py`); those of a cluster on their cards.
"""

import base64
import binascii
import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash
from vllm.logger import init_logger

if TYPE_CHECKING:
    from nanokv.cluster import NanoKVCluster

logger = init_logger(f"vllm.{__name__}")  # vLLM shows what is under its own name

Facts = dict[str, str]  #: what KV depends on: names and values
LOOK_SECONDS = 1.0  #: how often a worker looks for engines that differ, at most
_MOST_TOLD = 4  #: differences of one engine
_MOST_BYTES = 1 << 20  #: of facts that are believed


def difference(theirs: Mapping[str, str], mine: Facts) -> str:
    """What differs, for people: "max_model_len 512, here 2048"; empty if nothing does."""
    names = [name for name in theirs.keys() | mine.keys() if theirs.get(name) != mine.get(name)]
    names.sort(key=lambda name: (name.count("."), name))  # what users set themselves before what follows from it
    told = [f"{name} {theirs.get(name, 'not set')}, here {mine.get(name, 'not set')}" for name in names[:_MOST_TOLD]]
    more = [f"and {len(names) - _MOST_TOLD} more"] if len(names) > _MOST_TOLD else []
    return "; ".join(told + more)


def packed(facts: Facts) -> str:
    """Facts as a short text, for a card."""
    return base64.b85encode(zlib.compress(json.dumps(facts).encode())).decode()


def unpacked(text: str) -> Facts | None:
    """The facts in a text of `packed`; None if there are none."""
    try:
        raw = zlib.decompressobj().decompress(base64.b85decode(text), _MOST_BYTES)
        found = json.loads(raw)
    except (ValueError, zlib.error, binascii.Error):
        return None
    return found if isinstance(found, dict) else None


class FactsFiles:
    """The files of one world.

    Args:
        folder: of this user alone.
        world: its name.
    """

    def __init__(self, folder: Path, world: str, ranks: int) -> None:
        stem = xxhash.xxh3_64_hexdigest(world.encode())
        self._files = [folder / f"{stem}-{rank}.json" for rank in range(ranks)]

    def write(self, rank: int, facts: Facts) -> None:
        """Say what a rank stores. If that fails, a message lacks its reason, no more."""
        file = self._files[rank]
        made = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            made.write_text(json.dumps(facts))
            made.replace(file)

    def read(self) -> Iterator[tuple[int, Facts]]:
        """What each rank says."""
        for rank, file in enumerate(self._files):
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(file.read_text())
                if isinstance(found, dict):
                    yield rank, found

    def remove(self, rank: int) -> None:
        """A rank has left."""
        with contextlib.suppress(OSError):
            self._files[rank].unlink()

    def differences(self, mine: Facts) -> list[str]:
        """How other ranks differ, a line each."""
        lines = [(rank, difference(theirs, mine)) for rank, theirs in self.read()]
        return [f"rank {rank} stores under another identity: {line}" for rank, line in lines if line]


class Mismatches:
    """Tells, once each, which engines store what this one cannot read, and why.

    Args:
        mine: the facts of this worker.
        files: of its world; None: it is alone there.
        cluster: whose other nodes may differ.
    """

    def __init__(self, mine: Facts, files: FactsFiles | None, cluster: "NanoKVCluster | None") -> None:
        self._mine, self._files, self._cluster = mine, files, cluster
        self._told: set[str] = set()
        self._looked = -LOOK_SECONDS

    def look(self) -> None:
        """Look, if that was not done just now."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for line in (*self._of_world(), *self._of_cluster()):
            if line not in self._told:
                self._told.add(line)
                logger.warning("NanoKV: nothing is shared: %s", line)

    def _of_world(self) -> list[str]:
        return self._files.differences(self._mine) if self._files is not None else []

    def _of_cluster(self) -> Iterator[str]:
        for node, text in self._cluster.about().items() if self._cluster is not None else ():
            theirs = unpacked(text)
            line = difference(theirs, self._mine) if theirs is not None else ""
            if line:
                yield f"node {node} stores under another identity: {line}"
