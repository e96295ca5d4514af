"""Triton's cache keys, the same in every process: else a service may compile at its start what was compiled before.

The key of a function holds those of the functions that it calls. Triton before 3.9 leaves out of it what such a
function names if that was not hashed before (`DependenciesFinder._update_hash`), so the key depends on what the process
has launched first. So all device functions are hashed in one order before the first launch.
"""

import pkgutil
import sys
from functools import cache
from importlib import import_module

from triton.runtime.jit import JITFunction

DEVICE = "nanokv.device"
PACKAGES = ("memory", "segment", "protocol", "kernels", "library", "remote")  #: that hold device functions


@cache
def hash_in_order() -> int:
    """Hash every device function, in the order of modules' names and of lines. Returns how many there are.

    It takes 0.2 s, once in a process.
    """
    count = 0
    for name in PACKAGES:
        top = import_module(f"{DEVICE}.{name}")
        names = [each.name for each in pkgutil.walk_packages(getattr(top, "__path__", []), f"{top.__name__}.")]
        for each in sorted({top.__name__, *names}):
            import_module(each)
            own = [f for f in vars(sys.modules[each]).values() if isinstance(f, JITFunction) and f.__module__ == each]
            for function in sorted(own, key=lambda function: int(function.starting_line_number)):
                _ = function.cache_key
                count += 1
    return count
