"""What it costs to encipher all that goes between two nodes: the same calls with `seal="heads"` and "all", in turns."""

from collections.abc import Iterator
from contextlib import ExitStack
from time import perf_counter_ns

import numpy as np

from nanokv.bench.questions.cluster import why_not
from nanokv.bench.suite.distribution import latency
from nanokv.bench.suite.figure import Case, Figure
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB, MIB, show_size

TRANSPORTS = {
    "UNIX socket": {"heads": "wire, UNIX socket", "all": "wire, sealed, UNIX socket"},
    "TCP": {"heads": "wire, TCP", "all": "wire, sealed, TCP"},
}
#: by size: calls at most in a repetition
SIZES = {KIB: 2000, 64 * KIB: 1000, MIB: 300, 8 * MIB: 60}
CIPHERS = "SipHash-2-4, AES-256-GCM"
ROUNDS = 300  #: of bare ciphers


def measure(run: Run) -> Iterator[Figure]:
    """Bare ciphers; then each transport and size, by nodes of both seals, one after the other in each repetition."""
    for size in SIZES:
        for name, laps in _ciphers(size, run.settings.repeats).items():
            yield latency("seal", {"transport": "none", "call": "cover", "size": size, "system": name}, laps)
    from nanokv.bench.nodes.pair import Pair
    from nanokv.bench.nodes.reader import OURS

    for transport, by_seal in TRANSPORTS.items():
        for size, most in SIZES.items():
            with ExitStack() as stack:
                pairs = {seal: stack.enter_context(Pair(name, size)) for seal, name in by_seal.items()}
                calls = min(run.settings.rounds, most)
                for what in ("get", "put"):  # puts come last: they evict
                    run.say(f"{transport}, {what}, {show_size(size)}")
                    laps = [
                        {seal: pair.lap(what, size, calls) for seal, pair in pairs.items()}
                        for _ in range(run.settings.repeats)
                    ]
                    for call in laps[0]["heads"]:
                        for seal in pairs:
                            case: Case = {"transport": transport, "call": call, "size": size, "system": seal}
                            yield latency("seal", case, [np.array(lap[seal][call][OURS], np.int64) for lap in laps])


def _ciphers(size: int, repeats: int) -> dict[str, list[np.ndarray]]:
    """ns for so many bytes in a cache, by one thread: of the MAC of frames, and of what enciphers."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from nanokv.device.machines.native_code import wire_code

    room, key, state, tag = np.zeros(size + 8, np.uint8), np.zeros(2, np.int64), np.zeros(4, np.int64), np.zeros(2)
    data, cipher, siphash = bytes(size), AESGCM(bytes(32)), wire_code()["siphash"]
    at = [int(each.ctypes.data) for each in (key, room)], [int(each.ctypes.data) for each in (state, tag)]
    ways = {
        "SipHash-2-4": lambda: siphash(*at[0], size, *at[1]),
        "AES-256-GCM": lambda: cipher.encrypt(bytes(12), data, None),
    }
    found: dict[str, list[np.ndarray]] = {name: [] for name in ways}
    for _ in range(repeats):
        laps: dict[str, list[int]] = {name: [] for name in ways}
        for _ in range(max(ROUNDS * KIB // (KIB + size // 64), 10)):
            for name, way in ways.items():
                begun = perf_counter_ns()
                way()
                laps[name].append(perf_counter_ns() - begun)
        for name, times in laps.items():
            found[name].append(np.array(times, np.int64))
    return found


QUESTION = Question(
    "seal",
    "What does it cost to encipher all that goes between nodes?",
    measure,
    "As in `cluster`: two processes, each a node. Nodes with seal='heads' and such with seal='all' take turns, all of "
    "them alive all the time. Beside them, on the asker's processor: the MAC of frames (SipHash-2-4, native code) and "
    "AES-256-GCM (OpenSSL, by `cryptography`, which makes new bytes each time) over as many bytes.",
    beside=("system", "heads"),
    why_not=why_not,
)
