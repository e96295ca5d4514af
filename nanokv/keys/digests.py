"""Many digests as one array: what a program that asks about the same keys again and again hashes and checks once."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from nanokv.errors import InvalidArgument
from nanokv.types import KeyDigest, known_digest


class Digests(Sequence[KeyDigest]):
    """A sequence of KeyDigests that calls about many keys take as it is. `NanoKVCache.digests` makes one.

    A slice is a Digests too, and shares the memory.

    Args:
        words: int64 [n, 2], of numpy: key_hash and key_check of each. Copied.

    Raises:
        InvalidArgument: it is no such array.

    Attributes:
        words: the same, contiguous and read-only.
        tag: the tag of the identity that all of them are known to name, as a signed word; None: nobody has looked.
    """

    __slots__ = ("tag", "words")
    words: npt.NDArray[np.int64]
    tag: int | None

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        if not isinstance(words, np.ndarray) or words.dtype != np.int64 or words.ndim != 2 or words.shape[1] != 2:
            raise InvalidArgument(f"digests are a numpy array, int64 [n, 2], not {_shown(words)}")
        self._take(np.array(words, order="C"), None)

    @classmethod
    def own(cls, words: npt.NDArray[np.int64], tag: int | None = None) -> "Digests":
        """The digests in an array, int64 [n, 2], contiguous, that nothing else will change."""
        made = cls.__new__(cls)
        made._take(words, tag)
        return made

    def _take(self, words: npt.NDArray[np.int64], tag: int | None) -> None:
        words.setflags(write=False)
        self.words, self.tag = words, tag

    def __len__(self) -> int:
        return len(self.words)

    @overload
    def __getitem__(self, place: int) -> KeyDigest: ...
    @overload
    def __getitem__(self, place: slice) -> "Digests": ...
    def __getitem__(self, place: int | slice) -> "KeyDigest | Digests":
        found = self.words[place]
        if isinstance(place, slice):
            return Digests.own(np.ascontiguousarray(found), self.tag)
        return known_digest(*found.tolist())

    def __iter__(self) -> Iterator[KeyDigest]:
        return (known_digest(low, check) for low, check in self.words.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digests) and np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __reduce__(self) -> tuple[Any, ...]:
        return Digests, (self.words,)

    def __repr__(self) -> str:
        return f"<{len(self)} digests>"


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return repr(value)
