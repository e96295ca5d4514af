"""The look at a ring in a GPU's memory, in native code. Its copies are made by functions of the test, called by address
as the driver's are."""

import ctypes
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from nanokv.device.machines.launch import HeadWatch

COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
SYNCHRONIZE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
STREAM = 77
LONG = 60.0
LOST = 719  #: cudaErrorLaunchFailure


class Driver:
    """Stands for the driver: what is copied is there once the stream was waited for."""

    def __init__(self) -> None:
        self.head = torch.zeros(1, dtype=torch.int64)
        self.asked = np.zeros(1, np.int64)
        self.looks = self.error = 0
        self._copied: tuple[int, int] | None = None
        self.functions = COPY(self._copy), SYNCHRONIZE(self._synchronize)
        addresses = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self.functions]
        self.watch = HeadWatch(self.head, addresses[0], addresses[1], STREAM)

    def _copy(self, here: int, there: int, nbytes: int, stream: int) -> int:
        assert (there, nbytes, stream) == (self.head.data_ptr(), 8, STREAM)
        self._copied = here, int(self.head[0])
        return 0

    def _synchronize(self, stream: int) -> int:
        assert stream == STREAM and self._copied is not None
        here, value = self._copied
        ctypes.c_int64.from_address(here).value = value
        self.looks += 1
        return self.error

    def wait(self, seen: int, seconds: float = LONG) -> bool:
        return self.watch.wait(seen, seconds, self.asked, 0.0)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.asked[0] = 1


def test_it_ends_when_the_head_moves(driver: Driver) -> None:
    driver.head[0] = 5
    assert driver.wait(4)
    assert driver.looks == 1
    mover = threading.Timer(0.05, driver.head.fill_, [6])
    mover.start()
    assert driver.wait(5)
    assert driver.looks > 2
    mover.join()


def test_it_ends_in_time_or_when_somebody_asks(driver: Driver) -> None:
    assert not driver.wait(0, 0.01)
    looks = driver.looks
    assert 2 <= looks <= 30, "the pauses grow"
    asker = threading.Timer(0.05, driver.asked.fill, [1])
    asker.start()
    assert not driver.wait(0)
    asker.join()
    assert not driver.wait(0)  # at once


def test_other_threads_run_meanwhile(driver: Driver) -> None:
    """Python code goes on while a thread waits: it holds the interpreter's lock for its looks only, here."""
    waiter = threading.Thread(target=driver.wait, args=(0,))
    waiter.start()
    count, end = 0, time.thread_time() + 0.05
    while time.thread_time() < end:  # of this thread's own time
        count += 1
    assert waiter.is_alive() and count > 0
    driver.asked[0] = 1
    waiter.join(LONG)
    assert not waiter.is_alive()


def test_an_error_of_the_driver_is_raised(driver: Driver) -> None:
    driver.error = LOST
    with pytest.raises(RuntimeError, match=f"error {LOST} to a look"):
        driver.wait(0)
