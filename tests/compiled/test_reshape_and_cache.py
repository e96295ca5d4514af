"""Steps of an engine at random: what the kernel that writes its cache and publishes full blocks leaves behind.

Compiled for sm_90, on the PTX machine. Chunks of any size, in any order of tokens, with padding; blocks that are
published as they become full, later, or never; keys that are taken. For single cases see `reshape_and_cache_bodies`.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanokv.device.protocol.ticket import TICKET
from nanokv.device.segment.layout import WORD
from nanokv.errors import DuplicateKey, NotReady
from nanokv.fsck import check_cache
from nanokv.transfer.cache_writer import FilledBlock
from tests.gpu.library_bodies import caches
from tests.gpu.on_ptx import machine_for
from tests.gpu.reshape_and_cache_bodies import (
    BF16,
    LAYOUTS,
    PADDING,
    SMALL,
    Pair,
    Shape,
    Tokens,
    hnd,
    nhd,
    older,
    plain,
    written,
)
from tests.support.rank_processes import new_folder, starter
from tests.support.until import until
from tests.support.writer_ranks import LAYERS, WriterRank, attached

CPU = torch.device("cpu")
ANSWER = TICKET.offsets["answer"] // WORD  #: the first word of a ticket that a launch leaves behind
EXAMPLES = 25  #: of each kind; a step of one takes about 30 ms


class Kind(NamedTuple):
    """What the kernel is compiled for."""

    layout: Any
    shape: Shape
    layers: int


KINDS = {
    "tokens first, two layers": Kind(nhd, Shape(5, 4, 2, 8), 2),
    "heads first, blocks of 5": Kind(hnd, Shape(4, 5, 3, 16), 1),
    "older": Kind(older, Shape(4, 4, 2, 16), 1),
    "blocks of one token, three layers": Kind(nhd, Shape(9, 1, 1, 24), 3),
    "blocks of one token": Kind(nhd, Shape(9, 1, 1, 24), 1),
}
assert {kind.layout for kind in KINDS.values()} == {*LAYOUTS}


class Step(NamedTuple):
    """Tokens that come, and the blocks that are published: block, key, fresh tokens."""

    slots: list[int]
    published: list[tuple[int, str, int]]


@st.composite
def histories(draw: st.DrawFn, shape: Shape) -> list[Step]:
    """Steps that fill blocks from their first position on."""
    filled = [0] * shape.blocks
    steps = []
    for n in range(draw(st.integers(1, 4))):
        slots, published = [PADDING] * draw(st.integers(0, 2)), []
        for block, count in enumerate(filled):
            fresh = draw(st.integers(0, shape.tokens - count))
            slots += [block * shape.tokens + count + i for i in range(fresh)]
            filled[block] += fresh
            if filled[block] == shape.tokens and draw(st.booleans()):
                key = "taken" if draw(st.integers(0, 9)) == 0 else f"{n}:{block}"
                published.append((block, key, fresh))
        steps.append(Step(draw(st.permutations(slots)), published))
    return steps


def run(kind: Kind, steps: list[Step]) -> None:
    """Each step's answers, objects and cache, against torch."""
    with caches(CPU, pages=64) as (here, there):
        pairs: list[Pair] = [kind.layout(kind.shape, BF16, CPU) for _ in range(kind.layers)]
        made = here.cache_writer(pairs, capacity=kind.shape.blocks)
        here.put("taken", torch.zeros(4))
        for n, step in enumerate(steps):
            before = [plain(pair) for pair in pairs]
            of = Tokens(step.slots, kind.shape, CPU, seed=n)
            made.start([FilledBlock(key, block, fresh) for block, key, fresh in step.published], preferred_segment=1)
            for layer in range(kind.layers):
                made.write(layer, of.k + layer, of.v - layer, of.slots)
            assert not made._full.batch.tickets[:, :ANSWER].any(), "each object is finished, and not begun again"
            answers = made.results()
            after = [plain(pair) for pair in pairs]
            for layer in range(kind.layers):
                assert torch.equal(after[layer], written(before[layer], of.k + layer, of.v - layer, of.numbers))
            for (block, key, _), answer in zip(step.published, answers, strict=True):
                if key == "taken":
                    assert isinstance(answer, DuplicateKey)
                else:
                    assert answer is None
                    want = torch.stack([layer[:, block] for layer in after]).view(BF16)
                    assert torch.equal(there.get(key), want)
        made.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if n else ()) for n, name in enumerate(KINDS)],
)
def test_steps_of_an_engine(name: str) -> None:
    kind = KINDS[name]
    with machine_for("sm_90", random.Random(name).getrandbits(16)):

        @settings(max_examples=EXAMPLES)
        @given(histories(kind.shape))
        def check(steps: list[Step]) -> None:
            run(kind, steps)

        check()


def test_what_a_killed_rank_had_begun_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two layers. Its pages come back, and the owner's segment is sound."""
    with new_folder(monkeypatch), starter(WriterRank) as start, ThreadPoolExecutor(1) as pool:
        prefill = start(1, "writers")
        here = pool.submit(attached, "writers", 0).result()
        with here:
            prefill.arrive()
            assert prefill.ask("write", "whole", LAYERS) == ["None"]
            assert prefill.ask("write", "half", LAYERS - 1) == []
            with pytest.raises(NotReady):
                here.get("half")
            prefill.kill()
            until(lambda: here.stats()["sweeper_released"] == 1)
            assert not here.exists("half")
            assert here.get("whole").shape == (LAYERS, 2, SMALL.tokens, SMALL.heads, SMALL.dim)
            assert (here.stats()["sweeper_orphaned"], here.stats()["used_pages"]) == (1, 1)
            left = [str(finding) for finding in check_cache([here]).findings if finding.breach]
            assert left == []  # that the dead rank is counted in flight is no breach
