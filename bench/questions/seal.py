"""What it costs to encipher all that goes between two nodes: exchanges with `seal="heads"` and "all", in turns."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from nanokv.bench.questions.cluster import why_not
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB, MIB, show_size

#: by size: exchanges at most in a repetition
SIZES = {KIB: 2000, 64 * KIB: 1000, MIB: 300, 8 * MIB: 60}
WAYS = ("UNIX socket", "TCP")
HEAP_BYTES = 256 * MIB
RING = 4  #: objects of a size that are read in turn
_UNTIMED = 5  #: exchanges before the first that counts

Times = dict[str, list[npt.NDArray[np.int64]]]


def measure(run: Run) -> Iterator[Figure]:
    """Bare ciphers; then each way and size."""
    for size, most in SIZES.items():
        calls = min(run.settings.rounds, most)
        bare: Case = {"way": "none", "call": "cover", "size": size}
        with ExitStack() as stack:
            for name, laps in _in_turns(_ciphers(stack, size), calls, run.settings.repeats).items():
                yield latency("seal", bare | {"system": name}, laps)
            ends = _Ends(stack, size)
            for way in WAYS:
                for call in ("get", "put"):
                    run.say(f"{way}, {call}, {show_size(size)}")
                    case: Case = {"way": way, "call": call, "size": size}
                    for seal, laps in _in_turns(ends.calls(way, call), calls, run.settings.repeats).items():
                        yield latency("seal", case | {"system": seal}, laps)


def _in_turns(calls: dict[str, Callable[[], object]], count: int, repeats: int) -> Times:
    """ns of each call, each after one of the others."""
    found: Times = {name: [] for name in calls}
    for _ in range(repeats):
        laps: dict[str, list[int]] = {name: [] for name in calls}
        for i in range(_UNTIMED + count):
            for name, call in calls.items():
                begun = perf_counter_ns()
                call()
                if i >= _UNTIMED:
                    laps[name].append(perf_counter_ns() - begun)
        for name, times in laps.items():
            found[name].append(np.array(times, np.int64))
    return found


def _ciphers(stack: ExitStack, size: int) -> dict[str, Callable[[], object]]:
    """What covers so many bytes: the MAC of frames, and what enciphers, as the wire calls it and of a newer OpenSSL."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from nanokv.cluster.wire.ciphers import libcrypto
    from nanokv.device.machines.native_code import wire_code

    room, words = np.zeros(size + 8, np.uint8), np.zeros(8, np.int64)
    data, into, cipher, siphash = bytes(size), bytearray(size + 16), AESGCM(bytes(32)), wire_code()["siphash"]
    at, key = int(room.ctypes.data), int(words.ctypes.data)
    library = libcrypto()
    context = library.context(bytes(32), seals=True)
    stack.callback(library.free, context)
    init, update = library.call("init", 6), library.call("update", 5)

    def encipher() -> None:
        init(context, 0, 0, 0, key, -1)
        update(context, at, key + 16, at, size)

    return {
        "SipHash-2-4": lambda: (siphash(key, at, size, key + 16, key + 48), room, words),
        "AES-256-GCM of libcrypto": encipher,
        "AES-256-GCM of cryptography": lambda: cipher.encrypt_into(bytes(12), data, None, into),
    }


class _Ends:
    """An owner in a process of its own, and clients of both seals by both ways."""

    def __init__(self, stack: ExitStack, size: int) -> None:
        import torch

        from nanokv import NanoKVCache
        from nanokv.bench.nodes.transports import take_half
        from nanokv.bench.peers.server import Ours

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nanokv-bench-")))
        arguments: list[int | str] = [HEAP_BYTES, max(size, 4 * KIB)]
        self._addresses = Ours("nanokv.bench.nodes.wire_owner", folder, stack, arguments, {}).note()["addresses"]
        take_half(0)
        self._stack, self._size, self._count = stack, size, 0
        self._world = stack.enter_context(NanoKVCache(MIB, page_bytes=4 * KIB))
        self._tensor, self._there = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)

    def calls(self, way: str, call: str) -> dict[str, Callable[[], object]]:
        """The exchange, by seal."""
        return {
            seal: self._call(self._client(seal, addresses[way]), call) for seal, addresses in self._addresses.items()
        }

    def _client(self, seal: str, address: str) -> Any:
        from nanokv.bench.nodes.wire_owner import ASKER, OWNER, SECRET
        from nanokv.cluster.wire.client import WireClient

        client = WireClient(SECRET, ASKER, OWNER, (address,), seal=seal)
        self._stack.callback(client.close)
        return client

    def _call(self, client: Any, call: str) -> Callable[[], object]:
        from nanokv.bench.nodes.wire_owner import PATIENCE
        from nanokv.transfer.host_tensors import native_look
        from nanokv.transfer.object_calls import hashing_record

        hashing, look = hashing_record(self._world.engine.hasher), native_look().record
        self._stack.callback(lambda: hashing)  # it lives as long
        at = int(hashing.ctypes.data)

        def put() -> None:
            self._count += 1
            assert client.put_one(f"put {self._count}", self._tensor, -1, at, look, PATIENCE) == 0

        def get() -> None:
            self._count += 1
            assert client.get_one(f"object {self._count % RING}", self._there, at, look, PATIENCE) == 0

        if call == "put":
            return put
        for i in range(RING):
            client.put_one(f"object {i}", self._tensor, -1, at, look, PATIENCE)
        return get


QUESTION = Question(
    "seal",
    "What does it cost to encipher all that goes between nodes?",
    measure,
    "Two processes, each on one half of the processors: an owner of objects, with an end of the wire of each seal, and "
    "an asker, whose exchanges with both take turns. No registry, and no look-up before: the exchanges alone. Beside "
    "them, on the asker's processor, the MAC of frames (SipHash-2-4, native code), AES-256-GCM of the system's "
    "libcrypto, as the wire calls it, and that of the OpenSSL in the wheel of `cryptography`, over as many bytes.",
    beside=("system", "heads"),
    why_not=why_not,
)
