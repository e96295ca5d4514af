"""Every CTA allocates and frees at once: latency inside a kernel, and pairs per second over the whole device.

- put and remove: only the protocol, no payload. `put` is begin (slot, key, pages, header) and finish (commit and
  announce); the CTA that put an object removes it at once.
- put and get: the same, and a get of the object in between, with payloads of up to 64 KiB that one CTA copies.
- free lists: what allocates, by itself.

`us` is of warm rounds; `cold_us` of the first round of a launch, which also brings the code into the caches: a put has
more of it than they hold.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nanokv.bench.gpu import kernels, steps
from nanokv.bench.gpu.children import Keep
from nanokv.bench.gpu.clock import launch, resolution
from nanokv.bench.gpu.one_segment import OneSegment, Unsound
from nanokv.bench.gpu.settings import GpuSettings
from nanokv.bench.gpu.timer import Timer
from nanokv.bench.suite.timing import Summary, summarise
from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import LINE

Launch = tuple[Callable[[], None], torch.Tensor]

STEPS = ("begin", "finish", "remove")
WITH_GET = ("put", "get", "remove")
BARE = {"extent": kernels.EXTENTS.value, "header slot": kernels.SLOTS.value, "list": kernels.LIST.value}
HINTS_A_PAIR = 2  #: one for the put, one for the removal
SLOTS_A_CTA = 2
MANY_SIZES = tuple(1 << k for k in range(8))  #: pages of objects of many sizes
PAGES_A_CTA = 64  #: twice as many as CTAs hold on average that take all of these in turn
LIST_NODES = 4096


class Producers:
    """A segment with room for all CTAs at once, and the launches on it."""

    def __init__(self, device: torch.device, settings: GpuSettings) -> None:
        most = max(settings.ctas)
        self.device = device
        self.repeats = settings.produce_repeats
        self._pairs, self._max_rounds = settings.pairs, settings.max_rounds
        page = settings.produce_page_bytes
        ring = HINTS_A_PAIR * max(self.rounds(ctas) * ctas for ctas in settings.ctas)
        self.segment = OneSegment(
            device, PAGES_A_CTA * max(most, len(MANY_SIZES)) * page, page, slots=SLOTS_A_CTA * most + 64, ring=ring
        )
        self.sizes = {
            "one": torch.tensor([page], device=device),
            "many": torch.tensor([page * pages for pages in MANY_SIZES], device=device),
        }
        self._next_key = 0
        self._sources = torch.randint(0, 256, (settings.inside_source,), dtype=torch.uint8, device=device)
        self._list = torch.zeros(LINE // WORD + LIST_NODES, dtype=torch.int64, device=device)
        launch(kernels.fill_list_kernel, 1, *self._list_words)

    def rounds(self, ctas: int) -> int:
        """How often each CTA allocates, in a launch of `ctas` CTAs."""
        return max(1, min(self._pairs // ctas, self._max_rounds))

    @property
    def _list_words(self) -> tuple[int, int, int]:
        return self._list.data_ptr(), self._list.data_ptr() + LINE, LIST_NODES

    def put(self, ctas: int, rounds: int, classes: str) -> Launch:
        """A launch that puts and removes, with keys that were never used, and its output: int64 [ctas, words]."""
        sizes = self.sizes[classes]
        out = self._room(ctas, rounds, len(STEPS))
        args = (self.segment.world, self._keys(ctas * rounds), rounds, sizes.data_ptr(), len(sizes), out.data_ptr())
        return lambda: launch(kernels.produce_kernel, ctas, *args), out

    def put_in_steps(self, ctas: int, rounds: int, classes: str) -> Launch:
        """Puts objects of one page, with a clock reading between all steps."""
        out = self._room(ctas, rounds, len(steps.NAMES))
        args = (self.segment.world, self._keys(ctas * rounds), rounds, out.data_ptr())
        return lambda: launch(steps.put_in_steps_kernel, ctas, *args), out

    def put_and_get(self, ctas: int, rounds: int, size: int) -> tuple[Launch, Callable[[], bool]]:
        """A launch that puts, gets and removes objects with `size` bytes of payload; whether its last gets are right.

        An object without payload has a page, as the others of that test.
        """
        nbytes = size or self.segment.geometry.page_bytes
        out, count = self._room(ctas, rounds, len(WITH_GET)), len(self._sources) // nbytes
        targets = torch.zeros(ctas, nbytes, dtype=torch.uint8, device=self.device)
        args = (nbytes, size, self._sources.data_ptr(), count, targets.data_ptr(), out.data_ptr())
        words = (self.segment.world, self._keys(ctas * rounds), rounds, *args)

        def right() -> bool:
            last = (torch.arange(ctas, device=self.device) * rounds + rounds - 1) % count
            wanted = self._sources[: count * nbytes].view(count, nbytes)[last]
            return bool(torch.equal(targets[:, :size], wanted[:, :size]))

        return (lambda: launch(kernels.put_and_get_kernel, ctas, *words), out), right

    def _room(self, ctas: int, rounds: int, words: int) -> torch.Tensor:
        self.segment.empty_ring()
        return torch.zeros(ctas, rounds * words + kernels.TOTALS.value, dtype=torch.int64, device=self.device)

    def _keys(self, count: int) -> int:
        first, self._next_key = self._next_key, self._next_key + count
        return first

    def take(self, what: str, ctas: int, rounds: int, classes: str) -> Launch:
        """A launch that takes and gives back one of BARE, and its output: how often there was none, int64 [ctas]."""
        sizes = self.sizes[classes]
        out = torch.zeros(ctas, dtype=torch.int64, device=self.device)
        args = (self.segment.world, rounds, sizes.data_ptr(), len(sizes), *self._list_words, out.data_ptr())
        return lambda: launch(kernels.take_and_give_kernel, ctas, *args, what=BARE[what]), out


def protocol_row(producers: Producers, ctas: int, classes: str, names: tuple[str, ...] = STEPS) -> dict[str, Any]:
    """Latency of each step in µs, and pairs per second. `names`: STEPS, or the finer ones of `steps`.

    Raises:
        Unsound: some put or removal was not OK.
    """
    rounds = producers.rounds(ctas)
    make = producers.put if names == STEPS else producers.put_in_steps
    what = "put and remove" if names == STEPS else "steps of a put"
    return {"what": what, "ctas": ctas, "classes": classes, "rounds": rounds} | _measured(
        producers, lambda: (make(ctas, rounds, classes), lambda: True), ctas, names, f"{ctas} CTAs, {classes} size"
    )


def payload_row(producers: Producers, ctas: int, size: int) -> dict[str, Any]:
    """Latency of a put and of a get of `size` bytes, each by one CTA, in µs.

    Raises:
        Unsound: something was not OK, or the last gets brought other bytes.
    """
    rounds = producers.rounds(ctas)
    return {"what": "put and get", "ctas": ctas, "size": size, "rounds": rounds} | _measured(
        producers, lambda: producers.put_and_get(ctas, rounds, size), ctas, WITH_GET, f"{ctas} CTAs, {size} bytes"
    )


def _measured(
    producers: Producers,
    make: Callable[[], tuple[Launch, Callable[[], bool]]],
    ctas: int,
    names: tuple[str, ...],
    where: str,
) -> dict[str, Any]:
    """Latencies of all rounds of some launches, warm and cold, and pairs per second."""
    rounds, timer = producers.rounds(ctas), Timer(producers.device)
    seen: list[npt.NDArray[np.int64]] = []
    for repeat in range(producers.repeats + 1):  # the first launch compiles
        (work, out), right = make()
        if repeat == 1:
            timer.clear()
            seen.clear()
        timer.time("launch", work)
        seen.append(out.cpu().numpy())
        _check(int(seen[-1][:, rounds * len(names) + kernels.FAILED.value].sum()), where)
        if not right():
            raise Unsound(f"other bytes were got than were put, {where}")
    said = np.concatenate(seen)
    return {
        "us": latencies(said, rounds, names, slice(rounds // 10, None)),
        "cold_us": latencies(said, rounds, names, slice(0, 1)),
        "pairs_per_s": _rate(timer, ctas * rounds),
    }


def bare_row(producers: Producers, what: str, ctas: int, classes: str) -> dict[str, Any]:
    """Pairs per second of one of BARE.

    Raises:
        Unsound: a CTA found none.
    """
    rounds, timer = producers.rounds(ctas), Timer(producers.device)
    for repeat in range(producers.repeats + 1):  # the first launch compiles
        work, out = producers.take(what, ctas, rounds, classes)
        if repeat == 1:
            timer.clear()
        timer.time("launch", work)
        _check(int(out.sum()), f"{what}, {ctas} CTAs, {classes} size")
    return {
        "what": what,
        "ctas": ctas,
        "classes": classes,
        "rounds": rounds,
        "pairs_per_s": _rate(timer, ctas * rounds),
    }


def latencies(said: npt.NDArray[np.int64], rounds: int, names: tuple[str, ...], part: slice) -> dict[str, Summary]:
    """Microseconds of each step over all CTAs; for STEPS also of the put, which is begin and finish.

    Each CTA's cycles are converted by its own clocks, both read at its beginning and its end.

    Args:
        said: [CTAs of all launches, words], of `produce_kernel` and those like it.
        part: of the rounds. The first ones bring instructions and tables into the caches.
    """
    totals = said[:, rounds * len(names) :]
    per_ns = totals[:, kernels.ALL_CYCLES.value] / np.maximum(totals[:, kernels.ALL_NS.value], 1)
    cycles = said[:, : rounds * len(names)].reshape(len(said), rounds, len(names))[:, part]
    ns = (cycles / np.maximum(per_ns, 1e-9)[:, None, None]).round().astype(np.int64)
    found = {name: summarise(ns[:, :, k].ravel().tolist()) for k, name in enumerate(names)}
    return found | ({"put": summarise((ns[:, :, 0] + ns[:, :, 1]).ravel().tolist())} if names == STEPS else {})


def _rate(timer: Timer, pairs: int) -> dict[str, float]:
    us = timer.summaries()["launch"]
    return {"p50": pairs / us["p50"] * 1e6, "least": pairs / us["max"] * 1e6}


def _check(failed: int, where: str) -> None:
    if failed:
        raise Unsound(f"{failed} operations failed: {where}")


def run(device: torch.device, settings: GpuSettings, keep: Keep) -> None:
    """A row for the resolution of the GPU's clocks, then rows of numbers of CTAs and sizes of objects."""
    clocks = resolution(device)
    keep({"what": "clocks", **clocks})
    producers = Producers(device, settings)
    for classes in producers.sizes:
        for ctas in settings.ctas:
            keep(protocol_row(producers, ctas, classes))
        producers.segment.check()
    for size in settings.inside:
        for ctas in settings.step_ctas:
            keep(payload_row(producers, ctas, size))
    producers.segment.check()
    for ctas in settings.step_ctas:
        keep(protocol_row(producers, ctas, "one", steps.NAMES))
    producers.segment.check()
    for what, kinds in _bare_kinds(tuple(producers.sizes)).items():
        for classes in kinds:
            for ctas in settings.ctas:
                keep(bare_row(producers, what, ctas, classes))
    producers.segment.check()


def _bare_kinds(classes: Sequence[str]) -> dict[str, Sequence[str]]:
    """The sizes in which each of BARE is taken: slots and nodes have only one."""
    return {what: classes if what == "extent" else classes[:1] for what in BARE}
