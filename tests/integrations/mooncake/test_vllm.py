"""vLLM's MooncakeStoreConnector, unchanged, on NanoKV: two real engines on CPUs share what one of them computed."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nanokv.integrations.mooncake.shim import make

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.__main__ import make_prompts
from nanokv.bench.vllm.model import make_model
from nanokv.bench.vllm.process import EngineProcess

TOKENS = 8


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.surface("Programs of Mooncake Store", "vLLM: MooncakeStoreConnector")
def test_two_engines_share_a_store(tmp_path: Path, stack: ExitStack) -> None:
    make(tmp_path)
    model = make_model(tmp_path / "model")
    config = tmp_path / "mooncake.json"
    config.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": "vllm:1",
                "protocol": "tcp",
                "device_name": "",
                "global_segment_size": "256MB",
                "local_buffer_size": "64MB",
            }
        )
    )
    environment = {
        "MOONCAKE_CONFIG_PATH": str(config),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
        "NANOKV_SHM_DIR": str(tmp_path),
    }
    transfer = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both", "kv_connector_extra_config": {}}
    prompts = make_prompts(4, seed=1)
    with EngineProcess(model) as alone:
        wanted = alone.ask("generate", prompts=prompts, tokens=TOKENS)["tokens"]
    sockets = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]  # with short names
    one, other = (environment | {"VLLM_RPC_BASE_PATH": folder} for folder in sockets)
    with EngineProcess(model, transfer, one) as first, EngineProcess(model, transfer, other) as second:
        computed = first.ask("generate", prompts=prompts, tokens=TOKENS)
        assert computed["tokens"] == wanted and not all(computed["cached"])  # later prompts begin like others
        read = second.ask("generate", prompts=prompts, tokens=TOKENS)
        assert read["tokens"] == wanted and all(read["cached"])
