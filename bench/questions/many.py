"""Many objects in one call: what an object costs, beside one copy of all bytes.

The heap holds a ring of sets. Each lap removes the oldest set and puts a new one, and reads one from the middle. The
copy beside put_many is one `copy_` of all bytes of a set into a segment; beside get_many one out of it. That is less
than a copy of each object: what lies above it is all that many objects cost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from nanokv import NanoKVCache
from nanokv.bench.suite.checked import check_object, check_same, random_bytes
from nanokv.bench.suite.distribution import Durations, latency
from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run, needs_processes
from nanokv.bench.suite.ring import Mismatch
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples
from nanokv.bench.suite.twin import places
from nanokv.bench.suite.worlds import OWNER, MeasuredWorld
from nanokv.types import Key

OBJECTS, SIZE = 256, 4 * KIB
SET_BYTES = OBJECTS * SIZE
ASKED = 1000  #: keys of exists_many
LEAST_SETS = 8
WARM = 10
ROUNDS_A_LAP = 100  #: of `Settings.rounds`
STR, DIGEST, ROWS = "str", "digest", "Digests, rows"
KEYS = (STR, DIGEST, ROWS)
COUNTS = {"put_many": OBJECTS, "get_many": OBJECTS, "exists_many": ASKED, "remove_many": OBJECTS}
COPIED = ("put_many", "get_many")
EACH, ABOVE, COPY = "per object", "per object, above the copy", "copy, per object"


class Sets:
    """The ring of sets in the owner's segment, the memory of the copies beside it, and the timed calls."""

    def __init__(self, cache: NanoKVCache, keys: str, places: list[torch.Tensor], laps: int) -> None:
        self._cache, self._kind, self._places, self._sets = cache, keys, places, len(places)
        self.source = random_bytes(SET_BYTES)
        self.target = torch.zeros_like(self.source)
        self._sources, self._targets = (_tensors(each, keys) for each in (self.source, self.target))
        self.calls = {name: Samples(max(laps, WARM)) for name in COUNTS}
        self.copies = {name: Samples(max(laps, WARM)) for name in COPIED}

    def keys(self, numbers: Iterable[int]) -> Sequence[Key]:
        """The keys of sets."""
        names = [name_of(number, i) for number in numbers for i in range(OBJECTS)]
        if self._kind == ROWS:
            return self._cache.digests(names)
        return [self._cache.digest(name) for name in names] if self._kind == DIGEST else names

    def put(self, number: int) -> None:
        """Put a set, as a lap does, untimed."""
        check_answers(self._cache.put_many(self.keys([number]), self._sources, preferred_segment=OWNER), None)

    def lap(self, number: int) -> None:
        """Remove the oldest set, put one, read one and ask for keys, each beside its copy. Raises Mismatch."""
        cache, place = self._cache, self._places[number % self._sets]
        old, new, middle = (self.keys([n]) for n in (number - self._sets, number, number - self._sets // 2))
        some = self.keys(range(number - 3, number + 1))[:ASKED]
        check_answers(_timed(self.calls["remove_many"], partial(cache.remove_many, old)), True)
        put = partial(cache.put_many, new, self._sources, preferred_segment=OWNER)
        get = partial(cache.get_many, middle, dsts=self._targets)
        for name, call, copy in (
            ("put_many", put, partial(place.copy_, self.source)),
            ("get_many", get, partial(self.target.copy_, place)),
        ):
            if number % 2:  # they take turns at being first: what was touched last is still in the processor's cache
                _timed(self.copies[name], copy)
            answer = _timed(self.calls[name], call)
            if not number % 2:
                _timed(self.copies[name], copy)
            if name == "put_many":
                check_answers(answer, None)
            elif self._kind == ROWS:
                check_answers(answer, True)
            elif any(found is None for found in answer):
                raise Mismatch("get_many missed an object of the ring")
        check_answers(_timed(self.calls["exists_many"], partial(cache.exists_many, some)), True)

    def clear(self) -> None:
        """Forget the samples of the laps that warm up."""
        for samples in (*self.calls.values(), *self.copies.values()):
            samples.clear()


def check_answers(answers: list[Any], wanted: Any) -> None:
    """Raises Mismatch unless each answer is the wanted one."""
    if any(answer is not wanted for answer in answers):
        raise Mismatch(f"a call about many keys answered {answers}, not {wanted} for each")


def _tensors(values: torch.Tensor, keys: str) -> list[torch.Tensor] | torch.Tensor:
    """The objects of a set: one tensor of the rows, or a list."""
    rows = values.view(OBJECTS, SIZE)
    return rows if keys == ROWS else list(rows)


def name_of(number: int, i: int) -> str:
    """The key of an object of a set."""
    return f"set {number}, object {i}"


def _timed(samples: Samples, call: Callable[[], Any]) -> Any:
    start = perf_counter_ns()
    answer = call()
    end = perf_counter_ns()
    samples.add(end - start)
    return answer


def laps(world: MeasuredWorld, keys: str, count_sets: int, count: int) -> Sets:
    """`count` laps in a heap that is full of sets. Raises Mismatch if a byte or an answer is wrong."""
    # the places of the copies are in the other segment: in one that has large objects too, the owner would join the
    # pages of a set that was removed, to make room for such
    with places(world.cache, 1 - OWNER, count_sets, SET_BYTES) as places_of_sets:
        sets = Sets(world.cache, keys, places_of_sets, count)
        for number in range(count_sets):
            sets.put(number)
        for number in range(-WARM, count):
            if number == 0:
                sets.clear()
            sets.lap(count_sets + WARM + number)
    last = count_sets + WARM + count - 1
    sets.target.zero_()
    world.cache.get_many(sets.keys([last]), dsts=sets.target.view(OBJECTS, SIZE))
    check_same("what get_many read", sets.target, sets.source)
    check_object(world.cache, world.owner, name_of(last, OBJECTS - 1), sets.source[-SIZE:])
    return sets


def measure(run: Run) -> Iterator[Figure]:
    """The kinds of keys in turns; a repetition is a world of its own."""
    count_sets = max(LEAST_SETS, run.settings.ring_bytes // SET_BYTES)
    count = -(-run.settings.rounds // ROUNDS_A_LAP)
    heap_bytes = (count_sets + 2) * SET_BYTES

    def once(keys: str) -> Sets:
        classes = (1, OBJECTS)  # an object, and the place of a copy
        with run.worlds.open("shm", "device", heap_bytes, page_bytes=SIZE, size_classes=classes) as world:
            return laps(world, keys, count_sets, count)

    with torch_threads(1):
        found = run.in_turns({keys: partial(once, keys) for keys in KEYS})
    for keys, repetitions in found.items():
        yield from _figures(keys, repetitions)


def _figures(keys: str, repetitions: list[Sets]) -> Iterator[Figure]:
    for name, objects in COUNTS.items():
        case: Case = {"operation": name, "keys": keys, "objects": objects, "size": SIZE}
        mine = latency("many", case | {"what": EACH}, [per_object(sets.calls[name], objects) for sets in repetitions])
        yield mine
        if name in COPIED:
            ns = [per_object(sets.copies[name], objects) for sets in repetitions]
            copies = latency("many", case | {"what": COPY}, ns)
            pairs = zip(mine.repetitions, copies.repetitions, strict=True)
            above = [call["p50"] - copy["p50"] for call, copy in pairs]
            yield quantity("many", case | {"what": ABOVE}, "us", "lower", above)
            yield copies


def per_object(samples: Samples, objects: int) -> Durations:
    """The durations of whole calls, divided by the number of their objects, in whole nanoseconds."""
    return np.rint(samples.ns / objects).astype(np.int64)


QUESTION = Question(
    "many",
    "What does an object cost in a call about many?",
    measure,
    f"put_many, get_many and remove_many of {OBJECTS} objects of {SIZE} bytes, exists_many of {ASKED} keys that exist; "
    "each call is timed as a whole and divided by its objects. The copy beside it is one `copy_` of all its bytes into "
    "or out of a segment of the world; `above the copy` is the difference of the two medians. Keys are made before; a "
    "str is hashed in the call, as in a program, a digest was hashed before. `Digests, rows`: the keys are one "
    "Digests, and the tensors the rows of one.",
    why_not=needs_processes,
)
