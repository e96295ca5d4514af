"""NanoKV: a distributed cache for the KV tensors of LLM inference.

Prefill workers write KV directly into the memory of decode workers, and allocate there themselves.

    cache, virtual_world     the API: one rank, or all ranks of a world in this process
    engine                   the parts of a rank, joined
    types, errors, config    its data, errors and options
    dtypes                   the dtypes of stored objects, by name
    arguments                checks of what callers pass
    identity, kv_layout      what keys mean: model, tokenizer, tenant, layout
    stored_layouts, quotas   the tables of layouts and of quotas of a segment
    keys, digests            the digest of a key; the digests of many keys
    plans, pinned            objects that the caller's kernel writes; objects held in place
    terms, changed_terms     leases, priorities, times to live and groups of objects: at a put, and later
    groups, generations      objects that go together; what an identity had stored, declared void
    replicas                 copies in other segments
    room                     waits of puts until there is room
    waiting, background      waits for objects; asynchronous operations
    ending                   the end of a cache: closed, dropped, or inherited by a fork
    statistics, seldom       counters of a segment and of a cache; warnings that are not repeated
    status_errors            from a status to an error
    allocation, compat_v1    the allocators: the producer (v2), or a master (v1)
    saved                    files of saved objects
    membership               a rank leaves a running world
    transfer                 copies between tensors and objects
    host_poller              the owner's host: index, events, sweeps
    heap                     the memory of segments, one module per provider
    device                   the protocol, its kernels, and the machines that run them
    cluster                  worlds of several hosts as one cache
    engines                  inside inference engines: vLLM, transformers
    integrations             under the interfaces of other products: Mooncake Store, SGLang, LMCache, vLLM's offloading
    blocks, sequences        a block manager with typed handles; sequences that grow by tokens
    cli, __main__            the command line
    doctor, fsck             a look at this machine; a check of a world's invariants
    check, demo              the checks of the protocol; prefill and decode in two processes
    replay, lab              traces of requests, run again; hosts of a cluster on this machine
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
    from nanokv.cache import NanoKVCache
    from nanokv.cluster.cluster import NanoKVCluster
    from nanokv.digests import Digests
    from nanokv.errors import NanoKVError
    from nanokv.host_poller.events import Event, EventKind
    from nanokv.identity import Identity
    from nanokv.kv_layout import KVLayout
    from nanokv.terms import Hold
    from nanokv.types import Key, KeyDigest, ObjMeta, WritePlan
    from nanokv.virtual_world import join_local_world, local_world

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
    "Digests": "nanokv.digests",
    "Event": "nanokv.host_poller.events",
    "EventKind": "nanokv.host_poller.events",
    "Hold": "nanokv.terms",
    "Identity": "nanokv.identity",
    "KVLayout": "nanokv.kv_layout",
    "Key": "nanokv.types",
    "KeyDigest": "nanokv.types",
    "NanoKVCache": "nanokv.cache",
    "NanoKVCluster": "nanokv.cluster.cluster",
    "NanoKVError": "nanokv.errors",
    "ObjMeta": "nanokv.types",
    "WritePlan": "nanokv.types",
    "join_local_world": "nanokv.virtual_world",
    "local_world": "nanokv.virtual_world",
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
