"""An engine in a process of its own (`fork_server`): one command per line of stdin, one answer per line.

The first line holds the arguments of `vllm.LLM`. A command is `{"do": name, ...}`, an answer `{"ok": ...}` or
`{"error": ...}`. Everything that libraries print goes to stderr.
"""

import faulthandler
import functools
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

TIMED = (  # what vLLM calls in a step, on both sides
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
)


class Child:
    """The engine, and what its parent may ask of it."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        for name in arguments.pop("before", ()):  # functions of modules, to be called before the engine is made
            module, _, function = name.partition(":")
            getattr(importlib.import_module(module), function)()
        for name in arguments.pop("before", ()):  # functions of modules, to be called before the engine is made
            module, _, function = name.partition(":")
            getattr(importlib.import_module(module), function)()
        from vllm import LLM
        from vllm.config import KVTransferConfig

        if "kv_transfer_config" in arguments:
            arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
        self._llm = LLM(**arguments)
        self._engine = self._llm.llm_engine
        self._requests = 0
        self._preemptions = 0
        scheduler = self._engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def preempt_counted(*args: Any, **keywords: Any) -> Any:
            self._preemptions += 1
            return preempt(*args, **keywords)

        scheduler._preempt_request = preempt_counted
        self._connector_seconds = 0.0
        self._steps: list[tuple[float, float]] = []

    # --- commands ---
    def generate(
        self,
        prompts: list[list[int]],
        tokens: int,
        abort_after: int = 0,
        reset_after: int = 0,
        parameters: dict[str, Any] | None = None,
        salt: str | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        adapter: tuple[str, int, str] | None = None,
    ) -> dict[str, Any]:
        """Greedy tokens after each prompt, all requests together.

        abort_after: steps after which every second request is aborted.
        reset_after: steps after which both caches are emptied; what runs then begins anew.
        logprobs: so many tokens of each step are told with their logarithms of probabilities.
        prompt_logprobs: the same of each token of the prompt but the first; vLLM then computes all of the prompt.
        adapter: name, number and folder of a LoRA adapter.
        """
        greedy: dict[str, Any] = {"temperature": 0, "max_tokens": tokens, "detokenize": False, "ignore_eos": True}
        greedy |= {"logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
        names = [self._add(prompt, greedy, parameters, salt, adapter) for prompt in prompts]
        started, results, first, steps = time.perf_counter(), dict.fromkeys(names), dict.fromkeys(names), 0
        processor = time.process_time()
        while self._engine.has_unfinished_requests():
            if abort_after and steps == abort_after:
                self._engine.abort_request([name for name in names[::2] if results[name] is None])
            if reset_after and steps == reset_after:
                assert self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            for output in self._step():
                if output.outputs and output.outputs[0].token_ids and first[output.request_id] is None:
                    first[output.request_id] = time.perf_counter() - started
                if output.finished:
                    results[output.request_id] = output
            steps += 1
        ends = [results[name] for name in names]
        return {
            "tokens": [list(end.outputs[0].token_ids) if end else None for end in ends],
            "reasons": [end.outputs[0].finish_reason if end else None for end in ends],
            "logprobs": [_logprobs(end.outputs[0].logprobs) if end else None for end in ends],
            "prompt_logprobs": [_logprobs(end.prompt_logprobs) if end else None for end in ends],
            "cached": [end.num_cached_tokens if end else None for end in ends],
            "first": [first[name] for name in names],
            "seconds": time.perf_counter() - started,
            "cpu": time.process_time() - processor,  # of all threads of the engine's process
            "steps": steps,
        }

    def encode(self, prompts: list[list[int]], task: str) -> list[Any]:
        """What a model makes of each prompt that generates nothing: a vector (`embed`), or one per token
        (`token_embed`)."""
        given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        kind: Any = task
        return [each.outputs.data.tolist() for each in self._llm.encode(given, pooling_task=kind, use_tqdm=False)]

    def _add(
        self,
        prompt: list[int],
        greedy: dict[str, Any],
        parameters: dict[str, Any] | None,
        salt: str | None,
        adapter: tuple[str, int, str] | None,
    ) -> str:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        self._requests += 1
        name = f"request-{self._requests}"
        extra = {"kv_transfer_params": parameters} if parameters else None
        sampling = SamplingParams(**greedy, extra_args=extra)
        given: Any = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
        self._engine.add_request(name, given, sampling, lora_request=LoRARequest(*adapter) if adapter else None)
        return name

    def _step(self) -> list[Any]:
        before, started = self._connector_seconds, time.perf_counter()
        outputs: list[Any] = self._engine.step()
        self._steps.append((time.perf_counter() - started, self._connector_seconds - before))
        return outputs

    def forget(self) -> bool:
        """Empty the engine's own prefix cache."""
        return bool(self._engine.reset_prefix_cache())

    def reset_connector(self) -> bool:
        """Empty the engine's own prefix cache, and what is stored in NanoKV."""
        return bool(self._engine.reset_prefix_cache(reset_connector=True))

    def reset_connector_in_step(self, after: int) -> None:
        """Empty what is stored in NanoKV, once: between the plan and the execution of the step after so many."""
        core = self._engine.engine_core.engine_core
        execute, left = core.model_executor.execute_model, after

        def execute_model(*args: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                core.model_executor.execute_model = execute
                assert core.scheduler.reset_connector_cache()
            return execute(*args, **keywords)

        core.model_executor.execute_model = execute_model

    def preemptions(self) -> int:
        """How many times the engine has preempted a request."""
        return self._preemptions

    def stats(self) -> list[dict[str, Any]]:
        """The statistics of each worker's cache."""
        return self._each_worker(worker_stats)

    def alter(self, every: int = 1) -> int:
        """Double the values of every so many objects in the segments of this engine; returns how many were altered."""
        return sum(self._each_worker(functools.partial(alter_stored, every=every)))

    def drop(self, after_lookup: bool) -> int:
        """Remove all stored blocks; or only between the next look-up that finds some, and its load."""
        if not after_lookup:
            return sum(self._each_worker(drop_stored))
        workers = _nanokv(self._scheduler_connector())._scheduler.workers
        ask = workers.found

        def found(asked: Any) -> list[bytes]:
            answers: list[bytes] = ask(asked)
            if any(map(any, answers)):
                self._each_worker(drop_stored)
                workers.found = ask
            return answers

        workers.found = found
        return 0

    def time_connector(self) -> None:
        """From now on measure how long the engine is inside of the connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        for connector in (get_kv_transfer_group(), self._scheduler_connector()):
            for name in TIMED:
                setattr(connector, name, self._timed(getattr(connector, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                self._connector_seconds += time.perf_counter() - started

        return timed

    def steps(self) -> list[tuple[float, float]]:
        """The seconds of each step since the last call, and those inside of the connector."""
        steps, self._steps = self._steps, []
        return steps

    # --- parts of the engine ---
    def _each_worker(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function of this module in each worker's process."""
        return list(self._engine.engine_core.engine_core.model_executor.collective_rpc(function))

    def _scheduler_connector(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler.get_kv_connector()

    def close(self) -> None:
        """Leave the world, as vLLM does when it ends."""
        self._each_worker(leave)


def _logprobs(steps: Any) -> list[dict[int, float]]:
    """The logarithms of probabilities of each step, by token."""
    return [{token: each.logprob for token, each in step.items()} for step in steps or () if step is not None]


# --- in a worker's process: each takes vLLM's worker ---
def worker_stats(worker: Any) -> dict[str, Any]:
    """The plain values of `NanoKVCache.stats`."""
    cache = _cache()
    cache.flush()
    return {name: value for name, value in cache.stats().items() if isinstance(value, int | float | str)}


def alter_stored(worker: Any, every: int) -> int:
    """Double the values of every so many objects in this rank's segment."""
    cache = _cache()
    cache.flush()
    # in place: the objects may be of writers with other identities, whose digests this cache refuses
    dtype, segment = worker.model_config.dtype, cache.engine.heap.segment(cache.rank)
    records = cache.engine.poller.index.rows()[1][::every]
    for base, nbytes in zip(records["payload_base"].tolist(), records["bytes_total"].tolist(), strict=True):
        segment[base : base + nbytes].view(dtype).mul_(2)
    return len(records)


def drop_stored(worker: Any) -> int:
    """Remove what is in this rank's segment."""
    return int(_cache().clear())


def leave(worker: Any) -> None:
    """End the connector."""
    from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

    ensure_kv_transfer_shutdown()


def _cache() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return _nanokv(get_kv_transfer_group())._worker.cache


def _nanokv(connector: Any) -> Any:
    """The NanoKV connector, also inside of a MultiConnector."""
    children = getattr(connector, "sub_connectors", [connector])
    return next(child for child in children if type(child).__name__ == "NanoKVConnector")


def main() -> None:
    """Answer until stdin ends."""
    faulthandler.enable()  # a crash is told in the log
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    child: Child | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if child is None:
                child, answer = Child(command), None
            else:
                answer = getattr(child, command.pop("do"))(**command)
            print(json.dumps({"ok": answer}), file=out, flush=True)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)
            if child is None:
                return
    if child is not None:
        child.close()
