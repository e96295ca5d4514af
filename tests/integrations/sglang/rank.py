"""One of two ranks of tensor parallelism, as a process.

Each has an engine that computes and one that loads, of one store; SGLang's controllers of both ranks agree over gloo.
"""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from nanokv.check.command_process import Commands, Program


def has_stored(engine: Any, puts: int) -> bool:
    """Whether an engine has backed up so many pages."""
    return not engine.tree.ongoing_backup and engine.storage.cache.stats()["puts"] >= puts


class RankCommands(Commands):
    """What it does, in its process."""

    def __init__(self, rank: int, file: Path) -> None:
        from tests.integrations.without_torchvision import stand_in

        stand_in()
        import pytest
        import torch.distributed as dist

        from tests.integrations.sglang.tree import Engine, without_cuda

        dist.init_process_group("gloo", f"file://{file}", world_size=2, rank=rank)
        self._ends = contextlib.ExitStack()
        self._ends.callback(dist.destroy_process_group)
        self._ends.enter_context(without_cuda(pytest.MonkeyPatch(), rank, 2))
        engine = partial(Engine, settings={"name": "ranks"}, group=dist.group.WORLD, rank=rank)
        self._one, self._two = (self._ends.enter_context(contextlib.closing(engine())) for _ in range(2))

    def store(self, prompt: list[int]) -> list[Any]:
        """Compute, and back up. Returns the calls of the store that failed."""
        from tests.integrations.sglang.parts import PAGE

        before = self._one.storage.cache.stats()["puts"]
        self._one.compute(prompt)
        self._one.back_up(partial(has_stored, self._one, before + len(prompt) // PAGE))
        return sorted(self._one.storage.calls.failures())

    def clear(self) -> None:
        """Clear the store."""
        self._one.tree.clear_storage_backend()

    def prefetch(self, prompt: list[int]) -> Any:
        """Have the other engine prefetch."""
        return self._two.prefetch(prompt)

    def load(self, prompt: list[int]) -> Any:
        """Have the other engine load."""
        return self._two.load(prompt)

    def at_end(self) -> None:
        """Close both engines."""
        self._ends.close()


class Rank(Program):
    """That process, seen from a test."""

    end_seconds = 60.0

    def __init__(self, rank: int, file: Path) -> None:
        super().__init__(f"rank {rank}", partial(RankCommands, rank, file), environment={"PYTHONWARNINGS": "ignore"})
