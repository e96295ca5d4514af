"""SGLang's HiCache over NanoKV: a storage backend of kind `dynamic` (docs/sglang.md).

settings          what is configured
scopes            what becomes part of every key: model, ranks, the pool's geometry
host_pages        where the pages of a host pool lie in memory
objects           objects of NanoKV, copied from such memory and to it
calls             what stands around each call: failures become misses; what SGLang's metrics are told
storage           NanoKVStorage, a `HiCacheStorage`
pools             SGLang's host pools, by name, and the way of their pages to objects and back

SGLang's own modules are imported by this package, so it is for SGLang's processes only.
"""

from nanokv.integrations.sglang.storage import NanoKVStorage

__all__ = ["NanoKVStorage"]
