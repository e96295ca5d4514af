"""Objects of a soak: their size and every byte of them follow from key and version, and each byte from its place too.

So an object that is torn, shifted, cut, another key's, or of another version than its first words say is not taken for
a whole one.
"""

import numpy as np
import numpy.typing as npt
import torch

from nanokv.check.report import CheckFailure

KEYS = 320  #: more than twice as many as the world has room for: its heap stays full
HALF_PAGES = (1, 1, 2, 2, 4, 6, 6, 10, 14, 24, 40)  #: sizes: half a page, 1, 2, 3, 5, 7, 12 and 20 pages
SIZE_BITS = 8  #: of a version: which size
_TRIMMED = 8  #: an object lacks 0 to 7 bytes of its size
_STEP, _OF_KEY, _OF_VERSION = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9  #: odd, any
_LOW = 2**64 - 1


def new_version(who: int, count: int, size: int) -> int:
    """A version that nobody else gives. `size`: an index of HALF_PAGES."""
    return (who << 32 | count) << SIZE_BITS | size


def bytes_of(version: int, page_bytes: int) -> int:
    """The size of an object of this version."""
    half_pages = HALF_PAGES[version % (1 << SIZE_BITS) % len(HALF_PAGES)]
    return half_pages * page_bytes // 2 - (version >> SIZE_BITS) % _TRIMMED


def make_object(key: int, version: int, page_bytes: int) -> torch.Tensor:
    """The object: uint8, flat."""
    return torch.from_numpy(_content(key, version, bytes_of(version, page_bytes)))


def _content(key: int, version: int, nbytes: int) -> npt.NDArray[np.uint8]:
    words = np.arange(-(-nbytes // 8), dtype=np.uint64) * np.uint64(_STEP)
    words ^= np.uint64((key * _OF_KEY + version * _OF_VERSION) & _LOW)
    words[:2] = key, version
    return words.view(np.uint8)[:nbytes]


def check_object(key: int, found: torch.Tensor, page_bytes: int, version: int | None = None) -> int:
    """Compare every byte of what was read. Returns how many bytes.

    Args:
        version: the one that it must have; None: any that was put.

    Raises:
        CheckFailure: a byte, or the size, is not as the key and the version say.
    """
    have = found.numpy()
    if have.dtype != np.uint8 or have.ndim != 1 or have.size < 16:
        raise CheckFailure(f"key {key} came back as {found.dtype} {list(found.shape)}")
    named, read = have[:16].copy().view(np.uint64).tolist()
    if named != key or version not in (None, read):
        wanted = "" if version is None else f", not version {version:#x}"
        raise CheckFailure(f"key {key} came back as key {named}, version {read:#x}{wanted}")
    want = _content(key, read, bytes_of(read, page_bytes))
    if have.size != want.size:
        raise CheckFailure(f"key {key}, version {read:#x}: {have.size} bytes, not {want.size}")
    wrong = np.flatnonzero(have != want)
    if len(wrong):
        raise CheckFailure(f"key {key}, version {read:#x}: {len(wrong)} wrong bytes, the first at {wrong[0]}")
    return int(have.size)
