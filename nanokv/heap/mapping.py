"""Host memory for segments: mapped, seen as numpy arrays, and faulted in ahead of use.

Nothing here unmaps. Every array and tensor keeps its mapping alive, and the mapping goes with the last reference, so a
forgotten view is never a wild pointer.
"""

import ctypes
import fcntl
import mmap
import os
import time

import numpy as np
import numpy.typing as npt

from nanokv.errors import HeapUnavailable

_DONTNEED = 4  # MADV_DONTNEED: of private memory, the pages go
_REMOVE = 9  # MADV_REMOVE: of a shared file, its blocks go; the kernel refuses it for other memory
_HUGEPAGE = 14  # MADV_HUGEPAGE
POPULATE_WRITE = 23  # MADVPOPULATE_WRITE, Linux 5.14; the mmap module does not name it
_madvise = ctypes.CDLL(None, use_errno=True).madvise  # without the interpreter's lock, unlike mmap.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_CHUNK = 16 << 20  #: bytes faulted in between two readings of the clock

#: Seconds that an attach may spend on faulting in; the first use faults in the rest. One GiB takes 0.17 s if the pages
#: exist, and 0.4 to 2.7 s if they have to be zeroed first (measured: 2-core virtual machine, 4 KiB pages).
PREFAULT_SECONDS = 1.0


def anonymous(nbytes: int, what: str) -> npt.NDArray[np.uint8]:
    """Zeroed private memory, page-aligned, uint8 [nbytes].

    Raises:
        HeapUnavailable: the system refuses; `what` names the memory in the message.
    """
    try:
        area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise HeapUnavailable(f"{what} needs {nbytes} bytes of memory: {error}") from None
    advise(area, _HUGEPAGE, 0, nbytes)
    return np.frombuffer(area, np.uint8)


def shareable(nbytes: int, what: str) -> int:
    """The descriptor of zeroed memory that other processes may map, if they are given it. Nobody can change its size.

    Raises:
        HeapUnavailable: as `anonymous`.
    """
    try:
        made = os.memfd_create(f"nanokv {what}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise HeapUnavailable(f"{what} needs memory that can be shared: {error}") from None
    try:
        os.ftruncate(made, nbytes)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(made)
        raise HeapUnavailable(f"{what} needs {nbytes} bytes of memory that can be shared: {error}") from None
    return made


def shared(descriptor: int, nbytes: int, what: str) -> npt.NDArray[np.uint8]:
    """`shareable` memory: uint8 [nbytes]. The descriptor may be closed afterwards.

    Raises:
        HeapUnavailable: as `anonymous`.
    """
    try:
        area = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
    except (OSError, ValueError, OverflowError) as error:
        raise HeapUnavailable(f"{what}: {nbytes} bytes of shared memory cannot be mapped: {error}") from None
    advise(area, _HUGEPAGE, 0, nbytes)  # where the system lets shared memory have them
    return np.frombuffer(area, np.uint8)


def keep_from_children(area: mmap.mmap, nbytes: int) -> None:
    """Let no child of a fork have a mapping."""
    advise(area, mmap.MADV_DONTFORK, 0, nbytes)


def area_of(raw: npt.NDArray[np.uint8]) -> tuple[mmap.mmap, int]:
    """The mapping that `anonymous` or `shared` memory lies in, or a part of it, and its offset there."""
    base: object = raw
    while not isinstance(base, mmap.mmap):
        base = base.base if isinstance(base, np.ndarray) else getattr(base, "obj")  # noqa: B009 - a memoryview
    return base, raw.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data


def advise(area: mmap.mmap, advice: int, start: int, nbytes: int) -> bool:
    """Advise the kernel about part of a mapping. False if the kernel refuses this advice for this memory."""
    begin = start - start % mmap.PAGESIZE
    try:
        area.madvise(advice, begin, start + nbytes - begin)
    except OSError:
        return False
    return True


def give_back(area: mmap.mmap, start: int, nbytes: int) -> bool:
    """Give the whole pages of a span back to the system; they are zeros when they are used again.

    Of a shared mapping the blocks of its file go. False if the kernel refuses: then nothing has changed.
    """
    begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    return size <= 0 or advise(area, _REMOVE, begin, size) or advise(area, _DONTNEED, begin, size)


def populate(address: int, nbytes: int) -> bool:
    """Fault in the pages of a span; other threads go on meanwhile. False: an old kernel, or no memory."""
    begin = address - address % mmap.PAGESIZE
    return not _madvise(begin, address + nbytes - begin, POPULATE_WRITE)


def prefault(area: mmap.mmap, spans: list[tuple[int, int]], seconds: float = PREFAULT_SECONDS) -> int:
    """Fault in spans (offset, bytes) of a shared mapping, in order, for at most `seconds`. Returns the bytes done.

    Without it the first put into a page pays for the fault. A lack of memory is no error here.
    """
    deadline = time.monotonic() + seconds
    done = 0
    for start, nbytes in spans:
        advise(area, _HUGEPAGE, start, nbytes)
        for at in range(start, start + nbytes, _CHUNK):
            size = min(_CHUNK, start + nbytes - at)
            if time.monotonic() >= deadline or not advise(area, POPULATE_WRITE, at, size):
                return done
            done += size
    return done
