"""Where the chains of a model begin: a digest of everything beside the tokens that its KV depends on.

Two processes share blocks if this digest is the same in both. It covers the values of the weights: a name tells nothing
of a checkpoint that was trained further, or of a model that was made in memory.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import xxhash

from nanokv.device.machines.own_memory import plain_tensor
from nanokv.errors import InvalidArgument
from nanokv.transfer.descriptors import flat_bytes

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
    """Of each layer with adapters (of peft) those that are active and merged, and whether they are switched off."""
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
    """Of some texts, each with its length, so that no two lists of texts are the same bytes."""
    parts = [text.encode("utf-8", "surrogatepass") for text in fields]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()
