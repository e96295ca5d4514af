"""NanoKV: a distributed cache for the KV tensors of LLM inference.

Prefill workers write KV directly into the memory of decode workers, and allocate there themselves.

A cache names objects by keys, moves their bytes by transfer, through an allocation, into a heap of segments, on which
the device protocol runs, and which the poller tends. A cluster joins hosts, integrations plug it in, tools look at it,
and check proves it.

    types, errors, config    its data, errors and options
    arguments, dtypes        checks of what callers pass, and of options; the dtypes of stored objects, by name
    background, seldom       asynchronous operations; warnings that are not repeated
    statistics               counters of a segment and of a cache
    cache                    the API, one object per rank, and the parts of a rank
    keys                     digests of keys, and what keys mean: model, tokenizer, tenant, layout
    transfer                 copies between tensors and objects
    allocation, compat_v1    the allocators: the producer (v2), or a master (v1); the terms of an object
    space                    how a host makes room
    heap                     the memory of segments, one module per provider
    device                   the protocol, its kernels, and the machines that run them
    host_poller              the owner's host: index, events, sweeps
    leaving, saved           a rank leaves a running world; files of saved objects
    fsck                     a check of a world's invariants
    cluster                  worlds of several hosts as one cache
    integrations             in engines, and under the interfaces of other products
    blocks, sequences        a block manager with typed handles; sequences that grow by tokens
    tools, __main__          the command line, the demo, traces
    check                    what proves it: scenarios, mutants, histories, kills
    bench                    benchmarks

docs/structures.md follows one object through them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv import config as config
    from nanokv import device as device
    from nanokv import errors as errors
    from nanokv import statistics as statistics
    from nanokv import types as types
    from nanokv.allocation.terms import Hold
    from nanokv.cache.cache import NanoKVCache
    from nanokv.cache.virtual_world import join_local_world, local_world
    from nanokv.cluster.cluster import NanoKVCluster
    from nanokv.errors import NanoKVError
    from nanokv.host_poller.events import Event, EventKind
    from nanokv.keys.digests import Digests
    from nanokv.keys.identity import Identity
    from nanokv.keys.kv_layout import KVLayout
    from nanokv.types import Key, KeyDigest, ObjMeta, WritePlan

__version__ = "0.1.0"

__all__ = [
    "Digests",
    "Event",
    "EventKind",
    "Hold",
    "Identity",
    "KVLayout",
    "Key",
    "KeyDigest",
    "NanoKVCache",
    "NanoKVCluster",
    "NanoKVError",
    "ObjMeta",
    "WritePlan",
    "join_local_world",
    "local_world",
]

_MODULES = ("config", "device", "errors", "statistics", "types")  #: that `import nanokv` is enough for

_HOME = {
    "Digests": "nanokv.keys.digests",
    "Event": "nanokv.host_poller.events",
    "EventKind": "nanokv.host_poller.events",
    "Hold": "nanokv.allocation.terms",
    "Identity": "nanokv.keys.identity",
    "KVLayout": "nanokv.keys.kv_layout",
    "Key": "nanokv.types",
    "KeyDigest": "nanokv.types",
    "NanoKVCache": "nanokv.cache.cache",
    "NanoKVCluster": "nanokv.cluster.cluster",
    "NanoKVError": "nanokv.errors",
    "ObjMeta": "nanokv.types",
    "WritePlan": "nanokv.types",
    "join_local_world": "nanokv.cache.virtual_world",
    "local_world": "nanokv.cache.virtual_world",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use: torch takes seconds, and the command line does not always need it."""
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"nanokv.{name}")
    raise AttributeError(f"module 'nanokv' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The API, without what this module imports for itself."""
    return sorted([*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))])
