"""The end of a process that has loaded NIXL or UCX: without the destructors of its libraries, of which one crashes.

NIXL's wheel (1.5.1) has a libnl-route whose destructor uses memory of another library that is gone by then: every
process ended with SIGSEGV, after Python had. So C's `exit` ends such a process when everything else is done: Python is
finalised, functions of `atexit` have run, and C's streams are flushed. Exit codes stay as they are.
"""

import ctypes
import sys
from functools import cache


@cache
def end_without_destructors() -> None:
    """Let the C library skip destructors of shared libraries at the end of this process. Once is enough."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    # the last one registered runs first: streams are flushed, then the process ends with its code
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    atexit = getattr(libc, "__cxa_atexit")
    atexit(ctypes.cast(libc.fcloseall, ctypes.c_void_p), None, None)
