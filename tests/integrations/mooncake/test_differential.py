"""The same random calls to the real Mooncake Store and to NanoKV's: the same answers, and the same bytes.

What the calls leave out, because the answers differ on purpose or the real ones are undefined, is in docs/mooncake.md:
a key twice in one call of `get_batch`, `batch_get_buffer` or `upsert_batch`; an upsert of a key whose session is open;
values of sessions that are not written whole; empty values for `upsert_from`; values with items of several bytes.
"""

from pathlib import Path

import pytest

from tests.integrations.mooncake import real_store

COUNT = 2000


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))])
def test_random_calls_are_answered_alike(seed: int, tmp_path: Path) -> None:
    theirs, mine = real_store.both("random_calls", seed, COUNT, tmp_path)
    for number, (one, other) in enumerate(zip(theirs, mine, strict=True)):
        assert one == other, f"call {number}"
    assert len({line["call"] for line in theirs}) > 20
