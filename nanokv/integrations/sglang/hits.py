"""How much of a prefix can be restored: the pages of KV, and what each further pool has for them.

A prefix of n pages can be restored if each pool has what its policy asks for: all_pages the state of each page,
trailing_pages that of the last ones, as many as the transfer has keys. Then there may be gaps: 5 pages can be
restorable where 4 are not. block_groups is about a second form of the same pages, which changes nothing for them.
"""

from collections.abc import Callable, Sequence

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer, PoolTransferResult

Present = Callable[[str, Sequence[str]], list[bool]]  #: of a pool, by its name: whether each key's state is there


def restorable(
    kv_pages: int, keys: Sequence[str], transfers: Sequence[PoolTransfer], present: Present
) -> PoolTransferResult:
    """What SGLang's `batch_exists_v2` answers.

    Args:
        kv_pages: pages of KV that are there without a gap, from the first key on.

    Raises:
        ValueError: a policy that is none of these.
    """
    if not kv_pages:
        return PoolTransferResult(0, {}, [])
    hits: dict[str, int] = {PoolName.KV: kv_pages}
    lengths = set(range(1, kv_pages + 1))
    for transfer in transfers:
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            hits[transfer.name] = _in_whole_groups(transfer, present)
            continue
        there = present(transfer.name, keys[:kv_pages])
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            allowed = set(range(1, leading(there) + 1))
        elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            window = max(1, len(transfer.keys or []))
            allowed = {n for n in range(1, kv_pages + 1) if all(there[max(0, n - window) : n])}
        else:
            raise ValueError(f"there is no hit policy {transfer.hit_policy!r}")
        if allowed:
            hits[transfer.name] = max(allowed)
        lengths &= allowed
    return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))


def leading(there: Sequence[bool]) -> int:
    """How many are true, up to the first that is not."""
    return next((i for i, each in enumerate(there) if not each), len(there))


def _in_whole_groups(transfer: PoolTransfer, present: Present) -> int:
    """The pages that the leading groups cover of which all keys are there."""
    keys, each = transfer.keys or [], transfer.group_pages
    if each <= 0 or transfer.block_pages <= 0:
        raise ValueError(f"block_groups needs block_pages and group_pages, not {transfer.block_pages} and {each}")
    groups: int = leading(present(transfer.name, keys)) // each
    return groups * int(transfer.block_pages)
