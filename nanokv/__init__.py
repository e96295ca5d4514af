"""NanoKV: a distributed cache for the KV tensors of LLM inference.

Prefill workers write KV directly into the memory of decode workers, and allocate there themselves.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv.cache import NanoKVCache
    from nanokv.errors import NanoKVError
    from nanokv.host_poller.events import Event, EventKind
    from nanokv.types import Key, KeyDigest, ObjMeta, WritePlan
    from nanokv.virtual_world import local_world

__version__ = "0.1.0"

__all__ = [
    "Event",
    "EventKind",
    "Key",
    "KeyDigest",
    "NanoKVCache",
    "NanoKVError",
    "ObjMeta",
    "WritePlan",
    "local_world",
]

_HOME = {
    "Event": "nanokv.host_poller.events",
    "EventKind": "nanokv.host_poller.events",
    "Key": "nanokv.types",
    "KeyDigest": "nanokv.types",
    "NanoKVCache": "nanokv.cache",
    "NanoKVError": "nanokv.errors",
    "ObjMeta": "nanokv.types",
    "WritePlan": "nanokv.types",
    "local_world": "nanokv.virtual_world",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use: torch takes seconds, and the command line does not always need it."""
    if name not in _HOME:
        raise AttributeError(f"module 'nanokv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
