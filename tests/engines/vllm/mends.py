"""Mends of vLLM 0.32 for CPUs, without which it has nothing to compare with: an engine calls them before it starts."""

from dataclasses import replace
from typing import Any

WITHOUT_CHECKPOINTS = "tests.engines.vllm.mends:without_checkpoints"


def without_checkpoints() -> None:
    """Let steps end where blocks end, for Mamba 2: the kernel for CPUs gives no states from within a prompt, which vLLM
    asks for if prefix caching is on, and then raises IndexError."""
    from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

    planned = MambaMixer2.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, *args: Any, **options: Any) -> Any:
        spec = planned(self, *args, **options)
        if spec is None or not spec.num_prefill_checkpoint_blocks:
            return spec
        return replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    MambaMixer2.get_kv_cache_spec = get_kv_cache_spec
