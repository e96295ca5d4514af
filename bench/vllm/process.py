"""A vLLM engine as its parent sees it: a process that is started, asked, and ended or killed."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from nanokv.bench.vllm.fork_server import ChildProcess

START_SECONDS = 300.0  #: imports and the model; other engines of the world may have to come first
ANSWER_SECONDS = 300.0
END_SECONDS = 60.0


class EngineFailed(RuntimeError):
    """An engine refused to start, or a command failed; the message is the engine's."""


def connector(role: str, **flags: Any) -> dict[str, Any]:
    """The `kv_transfer_config` of an engine with NanoKV. `flags`: without their prefix."""
    return {
        "kv_connector": "NanoKVConnector",
        "kv_connector_module_path": "nanokv.integrations.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {f"nanokv.{name}": value for name, value in flags.items()},
    }


class EngineProcess:
    """One engine. It starts in the background: `wait` for it, or ask it.

    Args:
        folder: of the model.
        transfer: its `kv_transfer_config`; None: without a connector.
        arguments: further ones of `vllm.LLM`.
    """

    def __init__(
        self,
        folder: Path,
        transfer: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        given: dict[str, Any] = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 1024,
            "block_size": 32,
            "kv_cache_memory_bytes": 64 << 20,
        }
        given |= arguments | ({"kv_transfer_config": transfer} if transfer else {})
        self._files = contextlib.ExitStack()
        log = tempfile.TemporaryFile("w+", prefix="nanokv-engine-")  # noqa: SIM115 - closed with `_files`
        self._log = self._files.enter_context(log)
        self._process = ChildProcess(os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}), self._log)
        self._started = self._closed = False
        self._send(given)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def wait(self) -> "EngineProcess":
        """Wait until it has started.

        Raises:
            EngineFailed: it did not.
        """
        if not self._started:
            self._answer(START_SECONDS)
            self._started = True
        return self

    def ask(self, do: str, **arguments: Any) -> Any:
        """Run a command of `child.Child`, and return its answer.

        Raises:
            EngineFailed: the command failed.
        """
        self.begin(do, **arguments)
        return self.result()

    def begin(self, do: str, **arguments: Any) -> None:
        """Run a command, without waiting for its `result`."""
        self.wait()
        self._send({"do": do} | arguments)

    def result(self) -> Any:
        """The answer of the command that was begun."""
        return self._answer(ANSWER_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _answer(self, patience: float) -> Any:
        ready, _, _ = select.select([self._process.stdout], [], [], patience)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            why = "ended" if ready else f"did not answer within {patience:g} s"
            raise EngineFailed(f"the engine {why}:\n{self.log()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer["ok"]

    def log(self) -> str:
        """What it has printed."""
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        """SIGKILL, as if it had crashed."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """End it; it leaves its world. Idempotent."""
        if self._closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._process.wait(END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.close()
        self._files.close()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
