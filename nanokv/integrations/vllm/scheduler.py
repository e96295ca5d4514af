"""The scheduler's side: which blocks of a request are loaded, and which are stored. It touches no KV.

A request's blocks are known by the engine's own chained hashes, so a prefix that requests share has the same keys.
Blocks are numbered from the beginning of the request. The last one of a prompt may be partly filled (`tails.py`).

A request that does not wait for its load computes beside it, and if the load fails, on blocks that hold anything: vLLM
computes that again when it hears of it. So nothing is stored of a step with such loads, nor of those that begin before
their outcome is known, of any request: prefixes are shared. It is stored by the next step of its request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nanokv.integrations.vllm.metadata import TARGET_PARAMETER, BlockLoad, BlockSave, Step
from nanokv.integrations.vllm.tails import Tails

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

NULL_BLOCK = 0  #: vLLM's number of no block: in its place are tokens outside of a window, which nobody reads any more


@dataclass(slots=True)
class TrackedRequest:
    """A request that has blocks."""

    request: "Request"
    tail: bytes | None  #: the hash of the prompt's last block, if its tokens do not fill it
    resets: int  #: how many this engine had asked for when the request's first token was computed
    saved: int = 0  #: full blocks that were given to the workers to be stored
    tail_saved: bool = False
    asked_from: int = 0  #: the first block of the last question
    asked: list[bytes] = field(default_factory=list)  #: the hashes of the last question
    loading: set[int] = field(default_factory=set)  #: blocks of the cache that are being filled
    lost: bool = False  #: a load has failed: what is missing is computed, not asked for again


class PrefixSource(Protocol):
    """The workers, as `lookup.Workers`."""

    def prefix_length(self, hashes: Sequence[bytes]) -> int: ...

    def reset(self, number: int) -> bool: ...


class SchedulerSide:
    """Decides for one scheduler.

    Args:
        block_size: tokens per block.
        tails: the hashes of partly filled blocks.
        workers: of whom it asks how many of the first blocks can be loaded.
        loads, stores: what this engine does.
        waits: True if a request waits for its load outside of steps.
        target: the rank in whose segment blocks are stored, unless a request names another one.
        ranks: of the world: a request that names none of them is not stored.
        save_generated: whether blocks that hold generated tokens are stored.
        save_tails: whether partly filled blocks of prompts are stored.
        in_flight: how many steps begin at most before the outcome of the first one is known.
    """

    def __init__(
        self,
        block_size: int,
        tails: Tails,
        workers: PrefixSource,
        *,
        loads: bool,
        stores: bool,
        waits: bool,
        target: int,
        ranks: int,
        save_generated: bool,
        save_tails: bool,
        in_flight: int,
    ) -> None:
        self._block_size = block_size
        self._tails = tails
        self.workers = workers
        self._loads, self._stores, self._waits = loads, stores, waits
        self._target, self._ranks = target, ranks
        self._save_generated, self._save_tails = save_generated, save_tails
        self._in_flight, self._silent = in_flight, 0  # steps that store nothing
        self._resets = 0
        self._requests: dict[str, TrackedRequest] = {}
        self._step = Step()

    def matched_tokens(self, request: "Request", computed: int) -> tuple[int, bool]:
        """How many tokens after the first `computed` ones can be loaded, and whether the request waits for them.

        The last token of a request is always computed: it gives the first logits.
        """
        tracked = self._tracked(request)
        if tracked.resets != self._resets:  # it is computed anew
            tracked.resets, tracked.saved, tracked.tail_saved = self._resets, 0, False
        first = tracked.asked_from = computed // self._block_size
        tracked.asked = self._askable(tracked, first)
        unwanted = request.skip_reading_prefix_cache  # logprobs of the prompt: vLLM computes all of it
        if not self._loads or unwanted or tracked.lost or not tracked.asked:
            return 0, False
        found = first + self.workers.prefix_length(tracked.asked)
        tokens = min(found * self._block_size, request.num_tokens - 1) - computed
        return max(tokens, 0), self._waits and tokens > 0

    def _askable(self, tracked: TrackedRequest, first: int) -> list[bytes]:
        """The hashes of a request's blocks from `first` on, the prompt's tail included."""
        request = tracked.request
        full = min(request.num_tokens // self._block_size, len(request.block_hashes))
        hashes = list(request.block_hashes[first:full])
        at_tail = request.num_tokens == request.num_prompt_tokens and first <= full
        return [*hashes, tracked.tail] if tracked.tail is not None and at_tail else hashes

    def allocated(self, request: "Request", blocks: "KVCacheBlocks", external: int) -> None:
        """The request has blocks; `external` of its tokens are to be loaded into those after the computed ones."""
        tracked = self._tracked(request)
        if external <= 0:
            return
        first, count = tracked.asked_from, -(-external // self._block_size)
        places = blocks.get_block_ids()[0][first : first + count]
        needed = [(key, place) for key, place in zip(tracked.asked, places, strict=False) if place != NULL_BLOCK]
        hashes, targets = [key for key, _ in needed], [place for _, place in needed]
        self._step.loads.append(BlockLoad(request.request_id, hashes, targets, whole=len(needed) < count))
        tracked.loading = set(targets)

    def _tracked(self, request: "Request") -> TrackedRequest:
        tracked = self._requests.get(request.request_id)
        if tracked is None or tracked.request is not request:
            tracked = self._requests[request.request_id] = TrackedRequest(
                request, self._tails.hash(request), self._resets
            )
        return tracked

    def build(self, output: "SchedulerOutput") -> Step:
        """The work of this step."""
        if self._may_store() and self._stores:
            for name, tokens in output.num_scheduled_tokens.items():
                drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
                self._save(name, tokens - drafts, output)
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

    def _save(self, name: str, tokens: int, output: "SchedulerOutput") -> None:
        tracked, state = self._requests.get(name), output.kv_connector_block_state
        if tracked is None or state is None:
            return
        request, size = tracked.request, self._block_size
        before, after = request.num_computed_tokens, request.num_computed_tokens + tokens
        known = request.num_tokens if self._save_generated else request.num_prompt_tokens
        full = min(min(after, known) // size, len(request.block_hashes))
        new = range(tracked.saved, full)
        hashes = [request.block_hashes[i] for i in new]
        fresh = [min(max((i + 1) * size - before, 0), size) for i in new]
        numbers = [*new]
        if self._tail_is_due(tracked, after):
            assert tracked.tail is not None
            hashes, fresh, numbers = [*hashes, tracked.tail], [*fresh, 0], [*numbers, request.num_prompt_tokens // size]
        places = state.get_block_ids(name) if numbers else None
        if places is None:
            return
        there = [at for at, i in enumerate(numbers) if places[0][i] != NULL_BLOCK]
        blocks = [places[0][numbers[at]] for at in there]
        hashes, fresh = [hashes[at] for at in there], [fresh[at] for at in there]
        reader = (request.kv_transfer_params or {}).get(TARGET_PARAMETER, self._target)
        if type(reader) is int and 0 <= reader < self._ranks:
            self._step.saves.append(BlockSave(hashes, blocks, fresh, reader, tracked.resets))
        else:
            self._step.misdirected.append((repr(reader), len(blocks)))
        tracked.saved, tracked.tail_saved = max(tracked.saved, full), tracked.tail_saved or len(numbers) > len(new)

    def _tail_is_due(self, tracked: TrackedRequest, computed: int) -> bool:
        wanted = self._save_tails and tracked.tail is not None and not tracked.tail_saved
        return wanted and computed >= tracked.request.num_prompt_tokens

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
