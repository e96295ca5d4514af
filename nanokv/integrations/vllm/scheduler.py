"""The scheduler's side: which blocks of a request are loaded, and which are stored. It touches no KV.

The blocks of a request are known by vLLM's own chained hashes, so a prefix that requests share has the same keys. The
key of a block is the hash of the prefix that ends in it. A hit of L tokens is right if each group of layers has all
that it needs of these L tokens (`groups.Group.needed`). The last block of a prompt may be partly filled: its rest is
whatever the engine's memory holds, and the reader writes its own tokens there. Such a block is found by the hash of the
prompt less its last token, and so are states there.

Blocks are stored in the step that fills them, from the tables of that step: those outside of a window are another
request's in the next one. Of a window, a chunk or states only that is stored which a hit can need: at the end of a
prompt, at the ends of blocks that are generated, and where the prompt of an earlier request forked off.

A request that does not wait for its load computes beside it, and if the load fails, on blocks that hold anything: vLLM
computes that again when it hears of it. So nothing is stored of a step with such loads, nor of those that begin before
their outcome is known, of any request: prefixes are shared. It is stored by the next step of its request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nanokv.integrations.vllm.groups import Group, Reach, has_states
from nanokv.integrations.vllm.hashes import PrefixHashes
from nanokv.integrations.vllm.metadata import TARGET_PARAMETER, Asked, BlockLoad, BlockSave, GroupBlocks, Step

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

NULL_BLOCK = 0  #: vLLM's number of no block: in its place are tokens outside of a window, which nobody reads any more
_NUMBER_BYTES = 4  #: of a block's number, behind the hash of a whole prompt


@dataclass(slots=True)
class TrackedRequest:
    """A request that has blocks."""

    request: "Request"
    prompt: int  #: tokens of it that are handed over: all but the last one
    whole: bytes | None  #: the hash of these
    resets: int  #: how many this engine had asked for when the request's first token was computed
    saved: list[int]  #: by group: blocks up to here were given to the workers, or are not wanted
    handed_over: bool = False  #: what ends with `prompt` was given to them too
    fork: int = 0  #: tokens that another request has stored, without what windows and states need there
    local: int = 0  #: tokens that vLLM had, when it asked
    found: int = 0  #: tokens that it was told could be had then, with those
    loading: set[int] = field(default_factory=set)  #: blocks of the cache that are being filled
    lost: bool = False  #: a load has failed: what is missing is computed, not asked for again


class BlockSource(Protocol):
    """The workers, as `lookup.Workers`."""

    def found(self, asked: Sequence[Asked]) -> list[bytes]: ...

    def reset(self, number: int) -> bool: ...


class SchedulerSide:
    """Decides for one scheduler.

    Args:
        groups: of the model's KV cache.
        hashes: of prefixes.
        alignment: tokens; a hit ends at a multiple of it, unless it is a whole prompt less its last token.
        workers: of whom it asks which blocks can be loaded.
        loads, stores: what this engine does.
        waits: True if a request waits for its load outside of steps.
        target: the rank in whose segment blocks are stored, unless a request names another one.
        ranks: of the world: a request that names none of them is not stored.
        save_generated: whether blocks that hold generated tokens are stored.
        save_tails: whether prompts are handed over up to their last token, not only by whole blocks.
        hands_over: whether this engine computes prompts only for others: of one with states it leaves the last token to
            them, because a state after it is of no use to them.
        in_flight: how many steps begin at most before the outcome of the first one is known.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        hashes: PrefixHashes,
        alignment: int,
        workers: BlockSource,
        *,
        loads: bool,
        stores: bool,
        waits: bool,
        target: int,
        ranks: int,
        save_generated: bool,
        save_tails: bool,
        hands_over: bool,
        in_flight: int,
    ) -> None:
        self._groups, self._hashes, self._alignment = groups, hashes, alignment
        self.workers = workers
        self._loads, self._stores, self._waits = loads, stores, waits
        self._target, self._ranks = target, ranks
        self._save_generated, self._save_tails = save_generated, save_tails
        self._has_states = has_states(groups)
        self._leaves_last = hands_over and self._has_states
        self._full = [group for group in groups if group.reach is Reach.ALL]
        self._partial = [group for group in groups if group.reach is not Reach.ALL]
        self._in_flight, self._silent = in_flight, 0  # steps that store nothing
        self._resets = 0
        self._requests: dict[str, TrackedRequest] = {}
        self._step = Step()

    def begins(self, request: "Request") -> None:
        """A request has come. Its last token is taken away if this engine is not to compute it."""
        parameters = request.kv_transfer_params
        is_short = parameters is not None and parameters.get(_SHORTENED)
        if not self._leaves_last or is_short or request.num_prompt_tokens < 2 or request.prompt_token_ids is None:
            return
        if request.skip_reading_prefix_cache:  # logprobs of the prompt, which decode computes too
            return
        del request.prompt_token_ids[-1:], request._all_token_ids[-1:]
        request.num_prompt_tokens -= 1
        del request.block_hashes[request.num_prompt_tokens // self._hashes.unit :]  # of a block with that token
        request.max_tokens = 1
        request.kv_transfer_params = (parameters or {}) | {_SHORTENED: True}

    def _tracked(self, request: "Request") -> TrackedRequest:
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.request is not request:
            is_short = (request.kv_transfer_params or {}).get(_SHORTENED)
            prompt = request.num_prompt_tokens - (0 if is_short else 1)
            whole = self._hashes.of_all(request, prompt)
            tracked = TrackedRequest(request, prompt, whole, self._resets, [0] * len(self._groups))
            self._requests[request.request_id] = tracked
        return tracked

    def _key(self, tracked: TrackedRequest, group: Group, number: int, end: int) -> bytes | None:
        """The key of a block, of the prefix that ends in it: None if that has no hash."""
        own = self._hashes.of_blocks(tracked.request, end)
        if own is not None:
            return own
        is_whole = tracked.whole is not None and end == min((number + 1) * group.block_size, tracked.prompt)
        return tracked.whole + number.to_bytes(_NUMBER_BYTES, "little") if is_whole and tracked.whole else None

    # --- what is there ---
    def matched_tokens(self, request: "Request", computed: int) -> tuple[int, bool]:
        """How many tokens after the first `computed` ones can be loaded, and whether the request waits for them.

        The last token of a request is always computed: it gives the first logits.
        """
        tracked = self._tracked(request)
        if tracked.resets != self._resets:  # it is computed anew
            tracked.resets, tracked.handed_over, tracked.saved = self._resets, False, [0] * len(self._groups)
        tracked.local = tracked.found = computed
        unwanted = request.skip_reading_prefix_cache  # logprobs of the prompt: vLLM computes all of it
        if not self._loads or unwanted or tracked.lost:
            return 0, False
        shared = self._shared_by_full(tracked, computed)
        tracked.found = self._longest(tracked, computed, shared) if self._partial else max(shared, computed)
        if self._partial and self._full and shared > tracked.found:
            tracked.fork = shared // self._alignment * self._alignment
            if self._has_states and tracked.fork > tracked.found and not request.shared_prefix_boundary:
                request.shared_prefix_boundary = tracked.fork  # a step ends there, so there is a state to be stored
        tokens = tracked.found - computed
        return tokens, self._waits and tokens > 0

    def _shared_by_full(self, tracked: TrackedRequest, local: int) -> int:
        """The longest hit that groups with full attention allow."""
        longest = int(tracked.request.num_tokens) - 1
        asked = []
        for group in self._full:
            keys: list[bytes] = []
            for number in group.needed(longest, local):
                key = self._key(tracked, group, number, self._end(tracked, group, number, longest))
                if key is None:
                    break
                keys.append(key)
            asked.append(Asked(group.number, keys, is_prefix=True))
        answers = self.workers.found(asked) if any(each.hashes for each in asked) else [b""] * len(asked)
        shared = longest
        for group, answer in zip(self._full, answers, strict=True):
            there = local // group.block_size + len(answer)
            if there * group.block_size < longest:
                whole = there * group.block_size // self._alignment * self._alignment
                shared = min(shared, whole)
        return shared if self._full else longest

    def _end(self, tracked: TrackedRequest, group: Group, number: int, length: int) -> int:
        """Where the prefix ends by which a block is found that is needed for a hit of some length."""
        end = (number + 1) * group.block_size
        is_last = group.reach is not Reach.STATE and end == tracked.request.num_tokens
        return end if end <= length or is_last else length

    def _longest(self, tracked: TrackedRequest, local: int, shared: int) -> int:
        """The longest hit up to `shared` for which groups with windows, chunks or states have what they need."""
        lengths: list[int] = [*range(shared // self._alignment * self._alignment, local, -self._alignment)]
        if shared > local and (not lengths or lengths[0] != shared):
            lengths.insert(0, shared)
        if not lengths:
            return local
        places: list[dict[tuple[int, int], int]] = []  # by group: of the question about a block that ends somewhere
        asked = []
        for group in self._partial:
            ends: dict[tuple[int, int], int] = {}
            keys: list[bytes] = []
            for number, end in self._wanted(tracked, group, lengths, local):
                if (key := self._key(tracked, group, number, end)) is not None:
                    ends[number, end] = len(keys)
                    keys.append(key)
            places.append(ends)
            asked.append(Asked(group.number, keys, is_prefix=False))
        answers = self.workers.found(asked) if any(each.hashes for each in asked) else [b""] * len(asked)
        for length in lengths:
            if all(
                self._is_there(tracked, group, length, local, ends, answer)
                for group, ends, answer in zip(self._partial, places, answers, strict=True)
            ):
                return length
        return local

    def _wanted(
        self, tracked: TrackedRequest, group: Group, lengths: Sequence[int], local: int
    ) -> Iterator[tuple[int, int]]:
        """The blocks that hits of any of these lengths need of a group: their numbers, and where they end."""
        if group.reach is Reach.STATE:
            for length in lengths:
                yield (length - 1) // group.block_size, length
            return
        numbers = range(group.needed(lengths[-1], local).start, group.needed(lengths[0], local).stop)
        for number in numbers:
            yield number, self._end(tracked, group, number, lengths[0])

    def _is_there(
        self,
        tracked: TrackedRequest,
        group: Group,
        length: int,
        local: int,
        places: dict[tuple[int, int], int],
        there: bytes,
    ) -> bool:
        for number in reversed(group.needed(length, local)):
            at = places.get((number, self._end(tracked, group, number, length)))
            if at is None or at >= len(there) or not there[at]:
                return False
        return True

    # --- loads ---
    def allocated(self, request: "Request", blocks: "KVCacheBlocks", external: int) -> None:
        """The request has blocks; `external` of its tokens are to be loaded into those after the computed ones."""
        if external <= 0:
            return
        tracked, tables = self._tracked(request), blocks.get_block_ids()
        length = tracked.local + external
        parts = []
        for group in self._groups:
            keys, targets = [], []
            for number in group.needed(length, tracked.local):
                key = self._key(tracked, group, number, self._end(tracked, group, number, length))
                target = tables[group.number][number]
                assert key is not None and target != NULL_BLOCK, "vLLM gives the blocks that a hit needs"
                keys.append(key)
                targets.append(target)
            if keys:
                parts.append(GroupBlocks(group.number, keys, targets))
        is_plain = len(self._groups) == 1 and sum(len(part.blocks) for part in parts) == -(
            -external // self._groups[0].block_size
        )
        self._step.loads.append(BlockLoad(request.request_id, parts, whole=not is_plain))
        tracked.loading = {target for part in parts for target in part.blocks}

    # --- stores ---
    def build(self, output: "SchedulerOutput") -> Step:
        """The work of this step."""
        if self._may_store() and self._stores:
            for name, tokens in output.num_scheduled_tokens.items():
                drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
                self._save(name, tokens - drafts, output, drafts)
        for name in output.finished_req_ids:
            self._requests.pop(name, None)
        step, self._step = self._step, Step()
        step.idle = output.total_num_scheduled_tokens == 0
        return step

    def _may_store(self) -> bool:
        """Whether all that this step computes on is there."""
        if self._step.loads and not self._waits:
            self._silent = self._in_flight
        self._silent = max(self._silent - 1, -1)
        return self._silent < 0

    def _save(self, name: str, tokens: int, output: "SchedulerOutput", drafts: int) -> None:
        tracked, state = self._requests.get(name), output.kv_connector_block_state
        tables = state.get_block_ids(name) if tracked is not None and state is not None else None
        if tracked is None or state is None or tables is None:
            return
        request = tracked.request
        after = request.num_computed_tokens + tokens
        known = self._hashes.known(request) if self._save_generated else request.num_prompt_tokens
        hands_over = self._hands_over(tracked, after)
        saves = []
        for place, group in enumerate(self._groups):
            if group.reach is Reach.STATE:
                wanted = self._states(group, tracked, after, known, drafts)
            else:
                full = min(after, known) // group.block_size
                wanted = [
                    (number, (number + 1) * group.block_size)
                    for number in self._new(group, tracked, range(tracked.saved[place], full))
                ]
                tracked.saved[place] = max(tracked.saved[place], full)
                if hands_over:
                    wanted += self._tail(group, tracked, known)
            saves.append(self._given(tracked, group, wanted, tables[group.number]))
        tracked.handed_over = tracked.handed_over or hands_over
        for number, block, boundary in state.boundary_state_offloads.get(name, ()):  # of states: exactly these blocks
            key = self._hashes.of_blocks(request, boundary)
            if key is not None and block != NULL_BLOCK:
                saves.append(BlockSave(number, [key], [block], [0], 0, tracked.resets))
        self._aim(tracked, [save for save in saves if save.blocks])

    def _hands_over(self, tracked: TrackedRequest, after: int) -> bool:
        wanted = self._save_tails and tracked.whole is not None and not tracked.handed_over
        return wanted and after >= tracked.prompt and (not self._has_states or after == tracked.prompt)

    def _new(self, group: Group, tracked: TrackedRequest, new: range) -> Iterator[int]:
        """Those of a group's new blocks that a hit can need."""
        if group.reach is Reach.ALL or not self._full:  # alone, nobody could tell where another request forks off
            yield from new
            return
        request, size = tracked.request, self._alignment
        ends = {tracked.prompt, tracked.prompt // size * size, request.num_prompt_tokens // size * size, tracked.fork}
        needed = {number for end in ends for number in group.needed(end)}
        for number in new:
            if number in needed or (number + 1) * group.block_size > request.num_prompt_tokens:
                yield number

    def _states(
        self, group: Group, tracked: TrackedRequest, after: int, known: int, drafts: int
    ) -> list[tuple[int, int]]:
        """The state after this step, if a prefix with a hash ends there."""
        ends_block = after % max(group.block_size, self._alignment) == 0 and after <= known and group.has_hashed_states
        ends_prompt = after == tracked.prompt and self._save_tails and not tracked.handed_over
        if drafts or not after or not (ends_block or ends_prompt):
            return []
        return [((after - 1) // group.block_size, after)]

    def _tail(self, group: Group, tracked: TrackedRequest, known: int) -> list[tuple[int, int]]:
        """The blocks of a prompt that are found by the hash of all of it: the last one, or all if blocks have none."""
        return [
            (number, end)
            for number in group.needed(tracked.prompt)
            if (end := min((number + 1) * group.block_size, tracked.prompt)) % group.block_size
            or self._hashes.of_blocks(tracked.request, end) is None
        ]

    def _given(
        self, tracked: TrackedRequest, group: Group, wanted: Sequence[tuple[int, int]], table: Sequence[int]
    ) -> BlockSave:
        """What the workers are told to store of a group."""
        size, before = group.block_size, tracked.request.num_computed_tokens
        keys, blocks, fresh = [], [], []
        for number, end in wanted:
            key, block = self._key(tracked, group, number, end), table[number] if number < len(table) else NULL_BLOCK
            if key is not None and block != NULL_BLOCK:
                keys.append(key)
                blocks.append(block)
                is_full = end == (number + 1) * size and group.reach is not Reach.STATE
                fresh.append(min(max(end - before, 0), size) if is_full else 0)
        return BlockSave(group.number, keys, blocks, fresh, 0, tracked.resets)

    def _aim(self, tracked: TrackedRequest, saves: Sequence[BlockSave]) -> None:
        """Give the workers what a request stores, with the reader that it names."""
        reader = (tracked.request.kv_transfer_params or {}).get(TARGET_PARAMETER, self._target)
        if type(reader) is int and 0 <= reader < self._ranks:
            self._step.saves += [save.to(reader) for save in saves]
        elif saves:
            self._step.misdirected.append((repr(reader), sum(len(save.blocks) for save in saves)))

    # --- what becomes of it ---
    def reset(self) -> bool:
        """Let nothing be found any more that was stored before, by whatever engine. False: somebody was not told.

        Requests that are running store nothing any more: what they compute depends on what they computed before.
        """
        self._resets += 1
        return self.workers.reset(self._resets)

    def answered(self, output: "KVConnectorOutput") -> None:
        """What the workers report: a request whose load has failed computes what is missing."""
        failed = set(output.invalid_block_ids or ())
        for tracked in self._requests.values() if failed else ():
            tracked.lost = tracked.lost or bool(tracked.loading & failed)
        for name in output.failed_recving or ():
            if name in self._requests:
                self._requests[name].lost = True
        for name in output.finished_recving or ():
            if name in self._requests:
                self._requests[name].loading = set()


_SHORTENED = "nanokv.shortened"  #: in kv_transfer_params of a request whose last token was left to decode
