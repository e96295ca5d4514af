"""The connector as tests of clusters have it: it tells what it reports, and may kill another engine before a load.

Engines load it in place of NanoKV's own, which it is otherwise: `kv_connector_module_path` names this module.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanokv.integrations.vllm.connector import NanoKVConnector as Unwatched

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

MODULE = "tests.engines.vllm.watched"
FOLDER = "NANOKV_TEST_WATCHED"  #: the variable that names a folder of one engine
_WAIT = 30.0  #: seconds


class NanoKVConnector(Unwatched):
    """Writes into the folder: `counts-PID`, a line per report; `nodes-PID`, the nodes that this worker knows."""

    def get_kv_connector_stats(self) -> Any:
        stats = super().get_kv_connector_stats()
        if stats is not None:
            with (_folder() / f"counts-{os.getpid()}").open("a") as counts:
                counts.write(json.dumps(stats.data) + "\n")
        if self._worker is not None and self._worker.cluster is not None:
            (_folder() / f"nodes-{os.getpid()}").write_text(json.dumps(self._worker.cluster.nodes))
        return stats

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """After the look-up that found blocks, and before their load: kill the process that the file `kill` names."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        victim = _folder() / "kill"
        if num_external_tokens and victim.exists():
            pid = int(victim.read_text())
            victim.unlink()
            os.kill(pid, signal.SIGKILL)
            _await_end(pid)


def _await_end(pid: int) -> None:
    stat, end = Path(f"/proc/{pid}/stat"), time.monotonic() + _WAIT
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < end, f"process {pid} did not end"
        time.sleep(0.01)


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def counts_of(folder: Path) -> dict[str, int]:
    """The sums of what the workers of an engine have reported."""
    sums: dict[str, int] = {}
    for counts in folder.glob("counts-*"):
        for line in counts.read_text().splitlines():
            for name, count in json.loads(line).items():
                sums[name] = sums.get(name, 0) + count
    return sums


def nodes_of(folder: Path) -> list[list[str]]:
    """Per worker of an engine the nodes that it knows."""
    return [json.loads(nodes.read_text() or "[]") for nodes in folder.glob("nodes-*")]
