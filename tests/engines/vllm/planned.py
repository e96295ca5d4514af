"""An engine without a model: vLLM's scheduler and KV cache, of any groups of layers, and both sides of the connector.

In place of KV, each layer writes marks of the prefix that ends at a token; before it computes a token, it looks whether
the marks of all that its attention would read are in the blocks of its table. So kinds of models are tried that no CPU
runs; and whatever is wrong in one word of one layer is seen.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import xxhash
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    get_request_block_hasher,
    init_none_hash,
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache

VOCABULARY = 1000
_LOOKS = 16  #: tokens: a request that goes on as it was looks only so often
_STEPS = 5000  #: more than any run takes


class Wrong(AssertionError):
    """A layer would read what is not the KV of its prefix."""


class PlannedEngine:
    """One engine.

    Args:
        config: of vLLM, with a connector.
        specs: of each layer.
        memory: bytes of the cache.
        before: the layers of a stage of a pipeline before these, which is planned and does not run.
    """

    def __init__(
        self,
        config: VllmConfig,
        specs: dict[str, KVCacheSpec],
        memory: int,
        before: dict[str, KVCacheSpec] | None = None,
    ) -> None:
        layout = next(iter(KVCacheLayout))
        stages = [specs] if before is None else [before, specs]
        config.cache_config.kv_cache_layout = layout.name
        with set_current_vllm_config(config):
            caches = get_kv_cache_configs(config, stages, [memory] * len(stages))
            planned, cache = generate_scheduler_kv_cache_config(caches), caches[-1]
            config.cache_config.num_gpu_blocks = planned.num_blocks
            config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in planned.kv_cache_groups)
            size, unit = resolve_kv_cache_block_sizes(planned, config)
            for each in (*caches, planned):
                each.hash_block_size = unit
                each.cache_hit_alignment_tokens = resolve_cache_hit_alignment_tokens(planned, config, size, unit)
            self.scheduler = Scheduler(config, planned, StructuredOutputManager(config), size, unit)
            self.worker: Any = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, cache)
            self.caches = allocate_kv_cache(cache, torch.device("cpu"), layout)
            self.worker.register_kv_caches(self.caches)
        self.groups = [
            (group.layer_names, next(iter(iter_layer_specs(group.kv_cache_spec))), group.kv_cache_spec.block_size)
            for group in cache.kv_cache_groups
        ]
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(unit, sha256)
        self._marks: dict[str, list[bytes]] = {}
        self._computed: dict[str, int] = {}
        self._number = 0
        self.loaded: list[int] = []  #: by request of the last run: tokens that came from NanoKV

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, together: bool = True) -> list[list[int]]:
        """The tokens after each prompt, which depend on all of it.

        Raises:
            Wrong: a layer would have read something else than the KV of the prefix.
        """
        self.loaded = []
        if not together:
            found = [(self.run([prompt], tokens)[0], self.loaded[0]) for prompt in prompts]
            self.loaded = [loaded for _, loaded in found]
            return [answer for answer, _ in found]
        requests = []
        for prompt in prompts:
            request = self.request(prompt, tokens)
            requests.append(request)
            self.scheduler.add_request(request)
        external = dict.fromkeys((request.request_id for request in requests), 0)
        connector: Any = self.scheduler.get_kv_connector()
        allocated = connector.update_state_after_alloc

        def noted(request: Request, blocks: Any, count: int) -> None:
            external[request.request_id] += count
            allocated(request, blocks, count)

        connector.update_state_after_alloc = noted
        for _ in range(_STEPS):
            if not self.scheduler.has_unfinished_requests():
                break
            self._step()
        else:
            raise AssertionError("it does not end")
        self._step()  # tells of those that have ended
        connector.update_state_after_alloc = allocated
        self.loaded = [external[request.request_id] for request in requests]
        return [list(request.output_token_ids) for request in requests]

    def request(self, prompt: Sequence[int], tokens: int, **more: Any) -> Request:
        """A new request, which has not come yet."""
        self._number += 1
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, VOCABULARY + 1)
        given = {"sampling_params": sampling, "pooling_params": None, "block_hasher": self._hasher} | more
        return Request(f"r{self._number}", list(prompt), **given)

    @property
    def stored(self) -> int:
        """Bytes of what is stored in NanoKV."""
        cache = self.cache
        cache.flush()
        return int(sum(cache.engine.poller.index.rows()[1]["bytes_total"].tolist()))

    @property
    def cache(self) -> Any:
        """The worker's own."""
        return self.worker._worker.cache

    def forget(self) -> None:
        """Empty the engine's own prefix cache, and all of its memory."""
        assert self.scheduler.reset_prefix_cache()
        for cache in self.caches.values():
            cache.view(torch.uint8).fill_(0xEE)

    def _step(self) -> None:
        output = self.scheduler.schedule()
        self.worker.bind_connector_metadata(output.kv_connector_metadata)
        self.worker.start_load_kv(None)
        sampled = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            after = request.num_computed_tokens
            self._compute(request, after - count, after)
            is_last = after == request.num_tokens
            sampled.append([int.from_bytes(self._mark(request, after)[:4], "little") % VOCABULARY] if is_last else [])
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(output.finished_req_ids)
        told = KVConnectorOutput(
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
        )
        self.worker.clear_connector_metadata()
        names = list(output.num_scheduled_tokens)
        places = {name: place for place, name in enumerate(names)}
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, places, sampled_token_ids=sampled, kv_connector_output=told)
        )

    # --- the model ---
    def _mark(self, request: Request, count: int) -> bytes:
        """Of the first tokens of a request."""
        marks = self._marks.setdefault(request.request_id, [b""])
        for token in request.all_token_ids[len(marks) - 1 : count]:
            marks.append(xxhash.xxh3_128_digest(marks[-1] + int(token).to_bytes(4, "little")))
        return marks[count]

    def _compute(self, request: Request, before: int, after: int) -> None:
        goes_on = self._computed.get(request.request_id) == before and before % _LOOKS
        self._computed[request.request_id] = after
        tables = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        for (names, spec, size), table in zip(self.groups, tables, strict=True):
            for name in names:
                cache = self.caches[name].view(torch.uint8)
                for position in () if goes_on else _read(spec, before):
                    place = _place(cache, spec, size, table, position)
                    if table[position // size] == 0 or not torch.equal(place, self._kv(request, position, name, place)):
                        raise Wrong(
                            f"{name}, {type(spec).__name__}: token {position} of {before}, {request.request_id}"
                        )
                for position in [after - 1] if isinstance(spec, MambaSpec) else range(before, after):
                    place = _place(cache, spec, size, table, position)
                    place.copy_(self._kv(request, position, name, place))

    def _kv(self, request: Request, position: int, layer: str, like: torch.Tensor) -> torch.Tensor:
        """What a layer stores of a token."""
        mark = xxhash.xxh3_128_digest(self._mark(request, position + 1) + layer.encode())
        some = torch.frombuffer(bytearray(mark), dtype=torch.uint8)
        return some.repeat(-(-like.numel() // len(mark)))[: like.numel()].view(like.shape)


def _read(spec: KVCacheSpec, before: int) -> Iterator[int]:
    """The tokens whose KV attention reads for the token after the first ones: those, or a state at the last one."""
    first = 0
    if isinstance(spec, SlidingWindowSpec):
        first = before - spec.sliding_window + 1
    if isinstance(spec, ChunkedLocalAttentionSpec):
        first = before // spec.attention_chunk_size * spec.attention_chunk_size
    if isinstance(spec, MambaSpec):
        first = before - 1
    yield from range(max(first, 0), before)


def _place(cache: torch.Tensor, spec: KVCacheSpec, size: int, table: Sequence[int], position: int) -> torch.Tensor:
    block = cache[table[position // size]]  # [heads, tokens, bytes]
    return block if isinstance(spec, MambaSpec) else block[:, position % size]
