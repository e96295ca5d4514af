"""What Triton does with the constants of device functions, once per process instead of as it comes, or at each launch.

- The cache's key of a function holds those of the functions that it calls. Triton before 3.9 leaves out of it what such
  a function names if that was not hashed before (`DependenciesFinder._update_hash`), so the key depends on what the
  process has launched first, and a service may compile at its start what was compiled before. So all device functions
  are hashed in one order before the first launch.
- A launch compares every constant that a kernel and the functions below it name with its value when they were hashed
  (`JITFunction.run`): 413 for a put of many objects, two thirds of the time of its launch. A constant of the layout
  does not change while a process runs, so those of our functions are not compared again. The constants that a user's
  kernel names itself still are.
"""

import pkgutil
import sys
from functools import cache
from importlib import import_module

from triton.runtime.jit import JITFunction

DEVICE = "nanokv.device"
PACKAGES = ("memory", "segment", "protocol", "kernels", "library", "remote")  #: that hold device functions


@cache
def settle_functions() -> int:
    """Hash every device function, in the order of modules' names and of lines. Returns how many there are.

    It takes 0.2 s, once in a process. No launch compares their constants any more.
    """
    functions = []
    for name in PACKAGES:
        top = import_module(f"{DEVICE}.{name}")
        names = [each.name for each in pkgutil.walk_packages(getattr(top, "__path__", []), f"{top.__name__}.")]
        for each in sorted({top.__name__, *names}):
            import_module(each)
            own = [f for f in vars(sys.modules[each]).values() if isinstance(f, JITFunction) and f.__module__ == each]
            functions.extend(sorted(own, key=lambda function: int(function.starting_line_number)))
    for function in functions:
        _ = function.cache_key
    for function in functions:  # when all are hashed: a key holds what is compared
        function.used_global_vals.clear()
    return len(functions)
