"""Programs that tests/api/test_stress.py runs, each in a process of its own: `python -m tests.support.random_callers NAME`.

They use nothing but the public calls. `calls` and `drops` print one line of JSON, whose "wrong" must be empty.
"""

import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import nanokv
from nanokv.dtypes import DTYPE_NAMES
from nanokv.errors import DuplicateKey, InvalidArgument, KeyNotFound, NanoKVError, NotReady, ObjectPinned

THREADS = 4
CPU_SECONDS = 4.0
HEAP_BYTES, PAGE_BYTES = 16 << 20, 4096
OWN_KEYS, SHARED_KEYS = 12, 6  #: of a thread and a world, and of a world
VALUES = 60  #: of a thread
MOST_ELEMENTS = 3000
DTYPES = [getattr(torch, name) for name in DTYPE_NAMES if hasattr(torch, name)]
SWITCH_INTERVAL = 1e-5
COUNTED = ("puts", "put_errors", "bytes_tx", "gets", "misses", "bytes_rx")


class Value(NamedTuple):
    """A tensor that is put, and what a get of it must give."""

    source: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(source: torch.Tensor) -> "Value":
        return Value(source, source.dtype, tuple(source.shape), bytes_of(source))

    def is_same(self, got: Any) -> bool:
        return (
            type(got) is torch.Tensor
            and (got.dtype, tuple(got.shape), got.is_conj(), got.is_neg()) == (self.dtype, self.shape, False, False)
            and bytes_of(got) == self.data
        )

    def room(self) -> torch.Tensor:
        """A destination, full of other bytes."""
        filled = torch.full((len(self.data),), 0xA5, dtype=torch.uint8)
        if self.dtype is torch.bool:
            return filled.view(torch.int8).bool().reshape(self.shape)
        return filled.view(self.dtype).reshape(self.shape)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's values, in order."""
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def random_tensor(dice: random.Random) -> torch.Tensor:
    """A tensor of any dtype, of 0 to 7 dimensions, dense or a view with strides, lazily conjugated or negated, empty."""
    shape: list[int] = []
    for _ in range(dice.randint(0, 7)):
        shape.append(dice.choice((0, 1, 1, 2, 2, 3, 5, 64)) if dice.random() < 0.9 else dice.randint(0, 300))
        if torch.Size(shape).numel() > MOST_ELEMENTS:
            shape.pop()
    dtype = dice.choice(DTYPES)
    view = dice.choice(("dense", "dense", "transposed", "strided", "expanded"))
    made = _dense([*shape, 3] if view == "strided" else shape, dtype)
    if view == "transposed" and made.dim() > 1:
        made = made.transpose(*dice.sample(range(made.dim()), 2))
    elif view == "strided":
        made = made[..., 1]
    elif view == "expanded" and made.dim() < 7:
        made = made.unsqueeze(0).expand(2, *made.shape)
    if made.is_complex():
        lazy = dice.choice(("", "conj", "conj().imag", "conj().real"))
        made = {"": lambda: made, "conj": made.conj, "conj().imag": lambda: made.conj().imag}.get(
            lazy, lambda: made.conj().real
        )()
    return made


