"""What the bytes of an offloaded block depend on, from vLLM's `OffloadingConfig`: it becomes part of every key.

vLLM's own keys are hashes of tokens, adapters, salts and images, and the number of a group of layers. What is not in
them, and changes the bytes, is here: model, dtype, sizes of blocks and chunks, groups of layers, degrees of
parallelism, layout, bytes of an object. Nothing is of a host or a process, so engines of one configuration share.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.platforms import current_platform

from nanokv.keys.identity import Identity

if TYPE_CHECKING:
    from vllm.v1.kv_offload.config import OffloadingConfig

_DEGREES = ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")


def identity_of(
    config: "OffloadingConfig", *, kind: str, nbytes: int, model: str = "", revision: str = "", whole: bool = False
) -> Identity:
    """The identity of what one engine offloads.

    Args:
        kind: of objects: rows of a primary tier, or chunks of one worker.
        nbytes: of an object, where all have the same size.
        model, revision: of the weights; vLLM's configuration names only a model. Default: as vLLM was given it.
        whole: an object holds the parts of all workers. Then the degrees of parallelism do not matter where vLLM says
            that the bytes are the same with all of them.
    """
    parallel = config.parallel
    portable = whole and (parallel.is_parallelism_agnostic or config.replicated_layout)
    described: dict[str, Any] = {
        "kind": kind,
        "nbytes": nbytes,
        "dtype": config.model.dtype,
        "cache": asdict(config.cache),
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "parallel": "any" if portable else {name: getattr(parallel, name) for name in _DEGREES},
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "layout": config.kv_cache_layout,
        "platform": _platform(),
    }
    name = model or config.model.name
    return Identity(model=f"{name} vllm-offload {json.dumps(described, sort_keys=True)}", revision=revision)


def _platform() -> str:
    """The device; of CPUs also what decides how their kernels arrange a block: vLLM's version and the instructions."""
    device = str(current_platform.device_type)
    if device != "cpu":
        return device
    tiles = torch.cpu._is_amx_tile_supported()
    return f"cpu {torch.backends.cpu.get_cpu_capability()} amx={tiles} vllm={vllm.__version__}"
