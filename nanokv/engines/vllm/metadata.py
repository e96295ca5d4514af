"""What the scheduler's side tells the workers in each step: plain data, which vLLM sends to them."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks of one request that are loaded: the engine's hash of each, and the block of the cache that it goes to."""

    request: str
    hashes: list[bytes]
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class BlockSave:
    """Blocks that are complete after this step: the hash of each, and the block of the cache where it is."""

    hashes: list[bytes]
    blocks: list[int]
    fresh: list[int]  #: of a full block: how many of its tokens, the last ones, this step computes; else 0
    target: int  #: the first rank of the engine that reads them


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """The work of one step."""

    loads: list[BlockLoad] = field(default_factory=list)
    saves: list[BlockSave] = field(default_factory=list)
    clear: bool = False  #: remove what is stored in the segments of this engine first
    idle: bool = False  #: no tokens are computed in this step: it may wait for loads
