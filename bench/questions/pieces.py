"""What an object in several extents would cost: a payload in k pieces is copied out, beside one that lies in one."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from nanokv.bench.suite.environment import torch_threads
from nanokv.bench.suite.figure import Case, Figure, quantity
from nanokv.bench.suite.question import Question, Run
from nanokv.bench.suite.settings import KIB
from nanokv.bench.suite.timing import Samples

PAGES = (64 * KIB, 256 * KIB)  #: bytes
SIZES = (3, 5, 7, 12)  #: pages
COPIES = 31  #: of each kind, in one repetition
RINGS = 4  #: the arena is so many times as large as the ring
MOST_SHOWN = 3


def pieces_of(pages: int) -> tuple[int, ...]:
    """The extents that would hold `pages` without a rest, if there were powers of two only."""
    return tuple(1 << bit for bit in reversed(range(pages.bit_length())) if pages >> bit & 1)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy by torch, piece after piece."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def move_all(targets: list[Any], sources: list[Any]) -> None:
    """Copy by memcpy, piece after piece."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


WAYS: dict[str, tuple[Callable[..., None], Callable[[torch.Tensor], Any]]] = {
    "memcpy": (move_all, torch.Tensor.numpy),
    "torch copy": (copy_all, lambda tensor: tensor),
}


def scattered(arena: torch.Tensor, page_bytes: int, pieces: tuple[int, ...], dice: random.Random) -> dict[str, float]:
    """How many times longer a payload in `pieces` (pages each) takes to be copied out than one in one piece.

    Each copy reads another place of the arena, so that the bytes are as cold as in a cache; the ways take turns. The
    ratio is that of the medians.
    """
    pages = sum(pieces)
    whole = torch.empty(pages * page_bytes, dtype=torch.uint8)
    ends = accumulate(n * page_bytes for n in pieces)
    targets = {"one": [whole], "many": [whole[begin:end] for begin, end in pairwise([0, *ends])]}
    times = {(way, cut): Samples(COPIES) for way in WAYS for cut in targets}
    for _ in range(COPIES):
        for (way, cut), samples in times.items():
            copy, view = WAYS[way]
            places = [dice.randrange(len(arena) // page_bytes - pages) * page_bytes for _ in targets[cut]]
            sources = [view(arena[at : at + len(part)]) for at, part in zip(places, targets[cut], strict=True)]
            samples.time(copy, [view(part) for part in targets[cut]], sources)
    median = {key: float(np.median(samples.ns)) for key, samples in times.items()}
    return {way: median[way, "many"] / median[way, "one"] for way in WAYS}


def measure(run: Run) -> Iterator[Figure]:
    """Every page size, and every cut of every payload."""
    arena, dice = torch.zeros(RINGS * run.settings.ring_bytes, dtype=torch.uint8), random.Random(7)
    with torch_threads(1):
        for page_bytes in PAGES:
            cuts = [cut for pages in SIZES for cut in dict.fromkeys((pieces_of(pages), (1,) * pages))]
            ways = {
                f"{page_bytes // KIB} KiB, {shown(cut)}": partial(scattered, arena, page_bytes, cut, dice)
                for cut in cuts
            }
            found = run.in_turns(ways)
            for cut, ratios in zip(cuts, found.values(), strict=True):
                for way in WAYS:
                    case: Case = {"page size": page_bytes, "pages": sum(cut), "pieces": shown(cut), "way": way}
                    yield quantity("pieces", case, "x", "lower", [ratio[way] for ratio in ratios])


def shown(cut: tuple[int, ...]) -> str:
    """The pieces as text: "4 + 1", or "5 x 1"."""
    return " + ".join(map(str, cut)) if len(cut) <= MOST_SHOWN and max(cut) > 1 else f"{len(cut)} x {max(cut)}"


QUESTION = Question(
    "pieces",
    "What would it cost to read an object that lies in several extents?",
    measure,
    "A payload in k pieces is copied out, beside one of the same size that lies in one piece: by memcpy, and "
    "by torch's copy. Each copy reads another place of an arena of four rings, so that the bytes are cold. A "
    "figure is the ratio of the medians of 31 copies of each.",
)
