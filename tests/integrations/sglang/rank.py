"""One of two ranks of tensor parallelism, as a process: `python -m tests.integrations.sglang.rank RANK FILE`.

Each has an engine that computes and one that loads, of one store; SGLang's controllers of both ranks agree over gloo.
What is to be done comes as lines of JSON over stdin, and each is answered by a line.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any


def has_stored(engine: Any, puts: int) -> bool:
    """Whether an engine has backed up so many pages."""
    return not engine.tree.ongoing_backup and engine.storage.cache.stats()["puts"] >= puts


def main() -> None:
    """Take the steps that are asked for."""
    from tests.integrations.without_torchvision import stand_in

    stand_in()
    import pytest
    import torch.distributed as dist

    from tests.integrations.sglang.parts import PAGE
    from tests.integrations.sglang.tree import Engine, without_cuda

    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", f"file://{file}", world_size=2, rank=rank)
    monkeypatch = pytest.MonkeyPatch()
    with without_cuda(monkeypatch, rank, 2):
        one, two = (Engine(settings={"name": "ranks"}, group=dist.group.WORLD, rank=rank) for _ in range(2))
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            what, prompt = json.loads(line)
            if what == "store":
                before = one.storage.cache.stats()["puts"]
                one.compute(prompt)
                one.back_up(partial(has_stored, one, before + len(prompt) // PAGE))
                print(json.dumps(sorted(one.storage.calls.failures())), flush=True)
            elif what == "clear":
                one.tree.clear_storage_backend()
                print(json.dumps("cleared"), flush=True)
            elif what == "prefetch":
                print(json.dumps(two.prefetch(prompt)), flush=True)
            else:
                print(json.dumps(two.load(prompt)), flush=True)
        two.close()
        one.close()
    dist.destroy_process_group()


class Rank:
    """That process, seen from a test."""

    def __init__(self, rank: int, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.integrations.sglang.rank", str(rank), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str, prompt: list[int]) -> None:
        """Begin a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, prompt]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> int:
        """Let it end; its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait(60)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(60)


if __name__ == "__main__":
    main()
