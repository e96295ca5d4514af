"""The socket with which one thread asks one address. Other threads may end it, also while it is used."""

import math
import os
import threading
import time

import zmq

from nanokv.cluster.messages import sockets
from nanokv.cluster.messages.loop import Wake

QUEUE = 1000  #: messages that wait for an address which does not take them


class Connection:
    """A DEALER socket. `take` it before use, and `give_back` it.

    Args:
        wake: when it rings, who waits here stops waiting.

    Raises:
        InvalidArgument: `address` is none.
    """

    def __init__(self, address: str, wake: Wake) -> None:
        self._socket = sockets.new_socket(zmq.DEALER, SNDHWM=QUEUE)
        self._process = os.getpid()
        self.address = address
        try:
            sockets.connect(self._socket, address)
        except BaseException:
            self._socket.close()
            raise
        self._wake = wake
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(wake.fd, zmq.POLLIN)
        self._lock = threading.Lock()  # held while it is used or closed
        self.ended = False

    def take(self) -> bool:
        """Begin to use it. False if it has ended."""
        self._lock.acquire()
        if self.ended:
            self._lock.release()
            return False
        return True

    def give_back(self) -> None:
        """Stop using it."""
        self._lock.release()
        if self.ended:
            self.end()

    def end(self) -> None:
        """Close it, once nobody uses it. From any thread; idempotent."""
        self.ended = True
        if os.getpid() != self._process:  # in a child of a fork the lock may be held by a thread that is not there
            sockets.close(self._socket, self._process)
        elif self._lock.acquire(blocking=False):
            try:
                sockets.close(self._socket, self._process)
            finally:
                self._lock.release()

    def send(self, data: bytes) -> bool:
        """Send, or queue until the address is there. False if the queue is full."""
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def wait_to_send(self, deadline: float) -> None:
        """Wait until the queue has room, about until `deadline` of time.monotonic, or until `wake` rings."""
        self._poller.modify(self._socket, zmq.POLLOUT)
        try:
            self._poller.poll(_ms_until(deadline))
        finally:
            self._poller.modify(self._socket, zmq.POLLIN)

    def receive(self, deadline: float) -> list[bytes] | None:
        """The parts of what has come. None: nothing has, until about `deadline` of time.monotonic at most."""
        if (self._socket, zmq.POLLIN) not in self._poller.poll(_ms_until(deadline)):
            return None
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None


def _ms_until(deadline: float) -> int:
    """For a poll, which takes no more than 31 bits."""
    return min(max(0, math.ceil((deadline - time.monotonic()) * 1000)), 1 << 30)