def _dense(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.randint(0, 256, (torch.Size(shape).numel() * dtype.itemsize,), dtype=torch.uint8).view(dtype).view(shape)


class World(NamedTuple):
    """The caches of a world, and objects that all threads put, read and remove: of each key only one value."""

    caches: list[nanokv.NanoKVCache]
    shared: dict[Any, Value]


def random_key(cache: nanokv.NanoKVCache, dice: random.Random, name: str) -> Any:
    """A key of a random type."""
    text = dice.choice((name, f"ключ 💾 {name}", name * 30))
    return dice.choice((text, text.encode(), cache.digest(text + "!")))


class Caller:
    """Random calls of one thread. It knows what its own keys hold; of shared ones only what they hold if anything.

    Attributes:
        wrong: what was not as it must be.
        done: how often each kind of call was answered in which way.
        counted: what `stats()` must count.
    """

    def __init__(self, worlds: list[World], number: int) -> None:
        self.dice = random.Random(number)
        self.worlds = worlds
        self.values = [Value.of(random_tensor(self.dice)) for _ in range(VALUES)]
        self.held: list[dict[Any, Value | None]] = [
            {random_key(world.caches[0], self.dice, f"{number} {i}"): None for i in range(OWN_KEYS)} for world in worlds
        ]
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self.counted = Counter(dict.fromkeys(COUNTED, 0))
        self.calls = (self.put, self.put, self.get, self.get, self.get_new, self.exists, self.remove)

    def run(self) -> None:
        """Make calls until all threads together have had their CPU time."""
        while time.process_time() < CPU_SECONDS and not self.wrong:
            for _ in range(20):
                self.step()

    def step(self) -> None:
        """Make one call, and judge its answer."""
        number = self.dice.randrange(len(self.worlds))
        world, held = self.worlds[number], self.held[number]
        cache = self.dice.choice(world.caches)
        call = self.dice.choice(self.calls)
        if self.dice.random() < 0.2:
            key = self.dice.choice(list(world.shared))
            call(cache, key, world.shared[key], None)
        else:
            key = self.dice.choice(list(held))
            call(cache, key, held[key], held)

    def judge(self, what: str, good: bool, *shown: Any) -> None:
        """Note the answer of a call, and whether it was a good one."""
        self.done[what] += 1
        if not good:
            self.wrong.append(f"{what}: {shown}")

    # --- `held` is None: the key is shared, and any answer good that one order of the threads' calls can give ---
    def put(self, cache: Any, key: Any, value: Value | None, held: dict[Any, Value | None] | None) -> None:
        there = value if held is not None else None
        new = value if held is None and value is not None else self.dice.choice(self.values)
        options: dict[str, Any] = {}
        if self.dice.random() < 0.7:
            options["preferred_segment"] = self.dice.choice((None, 0, cache.world_size - 1))
        if self.dice.random() < 0.3:
            options["exist_ok"] = self.dice.random() < 0.7
        if self.dice.random() < 0.05:
            self.refused("put, refused", lambda: cache.put(key, torch.zeros((1,) * 8), **options))
            return
        try:
            cache.put(key, new.source, **options)
        except DuplicateKey:
            self.counted["put_errors"] += 1
            good = held is None or there is not None
            self.judge("put, DuplicateKey", good and not options.get("exist_ok"), key, options)
            return
        if held is None and options.get("exist_ok"):  # who knows whether it was stored
            self.judge("put, shared, either", True)
            self.unsure = True
        elif there is not None:
            self.counted["put_errors"] += 1
            self.judge("put, exists", bool(options.get("exist_ok")), key, options)
        else:
            self.counted.update(puts=1, bytes_tx=len(new.data))
            self.judge("put", True)
            if held is not None:
                held[key] = new

    def get(self, cache: Any, key: Any, value: Value | None, held: dict[Any, Value | None] | None) -> None:
        wanted = value or self.dice.choice(self.values)
        dst = wanted.room()
        if value is not None and held is not None and self.dice.random() < 0.15:
            other = self.dice.choice([one for one in self.values if (one.dtype, one.shape) != (value.dtype, value.shape)])
            dst = other.room()
            before = bytes_of(dst)
            self.refused("get, wrong dst", lambda: cache.get(key, dst=dst))
            self.judge("get, wrong dst, unchanged", bytes_of(dst) == before, key)
            return
        self.read("get", lambda *default: cache.get(key, *default, dst=dst), value, held, dst)

    def get_new(self, cache: Any, key: Any, value: Value | None, held: dict[Any, Value | None] | None) -> None:
        self.read("get new", lambda *default: cache.get(key, *default), value, held, None)

    def read(
        self,
        name: str,
        call: Callable[..., Any],
        value: Value | None,
        held: dict[Any, Value | None] | None,
        dst: torch.Tensor | None,
    ) -> None:
        default: tuple[Any, ...] = (self,) if self.dice.random() < 0.3 else ()
        try:
            got = call(*default)
        except (KeyNotFound, NotReady) as error:
            self.counted["misses"] += 1
            good = not default and (held is None or (value is None and type(error) is KeyNotFound))
            self.judge(f"{name}, KeyNotFound", good, error, value)
            return
        if default and got is self:
            self.counted["misses"] += 1
            self.judge(f"{name}, default", held is None or value is None, value)
            return
        self.counted.update(gets=1, bytes_rx=got.nbytes)
        good = value is not None and value.is_same(got) and (dst is None or got is dst)
        self.judge(name, good, value and value[1:3], got.dtype, got.shape)

    def exists(self, cache: Any, key: Any, value: Value | None, held: dict[Any, Value | None] | None) -> None:
        found = cache.exists(key)
        self.judge("exists", type(found) is bool and (held is None or found == (value is not None)), key, found)

    def remove(self, cache: Any, key: Any, value: Value | None, held: dict[Any, Value | None] | None) -> None:
        try:
            cache.remove(key)
        except (KeyNotFound, NotReady, ObjectPinned) as error:
            good = held is None or (value is None and type(error) is KeyNotFound)
            self.judge("remove, KeyNotFound", good, key, error)
        else:
            self.judge("remove", held is None or value is not None, key)
            if held is not None:
                held[key] = None

    def refused(self, name: str, call: Callable[[], Any]) -> None:
        """A call that must be answered InvalidArgument."""
        try:
            call()
        except InvalidArgument:
            self.judge(name, True)
        else:
            self.judge(name, False)


def worlds_of(name: str) -> list[World]:
    """A local world of two ranks, and one of shared memory, of one."""
    options: dict[str, Any] = {"page_bytes": PAGE_BYTES, "evict": False}
    local = nanokv.local_world(2, HEAP_BYTES, **options)
    shm = [nanokv.NanoKVCache(HEAP_BYTES, name=name, rank=0, world_size=1, **options)]
    dice = random.Random(THREADS)
    return [
        World(caches, {random_key(caches[0], dice, f"shared {i}"): Value.of(random_tensor(dice)) for i in range(SHARED_KEYS)})
        for caches in (local, shm)
    ]


def calls(name: str) -> dict[str, Any]:
    """Random calls of four threads: what was wrong, what was done, what was counted, and what `stats()` counts."""
    worlds = worlds_of(name)
    callers = [Caller(worlds, number) for number in range(THREADS)]
    failures: list[str] = []

    def run(caller: Caller) -> None:
        try:
            caller.run()
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caches = [cache for world in worlds for cache in world.caches]
    for caller in callers:
        for world, held in zip(worlds, caller.held, strict=True):
            for key, value in held.items():
                caller.read("get new", lambda *default, k=key, c=world.caches[-1]: c.get(k, *default), value, held, None)
    told = [cache.stats() for cache in caches]
    for cache in caches:
        cache.close()
    return {
        "wrong": [*failures, *(wrong for caller in callers for wrong in caller.wrong)],
        "done": sum((caller.done for caller in callers), Counter()),
        "counted": {each: sum(caller.counted[each] for caller in callers) for each in COUNTED},
        "stats": {each: sum(one[each] for one in told) for each in COUNTED},  # type: ignore[literal-required]
    }
