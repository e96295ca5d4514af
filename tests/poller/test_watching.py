"""The poller's thread over a machine that waits for hints by itself, as one of a segment on a GPU does."""

import time
from collections.abc import Iterator

import pytest

from nanokv.device.machines.records import Words
from nanokv.device.protocol.status import Status
from nanokv.host_poller.poller import Poller
from tests.poller.test_sweeper import PAGE, Rank
from tests.poller.test_water_marks import rank_of
from tests.support.until import until

LOST = "the GPU's driver answered error 719 to a look at a ring"


class Watch:
    """Looks at the ring's head as the machine does, in Python; its next look fails if `fails`."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.looks = 0
        self.fails = False

    def __call__(self, owner: int, seen: int, seconds: float, asked: Words, pause: float) -> bool | None:
        self.looks += 1
        if self.fails:
            self.fails = False
            raise RuntimeError(LOST)
        end = time.monotonic() + seconds
        while int(self._rank.views[0].ctl["ann_head"][0]) == seen and not asked[0]:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rank, Watch, Poller]]:
    with rank_of(64, (0, 0), evict=False) as rank:
        watch = Watch(rank)
        monkeypatch.setattr(rank.machine, "watch", watch)
        poller = rank.poller()
        poller.start()
        try:
            yield rank, watch, poller
        finally:
            poller.stop()


def test_hints_are_taken_and_flush_and_stop_do_not_wait_for_it(watched: tuple[Rank, Watch, Poller]) -> None:
    rank, watch, poller = watched
    until(lambda: watch.looks > 0)
    assert rank.put(0, 1, PAGE) == Status.OK
    until(lambda: len(poller.index) == 1)
    assert rank.put(0, 2, PAGE) == Status.OK
    poller.flush(10.0)
    assert len(poller.index) == 2


def test_a_look_that_fails_is_a_failed_round(
    watched: tuple[Rank, Watch, Poller], caplog: pytest.LogCaptureFixture
) -> None:
    rank, watch, poller = watched
    watch.fails = True
    until(lambda: LOST in caplog.text)
    assert poller.failures == 1
    assert rank.put(0, 1, PAGE) == Status.OK
    poller.flush(10.0)
    assert len(poller.index) == 1
