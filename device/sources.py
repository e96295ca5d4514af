"""The sources of compiled code, as they were before this process loaded any of them.

Code on disk is named by a digest of the files that it was compiled from. A process may use it only if these are the
files that its own modules came from, and they can change under a running process. So the digest is taken when
`nanokv.device` is imported, before any of its modules; and compared again before code is first loaded, and whenever
code is kept. Equal: all modules imported in between came from these files. Else the process compiles for itself.
"""

import hashlib
from pathlib import Path

DEVICE = Path(__file__).parent
#: nothing else of `device/` is compiled for a CPU
COMPILED_ROOMS = ("memory", "segment", "protocol", "native", "fabric", "wire")
_COMPILERS = ("native_compiler.py", "python_calls.py")  # of `machines/`: their options, and the calls from Python


def file_digest(path: str) -> str:
    """A digest of one file, for functions that run while Triton compiles: its cache key does not see them."""
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=10).hexdigest()


def files_digest(device: Path = DEVICE) -> bytes:
    """A digest of the files of COMPILED_ROOMS, and of what compiles them."""
    digest = hashlib.blake2b(digest_size=16)
    for room in COMPILED_ROOMS:
        for path in sorted((device / room).rglob("*.py")):
            digest.update(path.relative_to(device).as_posix().encode() + path.read_bytes())
    for name in _COMPILERS:
        digest.update((device / "machines" / name).read_bytes())
    return digest.digest()


AT_IMPORT = files_digest()


def unchanged() -> bool:
    """Whether the files still are those that this process has imported, or would import."""
    return files_digest() == AT_IMPORT
