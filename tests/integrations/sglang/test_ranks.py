"""Two ranks of tensor parallelism in two processes: each has its own pages in one store, and both agree on a prefix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang", reason="needs SGLang: see docs/sglang.md")

from tests.integrations.sglang.parts import INTERFACE, PAGE
from tests.integrations.sglang.rank import Rank

PROMPT, OTHER = list(range(1, 1 + 5 * PAGE)), list(range(500, 500 + 2 * PAGE))


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    """Both processes."""
    with Rank(0, tmp_path / "gloo") as one, Rank(1, tmp_path / "gloo") as two:
        yield [one, two]
        assert [one.end(), two.end()] == [0, 0]


def both(ranks: list[Rank], what: str, prompt: list[int]) -> list[Any]:
    """A step of both ranks at once."""
    for each in ranks:
        each.send(what, prompt)
    return [each.answer() for each in ranks]


@pytest.mark.surface(INTERFACE, "batch_set_v1")
@pytest.mark.surface(INTERFACE, "batch_get_v1")
@pytest.mark.surface(INTERFACE, "batch_exists")
def test_ranks_in_processes_share_a_store(ranks: list[Rank]) -> None:
    assert both(ranks, "prefetch", PROMPT) == [0, 0]
    assert both(ranks, "store", PROMPT) == [[], []]
    assert both(ranks, "prefetch", PROMPT) == [len(PROMPT)] * 2
    assert both(ranks, "load", PROMPT) == [True, True]  # each the KV of its own heads
    assert both(ranks, "store", OTHER) == [[], []]
    ranks[1].ask("clear")  # the pages of one rank alone
    assert both(ranks, "prefetch", OTHER) == [0, 0]  # both agree that the prefix cannot be loaded
