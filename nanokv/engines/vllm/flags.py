"""Command lines to copy: a prefill engine and a decode engine, or one engine that keeps its own KV. Imports no vLLM.

Without a cluster both engines are in one world, of one host. In a cluster each has a world of its own, on its host.
"""

import json
import shlex
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from nanokv.engines.vllm.settings import PREFIX, Settings, parse
from nanokv.errors import InvalidArgument

PREFILL_PORT, DECODE_PORT, PROXY_PORT = 8100, 8200, 8000


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine to start: what it does, and its command line."""

    what: str
    command: str


def transfer_config(role: str, flags: dict[str, Any]) -> dict[str, Any]:
    """The value of vLLM's `--kv-transfer-config`. `flags`: without their prefix; those with default values are left
    out."""
    defaults = {flag.name: flag.default for flag in fields(Settings)}
    extra = {PREFIX + name: value for name, value in flags.items() if value != defaults[name]}
    return {
        "kv_connector": "NanoKVConnector",
        "kv_connector_module_path": "nanokv.engines.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def command_lines(
    model: str,
    *,
    tensor_parallel: int,
    together: bool,
    flags: dict[str, Any],
    decode_tensor_parallel: int | None = None,
) -> list[Engine]:
    """The engines to start.

    Args:
        tensor_parallel: workers of each engine.
        decode_tensor_parallel: those of the decode engine, if they are not as many.
        together: one engine that prefills and decodes, instead of one for each.
        flags: of all engines.

    Raises:
        InvalidArgument: a flag is wrong, or is one that this function chooses.
    """
    pair_in_cluster = bool(flags.get("cluster")) and not together
    chosen = ({"rank", "world_size", "target"} | ({"name", "node"} if pair_in_cluster else set())) & flags.keys()
    if chosen:
        raise InvalidArgument(f"{PREFIX}{min(chosen)} follows from the engines, and is not to be given")
    parse({PREFIX + name: value for name, value in flags.items()})
    if together:
        named = {"name": "vllm"} if tensor_parallel > 1 and not flags.get("cluster") else {}  # found at the next start
        transfer = transfer_config("kv_both", named | flags)
        return [Engine("one engine", _serve(model, PROXY_PORT, tensor_parallel, transfer))]
    decoders = decode_tensor_parallel or tensor_parallel
    if pair_in_cluster:
        return _on_two_hosts(model, tensor_parallel, decoders, flags)
    world = {"name": "vllm", "world_size": tensor_parallel + decoders} | flags
    prefill = transfer_config("kv_producer", world | {"rank": 0, "target": tensor_parallel})
    decode = transfer_config("kv_consumer", world | {"rank": tensor_parallel})
    proxy = f"python examples/vllm_pd.py --port {PROXY_PORT} --prefill {PREFILL_PORT} --decode {DECODE_PORT}"
    return [
        Engine("prefill", _serve(model, PREFILL_PORT, tensor_parallel, prefill)),
        Engine("decode", _serve(model, DECODE_PORT, decoders, decode)),
        Engine("a proxy that sends each request to both", proxy),
    ]


def _on_two_hosts(model: str, prefillers: int, decoders: int, flags: dict[str, Any]) -> list[Engine]:
    if prefillers != decoders:
        raise InvalidArgument("in a cluster prefill and decode need the same tensor-parallel size")
    if not {"bind", "devices"} <= flags.keys():
        raise InvalidArgument(f"two hosts need {PREFIX}bind and {PREFIX}devices: their defaults are of one host")
    prefill, decode = (transfer_config(role, flags) for role in ("kv_producer", "kv_consumer"))
    servers = f"--prefill PREFILL_HOST:{PREFILL_PORT} --decode DECODE_HOST:{DECODE_PORT}"
    return [
        Engine("prefill, on a host", _serve(model, PREFILL_PORT, prefillers, prefill)),
        Engine("decode, on another host", _serve(model, DECODE_PORT, decoders, decode)),
        Engine("a proxy that sends each request to both", f"python examples/vllm_pd.py --port {PROXY_PORT} {servers}"),
    ]


def _serve(model: str, port: int, tensor_parallel: int, config: dict[str, Any]) -> str:
    parallel = f" --tensor-parallel-size {tensor_parallel}" if tensor_parallel > 1 else ""
    transfer = shlex.quote(json.dumps(config))
    return f"vllm serve {shlex.quote(model)} --port {port}{parallel} --kv-transfer-config {transfer}"


def flag_texts() -> list[tuple[str, str, str]]:
    """Per flag its name, its default and what it means."""
    hints = get_type_hints(Settings, include_extras=True)
    return [(PREFIX + flag.name, _shown(flag.default), hints[flag.name].__metadata__[0]) for flag in fields(Settings)]


def _shown(default: object) -> str:
    return json.dumps(default)
