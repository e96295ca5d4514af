"""Random calls of `mooncake.store`, and the answer of each: see `program`."""

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from mooncake.store import ReplicateConfig, SoftPinAction

from tests.integrations.mooncake.program import run

KEYS = [f"key-{number}" for number in range(24)] + ["schlüssel/ä", "a" * 300, "key"]
IN_SESSIONS = [
    f"session-{number}" for number in range(6)
]  # nothing is upserted there: what a session then writes differs
ROOM = 1 << 16
Call = tuple[str, list[Any]]


class Calls:
    """Makes calls from a generator of random numbers, and does them."""

    def __init__(self, seed: int, store: Any) -> None:
        self._random, self._store = random.Random(seed), store
        self._memory = np.frombuffer(random.Random(seed).randbytes(ROOM), np.uint8).copy()
        self._base = int(self._memory.ctypes.data)
        store.register_buffer(self._base, ROOM)
        self._next: list[Call] = []
        self._kinds: list[Callable[[], Call]] = [
            *[self._put] * 5,
            *[self._upsert] * 3,
            *[self._read] * 5,
            *[self._remove] * 4,
            *[self._batch] * 5,
            *[self._into] * 5,
            *[self._ranges] * 2,
            *[self._session] * 4,
        ]

    def step(self) -> dict[str, Any]:
        """Do one call: its name, its arguments in short, its answer, and a digest of the registered memory after it."""
        name, arguments = self._next.pop() if self._next else self._random.choice(self._kinds)()
        answer = getattr(self._store, name)(*arguments)
        shown = self._relative(arguments)
        memory = hashlib.sha256(self._memory.tobytes()).hexdigest()[:12]
        return {"call": name, "arguments": repr(shown)[:120], "answer": _short(answer), "memory": memory}

    def _relative(self, value: Any) -> Any:
        """Arguments as they are the same in every process: addresses from the beginning of the memory."""
        if isinstance(value, list):
            return [self._relative(each) for each in value]
        return value - self._base if isinstance(value, int) and value >= self._base else _short(value)

    # --- parts of calls ---
    def _key(self) -> str:
        return self._random.choice(KEYS)

    def _keys(self) -> list[str]:
        return [self._key() for _ in range(self._random.randint(0, 5))]

    def _size(self) -> int:
        return self._random.choice((1, 7, 64, 1000, 4096, 10_000))

    def _value(self) -> bytes:
        return self._random.randbytes(self._size())

    def _place(self, nbytes: int) -> int:
        return self._base + self._random.randint(0, ROOM - nbytes)

    def _config(self) -> ReplicateConfig:
        config = ReplicateConfig()
        match self._random.randint(0, 6):
            case 0:
                config.with_hard_pin = True
            case 1:
                config.soft_pin_action = SoftPinAction.ENABLE
            case 2:
                config.replica_num = self._random.randint(0, 3)
            case 3:
                config.soft_pin_ttl_ms = 1000
            case 4:
                config.preferred_segment = "nowhere:1"
        return config

    # --- calls ---
    def _put(self) -> Call:
        name = self._random.choice(("put", "put", "put_from", "put_parts"))
        if self._random.random() < 0.1:
            return "put", [self._random.choice(IN_SESSIONS), self._value()]
        if name == "put_parts":
            return name, [self._key(), *(self._value() for _ in range(self._random.randint(1, 3)))]
        if name == "put_from":
            nbytes = self._size()
            return name, [self._key(), self._place(nbytes), nbytes, self._config()]
        return name, [self._key(), self._value(), self._config()]

    def _upsert(self) -> Call:
        name = self._random.choice(("upsert", "upsert_from", "upsert_parts"))
        if name == "upsert_from":
            nbytes = self._size()
            return name, [self._key(), self._place(nbytes), nbytes]
        return name, [self._key(), self._value()]

    def _read(self) -> Call:
        key = self._random.choice((self._key(), self._random.choice(IN_SESSIONS)))
        return self._random.choice(("get", "get_size", "is_exist", "get_buffer", "get_replica_desc")), [key]

    def _remove(self) -> Call:
        force = self._random.random() < 0.6
        match self._random.randint(0, 9):
            case 0:
                return "remove_by_regex", [self._random.choice(("key-1", "^key-2.$", "[", "zzz", "ä")), force]
            case 1:
                return "batch_replica_clear", [self._keys()]
            case 2 if self._random.random() < 0.2:
                return "remove_all", [force]
            case 3 | 4:
                return "batch_remove", [list(dict.fromkeys(self._keys())), force]
        return "remove", [self._random.choice((self._key(), self._random.choice(IN_SESSIONS))), force]

    def _batch(self) -> Call:
        keys = self._keys()
        match self._random.randint(0, 4):
            case 0:
                return "put_batch", [keys, [self._value() for _ in keys]]
            case 1:
                keys = list(dict.fromkeys(keys))  # of a key twice the real one loses the lease
                return "upsert_batch", [keys, [self._value() for _ in keys]]
            case 2:
                return "get_batch", [list(dict.fromkeys(keys))]  # as below
            case 3:
                return "batch_get_buffer", [list(dict.fromkeys(keys))]  # of a key twice the real one mixes up the bytes
        return "batch_is_exist", [keys]

    def _into(self) -> Call:
        if self._random.random() < 0.4:
            nbytes = self._size()
            return "get_into", [self._key(), self._place(nbytes), nbytes]
        keys = list(dict.fromkeys(self._keys()))
        sizes = [self._size() for _ in keys]
        places = [self._place(nbytes) for nbytes in sizes]
        if self._random.random() < 0.1:
            places = places[1:]
        return self._random.choice(("batch_put_from", "batch_get_into", "batch_upsert_from")), [keys, places, sizes]

    def _ranges(self) -> Call:
        keys = self._keys()
        counts = [self._random.randint(1, 3) for _ in keys]
        sizes = [[self._size() for _ in range(count)] for count in counts]
        sources = [[self._random.randint(0, 2000) for _ in range(count)] for count in counts]
        targets = [[self._random.randint(0, ROOM) for _ in range(count)] for count in counts]
        return "get_into_ranges", [[self._base], [keys], [targets], [sources], [sizes]]

    def _session(self) -> Call:
        keys = self._random.sample(IN_SESSIONS, self._random.randint(0, 4))
        sizes = [self._size() for _ in keys]
        places = [[self._place(nbytes)] for nbytes in sizes]
        match self._random.randint(0, 7):
            case 0 | 1:  # all bytes are written: others are what lay there before
                written = [keys, places, [[each] for each in sizes], [[0] for _ in keys]]
                self._next = [("batch_put_from_multi_buffer_ranges", written)]
                return "batch_put_session_start", [keys, sizes]
            case 2:
                return "batch_put_from_multi_buffer_ranges", [
                    keys,
                    places,
                    [[each] for each in sizes],
                    [[0] for _ in keys],
                ]
            case 3:
                return "batch_put_session_revoke", [keys]
            case 4:
                return "batch_put_from_multi_buffers", [keys, places, [[each] for each in sizes]]
            case 5:
                return "batch_get_into_multi_buffers", [keys, places, [[each] for each in sizes]]
        return "batch_put_session_end", [keys]


def _short(value: Any) -> Any:
    """An answer as JSON has it: bytes as their digest, replicas as their number."""
    if isinstance(value, int | str | type(None)):
        return value
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    if hasattr(value, "get_memory_descriptor"):
        return value.get_memory_descriptor().buffer_descriptor.size
    if isinstance(value, ReplicateConfig):
        return str(value)
    data = bytes(memoryview(value))
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"


if __name__ == "__main__":
    run(Calls, 256 << 20, 64 << 20)
