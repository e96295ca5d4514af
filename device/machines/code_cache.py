"""Compiled code on disk: a folder per digest of the sources, shared by all installs and processes of a user.

The folder's name is a digest of every file that is compiled, of the compilers and of the CPU. So a second clone of the
same version compiles nothing, and stale code is never loaded: the digest was taken before this process imported any of
these files (`nanokv.device.sources`). A file states what it was compiled from, for functions that others brought, and a
checksum of itself; it is loaded only if nobody but this user and root can have written it. Files are written beside
their place and renamed, so processes may write at the same time: they write the same.
"""

import contextlib
import errno
import hashlib
import logging
import os
import platform
import secrets
import stat
import sys
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import triton.language as tl

from nanokv.device import sources
from nanokv.device.machines.native_library import ObjectCode
from nanokv.errors import HeapUnavailable, InvalidArgument

VARIABLE = "NANOKV_CACHE_DIR"
_CHECKSUM_BYTES = _STAMP_BYTES = 16
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NUMBAS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")  #: variables that choose another CPU
_log = logging.getLogger("nanokv.code_cache")


def code_digest(files: bytes = sources.AT_IMPORT) -> str:
    """A digest of all that the code depends on: the files (`sources.files_digest`), the compilers, the CPU."""
    digest = hashlib.blake2b(files, digest_size=10)
    python = platform.python_version() + sys.abiflags
    versions = (metadata.version("numba"), llvmlite.__version__, np.__version__, python)
    chosen = [os.environ.get(name) for name in _NUMBAS]
    host = () if all(chosen[:2]) else (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    digest.update(repr((versions, llvm.get_process_triple(), chosen, host)).encode())
    return digest.hexdigest()


def function_digest(function: Any) -> bytes:
    """A digest of a device function as it was loaded: bytecode and constants, its own and those of all it calls."""
    digest = hashlib.blake2b(digest_size=16)
    seen = set()

    def add(raw: Any) -> None:
        seen.add(raw)
        code = raw.__code__
        digest.update(repr((raw.__module__, code.co_qualname, code.co_code, code.co_consts, code.co_names)).encode())
        for name in code.co_names:
            value = raw.__globals__.get(name)
            if isinstance(value, tl.constexpr):
                digest.update(repr(value.value).encode())
            elif hasattr(value, "_fields"):
                digest.update(repr(value._fields).encode())
            elif hasattr(value, "fn") and value.fn not in seen:
                add(value.fn)

    add(function.fn)
    return digest.digest()


@cache
def _digest() -> str:
    return code_digest()


def _roots() -> list[Path]:
    """Where the folder may be if the user names none, the best first."""
    home = os.environ.get("XDG_CACHE_HOME")
    # other users can write to the temporary folder: ours there is named for the user, and must belong to them
    shared = Path(tempfile.gettempdir()) / f"nanokv-{_user() if _user() is not None else 'code'}"
    return [(Path(home) if home else Path("~/.cache").expanduser()) / "nanokv", shared]


def cache_directory() -> Path:
    """The folder of the compiled code, made if it is not there: the first that can be written, else be read.

    A folder that the user has named, and has no permission to use, is passed over with a warning.

    Raises:
        InvalidArgument: NANOKV_CACHE_DIR names a folder that can neither be made nor read.
        HeapUnavailable: it names none, and no other folder can be made; or this process may open no more files.
    """
    named, why = os.environ.get(VARIABLE), []
    if named:
        path = _absolute(named) / "nanokv" / _digest()
        try:
            _prepare(path, 0o755)  # who names a folder may mean it for all users, as in an image
            return path
        except OSError as error:
            why.append(_said(path.parent, error))
            if os.access(path, os.R_OK | os.X_OK) and _has_code(path):
                return path
            if not isinstance(error, PermissionError):
                raise InvalidArgument(_no_folder(why)) from None
    for root in _roots():
        path = root / _digest()
        try:
            _prepare(path, 0o700)
            if root.stat().st_uid not in {_user(), 0}:
                raise PermissionError(0, f"{root} belongs to another user")
        except OSError as error:
            why.append(_said(root, error))
            continue
        if named:
            _warn_once(f"{VARIABLE} cannot be used ({why[0]}): compiled code is kept in {path}")
        return path
    raise InvalidArgument(_no_folder(why)) if named else HeapUnavailable(_no_folder(why))


@cache
def _absolute(named: str) -> Path:
    """A folder, as it was meant when the process first asked for it: it may go to another one meanwhile."""
    return Path(named).absolute()


def _no_folder(why: list[str]) -> str:
    return f"no folder for compiled code ({'; '.join(why)}); set {VARIABLE} to one that can be written"


def _said(folder: Path, error: OSError) -> str:
    _refuse_without_descriptors(error)
    return f"{folder}: {error.strerror or error}"


def _prepare(path: Path, mode: int) -> None:
    """Make a folder, of this mode if it is not there, and see that it can be written."""
    _make(path, mode)
    tempfile.TemporaryFile(dir=path).close()


def _make(path: Path, mode: int) -> None:
    """Make a folder and those it lies in, where they are not there, with this mode whatever the umask is."""
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises where a folder above cannot be entered
        return
    if path.parent != path:
        _make(path.parent, mode)
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.mkdir(mode=0o700)
        path.chmod(mode)


def _has_code(path: Path) -> bool:
    return any(path.glob("*.code"))


def _user() -> int | None:
    return os.getuid() if hasattr(os, "getuid") else None


def _refuse_without_descriptors(error: OSError) -> None:
    """Raise HeapUnavailable if this process has no descriptor left: then the code may be there all the same."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise HeapUnavailable(f"compiled code cannot be read: {error.strerror}") from error


class CodeFile:
    """The file of functions that were compiled together.

    Args:
        name: of the file.
        stamp: `function_digest` of the functions; empty for those of COMPILED_ROOMS, which the folder's name tells.
        variant: code of the same functions over another vocabulary has a folder of its own.
    """

    def __init__(self, name: str, stamp: bytes = b"", variant: str = "") -> None:
        self.folder = cache_directory() / variant
        self._path = self.folder / f"{name}.code"
        self._stamp = stamp.ljust(_STAMP_BYTES, b"\0")
        self._of_rooms = not stamp

    def load(self) -> ObjectCode | None:
        """The code, or None if it has to be compiled."""
        if self._of_rooms and not _loads():
            return None
        try:
            raw = _read_safe(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _refuse_without_descriptors(error)
            _log.warning("compiled code in %s cannot be read, and is compiled again: %r", self._path, error)
            return None
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != _checksum(body):
            _log.warning("compiled code in %s is damaged, and compiled again", self._path)
            return None
        code = ObjectCode.unpacked(body[_STAMP_BYTES:])
        return code if body[:_STAMP_BYTES] == self._stamp and code.can_load() else None

    def keep(self, code: ObjectCode) -> None:
        """Write the code. If that fails, it works in this process only, with a warning."""
        if not _unchanged():
            _warn_once("the sources have changed since this process began: what it compiles is not kept")
            return
        body = self._stamp + code.packed()
        try:
            _make(self.folder, 0o755)
            _replace(self._path, _checksum(body) + body)
        except OSError as error:
            _warn_once(
                f"compiled code cannot be kept in {self.folder} ({error}): each process compiles; set {VARIABLE}"
            )


@cache
def _loads() -> bool:
    """Whether the folder's code is of the files that this process has imported."""
    return _unchanged()


def _unchanged() -> bool:
    try:
        return sources.unchanged()
    except OSError as error:
        _refuse_without_descriptors(error)
        raise


def _read_safe(path: Path) -> bytes:
    """The bytes of a file that nobody but this user and root can have written.

    Raises:
        PermissionError: it is another user's, or others may write to it.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if _user() is not None and (about.st_uid not in {_user(), 0} or about.st_mode & _OTHERS_WRITE):
            raise PermissionError(errno.EPERM, "another user can have written it")
        return file.read()


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _replace(path: Path, raw: bytes) -> None:
    """Write a file at once. All who may read the folder may read it: images are built by one user for others."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        beside.touch(mode=0o600, exist_ok=False)
        beside.write_bytes(raw)
        beside.chmod(0o644)  # whatever the umask is
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)
