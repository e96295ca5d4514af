"""What the scheduler's side tells the workers in each step: plain data, which vLLM sends to them; and what it asks."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

TARGET_PARAMETER = "nanokv.target"  #: in a request's kv_transfer_params: the rank that reads what it stores


class Asked(NamedTuple):
    """A question: which blocks of a group of layers are there."""

    group: int
    hashes: list[bytes]
    is_prefix: bool  #: the answer may end with the first block that is not there


class GroupBlocks(NamedTuple):
    """Blocks of one group: the hash of each, and the block of the cache where it is or goes to."""

    group: int
    hashes: list[bytes]
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Blocks of one request that are loaded."""

    request: str
    parts: list[GroupBlocks]
    #: other blocks of the request are not there, as those before a window, or those of another group: so if one of
    #: these is lost, it cannot be computed by itself, and the request is computed from its beginning
    whole: bool = False


@dataclass(frozen=True, slots=True)
class BlockSave:
    """Blocks of one group that are complete after this step: the hash of each, and the block of the cache."""

    group: int
    hashes: list[bytes]
    blocks: list[int]
    fresh: list[int]  #: of a full block: how many of its tokens, the last ones, this step computes; else 0
    target: int  #: the first rank of the engine that reads them
    resets: int = 0  #: how many the scheduler had asked for when the request began: what is older is not stored

    def to(self, target: int) -> "BlockSave":
        """Name the reader: the same blocks, with another target."""
        return replace(self, target=target)


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """The work of one step."""

    loads: list[BlockLoad] = field(default_factory=list)
    saves: list[BlockSave] = field(default_factory=list)
    misdirected: list[tuple[str, int]] = field(default_factory=list)  #: a reader that is none, and blocks for it
    idle: bool = False  #: no tokens are computed in this step: it may wait for loads
