"""The poller's pauses end on time, and it interrupts nobody, where the system can do that."""

import ctypes
import os
import sys
import threading

import pytest
import torch

import nanokv
from nanokv.host_poller.poller import end_sleeps_on_time, interrupt_nobody

_GET_TIMERSLACK = 30  # prctl's number
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has a timer slack")


def slack() -> int:
    """Of the calling thread, in ns."""
    return int(ctypes.CDLL(None).prctl(_GET_TIMERSLACK, 0, 0, 0, 0))


@needs_linux
def test_a_poller_has_a_slack_of_its_own() -> None:
    found: list[int] = []
    here = slack()
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=4096)
    with cache:
        cache.subscribe(lambda events: found.append(slack()))
        cache.put("k", torch.zeros(4))
        cache.flush()
    assert found == [1] and slack() == here > 1


def test_a_system_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    assert not end_sleeps_on_time()


@needs_linux
def test_a_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not end_sleeps_on_time()


@needs_linux
def test_it_is_of_one_thread() -> None:
    answers: list[tuple[bool, int]] = []
    thread = threading.Thread(target=lambda: answers.append((end_sleeps_on_time(), slack())))
    thread.start()
    thread.join()
    assert answers == [(True, 1)] and slack() > 1


@needs_linux
def test_a_poller_has_a_policy_of_its_own() -> None:
    found: list[int] = []
    (cache,) = nanokv.local_world(1, 1 << 20, page_bytes=4096)
    with cache:
        cache.subscribe(lambda events: found.append(os.sched_getscheduler(0)))
        cache.put("k", torch.zeros(4))
        cache.flush()
    assert found == [os.SCHED_BATCH] and os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize("error", [PermissionError, AttributeError])
def test_a_system_that_refuses_the_policy_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not interrupt_nobody()
