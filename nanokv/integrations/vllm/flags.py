"""Command lines to copy: a prefill engine and a decode engine, or one engine that keeps its own KV. Imports no vLLM.

Without a cluster both engines are in one world, of one host. In a cluster each has a world of its own, on its host.
"""

import json
import shlex
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from nanokv.arguments import size
from nanokv.errors import InvalidArgument
from nanokv.integrations.vllm.settings import PREFIX, Settings, parse


class Ports(NamedTuple):
    """Where the servers listen."""

    prefill: int = 8100
    decode: int = 8200
    proxy: int = 8000  #: of one engine: its own


USUAL_PORTS = Ports()
_ONE_DEVICE = "; if both run on one GPU, or on CPUs, --kv-memory divides its memory"


@dataclass(frozen=True, slots=True)
class EngineCommand:
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
        "kv_connector_module_path": "nanokv.integrations.vllm",
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
    ports: Ports = USUAL_PORTS,
    kv_memory: str = "",
) -> list[EngineCommand]:
    """The engines to start.

    Args:
        tensor_parallel: workers of each engine.
        decode_tensor_parallel: those of the decode engine, if they are not as many.
        together: one engine that prefills and decodes, instead of one for each.
        flags: of all engines.
        kv_memory: of each engine's own cache, as 8GiB; two engines on one GPU, or on the CPUs of one host, need it: by
            default each takes nearly all memory. Default: vLLM chooses.

    Raises:
        InvalidArgument: a flag is wrong, or is one that this function chooses.
    """
    pair_in_cluster = bool(flags.get("cluster")) and not together
    chosen = ({"rank", "world_size", "target"} | ({"name", "node"} if pair_in_cluster else set())) & flags.keys()
    if chosen:
        raise InvalidArgument(f"{PREFIX}{min(chosen)} follows from the engines, and is not to be given")
    parse({PREFIX + name: value for name, value in flags.items()})
    more = f" --kv-cache-memory-bytes {size('kv_memory', kv_memory)}" if kv_memory else ""

    def serve(port: int, workers: int, role: str, extra: dict[str, Any]) -> str:
        parallel = f" --tensor-parallel-size {workers}" if workers > 1 else ""
        transfer = shlex.quote(json.dumps(transfer_config(role, extra)))
        return f"vllm serve {shlex.quote(model)} --port {port}{parallel}{more} --kv-transfer-config {transfer}"

    def proxy(servers: str) -> EngineCommand:
        line = f"python examples/vllm_pd.py --port {ports.proxy} {servers}"
        return EngineCommand("a proxy that sends each request to both", line)

    if together:
        named = {"name": "vllm"} if tensor_parallel > 1 and not flags.get("cluster") else {}  # found at the next start
        return [EngineCommand("one engine", serve(ports.proxy, tensor_parallel, "kv_both", named | flags))]
    decoders = decode_tensor_parallel or tensor_parallel
    if pair_in_cluster:
        if tensor_parallel != decoders:
            raise InvalidArgument("in a cluster prefill and decode need the same tensor-parallel size")
        if "bind" not in flags:
            raise InvalidArgument(f"two hosts need {PREFIX}bind: its default is of one host")
        if flags.get("link") == "nixl" and "devices" not in flags:
            raise InvalidArgument(f"two hosts need {PREFIX}devices with NIXL: its default is of one host")
        return [
            EngineCommand("prefill, on a host", serve(ports.prefill, tensor_parallel, "kv_producer", flags)),
            EngineCommand("decode, on another host", serve(ports.decode, tensor_parallel, "kv_consumer", flags)),
            proxy(f"--prefill PREFILL_HOST:{ports.prefill} --decode DECODE_HOST:{ports.decode}"),
        ]
    world = {"name": "vllm", "world_size": tensor_parallel + decoders} | flags
    prefill = serve(ports.prefill, tensor_parallel, "kv_producer", world | {"rank": 0, "target": tensor_parallel})
    return [
        EngineCommand("prefill" if kv_memory else f"prefill{_ONE_DEVICE}", prefill),
        EngineCommand("decode", serve(ports.decode, decoders, "kv_consumer", world | {"rank": tensor_parallel})),
        proxy(f"--prefill {ports.prefill} --decode {ports.decode}"),
    ]


def flag_texts() -> list[tuple[str, str, str]]:
    """Per flag its name, its default and what it means."""
    return [(PREFIX + flag.name, _shown(flag.default), flag.metadata["text"]) for flag in fields(Settings)]


def _shown(default: object) -> str:
    return json.dumps(default)
