"""Which models can be served, the shape of their KV, and sliding windows that keep what slides out of them."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from nanokv.errors import InvalidArgument

_ROTATES_BY_LENGTH = ("dynamic", "longrope")  #: kinds of RoPE that turn a token's key by the length of the whole text


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The KV of one block: [layers, K and V, heads, tokens, head_dim], keys before values."""

    layers: int
    heads: int
    tokens: int
    head_dim: int
    dtype: torch.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of its tensor."""
        return self.layers, 2, self.heads, self.tokens, self.head_dim

    @property
    def nbytes(self) -> int:
        """Bytes of the layer in a block."""
        return prod(self.dims) * self.dtype.itemsize


class KeptSlidingLayer(DynamicSlidingWindowLayer):
    """A layer with a sliding window that keeps every token, so that whole blocks can be stored.

    The model sees what `DynamicSlidingWindowLayer` shows it: the window, and the new tokens.
    """

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Append the KV of new tokens; returns what they attend to."""
        keys, values = DynamicLayer.update(self, key_states, value_states)
        self.cumulative_length = keys.shape[-2]
        visible = self.sliding_window - 1 + key_states.shape[-2]
        return keys[:, :, -visible:], values[:, :, -visible:]

    def crop(self, tokens_to_remove: int) -> None:
        """Crop as a layer without a window does: nothing was lost."""
        DynamicLayer.crop(self, tokens_to_remove)
        if self.is_initialized:
            self.cumulative_length = self.keys.shape[-2]


def new_layers(config: Any) -> list[Any]:
    """Empty layers for a model.

    Raises:
        InvalidArgument: it has layers whose KV is not one K and one V per token.
    """
    layers: list[Any] = DynamicCache(config=config).layers
    for number, layer in enumerate(layers):
        if type(layer) is DynamicSlidingWindowLayer:
            layers[number] = KeptSlidingLayer(layer.sliding_window)
        elif type(layer) is not DynamicLayer:
            raise InvalidArgument(
                f"layer {number} of {config.model_type} is a {type(layer).__name__}: only layers that keep a key and a "
                "value per token and head can be served, with or without a sliding window"
            )
    return layers


def check_model(model: Any) -> None:
    """Refuse a model whose KV of a token depends on more than the token ids up to it: InvalidArgument."""
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise InvalidArgument(f"a PreTrainedModel that can generate is needed, not {type(model).__name__}")
    if model.config.is_encoder_decoder:
        raise InvalidArgument("an encoder-decoder model's KV depends on what its encoder reads")
    if model.config.get_text_config(decoder=True) is not model.config:
        raise InvalidArgument(
            f"{type(model).__name__} reads more than tokens (images, sound), which are in no key; serve its text model"
        )
    if found := sorted(_kinds_of_rope(getattr(model.config, "rope_parameters", None)) & set(_ROTATES_BY_LENGTH)):
        raise InvalidArgument(f"with RoPE of kind {found[0]!r} a token's key depends on the length of the whole text")
    devices = {tensor.device for tensor in model.parameters()}
    if len(devices) != 1:
        raise InvalidArgument(f"the model must lie on one device, not {sorted(map(str, devices))}")


def check_precision(model: Any) -> None:
    """Refuse to compute KV under autocast, in another precision than that of the weights: InvalidArgument."""
    if torch.is_autocast_enabled(model.device.type):
        raise InvalidArgument("under autocast KV has another precision, which is in no key: leave autocast")


def _kinds_of_rope(parameters: Any) -> set[str]:
    """Every `rope_type` of a configuration, which may have one for each kind of layer."""
    if not isinstance(parameters, dict):
        return set()
    deeper = (_kinds_of_rope(value) for value in parameters.values())
    return {str(parameters.get("rope_type"))}.union(*deeper)


@torch.no_grad()
def block_shape(model: Any, block_tokens: int) -> BlockShape:
    """The shape of a model's blocks, as one token's KV shows it.

    Raises:
        InvalidArgument: the model does not use the cache, or its layers' keys and values have several shapes.
    """
    kv = DynamicCache()
    kv.layers, kv.layer_class_to_replicate = new_layers(model.config), None
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=kv, use_cache=True)
    planes = [plane for layer in kv.layers for plane in (layer.keys, layer.values)]
    found = {(tuple(plane.shape), plane.dtype) for plane in planes if plane is not None}
    if len(found) != 1 or any(plane is None for plane in planes):
        shown = ", ".join(str(list(shape)) for shape, _ in sorted(found, key=str)) or "none"
        raise InvalidArgument(f"keys and values of all layers must have one shape and dtype; one token's are {shown}")
    ((_, heads, _, head_dim), dtype) = found.pop()
    return BlockShape(len(kv.layers), heads, block_tokens, head_dim, dtype)
