"""What the bytes of a page depend on, beside its tokens: it becomes part of every key.

SGLang's keys are chained hashes of tokens, and of a request's adapter and cache salt. What is not in them is here: the
model (`identity_of`), the ranks whose slice of the model a page holds, and the geometry of the pool it came from
(`scopes_of`). Two backends share a page only if all of that is the same, so a page is never read as something else.

Ranks of tensor parallelism share what is the same on all of them, which are the latents of MLA. All other pools get a
rank of their own in their keys, also the states and the drafts of a model whose KV is shared.
"""

from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.runtime_context import get_context

from nanokv.errors import InvalidArgument
from nanokv.integrations.sglang.host_pages import HostPages
from nanokv.keys.identity import Identity

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

_OF_THE_MODEL = ("kv_cache_dtype", "quantization")
_OF_A_POOL = (
    "dtype",
    "layer_num",
    "num_mamba_layers",
    "target_layer_num",
    "start_layer",
    "end_layer",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
    "storage_format_tag",
)


def identity_of(config: "HiCacheStorageConfig") -> Identity:
    """The model, as SGLang names it, with what its configuration says of revision, quantization and the cache's dtype.

    The dtype of a pool does not tell FP8 formats apart: SGLang stores all of them as bytes.

    Raises:
        InvalidArgument: SGLang gives no name of the model.
    """
    if not config.model_name:
        raise InvalidArgument("SGLang gives no name of the model: start it with --served-model-name")
    model = _published("model")
    words = [f"{name}={value}" for name in _OF_THE_MODEL if (value := getattr(model, name, None)) is not None]
    draft = getattr(_published("spec"), "speculative_draft_model_path", None)
    words += [f"draft={draft}"] if draft else []
    revision = getattr(model, "revision", None) or ""
    return Identity(model=" ".join([config.model_name, "sglang-hicache", *words]), revision=str(revision))


def _published(namespace: str) -> Any:
    """A part of SGLang's configuration; None in a process that has none."""
    context = get_context()
    return context.config_bag(namespace) if context.is_config_namespace_published(namespace) else None


def objects_per_page(config: "HiCacheStorageConfig") -> int:
    """Into how many objects a page of layout page_head is cut, with `tp_lcm_size`; 0 without."""
    return int(config.tp_lcm_size or 0) // int(config.tp_size)


def scopes_of(config: "HiCacheStorageConfig", name: str, pages: HostPages | None, form: str = "") -> tuple[str, ...]:
    """What comes before the keys of a pool, once per object that a page is cut into.

    Args:
        name: of the pool.
        pages: None: of no pool, and for values of any size.
        form: of the objects. Default: that of the pages.
    """
    form = form or ("flat" if pages is None else pages.form)
    if form == "heads":
        count = objects_per_page(config)
        ranks = [(config.tp_rank * count + i, config.tp_lcm_size) for i in range(count)]
    else:
        ranks = [(config.tp_rank, config.tp_size)]
    replicated = _is_replicated(config, name, pages)
    described = _described(name, pages, form)
    return tuple("/".join([*_ranks(config, *rank, replicated=replicated), described]) for rank in ranks)


def _is_replicated(config: "HiCacheStorageConfig", name: str, pages: HostPages | None) -> bool:
    """Whether all ranks of tensor parallelism have the same bytes."""
    if not config.is_mla_model or name == PoolName.MAMBA.value:
        return False
    return pages is None or not isinstance(pages.pool, MHATokenToKVPoolHost)


def _ranks(config: "HiCacheStorageConfig", tp_rank: int, tp_size: int, *, replicated: bool) -> list[str]:
    parts = [] if replicated else [f"tp{tp_rank}of{tp_size}"]
    parts += [f"pp{config.pp_rank}of{config.pp_size}", f"cp{config.attn_cp_rank}of{config.attn_cp_size}"]
    if config.dcp_size > 1:
        parts.append(f"dcp{config.dcp_rank}of{config.dcp_size} in tp{config.tp_size} page={config.logical_page_size}")
    return parts


def _described(name: str, pages: HostPages | None, form: str) -> str:
    if pages is None:
        return f"{name} values {form}"
    known = [(each, getattr(pages.pool, each, None)) for each in _OF_A_POOL]
    if form == "heads":  # of which each object has some
        known = [(each, value) for each, value in known if each != "head_num"]
        known.append(("object_bytes", pages.object_bytes))
    else:
        known.append(("page_bytes", pages.page_bytes))
    words = [type(pages.pool).__name__, str(getattr(pages.pool, "layout", "")), f"tokens={pages.tokens}"]
    words += [f"{each}={value}" for each, value in known if value is not None]
    return " ".join([name, *words, form])
