"""LMCache's own Mooncake connector, through its loader: chunks are stored, found, and read again. It prints the result.

Run as a program with NanoKV's package `mooncake` on the path: `lmcache_program.py MASTER META`, META 1 if LMCache
stores the shape of a chunk before its bytes, else 0.
"""

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

SHAPE = torch.Size([2, 4, 16, 128])  # K and V, layers, tokens of a chunk, heads * head_dim
SECONDS = 60.0


def main(master: str, meta: str) -> None:
    """Store three chunks, and look at them."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=16,
        local_cpu=True,
        max_local_cpu_size=0.05,
        remote_url="mooncakestore://127.0.0.1:1/",
        remote_serde="naive",
        extra_config={
            "save_chunk_meta": meta == "1",
            "mooncake_local_hostname": "localhost",
            "mooncake_metadata_server": "P2PHANDSHAKE",
            "mooncake_master_server_addr": master,
            "mooncake_global_segment_size": "64MB",
            "mooncake_local_buffer_size": "16MB",
            "mooncake_protocol": "tcp",
        },
    )
    metadata = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, (4, 2, 16, 2, 64))
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backends = CreateStorageBackends(config, metadata, loop, "cpu")
    remote: Any = backends["RemoteBackend"]
    local: Any = backends["LocalCPUBackend"]
    told: dict[str, Any] = {"before": [], "after": [], "equal": [], "missing": None}
    for number in range(3):
        key = CacheEngineKey("m", 1, 0, 12345 + number, torch.bfloat16)
        chunk = local.allocate(SHAPE, torch.bfloat16)
        wanted = torch.randn(SHAPE).to(torch.bfloat16)
        chunk.tensor.copy_(wanted)
        told["before"].append(remote.contains(key))
        remote.batched_submit_put_task([key], [chunk])
        until = time.monotonic() + SECONDS
        while not remote.contains(key) and time.monotonic() < until:
            time.sleep(0.01)
        told["after"].append(remote.contains(key))
        read = remote.batched_get_blocking([key])[0]  # this connector reads in batches only
        told["equal"].append(read is not None and torch.equal(read.tensor, wanted))
    missing = remote.batched_get_blocking([CacheEngineKey("m", 1, 0, 1, torch.bfloat16)])
    told["missing"] = missing == [None]
    remote.close()
    print(json.dumps(told), flush=True)
    os._exit(0)  # threads of LMCache's loop are still there


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
