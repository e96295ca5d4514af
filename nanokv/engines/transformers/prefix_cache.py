"""A model and a cache, joined: makes the `past_key_values` of prompts, filled with what is stored of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanokv.arguments import integer
from nanokv.cache import NanoKVCache
from nanokv.engines.transformers.blocks import BlockStore, ReuseStats, Target
from nanokv.engines.transformers.keys import KeyChain
from nanokv.engines.transformers.layers import block_shape, check_model, check_precision, new_layers
from nanokv.engines.transformers.model_root import model_root, state_of
from nanokv.engines.transformers.prompt_kv import PromptKV, RowKeys
from nanokv.engines.transformers.watch import watch
from nanokv.errors import InvalidArgument
from nanokv.terms import Hold, check_hold

_INTEGERS = (torch.int64, torch.int32)


class PrefixCache:
    """Shares the KV of prefixes between all processes that have the same model, and a cache of the same world.

        prefixes = PrefixCache(model, cache)
        kv = prefixes.load(input_ids)
        output = model.generate(input_ids, past_key_values=kv)

    `load` reads the longest stored prefix; blocks that `generate` computes, of prompt and answer, are stored.

    Args:
        model: a PreTrainedModel on one device, in evaluation mode: decoder only, text only, whose layers keep the keys
            and values of each token. Its weights, its dtype, its device and its adapters must not change afterwards.
        cache: any rank's; `get` and `put` of it are used, and it is not closed.
        block_tokens: tokens of a block; the same in all processes.
        eager: store each block as soon as it is full. False: only when `PromptKV.store` is called.
        model_id: a name that stands for the weights, such as "name@revision". Default: their digest, which reads all
            of them once.
        adapter: names the adapters that are active.
        tenant: prompts of other tenants share nothing with those of this one.

    Raises:
        InvalidArgument: the model's KV does not depend on tokens alone, or a block of it has no one shape.

    Attributes:
        stats: counts of what was reused and stored (`ReuseStats`).
        shape: of a block (`BlockShape`).
    """

    def __init__(
        self,
        model: Any,
        cache: NanoKVCache,
        *,
        block_tokens: int = 16,
        eager: bool = True,
        model_id: str | None = None,
        adapter: str = "",
        tenant: str = "",
    ) -> None:
        if not isinstance(cache, NanoKVCache):
            raise InvalidArgument(f"cache must be a NanoKVCache, not {type(cache).__name__}")
        if not isinstance(eager, bool):
            raise InvalidArgument(f"eager must be True or False, not {eager!r}")
        check_model(model)
        check_precision(model)
        self.model = model
        self.eager = eager
        self.block_tokens = integer("block_tokens", block_tokens, 1)
        self.shape = block_shape(model, self.block_tokens)
        self.stats = ReuseStats()
        self._cache = cache
        self._blocks = BlockStore(cache, self.shape, self.stats)
        layout = f"{self.shape.dims} {self.shape.dtype}"
        self._chain = KeyChain(
            model_root(model, layout, model_id=model_id, adapter=adapter, tenant=tenant), self.block_tokens
        )
        self._pad, self._fillers = _pads(model.generation_config)
        self._state = state_of(model)
        watch(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> PrefixCache:
        return self  # a copied PromptKV stores where its original does

    def check_unchanged(self) -> None:
        """Refuse to go on with another model than the one that the keys are made for.

        Raises:
            InvalidArgument: it has other weights, another dtype or device, or other adapters.
        """
        if state_of(self.model) != self._state:
            raise InvalidArgument(
                "the model has changed since its PrefixCache was made (weights, dtype, device, or adapters), and its "
                "KV would get the keys of what it was: make a new PrefixCache"
            )

    def keys(self, tokens: Sequence[int]) -> list[bytes]:
        """The key of each whole block of a text, for `wait` or `remove` of the cache."""
        return self._chain.keys(tokens)

    def load(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        preferred_segment: int | None = None,
        hold: float | Hold | None = None,
    ) -> PromptKV:
        """The `past_key_values` for prompts, filled with their longest stored prefix of whole blocks.

        The last prompt token is never filled in: the model computes it, because the first new token comes from it. All
        rows get as many columns as the row with the shortest prefix has.

        Args:
            input_ids: [rows, tokens], as `generate` gets it.
            attention_mask: [rows, tokens], as `generate` gets it: 0 for pads, which may stand at the left only.
                Default: as in `generate`, no pads, or the model's pad token if it is not an end token too.
            preferred_segment: the rank in whose segment blocks of these prompts are stored.
            hold: a lease in seconds for them: see `NanoKVCache.put`.

        Raises:
            InvalidArgument: the arguments are not as above, or the model has changed. CacheClosed.
        """
        self.check_unchanged()
        prompt, pads = self._checked_prompt(input_ids, attention_mask)
        if preferred_segment is not None:
            preferred_segment = integer("preferred_segment", preferred_segment, 0, self._cache.world_size - 1)
        check_hold(hold)
        rows = [RowKeys(pad) for pad in pads]
        kv = PromptKV(self, new_layers(self.model.config), prompt, rows, Target(preferred_segment, hold))
        self._fill(kv, prompt, pads)
        self.stats.prompts += len(pads)
        self.stats.tokens_asked += prompt.numel() - sum(pads)
        self.stats.tokens_reused += kv.tokens_reused
        return kv

    def _fill(self, kv: PromptKV, prompt: torch.Tensor, pads: list[int]) -> None:
        size, most = self.block_tokens, prompt.shape[1] - 1
        rows = [self.keys(tokens[pad:]) for tokens, pad in zip(prompt.tolist(), pads, strict=True)]
        for row, pad in enumerate(pads):  # how many columns, at most
            most = min(most, pad + size * self._blocks.present(rows[row][: -(-max(most - pad, 0) // size)]))
        counts = [-(-max(most - pad, 0) // size) for pad in pads]
        if not any(counts):
            return
        layers, _, heads, _, dim = self.shape.dims
        width = max(pad + size * count for pad, count in zip(pads, counts, strict=True))
        make = torch.zeros if any(pads) else torch.empty  # the KV of pads is hidden, and must be finite
        planes = make(layers, 2, len(pads), heads, width, dim, dtype=self.shape.dtype, device=self.model.device)
        for row, (pad, count) in enumerate(zip(pads, counts, strict=True)):
            got = self._blocks.read(rows[row][:count], planes[:, :, row].narrow(3, pad, size * count))
            rows[row] = rows[row][:got]
            if got < count:
                most = min(most, pad + size * got)
        if any(most > pad for pad in pads):
            kv.fill(planes.narrow(4, 0, most), rows)

    def store_new(self, kv: PromptKV, rows: Sequence[RowKeys], target: Target) -> int:
        """Put the blocks of a PromptKV that are new, and note their keys in `rows`; returns how many were stored."""
        stored = 0
        for number, row in enumerate(rows):
            start = row.pads + len(row.keys) * self.block_tokens
            tokens = kv.tokens[number, start:].tolist()
            end = self._end(tokens, kv.prompt_length - start)
            new = self._chain.keys(tokens[:end], row.keys[-1] if row.keys else None)
            row.keys += new
            if fresh := [key for key in new if key not in kv.settled]:  # the last ones: keys are chained
                first = row.pads + (len(row.keys) - len(fresh)) * self.block_tokens
                stored += self._blocks.put(fresh, kv.layers, number, first, target)
                kv.settled.update(fresh)
        return stored

    def _end(self, tokens: Sequence[int], least: int) -> int:
        """Without the pads that `generate` appends to a row that has ended before the others."""
        end = len(tokens)
        while end > max(least, 0) and tokens[end - 1] in self._fillers:
            end -= 1
        return end

    def _checked_prompt(self, input_ids: Any, mask: Any) -> tuple[torch.Tensor, list[int]]:
        """The tokens on the model's device, and the number of pads of each row."""
        if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or input_ids.dtype not in _INTEGERS:
            raise InvalidArgument("input_ids must be a tensor [rows, tokens] of int64 or int32")
        if not input_ids.numel():
            raise InvalidArgument(f"input_ids must have a row and a token, not the shape {list(input_ids.shape)}")
        if mask is None:
            mask = input_ids != self._pad if self._pad is not None else torch.ones_like(input_ids)
        if not isinstance(mask, torch.Tensor) or mask.shape != input_ids.shape:
            raise InvalidArgument(f"attention_mask must be a tensor of the shape of input_ids, {list(input_ids.shape)}")
        seen = (mask != 0).to("cpu")
        pads = seen.shape[1] - seen.sum(1)
        if bool((seen != (torch.arange(seen.shape[1], device="cpu") >= pads[:, None])).any()) or not bool(
            seen[:, -1].all()
        ):
            raise InvalidArgument(
                "a prompt's pads must stand at its left: padding_side='left'. Without attention_mask, every pad token "
                "of the model counts as a pad"
            )
        return input_ids.to(self.model.device, torch.long), pads.tolist()


def _pads(config: Any) -> tuple[int | None, frozenset[int]]:
    """Of a GenerationConfig: the token that `generate` takes for a pad in prompts, and those that it pads answers with.

    An end token in a prompt is no pad; without a pad token, `generate` pads answers with an end token.
    """
    ends = config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    pad = config.pad_token_id
    return (None if pad in ends else pad), frozenset(ends if pad is None else {pad})
