"""`python -m bench.generate`: transformers' `generate` with a PrefixCache, beside `generate` without.

All ways are timed in turns, so that a busy machine slows all of them. Answers are compared: equal, or the run fails.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import nanokv
from nanokv.bench.suite import environment

HEAP_BYTES = 256 << 20
VOCABULARY = 4096
WAYS = ("plain", "nothing stored", "all stored")


def make_model(layers: int, hidden: int) -> Any:
    """A Llama with random weights, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def ask(model: Any, prompt: torch.Tensor, tokens: int, load: Callable[[], Any] | None) -> tuple[float, list[int]]:
    """Seconds of loading and generating; and all tokens, the prompt's too."""
    start = perf_counter()
    options = {} if load is None else {"past_key_values": load()}
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, **options
    )
    return perf_counter() - start, out[0].tolist()


def run(given: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Median seconds, by way and number of tokens generated."""
    from nanokv.integrations.transformers import PrefixCache

    model = make_model(given.layers, given.hidden)
    prompt = torch.randint(VOCABULARY, (1, given.prompt), generator=torch.Generator().manual_seed(1))
    counts = (1, 1 + given.tokens)
    times: dict[tuple[str, int], list[float]] = {(way, count): [] for way in WAYS for count in counts}
    with nanokv.local_world(1, HEAP_BYTES)[0] as cache:
        stored = PrefixCache(model, cache, model_id="stored")
        ask(model, prompt, 1, partial(stored.load, prompt))
        for lap in range(given.rounds + 1):
            for count in counts:
                fresh = PrefixCache(model, cache, model_id=f"lap {lap}, {count}")
                loads = (None, partial(fresh.load, prompt), partial(stored.load, prompt))
                answers = [ask(model, prompt, count, load) for load in loads]
                if any(tokens != answers[0][1] for _, tokens in answers):
                    raise SystemExit("the answers differ")
                for way, (seconds, _) in zip(WAYS, answers, strict=True):
                    times[way, count] += [seconds] * bool(lap)  # the first lap warms up
                cache.remove_many(fresh.keys(answers[0][1]))
    return {way: {count: statistics.median(times[way, count]) for count in counts} for way in WAYS}


def table(found: dict[str, dict[int, float]]) -> Table:
    """The medians, and their ratios to plain generation."""
    made = Table("", "first token, ms", "x", "each further token, ms", "x", "whole answer, s", "x")
    plain = _figures(found["plain"])
    for way in WAYS:
        mine = _figures(found[way])
        cells = [
            cell
            for value, base, unit in zip(mine, plain, (1e3, 1e3, 1), strict=True)
            for cell in (f"{value * unit:.3g}", f"{value / base:.2f}")
        ]
        made.add_row(way, *cells)
    return made


def _figures(of: dict[int, float]) -> tuple[float, float, float]:
    (one, first), (most, whole) = sorted(of.items())
    return first, (whole - first) / (most - one), whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.generate", description=__doc__)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate after the first")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    machine = environment.machine()
    console = Console(width=100)
    console.print(f"{machine['cpu']}, load {machine['load_average']:.1f}, torch with one thread, prompt {given.prompt}")
    console.print(table(run(given)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
