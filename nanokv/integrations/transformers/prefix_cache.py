"""A model and a cache, joined: makes the `past_key_values` of prompts, filled with what is stored of them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import xxhash

from nanokv.allocation.terms import Hold, check_hold
from nanokv.arguments import integer
from nanokv.cache.cache import NanoKVCache
from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.integrations.transformers.blocks import BlockStore, PromptTarget, ReuseStats
from nanokv.integrations.transformers.layers import block_shape, check_model, check_precision, new_layers
from nanokv.integrations.transformers.prompt_kv import PromptKV, RowKeys
from nanokv.transfer.descriptors import flat_bytes

# --- where the chains of a model begin: a digest of everything beside the tokens that its KV depends on ---
# Two processes share blocks if this digest is the same in both. It covers the values of the weights: a name tells
# nothing of a checkpoint that was trained further, or of a model that was made in memory.
#: of a configuration: they may differ where the KV does not; the layout names the dtype
_UNRELATED = ("_name_or_path", "transformers_version", "dtype", "architectures", "use_cache", "id2label", "label2id")


def model_root(model: Any, layout: str, *, model_id: str | None, adapter: str, tenant: str) -> bytes:
    """The root of a model's chains of keys, 32 bytes.

    Args:
        model: a PreTrainedModel.
        layout: names shape and dtype of a block.
        model_id: stands for the weights; None: their digest does, which reads all of them once.
        adapter: names the adapters that are active.
        tenant: separates users who must not notice each other's prompts.

    Raises:
        InvalidArgument: the model has adapters and `adapter` does not name them, or its weights are not in memory.
    """
    for name, value in (("model_id", model_id), ("adapter", adapter), ("tenant", tenant)):
        if not isinstance(value, str) and (name, value) != ("model_id", None):
            raise InvalidArgument(f"{name} must be a str, not {value!r}")
    if (getattr(model, "_hf_peft_config_loaded", False) or _adapters(model)) and not adapter:
        raise InvalidArgument("the model has adapters: name those that are active, adapter=...")
    weights = weights_digest(model.state_dict()) if model_id is None else f"model_id {model_id}"
    return _digest((weights, _config_text(model.config), layout, adapter, tenant))


def state_of(model: Any) -> tuple[object, ...]:
    """What changes if weights are loaded, trained, converted or moved, or adapters are added or switched.

    It costs a look at each tensor, and reads none of their values: a change through `.data` in place is not seen.
    """
    return (*map(_tensor_state, model.parameters()), *_adapters(model))


def _tensor_state(tensor: Any) -> tuple[object, ...]:
    found: list[object] = [tensor.dtype, tensor.device, tuple(tensor.shape)]
    for look in (tensor.data_ptr, lambda: tensor._version):
        try:
            found.append(look())
        except (RuntimeError, NotImplementedError):  # a kind of its own; made in inference mode
            found.append(id(tensor))
    return tuple(found)


def _adapters(model: Any) -> list[tuple[object, ...]]:
    """The adapters (of peft) of each layer that are active and merged, and whether they are switched off."""
    return [
        (tuple(layer.active_adapters), tuple(getattr(layer, "merged_adapters", ())), layer.disable_adapters)
        for layer in model.modules()
        if isinstance(getattr(layer, "active_adapters", None), list | tuple) and hasattr(layer, "disable_adapters")
    ]


def weights_digest(weights: dict[str, Any]) -> str:
    """A digest of the names, dtypes, shapes and values of all tensors.

    Raises:
        InvalidArgument: a tensor's bytes cannot be read: it was offloaded, or is of a kind of its own.
    """
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(weights.items()):
        try:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(flat_bytes(plain_tensor(tensor).detach().contiguous()).cpu().numpy().data)
        except (AttributeError, RuntimeError, TypeError, InvalidArgument) as error:
            raise InvalidArgument(f"{name} cannot be read ({error}): name the weights, model_id=...") from None
    return digest.hexdigest()


def _config_text(config: Any) -> str:
    found = {name: value for name, value in config.to_dict().items() if name not in _UNRELATED}
    return json.dumps(found, sort_keys=True, default=str)


def _digest(fields: Iterable[str]) -> bytes:
    """The digest of some texts, each with its length, so that no two lists of texts are the same bytes."""
    parts = [text.encode("utf-8", "surrogatepass") for text in fields]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


# --- calls of the model that fill a PromptKV: only those whose KV is that of their tokens, at their own positions ---
# The tokens are recorded as the model gets them. So keys are made of what was computed, whatever `generate` does
# between two calls: beams, drafts that are taken back, prompts in pieces. A compiled model calls these functions as
# they are.
#: tensors that a call may have; any other one would be in no key
_KNOWN = frozenset(
    ("input_ids", "attention_mask", "position_ids", "past_key_values", "cache_position", "logits_to_keep", "labels")
)


def watch(model: Any) -> None:
    """Look at every call of a model that fills a PromptKV. Idempotent, and for as long as the model lives."""
    if not any(hook is _before for hook in model._forward_pre_hooks.values()):
        model.register_forward_pre_hook(_before, with_kwargs=True)
        model.register_forward_hook(_after, with_kwargs=True, always_call=True)  # also after a call that has raised


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _before(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kv = kwargs.get("past_key_values")
    if isinstance(kv, PromptKV):
        ids = _ids(args, kwargs)
        _check_inputs(model, kwargs)
        kv.begin(model, ids, kwargs.get("attention_mask"), kwargs.get("position_ids"))
    elif any(isinstance(arg, PromptKV) for arg in args):
        raise InvalidArgument("pass a PromptKV by name: past_key_values=...")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    kv = kwargs.get("past_key_values")
    if not isinstance(kv, PromptKV):
        return
    if output is None:
        kv.give_up()
    else:
        kv.end(_ids(args, kwargs))


def _ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    ids = args[0] if len(args) == 1 else kwargs.get("input_ids")
    if len(args) > 1 or not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        raise InvalidArgument(
            "with a PromptKV a model takes input_ids [rows, tokens], and everything else by name; no embeddings"
        )
    return ids


def _check_inputs(model: Any, kwargs: dict[str, Any]) -> None:
    check_precision(model)
    if model.training:
        raise InvalidArgument("the model is in training mode, in which dropout changes its KV: call model.eval()")
    for name, value in kwargs.items():
        if name not in _KNOWN and isinstance(value, torch.Tensor | dict):
            raise InvalidArgument(f"the KV would depend on {name}, which is in no key")


# --- the keys of blocks of tokens: each is a hash over its parent's key and its own token ids ---
# So a key stands for every token up to the end of its block, and prompts that begin alike have the same keys up to
# the block in which they part, as in vLLM's prefix caching. SHA-256: nobody can make two prompts with the same key.
class KeyChain:
    """The keys of one model's blocks.

    Args:
        root: what the first block is chained to. Chains with other roots share no key.
        block_tokens: tokens in a block.
    """

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self._root = root
        self._tokens = struct.Struct(f"<{block_tokens}q")
        self.block_tokens = block_tokens

    def keys(self, tokens: Sequence[int], parent: bytes | None = None) -> list[bytes]:
        """The key of each whole block, 32 bytes each. `parent`: the key of the block before; None: there is none."""
        found: list[bytes] = []
        parent = self._root if parent is None else parent
        for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            parent = hashlib.sha256(parent + self._tokens.pack(*tokens[end - self.block_tokens : end])).digest()
            found.append(parent)
        return found


# --- the prefix cache -------------------------------------------------------------------------
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
        kv = PromptKV(self, new_layers(self.model.config), prompt, rows, PromptTarget(preferred_segment, hold))
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

    def store_new(self, kv: PromptKV, rows: Sequence[RowKeys], target: PromptTarget) -> int:
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
        """The end of a row without the pads that `generate` appends when it has ended before the others."""
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
    """The token of a GenerationConfig that `generate` takes for a pad in prompts, and those that it pads answers with.

    An end token in a prompt is no pad; without a pad token, `generate` pads answers with an end token.
    """
    ends = config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    pad = config.pad_token_id
    return (None if pad in ends else pad), frozenset(ends if pad is None else {pad})
