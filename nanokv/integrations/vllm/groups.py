"""The groups of a model's KV cache: layers that need the same blocks of a request, and what a hit needs of each.

vLLM allocates blocks per group. Of a prefix of L tokens a group needs, to go on from there, the blocks from
`skipped(L) // block_size` to `ceil(L / block_size)`: all of them where attention is full, those that a window or a
chunk still sees, or one state. That is the manager's own rule (`get_num_skipped_tokens` in vLLM's
`single_type_kv_cache_manager`): in place of the blocks before it puts the null block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


class Reach(Enum):
    """What of a prefix is needed to go on after it."""

    ALL = "all of it"
    WINDOW = "the last tokens"
    CHUNK = "the tokens of the last chunk"
    STATE = "a state at its end"


@dataclass(frozen=True, slots=True)
class Group:
    """One group.

    Attributes:
        number: in vLLM's KVCacheConfig.
        block_size: tokens of a block.
        tokens: of a window, with what vLLM retains beyond it; of a chunk; else 0.
        has_hashed_states: of states: whether vLLM ends steps where blocks end (`mamba_cache_mode` "align").
    """

    number: int
    block_size: int
    reach: Reach = Reach.ALL
    tokens: int = 0
    has_hashed_states: bool = True

    def skipped(self, length: int) -> int:
        """How many of the first tokens of a prefix are not needed any more."""
        if self.reach is Reach.WINDOW:
            return max(0, length - self.tokens + 1)
        if self.reach is Reach.CHUNK:
            return length // self.tokens * self.tokens
        return max(length - 1, 0) if self.reach is Reach.STATE else 0

    def needed(self, length: int, local: int = 0) -> range:
        """The numbers of the blocks that are needed of a prefix, of which `local` tokens are there."""
        first = max(self.skipped(length), local) // self.block_size
        return range(first, max(-(-length // self.block_size), first))


def groups_of(config: "KVCacheConfig", model: str) -> list[Group]:
    """The groups whose blocks are found by hashes.

    Raises:
        InvalidArgument: a group is of a kind that is not known, and what was stored of it might be wrong.
    """
    found = []
    for number, group in enumerate(config.kv_cache_groups):
        specs = list(iter_layer_specs(group.kv_cache_spec))
        kinds = {_reach(spec, model) for spec in specs}
        if len(kinds) > 1:
            raise InvalidArgument(f"NanoKV does not support {model}: layers of one group reach back differently")
        reach, tokens, hashed = kinds.pop()
        found.append(Group(number, group.kv_cache_spec.block_size, reach, tokens, hashed))
    left_out = sorted(set(config.transfer_group_ids) ^ set(config.prefix_cacheable_group_ids))
    if left_out or len(found) != len(config.prefix_cacheable_group_ids):
        names = ", ".join(sorted({kind_of(spec) for each in config.kv_cache_groups for spec in [each.kv_cache_spec]}))
        raise InvalidArgument(
            f"NanoKV does not support {model}: it has groups of KV that vLLM finds by no hashes (of {names})"
        )
    return found


def _reach(spec: "KVCacheSpec", model: str) -> tuple[Reach, int, bool]:
    if getattr(spec, "non_causal", False):
        raise InvalidArgument(
            f"NanoKV does not support {model}: its attention is not causal, so the KV of a block depends on the tokens "
            "after it"
        )
    if type(spec) is SlidingWindowSpec:
        return Reach.WINDOW, spec.sliding_window + spec.extra_retained_tokens, True
    if type(spec) is ChunkedLocalAttentionSpec:
        return Reach.CHUNK, spec.attention_chunk_size, True
    if type(spec) is MambaSpec:
        return Reach.STATE, 0, spec.mamba_cache_mode == "align"
    if type(spec) in (FullAttentionSpec, MLAAttentionSpec):
        return Reach.ALL, 0, True
    raise InvalidArgument(f"NanoKV does not support the KV of {model}: {kind_of(spec)}")


def kind_of(spec: "KVCacheSpec") -> str:
    """The kind of a spec, as users know it."""
    return type(spec).__name__.removesuffix("Spec")


def has_states(groups: Sequence[Group]) -> bool:
    """Whether a group has states instead of blocks of tokens."""
    return any(group.reach is Reach.STATE for group in groups)
