"""What the scheduler's side tells the workers in each step: plain data, which vLLM sends to them."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

TARGET_PARAMETER = "nanokv.target"  #: in a request's kv_transfer_params: the rank that reads what it stores


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks of one request that are loaded: the engine's hash of each, and the block of the cache that it goes to."""

    request: str
    hashes: list[bytes]
    blocks: list[int]
    #: blocks before these are outside of the model's window, and not there: so if one of these is lost, it cannot be
    #: computed by itself, and the request is computed from its beginning
    whole: bool = False


@dataclass(frozen=True, slots=True)
class BlockSave:
    """Blocks that are complete after this step: the hash of each, and the block of the cache where it is."""

    hashes: list[bytes]
    blocks: list[int]
    fresh: list[int]  #: of a full block: how many of its tokens, the last ones, this step computes; else 0
    target: int  #: the first rank of the engine that reads them
    resets: int = 0  #: how many the scheduler had asked for when the request began: what is older is not stored


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """The work of one step."""

    loads: list[BlockLoad] = field(default_factory=list)
    saves: list[BlockSave] = field(default_factory=list)
    misdirected: list[tuple[str, int]] = field(default_factory=list)  #: a reader that is none, and blocks for it
    idle: bool = False  #: no tokens are computed in this step: it may wait for loads
