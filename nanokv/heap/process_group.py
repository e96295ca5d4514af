"""The process group by which a library of symmetric memory brings its ranks together."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from nanokv.errors import HeapUnavailable, InvalidArgument


@contextlib.contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable for a while; None leaves it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None and before is None:
            os.environ.pop(name, None)
        elif value is not None and before is not None:
            os.environ[name] = before


class Group:
    """The process group of a world: the caller's, else the default one, else one that is made here and removed again.

    The one made here meets over a file and talks over the loopback interface: nothing listens on the network. It is
    the process' default group as long as the heap is open.

    Args:
        given: the caller's group, or None.
        folder: a directory for the file, that all ranks name alike; made here, removed with the world.
        timeout: seconds that its calls wait.

    Raises:
        InvalidArgument: the group numbers ranks differently.
        HeapUnavailable: torch cannot make one.
    """

    def __init__(
        self, given: "dist.ProcessGroup | None", rank: int, world_size: int, folder: Path, timeout: float
    ) -> None:
        self._is_own = False
        if not dist.is_available():
            raise HeapUnavailable("this torch is built without torch.distributed")
        if given is None and not dist.is_initialized():
            self._make(rank, world_size, folder, timeout)
        self.group: dist.ProcessGroup = given if given is not None else dist.group.WORLD  # type: ignore[assignment]
        said = dist.get_rank(self.group), dist.get_world_size(self.group)
        if said != (rank, world_size):
            self.close()
            raise InvalidArgument(f"rank {rank} of {world_size} is rank {said[0]} of {said[1]} in the process group")

    def _make(self, rank: int, world_size: int, folder: Path, timeout: float) -> None:
        interface = None if "GLOO_SOCKET_IFNAME" in os.environ else "lo"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            store = dist.FileStore(str(folder / "store"), world_size)  # type: ignore[attr-defined]
            with variable("GLOO_SOCKET_IFNAME", interface):
                dist.init_process_group(
                    "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=max(timeout, 1.0))
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise HeapUnavailable(f"torch.distributed cannot make a process group in {folder}: {error}") from None
        self._is_own = True

    def close(self) -> None:
        """Remove the group if it was made here. Idempotent."""
        own, self._is_own = self._is_own, False
        if own and dist.is_initialized():
            dist.destroy_process_group()
