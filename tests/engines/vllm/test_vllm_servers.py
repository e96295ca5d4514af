"""Two vLLM servers and the proxy of examples/vllm_pd.py, over HTTP, as `nanokv vllm-flags` prints them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from nanokv.bench.vllm.process import EngineProcess, connector
from nanokv.check.lab.etcd import free_ports
from nanokv.errors import HeapUnavailable
from nanokv.heap.shm_tools import remove_world
from nanokv.integrations.vllm.flags import command_lines
from tests.engines.vllm.conftest import PROMPTS, TOKENS, whole_blocks

ROOT = Path(__file__).parents[3]
START_SECONDS = 300.0
HERE = (
    *(
        "--skip-tokenizer-init",
        "--enforce-eager",
        "--dtype",
        "float32",
        "--max-model-len",
        "1024",
        "--block-size",
        "32",
    ),
    *("--kv-cache-memory-bytes", str(64 << 20), "--host", "127.0.0.1"),  # vLLM itself would listen to all hosts
)


def forget(name: str) -> None:
    """Remove a world whose ranks were killed: vLLM does that to its workers when it ends."""
    with suppress(HeapUnavailable):
        remove_world(name, force=True)


def fetch(port: int, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
        return found


def metrics(port: int, name: str) -> list[float]:
    """A counter of each engine of a server."""
    return [float(value) for value in re.findall(rf"^{name}{{.*}} (.*)$", fetch(port, "/metrics").decode(), re.M)]


def metric(port: int, name: str) -> float:
    """A counter of a server of one engine."""
    (value,) = metrics(port, name)
    return value


@pytest.fixture(scope="module")
def ports(model: Path) -> Iterator[tuple[int, int, int]]:
    """Of prefill, decode and proxy."""
    name = f"test-vllm-servers-{os.getpid()}"
    prefill, decode, proxy = free_ports(3)
    with ExitStack() as stack:
        stack.callback(forget, name)
        log = stack.enter_context(tempfile.TemporaryFile())
        engines = command_lines(str(model), tensor_parallel=1, together=False, flags={"name": name, "size": "64MiB"})
        for engine, port in zip(engines, (prefill, decode), strict=False):
            config = re.search(r"--kv-transfer-config '(.*)'", engine.command)
            assert config is not None
            serve(stack, log, model, port, config[1])
        given = ("--port", str(proxy), "--prefill", str(prefill), "--decode", str(decode))
        start(stack, log, str(ROOT / "examples" / "vllm_pd.py"), *given)
        await_health(log, prefill, decode)
        yield prefill, decode, proxy


def serve(stack: ExitStack, log: IO[bytes], model: Path, port: int, config: str, *more: str) -> None:
    """Start a server with this `--kv-transfer-config`."""
    server = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port), *HERE)
    start(stack, log, *server, "--kv-transfer-config", config, *more)


def await_health(log: IO[bytes], *ports: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    for port in ports:
        while not healthy(port):
            if time.monotonic() > deadline:
                log.seek(0)
                pytest.fail(f"no server on port {port}:\n{log.read()[-4000:].decode(errors='replace')}")
            time.sleep(0.5)


def start(stack: ExitStack, log: IO[bytes], *command: str) -> None:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"VLLM_SERVER_DEV_MODE": "1"}  # a request empties the prefix cache
    process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env=environment, cwd=ROOT)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)


def healthy(port: int) -> bool:
    try:
        fetch(port, "/health")
    except OSError:
        return False
    return True


def test_the_proxy_hands_prompts_over(
    ports: tuple[int, int, int], model: Path, alone: EngineProcess, expected: list[list[int]]
) -> None:
    prefill, decode, proxy = ports
    prompts = PROMPTS[:6]
    want = {"model": str(model), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    for prompt, tokens in zip(prompts, expected, strict=False):
        answer = json.loads(fetch(proxy, "/v1/completions", want | {"prompt": prompt}))
        assert answer["choices"][0]["token_ids"] == tokens
    # the second prompt of a pair shares a prefix, which decode has by then in its own cache
    assert metric(decode, "vllm:external_prefix_cache_hits_total") > whole_blocks(prompts)[0]
    assert metric(decode, "vllm:nanokv_blocks_loaded_total") > 0
    assert metric(prefill, "vllm:nanokv_blocks_stored_total") >= metric(decode, "vllm:nanokv_blocks_loaded_total")

    streamed = fetch(proxy, "/v1/completions", want | {"prompt": PROMPTS[7], "stream": True}).decode()
    parts = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert [token for part in parts for token in part["choices"][0]["token_ids"]] == expected[7]
    assert json.loads(fetch(proxy, "/v1/models"))["data"][0]["id"] == str(model)


def test_a_request_that_is_wrong_gets_the_servers_answer(ports: tuple[int, int, int], model: Path) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(ports[2], "/v1/completions", {"model": "no such model", "prompt": [1, 2, 3]})
    assert refused.value.code == 404
    with pytest.raises(urllib.error.HTTPError) as nonsense:
        fetch(ports[2], "/v1/completions", {"model": str(model), "prompt": [1], "max_tokens": "many"})
    assert nonsense.value.code == 400


def test_engines_of_a_data_parallel_server_load_what_each_other_stored(model: Path, expected: list[list[int]]) -> None:
    """They have the same flags, and take the next ranks of the world: requests go to them in turn."""
    prompts, name, port = PROMPTS[:9], f"test-vllm-replicas-{os.getpid()}", free_ports(1)[0]
    want = {"model": str(model), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with ExitStack() as stack:
        stack.callback(forget, name)
        log = stack.enter_context(tempfile.TemporaryFile())
        transfer = connector("kv_both", name=name, world_size=2, size="64MiB")
        serve(stack, log, model, port, json.dumps(transfer), "--data-parallel-size", "2")
        await_health(log, port)
        found, external = [], []
        for _ in range(2):  # nine requests: the second time each goes to the other engine
            for prompt, tokens in zip(prompts, expected, strict=False):
                answer = json.loads(fetch(port, "/v1/completions", want | {"prompt": prompt}))
                assert answer["choices"][0]["token_ids"] == tokens
            fetch(port, "/reset_prefix_cache", {})
            external.append(metrics(port, "vllm:external_prefix_cache_hits_total"))
            found.append(sum(metrics(port, "vllm:prefix_cache_hits_total") + external[-1]))
        assert min(metrics(port, "vllm:nanokv_blocks_stored_total")) > 0
        assert found[1] - found[0] == sum(whole_blocks(prompts))  # the engines' own caches were empty before
        assert all(later > earlier for earlier, later in zip(*external, strict=True))
