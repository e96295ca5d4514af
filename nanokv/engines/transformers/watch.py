"""Calls of the model that fill a PromptKV: only those whose KV is that of their tokens, at their own positions.

The tokens are recorded as the model gets them. So keys are made of what was computed, whatever `generate` does between
two calls: beams, drafts that are taken back, prompts in pieces. A compiled model calls these functions as they are.
"""

from typing import Any

import torch

from nanokv.engines.transformers.layers import check_precision
from nanokv.engines.transformers.prompt_kv import PromptKV
from nanokv.errors import InvalidArgument

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
