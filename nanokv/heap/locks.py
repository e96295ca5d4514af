"""Record locks on single bytes of a file: the kernel knows which processes are alive.

Source: open-file-description locks (Linux 3.15, POSIX 2024). A lock belongs to one `open` of a file, not to a process,
so two heaps in one process exclude each other. The kernel drops it with the last descriptor, however the process ended.
Two references would keep it after that:
- a child of `fork` shares the descriptor: it closes the descriptor before anything else;
- a mapping refers to the open file that it was made from: segments are mapped through another `open`.
"""

import ctypes
import errno
import fcntl
import os
import struct
import threading
import time
import weakref

_FLOCK = struct.Struct("@hhqqi4x")  # type, whence, start, length, pid: struct flock of 64-bit Linux
_BUSY = (errno.EAGAIN, errno.EACCES)
_POLL = 0.002  #: seconds between two tries for a lock


class LockFile:
    """The locks that one `open` of a file holds, by byte number. The bytes need not exist.

    Args:
        fd: an open descriptor, used only here; closed by `close`, and in children of a fork.

    Attributes:
        word: the descriptor, for native code that holds the interpreter's lock; -1 before it is closed.
    """

    def __init__(self, fd: int) -> None:
        self.word = (ctypes.c_int32 * 1)(fd)
        self._mutex = threading.Lock()  # a descriptor must not be closed, and its number reused, during a call
        _all.add(self)

    @property
    def fd(self) -> int:
        """The descriptor; -1 once closed, and in children of a fork."""
        return self.word[0]

    def try_lock(self, byte: int) -> bool:
        """Take a lock; False if another open file holds it, or this one is closed."""
        return self._set(fcntl.F_WRLCK, byte)

    def lock(self, byte: int, deadline: float) -> bool:
        """Take a lock, waiting until `deadline` (of `time.monotonic`); False if it was not free by then."""
        while not self.try_lock(byte):
            if self.fd < 0 or time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
        return True

    def unlock(self, byte: int) -> None:
        """Give a lock back."""
        self._set(fcntl.F_UNLCK, byte)

    def held(self, byte: int, count: int = 1) -> bool:
        """True if another open file holds a lock on any of `count` bytes, or if this one is closed and cannot tell."""
        with self._mutex:
            if self.fd < 0:
                return True
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, count, 0)
            answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def opened_again(self) -> int:
        """Another descriptor of the file, which shares no lock with this one. It is the caller's.

        Raises:
            OSError: the file cannot be opened, or this one is closed.
        """
        with self._mutex:
            if self.fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def free_bytes(self) -> int:
        """How many bytes the file system has left; 0 if this is closed."""
        with self._mutex:
            if self.fd < 0:
                return 0
            about = os.fstatvfs(self.fd)
            return about.f_bavail * about.f_frsize

    def allocate(self, start: int, nbytes: int) -> bool:
        """Allocate blocks of the file. False if the file system has not enough, or this is closed."""
        with self._mutex:
            if self.fd < 0:
                return False
            try:
                about = os.fstatvfs(self.fd)
                if about.f_bavail * about.f_frsize < nbytes:  # a try would take all that there is, and give it back
                    return False
                os.posix_fallocate(self.fd, start, nbytes)
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Drop every lock. Idempotent."""
        with self._mutex:
            fd, self.word[0] = self.word[0], -1
            if fd >= 0:
                os.close(fd)

    def _set(self, kind: int, byte: int) -> bool:
        with self._mutex:
            if self.fd < 0:
                return False
            try:
                fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
            except OSError as error:
                if error.errno in _BUSY:
                    return False
                raise
        return True

    def _disown(self) -> None:
        """Forget, in a child of a fork, the parent's locks. The mutex may be held by a thread that the child lacks."""
        self._mutex = threading.Lock()
        self.close()


_all: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _after_fork() -> None:
    for locks in list(_all):
        locks._disown()


os.register_at_fork(after_in_child=_after_fork)
