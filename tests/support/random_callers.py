"""Programs that tests/api/test_stress.py runs, each in a process of its own: `python -m tests.support.random_callers`.

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
from nanokv.check.machine.rank_process import wait_until
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
WARM_UP = 30  #: rounds of `drops` that fill what the process keeps
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
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a dimension of one item may have any stride
    plain.view(tensor.shape).copy_(tensor)
    return plain.view(torch.uint8).numpy().tobytes()


def random_tensor(dice: random.Random) -> torch.Tensor:
    """A tensor of any dtype, of 0 to 7 dimensions, some empty: dense, with strides, lazily conjugated or negated."""
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
        lazy: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda tensor: tensor,
            lambda tensor: tensor.conj(),
            lambda tensor: tensor.conj().imag,
            lambda tensor: tensor.conj().real,
        ]
        return dice.choice(lazy)(made)
    return made


def _dense(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    return (
        torch.randint(0, 256, (torch.Size(shape).numel() * dtype.itemsize,), dtype=torch.uint8).view(dtype).view(shape)
    )


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

    def run(self, until: float) -> None:
        """Make calls until the process has had so many seconds of CPU time."""
        while time.process_time() < until and not self.wrong:
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
        new = value if held is None and value is not None else self.dice.choice(self.values)
        options: dict[str, Any] = {}
        if self.dice.random() < 0.7:
            options["preferred_segment"] = self.dice.choice((None, 0, cache.world_size - 1))
        if self.dice.random() < 0.3:  # of a shared key nobody knows whether it was stored then
            options["exist_ok"] = held is not None and self.dice.random() < 0.7
        if self.dice.random() < 0.05:
            self.refused("put, refused", lambda: cache.put(key, torch.zeros((1,) * 8), **options))
            self.counted["put_errors"] += 1
            return
        try:
            cache.put(key, new.source, **options)
        except DuplicateKey:
            self.counted["put_errors"] += 1
            good = (held is None or value is not None) and not options.get("exist_ok")
            self.judge("put, DuplicateKey", good, key, options)
            return
        if held is not None and value is not None:
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
            other = self.dice.choice(
                [one for one in self.values if (one.dtype, one.shape) != (value.dtype, value.shape)]
            )
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
        World(
            caches,
            {random_key(caches[0], dice, f"shared {i}"): Value.of(random_tensor(dice)) for i in range(SHARED_KEYS)},
        )
        for caches in (local, shm)
    ]


def calls(name: str) -> dict[str, Any]:
    """Random calls of four threads: what was wrong, what was done, what was counted, and what `stats()` counts."""
    worlds = worlds_of(name)
    callers = [Caller(worlds, number) for number in range(THREADS)]
    failures: list[str] = []
    until = time.process_time() + CPU_SECONDS

    def run(caller: Caller) -> None:
        try:
            caller.run(until)
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
                caller.read(
                    "get new", lambda *default, k=key, c=world.caches[-1]: c.get(k, *default), value, held, None
                )
    told = [cache.stats() for cache in caches]
    for cache in caches:
        cache.close()
    return {
        "wrong": [*failures, *(wrong for caller in callers for wrong in caller.wrong)],
        "done": sum((caller.done for caller in callers), Counter()),
        "counted": {each: sum(caller.counted[each] for caller in callers) for each in COUNTED},
        "stats": {each: sum(one[each] for one in told) for each in COUNTED},  # type: ignore[literal-required]
    }


def ends(name: str, how: str, what: str) -> None:
    """End while four daemon threads make calls, and the caches are open. `how`: "returns", or "exits", with code 7.

    The threads call nothing of torch themselves: its calls give the interpreter's lock away, and a thread that wants it
    back after the end of the interpreter ends in them with `std::terminate`, with or without caches.
    """
    worlds = worlds_of(name)
    met = threading.Barrier(THREADS + 1)

    def run(number: int) -> None:
        cache = random.Random(number).choice([cache for world in worlds for cache in world.caches])
        sources = [torch.rand(256), torch.rand(8, 8)]
        rooms = [torch.empty_like(source) for source in sources]
        keys: list[Any] = [f"mine {number}", f"mine {number}".encode() * 3]
        for key, source in zip(keys, sources, strict=True):
            cache.put(key, source)

        def finds() -> None:
            for key in keys:
                if not cache.exists(key):
                    raise AssertionError(f"{key} is not there")
                try:
                    cache.remove(f"none {number}")
                except KeyNotFound:
                    continue

        def moves() -> None:
            for key, source, room in zip(keys, sources, rooms, strict=True):
                cache.get(key, dst=room)
                cache.remove(key)
                cache.put(key, source)

        step = {"finds": finds, "moves": moves}[what]
        for _ in range(50):
            step()
        met.wait()
        try:
            while True:
                step()
        except NanoKVError:  # the world ends before the thread does
            return

    for number in range(THREADS):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    met.wait(60)
    if how == "exits":
        sys.exit(7)


class Round:
    """A world that is made, used and left: half of them closed, half dropped. The same keys and tensors each time."""

    def __init__(self, name: str) -> None:
        self.name = name
        dice = random.Random(1)
        self.values = [Value.of(random_tensor(dice)) for _ in range(12)]
        self.rooms = [value.room() for value in self.values]
        self.keys: list[Any] = [f"key {i}" if i % 2 else f"key {i}".encode() for i in range(len(self.values))]
        self.wrong: list[str] = []

    def run(self, number: int) -> None:
        if number % 3:
            caches = list(nanokv.local_world(2, 1 << 20, page_bytes=PAGE_BYTES))
        else:
            caches = [
                nanokv.NanoKVCache(1 << 20, page_bytes=PAGE_BYTES, name=f"{self.name}-{number}", rank=0, world_size=1)
            ]
        first, last = caches[0], caches[-1]
        for key, value, room in zip(self.keys, self.values, self.rooms, strict=True):
            first.put(key, value.source)
            for refused in (
                lambda: first.put(key, value.source),  # noqa: B023 # called at once
                lambda: first.get(key + key),  # noqa: B023
                lambda: first.get(key, dst=torch.empty(7, 7)),  # noqa: B023
                lambda: first.remove(key + key),  # noqa: B023
            ):
                try:
                    refused()
                except NanoKVError:
                    continue
                self.wrong.append(f"round {number}: a call was not refused")
            if not (last.exists(key) and value.is_same(last.get(key)) and value.is_same(last.get(key, dst=room))):
                self.wrong.append(f"round {number}: {value[1:3]} is not what was put")
        first.remove(self.keys[0])
        if number % 2:
            for cache in caches:
                cache.close()

    def references(self) -> list[int]:
        """To each key and tensor."""
        return [sys.getrefcount(each) for each in (*self.keys, *(value.source for value in self.values), *self.rooms)]


def drops(name: str, rounds: str) -> dict[str, Any]:
    """Make, use and drop worlds. What the process holds after some rounds, and at the end."""
    round_ = Round(name)
    gc.freeze()  # all of torch: the collections of the rounds then take no time

    def held() -> dict[str, Any]:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            "lines of the world": sum(name in line for line in maps),
            "lines": len(maps),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
            "KiB": int(status["VmRSS"].split()[0]),
            "references": round_.references(),
        }

    told = []
    for count in (WARM_UP, int(rounds) - WARM_UP):
        for number in range(count):
            round_.run(number)
            gc.collect()
        wait_until("the threads of dropped caches have ended", lambda: threading.active_count() == 1)
        told.append(held())
    gc.unfreeze()
    return {"wrong": round_.wrong, "before": told[0], "after": told[1]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.setswitchinterval(SWITCH_INTERVAL)
    what, *arguments = sys.argv[1:]
    found = {"calls": calls, "ends": ends, "drops": drops}[what](*arguments)  # type: ignore[operator]
    if found is not None:
        print(json.dumps(found))
