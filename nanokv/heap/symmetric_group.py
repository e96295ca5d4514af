"""The process group of one world for torch's symmetric memory: a name, a store, and nothing that talks to a network.

torch's rendezvous asks the group for three things: this rank, the number of ranks, and a store. By the store the ranks
exchange values under the keys "CUDASymmetricMemory/COUNT/RANK" (`StoreExchange` in CUDASymmetricMemoryUtils.hpp). COUNT
is one number per process, counted over all groups. A process that has made an exchange before and one that has not
would wait for each other's keys until the store's timeout. So the store of a world counts from the world's first
exchange, which is the same one on all ranks.
"""

import contextlib
import re
from datetime import timedelta
from typing import Any

import torch._C._distributed_c10d as dist

from nanokv.errors import HeapUnavailable
from nanokv.heap.process_group import MeetingPoint

_names: Any = dist  # its stubs want a type for names that not every version has
_EXCHANGE = re.compile(r"(.*CUDASymmetricMemory)/(\d+)/(\d+)")
_LEAST_TIMEOUT = 1.0  #: seconds: a FileStore looks at the clock about once per second


class CountedStore(dist.Store):
    """A store whose keys of exchanges are counted from the first `set` on; other keys stay as they are.

    Args:
        inner: holds the values.
    """

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self._inner = inner
        self._first: int | None = None

    def _renamed(self, key: str) -> str:
        found = _EXCHANGE.fullmatch(key)
        if found is None:
            return key
        count = int(found[2])
        if self._first is None:
            self._first = count
        return f"{found[1]}/{count - self._first}/{found[3]}"

    def set(self, key: str, value: Any) -> None:
        self._inner.set(self._renamed(key), value)

    def get(self, key: str) -> bytes:
        return self._inner.get(self._renamed(key))

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._inner.wait([self._renamed(key) for key in keys], *timeout)


class SymmetricGroup:
    """The group of a world. Its name is used for no other world, so that torch finds no earlier rendezvous under it.

    Attributes:
        name: under which torch finds the group.

    Raises:
        HeapUnavailable: torch cannot make it.
    """

    def __init__(self, meeting: MeetingPoint) -> None:
        self._meeting = meeting
        self.name = f"{meeting.folder.name}/{meeting.rank}"
        try:
            meeting.folder.mkdir(mode=0o700, exist_ok=True)
            self._file = dist.FileStore(str(meeting.folder / "store"), meeting.world_size)
            # the limit of each wait inside the rendezvous, which takes the store's own and no group's
            self._file.set_timeout(timedelta(seconds=max(meeting.timeout, _LEAST_TIMEOUT)))
            self._store = CountedStore(self._file)  # referenced here: torch's own reference keeps no Python object
            self._group = dist.ProcessGroup(self._store, meeting.rank, meeting.world_size)
            _names._register_process_group(self.name, self._group)
        except (OSError, RuntimeError, ValueError) as error:
            raise HeapUnavailable(f"torch cannot make a group in {meeting.folder}: {error}") from None

    def all_of(self, what: str, mine: str) -> list[str]:
        """The value of every rank, by rank. Collective.

        Raises:
            RuntimeError: a rank did not give its value in time.
        """
        self._file.set(f"{what} {self._meeting.rank}", mine)
        return [self._file.get(f"{what} {rank}").decode() for rank in range(self._meeting.world_size)]

    def close(self) -> None:
        """Give the name back. Idempotent."""
        with contextlib.suppress(RuntimeError):  # torch has forgotten all groups: destroy_process_group
            _names._unregister_process_group(self.name)
