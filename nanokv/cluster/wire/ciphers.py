"""The ciphers of a sealed connection: contexts of the system's libcrypto, for native code (`device.wire.parcels`).

It is the library that Python's own `ssl` has loaded, or else that of the system: AES with the instructions of the
processor, and constant in time.
"""

import contextlib
import ctypes
import weakref
from ctypes import c_char_p, c_int, c_void_p
from functools import cache
from typing import Any

import numpy as np

from nanokv.cluster.wire.handshake import Keys
from nanokv.device.wire.records import LIBCRYPTO
from nanokv.errors import LinkUnavailable

#: Parcels under one key. RFC 8446 (5.5) allows 2^24.5 of 16 KiB, 2^34.5 blocks of the cipher; these are 2^24 at most.
#: So few, because a step costs 2 us: who reads a key in memory learns 256 MiB of what went at most.
PARCELS_A_KEY = 4096
_NEEDS = "seal='all' needs the system's libcrypto, of OpenSSL 1.1 or 3"
LIBRARIES = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so")  #: the first that is there is taken
_FUNCTIONS = {
    "init": "EVP_CipherInit_ex",
    "update": "EVP_CipherUpdate",
    "final": "EVP_CipherFinal_ex",
    "control": "EVP_CIPHER_CTX_ctrl",
}


class Libcrypto:
    """The library.

    Attributes:
        at: address of its LIBCRYPTO record.

    Raises:
        LinkUnavailable: it is not there, or has no AES-256-GCM.
    """

    def __init__(self) -> None:
        self._library = _load()
        self._record = np.zeros(1, LIBCRYPTO.dtype)
        try:
            for field, name in _FUNCTIONS.items():
                self._record[field] = ctypes.cast(getattr(self._library, name), c_void_p).value
            new, self._init = self._library.EVP_CIPHER_CTX_new, self._library.EVP_CipherInit_ex
            self._free, cipher = self._library.EVP_CIPHER_CTX_free, self._library.EVP_aes_256_gcm
        except AttributeError as error:
            raise LinkUnavailable(f"{_NEEDS}, and this one is another: {error}") from None
        self._new = new
        new.restype = cipher.restype = c_void_p
        self._free.argtypes, self._free.restype = (c_void_p,), None
        self._init.argtypes = (c_void_p, c_void_p, c_void_p, c_char_p, c_char_p, c_int)
        self._cipher = c_void_p(cipher())
        self.at = int(self._record.ctypes.data)
        with contextlib.closing(Ciphers(Keys(bytes(32), bytes(32)), asks=True, library=self)):
            pass

    def call(self, field: str, arguments: int) -> Any:
        """A function of LIBCRYPTO, of so many words, for Python."""
        return ctypes.CFUNCTYPE(c_int, *[ctypes.c_int64] * arguments)(int(self._record[0][field]))

    def context(self, key: bytes, *, seals: bool) -> int:
        """A new context with a key: its address, for `free`."""
        made = self._new()
        if not made or self._init(made, self._cipher, None, key, None, int(seals)) != 1:
            self._free(made)
            raise LinkUnavailable(f"{_NEEDS}, with AES-256-GCM, which this one refuses")
        return int(made)

    def free(self, context: int) -> None:
        """Give a context back, and zero what it had."""
        self._free(context)


class Ciphers:
    """The contexts of one end of a connection. They are freed by `close`, or when nobody has them any more.

    Args:
        keys: as the handshake has derived them. asks: whether this is the asker's end.
    """

    def __init__(self, keys: Keys, *, asks: bool, library: Libcrypto | None = None) -> None:
        self._library = library = library or libcrypto()
        mine, its = (keys.asks, keys.answers) if asks else (keys.answers, keys.asks)
        with contextlib.ExitStack() as failing:
            self._seals = library.context(mine, seals=True)
            failing.callback(library.free, self._seals)
            self._opens = library.context(its, seals=False)
            failing.callback(library.free, self._opens)
            held = failing.pop_all()
        self._end = weakref.finalize(self, held.close)
        self._end.atexit = False  # a thread may still be using them

    def fill(self, row: Any, parcel: int) -> None:
        """Let a CONNECTION be sealed, with room for a parcel at an address."""
        row["libcrypto"], row["seals"], row["opens"] = self._library.at, self._seals, self._opens
        row["parcel"], row["each"] = parcel, PARCELS_A_KEY

    def close(self) -> None:
        """Free the contexts. Nobody uses them any more. Idempotent."""
        self._end()


@cache
def libcrypto() -> Libcrypto:
    """The library, loaded once per process.

    Raises:
        LinkUnavailable: see `Libcrypto`.
    """
    return Libcrypto()


def _load() -> ctypes.CDLL:
    with contextlib.suppress(ImportError):
        import ssl  # noqa: F401 - it has found a library where the system would not look for one
    for name in LIBRARIES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise LinkUnavailable(f"{_NEEDS}, and there is none: install it")
