"""The process group by which iris brings its ranks together."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from nanokv.errors import HeapUnavailable, InvalidArgument


@contextlib.contextmanager
def environment_variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable inside a `with` block; None leaves it as it is."""
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


class MeetingPoint(NamedTuple):
    """Where the ranks of a world meet inside a library, and which one this is."""

    rank: int
    world_size: int
    folder: Path  #: a directory that all ranks may make; removed with the world
    timeout: float  #: seconds left for attaching


def check_numbering(group: "dist.ProcessGroup", meeting: MeetingPoint) -> None:
    """Raise InvalidArgument unless a process group numbers the ranks as the world does."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if (rank, world_size) != (meeting.rank, meeting.world_size):
        raise InvalidArgument(
            f"rank {meeting.rank} of {meeting.world_size} is rank {rank} of {world_size} in the process group"
        )


class Group:
    """The process group of a world: the caller's, else the default one, else one that is made here and removed again.

    A group made here meets over a file in `meeting.folder` and talks over the loopback interface: nothing listens on
    the network. It is the process' default group as long as the heap is open.

    Args:
        given: the caller's group, or None.

    Raises:
        InvalidArgument: the group numbers ranks differently.
        HeapUnavailable: torch cannot make one.
    """

    def __init__(self, given: "dist.ProcessGroup | None", meeting: MeetingPoint) -> None:
        self._is_own = False
        if not dist.is_available():
            raise HeapUnavailable("this torch is built without torch.distributed")
        if given is None and not dist.is_initialized():
            self._make(meeting)
        self.group: dist.ProcessGroup = given if given is not None else dist.group.WORLD  # type: ignore[assignment]
        try:
            check_numbering(self.group, meeting)
        except InvalidArgument:
            self.close()
            raise

    def _make(self, meeting: MeetingPoint) -> None:
        folder, timeout = meeting.folder, timedelta(seconds=max(meeting.timeout, 1.0))
        interface = None if "GLOO_SOCKET_IFNAME" in os.environ else "lo"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            store = dist.FileStore(str(folder / "store"), meeting.world_size)  # type: ignore[attr-defined]
            store.set_timeout(timeout)  # init_process_group does so only to stores that it makes
            with environment_variable("GLOO_SOCKET_IFNAME", interface):
                dist.init_process_group(
                    "gloo", store=store, rank=meeting.rank, world_size=meeting.world_size, timeout=timeout
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise HeapUnavailable(f"torch.distributed cannot make a process group in {folder}: {error}") from None
        self._is_own = True

    def close(self) -> None:
        """Remove the group if it was made here. Idempotent."""
        own, self._is_own = self._is_own, False
        if own and dist.is_initialized():
            dist.destroy_process_group()
