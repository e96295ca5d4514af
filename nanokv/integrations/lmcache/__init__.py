"""LMCache over NanoKV: a RemoteConnector, and an L2 adapter of the multi-process server (docs/lmcache.md).

settings                       what is configured
values                         what memory objects of LMCache are as tensors, and how they are allocated
forms                          which object of NanoKV holds a chunk: its key and memory format
chunks                         chunks stored and read, many in one call
putting                        puts of both
connector                      NanoKVConnector, a `RemoteConnector`
adapter                        NanoKVL2Adapter, an `L2AdapterInterface`, and its configuration

LMCache's own modules are imported by this package, so it is for LMCache's processes only.
"""

from nanokv.integrations.lmcache.adapter import NanoKVL2Adapter, NanoKVL2AdapterConfig
from nanokv.integrations.lmcache.connector import NanoKVConnector

__all__ = ["NanoKVConnector", "NanoKVL2Adapter", "NanoKVL2AdapterConfig"]
