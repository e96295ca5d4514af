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

import math
from collections.abc import Sequence
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
    stored_state: int = 0  #: tokens before the last state that was given to them
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
        self._groups, self._hashes = groups, hashes
        sizes = [group.block_size for group in groups if group.reach is not Reach.STATE]
        self._alignment = math.lcm(alignment, *sizes)  # of parts of blocks only that of a whole prompt is stored
        self.workers = workers
        self._loads, self._stores, self._waits = loads, stores, waits
        self._target, self._ranks = target, ranks
        self._save_generated, self._save_tails = save_generated, save_tails
        self._has_states = has_states(groups)
        self._leaves_last = hands_over and save_tails and self._has_states
        self._full = [group for group in groups if group.reach is Reach.ALL]
        self._partial = sorted((group for group in groups if group.reach is not Reach.ALL), key=_by_need)
        self._in_flight, self._silent = in_flight, 0  # steps that store nothing
        self._resets = 0
        self._requests: dict[str, TrackedRequest] = {}
        self._step = Step()

    def begins(self, request: "Request") -> None:
        """A request has come. Its last token is taken away if this engine is not to compute it.

        Not from one that nobody goes on with, as for vectors or logprobs of its prompt, nor from embeddings.
        """
        parameters, tokens = request.kv_transfer_params, request.prompt_token_ids
        is_short = parameters is not None and parameters.get(_SHORTENED)
        is_own = request.pooling_params is not None or request.skip_reading_prefix_cache or request.resumable
        if not self._leaves_last or is_short or is_own or tokens is None or request.prompt_embeds is not None:
            return
        if len(tokens) < 2:
            return
        request.prompt_token_ids = tokens[:-1]  # the list itself may be the caller's
        del request._all_token_ids[-1:]
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
            tracked.resets, tracked.handed_over = self._resets, False
            tracked.saved, tracked.stored_state = [0] * len(self._groups), 0
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
        is_last = not self._has_states and end == tracked.request.num_tokens  # with states it is found by `prompt`
        return end if end <= length or is_last else length

    def _longest(self, tracked: TrackedRequest, local: int, shared: int) -> int:
        """The longest hit up to `shared` for which groups with windows, chunks or states have what they need.

        The longest ones are asked for first, then more and more at once. Of each the first group tells, by the last
        block that it needs, whether the others are asked at all: a hit may end at thousands of places of a long prompt.
        """
        lengths: list[int] = [*range(shared // self._alignment * self._alignment, local, -self._alignment)]
        if shared > local and (not lengths or lengths[0] != shared):
            lengths.insert(0, shared)
        there: dict[bytes, bool] = {}  # by mark of the group and key
        first, count = 0, 1
        while first < len(lengths):
            some = lengths[first : first + count]
            likely = self._partial[0]
            self._ask(tracked, [(likely, length, likely.needed(length, local)[-1:]) for length in some], there)
            for length in some:
                if not self._is_there(tracked, likely, length, likely.needed(length, local)[-1:], there):
                    continue
                needed = [(group, length, group.needed(length, local)) for group in self._partial]
                self._ask(tracked, needed, there)
                if all(self._is_there(tracked, *each, there) for each in needed):
                    return length
            first, count = first + count, 4 * count
        return local

    def _ask(
        self, tracked: TrackedRequest, blocks: Sequence[tuple[Group, int, range]], there: dict[bytes, bool]
    ) -> None:
        """Ask for blocks that hits of some lengths need, if that was not done."""
        wanted: dict[int, dict[bytes, bytes]] = {}
        for group, length, numbers in blocks:
            for number in numbers:
                key = self._key(tracked, group, number, self._end(tracked, group, number, length))
                if key is not None and (name := _name(group, key)) not in there:
                    wanted.setdefault(group.number, {})[name] = key
        if not wanted:
            return
        asked = [Asked(group, [*keys.values()], is_prefix=False) for group, keys in wanted.items()]
        for keys, answer in zip(wanted.values(), self.workers.found(asked), strict=True):
            there |= dict.fromkeys(keys, False)
            there |= {name: bool(found) for name, found in zip(keys, answer, strict=False)}

    def _is_there(
        self, tracked: TrackedRequest, group: Group, length: int, numbers: range, there: dict[bytes, bool]
    ) -> bool:
        for number in reversed(numbers):
            key = self._key(tracked, group, number, self._end(tracked, group, number, length))
            if key is None or not there.get(_name(group, key), False):
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
        is_plain = len(self._groups) == 1 and bool(self._full)  # else blocks before a lost one may be gone
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
            if (tracked := self._requests.get(name)) is not None and tracked.request.is_finished():
                del self._requests[name]  # else it is another one of the same name
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
        if tracked is None or state is None:
            return
        request = tracked.request
        after = request.num_computed_tokens + tokens
        known = self._hashes.known(request) if self._save_generated else request.num_prompt_tokens
        hands_over = self._hands_over(tracked, after)
        wanted: list[list[tuple[int, int]]] = []
        for place, group in enumerate(self._groups):
            if group.reach is Reach.STATE:
                wanted.append(self._states(group, tracked, after - tokens, after, known, drafts))
                continue
            full = min(after, known) // group.block_size
            wanted.append(self._new(group, tracked, range(tracked.saved[place], full)))
            tracked.saved[place] = max(tracked.saved[place], full)
            if hands_over:
                wanted[-1] += self._tail(group, tracked)
        tracked.handed_over = tracked.handed_over or hands_over
        if self._has_states and (after <= known or hands_over):
            tracked.stored_state = after
        saves = []
        tables = state.get_block_ids(name) if any(wanted) else None  # a copy of all of them
        if tables is not None:
            saves = [
                self._given(tracked, group, blocks, tables[group.number])
                for group, blocks in zip(self._groups, wanted, strict=True)
            ]
        for number, block, boundary in state.boundary_state_offloads.get(name, ()):  # of states: exactly these blocks
            key = self._hashes.of_blocks(request, boundary)
            if key is not None and block != NULL_BLOCK:
                saves.append(BlockSave(number, [key], [block], [0], 0, tracked.resets))
        self._aim(tracked, [save for save in saves if save.blocks])

    def _hands_over(self, tracked: TrackedRequest, after: int) -> bool:
        wanted = self._save_tails and tracked.whole is not None and not tracked.handed_over
        return wanted and after >= tracked.prompt and (not self._has_states or after == tracked.prompt)

    def _new(self, group: Group, tracked: TrackedRequest, new: range) -> list[tuple[int, int]]:
        """Choose which of a group's new blocks a hit can need: their numbers, and where they end."""
        request, unit, size = tracked.request, self._alignment, group.block_size
        if group.reach is Reach.ALL or not self._full or not new:  # alone, nobody could tell where prompts fork off
            return [(number, (number + 1) * size) for number in new]
        ends = {tracked.prompt, tracked.prompt // unit * unit, request.num_prompt_tokens // unit * unit, tracked.fork}
        needed = [group.needed(end) for end in ends]
        return [
            (number, (number + 1) * size)
            for number in new
            if (number + 1) * size > request.num_prompt_tokens or any(number in each for each in needed)
        ]

    def _states(
        self, group: Group, tracked: TrackedRequest, before: int, after: int, known: int, drafts: int
    ) -> list[tuple[int, int]]:
        """The states before and after this step, if prefixes with a hash end there.

        That before it is not written to: the step goes on from a copy. When it was computed, its last token may not
        have been known yet, as vLLM begins a step before the tokens of the one before are there.
        """
        found = []
        for end in (before, after):
            ends_block = end % self._alignment == 0 and end <= known and group.has_hashed_states
            ends_prompt = end == after == tracked.prompt and self._save_tails and not tracked.handed_over
            if end and (ends_block or ends_prompt) and end > tracked.stored_state and not drafts:
                found.append(((end - 1) // group.block_size, end))
        return found

    def _tail(self, group: Group, tracked: TrackedRequest) -> list[tuple[int, int]]:
        """The blocks of a prompt that are found by the hash of all of it: the last one, or all if blocks have none."""
        if not self._has_states and (tracked.prompt + 1) % group.block_size == 0:  # `_end`: found by its own hash
            return []
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


def _name(group: Group, key: bytes) -> bytes:
    return group.number.to_bytes(2, "little") + key


def _by_need(group: Group) -> int:
    """The groups of which a hit needs least come first: their answers tell of the others."""
    return 0 if group.reach is Reach.STATE else 1


_SHORTENED = "nanokv.shortened"  #: in kv_transfer_params of a request whose last token was left to decode
