"""`MooncakeDistributedStore`: the calls of Mooncake's store, over a `StoreClient` and its `Tensors`.

Each call checks what it is given (`arguments`), and does one thing for each key. What stores goes one of three ways:
bytes by `_put`, tensors by `Tensors.put`, tensors that lie in memory by `Tensors.put_from`. A key that exists keeps its
value, which is no error; the calls with `upsert` in their names replace it. Answers are integers: 0 or more for
success, else a code (`codes`). A call with many keys answers for each. If its lists are of different lengths, that is
INVALID_PARAMS for each, and nothing is done.
"""

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch

from nanokv.integrations.mooncake.arguments import (
    PLAIN,
    config_code,
    config_of_each,
    exact_list,
    key_bytes,
    listed,
    memory_of,
    names,
    number,
    numbers,
    pattern,
    pieces_of,
    text,
)
from nanokv.integrations.mooncake.client import DEFAULT_SIZE, StoreClient
from nanokv.integrations.mooncake.codes import ErrorCode
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.local_buffer import LocalBuffer
from nanokv.integrations.mooncake.memory import BufferHandle, Part, copy_ranges, part_of, scatter, take
from nanokv.integrations.mooncake.parallelism import (
    Placement,
    placement,
    placements,
    shard_given,
    shard_key,
    split_given,
    targets_given,
)
from nanokv.integrations.mooncake.replicas import NO_TASK, QueryTaskResponse, ReplicaDescriptor, Task, replicas_of
from nanokv.integrations.mooncake.tensor_bytes import header_at
from nanokv.integrations.mooncake.tensors import Tensors

logger = logging.getLogger(__name__)

R = TypeVar("R")
_INVALID = ErrorCode.INVALID_PARAMS
_NO_SEGMENT = {"ret": ErrorCode.NOT_SUPPORTED, "segment_ids": []}
_address, _nbytes = attrgetter("address"), attrgetter("nbytes")


class MooncakeDistributedStore:
    """A client of a store: see `setup`.

    Attributes:
        client, tensors: what it is made of, for the rest of the project.
    """

    def __init__(self) -> None:
        self.client = StoreClient()
        self.tensors = Tensors(self.client)

    # --- the life of a client ---
    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Join the store that a master's address names: 0, or a code. Either of

        - `setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices,
          master_server_addr, engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
          enable_client_http_server=False, client_http_port=9300)`
        - `setup(config)`, a dict of those by name; only the first two must be there, and sizes may be texts ("16MB").

        No master has to run there, and no metadata server.
        """
        if args and isinstance(args[0], dict) and len(args) == 1 and not kwargs:
            return self.client.set_up_from(args[0])
        if "config" in kwargs and not args:
            return self.client.set_up_from(kwargs["config"])
        return self.client.set_up(*args, **kwargs)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """NOT_SUPPORTED: every client of NanoKV reaches the memory of all others by itself, with `setup`."""
        number("mem_pool_size", mem_pool_size), number("local_buffer_size", local_buffer_size)
        if not isinstance(server_address, str):
            raise TypeError(f"setup_dummy(): incompatible function arguments: {server_address!r} is no str")
        logger.error(
            "NanoKV has no clients of another process (mooncake_client at %s), and setup_dummy is refused: call "
            "setup(...) with the address of the master and global_segment_size=0, which reaches the same memory",
            server_address,
        )
        return ErrorCode.NOT_SUPPORTED

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int, /) -> int:
        """Set up with the addresses of this host: 0, or a code; INVALID_PARAMS for a client that is set up."""
        there = self.client.is_set_up
        done = self.client.set_up(
            "localhost", "P2PHANDSHAKE", mount_segment_size, DEFAULT_SIZE, protocol, device_name, "127.0.0.1:50051"
        )
        return _INVALID if there else done

    def close(self) -> int:
        """Leave the store. The values in this client's segment go with it. Idempotent; `setup` may follow."""
        self.client.close()
        return ErrorCode.OK

    def health_check(self) -> int:
        """0: set up; 1: not, or closed."""
        return int(not self.client.is_set_up)

    def get_hostname(self) -> str:
        """The name of this client, and of its segment: host and port."""
        return self.client.hostname

    def _get_pyclient_capsule(self) -> LocalBuffer | None:
        """What pools take their memory from; None for a client that is not set up. The name is the real one's."""
        return self.client.pooled

    # --- what NanoKV has not ---
    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Refused: a client of NanoKV has the segment of its set-up, and no other."""
        return dict(_NO_SEGMENT)

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> dict[str, Any]:
        """Refused, as `mount_segment`."""
        return {**_NO_SEGMENT, "allocated_size": 0}

    def unmount_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Refused, as `mount_segment`."""
        return ErrorCode.NOT_SUPPORTED

    def unmount_and_free_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int:
        """Refused, as `mount_segment`."""
        return ErrorCode.NOT_SUPPORTED

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0: there is none."""
        return ErrorCode.OK

    def get_offload_rpc_read_count(self) -> int:
        """0: nothing is offloaded."""
        return 0

    # --- memory ---
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Let the store read and write a piece of memory. Pieces must not overlap."""
        added = self.client.registered.add(number("buffer_ptr", buffer_ptr), number("size", size))
        return ErrorCode.OK if added else _INVALID

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Take that back, by the address at which the piece begins."""
        return ErrorCode.OK if self.client.registered.drop(number("buffer_ptr", buffer_ptr)) else _INVALID

    def alloc_from_mem_pool(self, size: int, /) -> int:
        """0: only clients of another process have a pool."""
        number("size", size)
        return 0

    # --- storing bytes ---
    def put(self, key: str, value: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store a copy of a buffer."""
        part, alive = part_of(value)
        return self._put(key, (part,), config, alive, replace=False, copied=True)

    def upsert(self, key: str, value: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store a copy of a buffer, in place of what the key has."""
        part, alive = part_of(value)
        return self._put(key, (part,), config, alive, replace=True, copied=True)

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store buffers, one after another, as one value."""
        return self._put_parts(key, args, config, replace=False)

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store buffers, one after another, as one value, in place of what the key has."""
        return self._put_parts(key, args, config, replace=True)

    def _put_parts(self, key: str, values: tuple[Any, ...], config: ReplicateConfig, *, replace: bool) -> int:
        found = [part_of(value) for value in values]
        parts = [part for part, _ in found]
        if self.client.is_set_up and not any(part.nbytes for part in parts):
            key_bytes(key), config_code(config)
            return ErrorCode.OK  # as the real one: there is nothing to store
        return self._put(key, parts, config, found, replace=replace, copied=True)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = PLAIN) -> int:
        """Store the bytes at an address."""
        part = Part(number("buffer_ptr", buffer_ptr), number("size", size))
        return self._put(key, (part,), config, replace=False)

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = PLAIN) -> int:
        """Store the bytes at an address, in place of what the key has."""
        part = Part(number("buffer_ptr", buffer_ptr), number("size", size))
        return self._put(key, (part,), config, replace=True)

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = PLAIN,
    ) -> int:
        """Store two pieces of memory as one value: the metadata, then the bytes at `buffer_ptr`."""
        data = Part(number("buffer_ptr", buffer_ptr), number("size", size))
        head = Part(number("metadata_buffer_ptr", metadata_buffer_ptr), number("metadata_size", metadata_size))
        if not data.nbytes:
            config_code(config)
            return ErrorCode.OK  # as the real one, which stores nothing then
        return self._put(key, (head, data), config, replace=False)

    def _put(
        self,
        key: object,
        parts: Sequence[Part],
        config: ReplicateConfig,
        alive: object = None,
        *,
        replace: bool,
        copied: bool = False,
    ) -> int:
        """Store the parts, one after another, as one value.

        Args:
            alive: what keeps the memory of the parts, for the time of the call.
            copied: the value goes by way of the local buffer, and has to fit into it.
        """
        name = key_bytes(key)
        parts = [part for part in parts if part.nbytes]
        fits = not copied or sum(map(_nbytes, parts)) <= self.client.local_buffer
        if not parts or not fits or not all(map(_address, parts)):
            config_code(config)
            return _INVALID
        return self.client.store(name, parts, config, replace=replace)

    def put_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig = PLAIN) -> int:
        """`put` for each key: 0, or the code of the first one that failed. An empty value: nothing is stored."""
        return self._put_batch(keys, values, config, replace=False)

    def upsert_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig = PLAIN) -> int:
        """`upsert` for each key; of a key that is named twice the first value counts."""
        return self._put_batch(keys, values, config, replace=True)

    def _put_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig, *, replace: bool) -> int:
        keys, values = listed("keys", keys), listed("values", values)
        code = config_code(config, len(keys))
        if len(keys) != len(values) or code or not self.client.is_set_up:
            return code or _INVALID
        found = [part_of(value) for value in values]
        if not all(part.nbytes for part, _ in found):
            return _INVALID
        firsts: dict[str, Part] = {}
        for key, (part, _) in zip(keys, found, strict=True):
            firsts.setdefault(key, part)
        single = config_of_each(config, len(keys)) or config
        codes = [self._put(key, (part,), single, replace=replace, copied=True) for key, part in firsts.items()]
        return next((code for code in codes if code), ErrorCode.OK)

    def batch_put_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`put_from` for each key."""
        memory = memory_of(buffer_ptrs, sizes)
        return self._put_each(keys, None if memory is None else [(part,) for part in memory], config, replace=False)

    def batch_upsert_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`upsert_from` for each key."""
        memory = memory_of(buffer_ptrs, sizes)
        return self._put_each(keys, None if memory is None else [(part,) for part in memory], config, replace=True)

    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: ReplicateConfig = PLAIN,
    ) -> list[int]:
        """Store for each key several pieces of memory, one after another, as one value."""
        return self._put_each(keys, pieces_of(all_buffer_ptrs, all_sizes), config, replace=False)

    def _put_each(
        self, keys: list[str], values: Sequence[Sequence[Part] | None] | None, config: ReplicateConfig, *, replace: bool
    ) -> list[int]:
        """`_put` for each key. A value that is None is INVALID_PARAMS, and so are all if there is none for each key."""
        keys = listed("keys", keys)
        code = config_code(config, len(keys))
        if values is None or len(values) != len(keys) or code:
            return [code or _INVALID] * len(keys)
        single = config_of_each(config, len(keys)) or config
        return [
            _INVALID if parts is None else self._put(key, parts, single, replace=replace)
            for key, parts in zip(keys, values, strict=True)
        ]

    # --- reading bytes ---
    def get(self, key: str, /) -> bytes:
        """A copy of a value; empty if there is none."""
        objects = self.client.objects
        if objects is not None and type(key) is str and key:
            small = objects.read_small(key)
            if small is not None and len(small) <= self.client.local_buffer:
                return small
        found = self._copied(key, take)
        return found if isinstance(found, bytes) else b""

    def get_buffer(self, key: str, /) -> BufferHandle | None:
        """A copy of a value as a writable buffer; None if there is none."""
        found = self._copied(key, BufferHandle.copied)
        return found if isinstance(found, BufferHandle) else None

    def _copied(self, key: object, copy: Callable[[int, int], R]) -> R | int:
        """What `copy(address, nbytes)` makes of a value that the local buffer can hold; else a code."""
        limit = self.client.local_buffer
        return self.client.read(
            key_bytes(key), lambda address, nbytes: copy(address, nbytes) if nbytes <= limit else _INVALID
        )

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Copy a value to an address: its bytes, or a code."""
        address, room = number("buffer_ptr", buffer_ptr), number("size", size)
        if not address:
            room = 0  # nothing fits there
        objects = self.client.objects
        if objects is not None and type(key) is str and key:
            small = objects.read_small_into(key, address, room)
            if small >= 0:
                return small
        name = key_bytes(key)
        return objects.read_into(name, address, room) if objects is not None and name else ErrorCode.OBJECT_NOT_FOUND

    def get_size(self, key: str, /) -> int:
        """Bytes of a value, or a code."""
        return self.client.read(key_bytes(key), lambda _, nbytes: nbytes)

    def is_exist(self, key: str, /) -> int:
        """1 if the key has a value that can be read, else 0; less for a client that is not set up."""
        name, objects = key_bytes(key), self.client.objects
        if objects is None:
            return ErrorCode.INTERNAL_ERROR
        return int(bool(name) and objects.exists(name))

    def get_batch(self, keys: list[str], /) -> list[bytes]:
        """`get` for each key; for no keys a list with one empty value, as the real one."""
        return [self.get(key) for key in listed("keys", keys)] or [b""]

    def batch_get_buffer(self, keys: list[str], /) -> list[BufferHandle | None]:
        """`get_buffer` for each key."""
        return [self.get_buffer(key) for key in listed("keys", keys)]

    def batch_is_exist(self, keys: list[str], /) -> list[int]:
        """`is_exist` for each key."""
        each, objects = names(keys), self.client.objects
        if objects is None:
            return [ErrorCode.INTERNAL_ERROR] * len(each)
        return [int(there and bool(name)) for there, name in zip(objects.exist(each), each, strict=True)]

    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`get_into` for each key."""
        keys, ptrs, sizes = listed("keys", keys), listed("buffer_ptrs", buffer_ptrs), listed("sizes", sizes)
        if not len(keys) == len(ptrs) == len(sizes):
            return [_INVALID] * len(keys)
        return [self.get_into(*each) for each in zip(keys, ptrs, sizes, strict=True)]

    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Copy each value to several pieces of memory, one after another: its bytes, or a code.

        The pieces have exactly the bytes of the value, together.
        """
        keys, pieces = listed("keys", keys), pieces_of(all_buffer_ptrs, all_sizes)
        if pieces is None or len(pieces) != len(keys):
            return [_INVALID] * len(keys)
        return [
            _INVALID if of_key is None else self.client.read(key_bytes(key), scatter(of_key))
            for key, of_key in zip(keys, pieces, strict=True)
        ]

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: list[list[list[int]]],
        all_src_offsets: list[list[list[int]]],
        all_sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        """Copy ranges of values into registered buffers.

        For each buffer, each of its keys and each range of it: bytes, or a code. Offsets are in the buffer, and in the
        value.
        """
        ptrs = numbers("buffer_ptrs", buffer_ptrs)
        given = [listed("a list", each) for each in (all_keys, all_dst_offsets, all_src_offsets, all_sizes)]
        shaped = all(len(each) == len(ptrs) for each in given)
        answers = []
        for at, ptr in enumerate(ptrs):
            keys, *ranges = (each[at] if at < len(each) else [] for each in given)
            fits = shaped and all(len(each) == len(keys) for each in ranges)
            answers.append([self._get_ranges(ptr, key, fits, ranges, place) for place, key in enumerate(keys)])
        return answers

    def _get_ranges(self, ptr: int, key: str, fits: bool, ranges: Sequence[Any], at: int) -> list[int]:
        """The answers for the ranges of one key."""
        dst, src, sizes = [numbers("a list", each[at]) if at < len(each) else [] for each in ranges]
        count = max(len(dst), len(src), len(sizes))
        if not fits or not len(dst) == len(src) == len(sizes):
            return [_INVALID] * count
        copy = copy_ranges(ptr, self.client.registered.room(ptr), list(zip(dst, src, sizes, strict=True)))
        found = self.client.read(key_bytes(key), copy)
        return found if isinstance(found, list) else [found] * count

    # --- values in several calls ---
    def batch_put_session_start(self, keys: list[str], sizes: list[int], config: ReplicateConfig = PLAIN) -> list[int]:
        """Begin a value of so many bytes for each key: 0, or a code; -705 if the key exists."""
        keys, sizes = listed("keys", keys), listed("sizes", sizes)
        code, objects = config_code(config, len(keys)), self.client.objects
        if objects is None:
            return []
        if len(keys) != len(sizes) or code:
            return [code or _INVALID] * len(keys)
        return self.client.sessions.begin(objects, names(keys), numbers("sizes", sizes), config)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_dst_offsets: list[list[int]],
    ) -> list[int]:
        """Write pieces of memory at offsets of values that were begun: the bytes written, or a code."""
        return _move_each(self.client.sessions.write, keys, all_buffer_ptrs, all_sizes, all_dst_offsets)

    def batch_put_session_end(self, keys: list[str]) -> list[int]:
        """Make the values visible: 0, or a code for each key."""
        return self._finish(keys, commit=True)

    def batch_put_session_revoke(self, keys: list[str]) -> list[int]:
        """Give the values up: 0, or a code for each key."""
        return self._finish(keys, commit=False)

    def _finish(self, keys: list[str], *, commit: bool) -> list[int]:
        each, objects = listed("keys", keys), self.client.objects
        if objects is None:
            return []
        return [self.client.sessions.finish(objects, name, commit=commit) for name in map(key_bytes, each)]

    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Hold the value of each key in place: 0, or a code."""
        objects = self.client.objects
        if objects is None:
            return []
        return [self.client.sessions.hold(objects, key_bytes(key)) for key in listed("keys", keys)]

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_src_offsets: list[list[int]],
    ) -> list[int]:
        """Copy ranges of values that are held to pieces of memory: the bytes copied, or a code."""
        return _move_each(self.client.sessions.read, keys, all_buffer_ptrs, all_sizes, all_src_offsets)

    def batch_get_session_end(self, keys: list[str]) -> int:
        """Let the values go."""
        if not self.client.is_set_up:
            return ErrorCode.INTERNAL_ERROR
        for key in listed("keys", keys):
            self.client.sessions.release(key_bytes(key))
        return ErrorCode.OK

    # --- removing: a reader's lease holds it off, except by `force` ---
    def remove(self, key: str, force: bool = False) -> int:
        """Remove a value: 0, or a code; -706 while a reader's lease protects it."""
        name, objects = key_bytes(key), self.client.objects
        if objects is None:
            return _INVALID
        return objects.remove(name, force=force) if name else ErrorCode.OBJECT_NOT_FOUND

    def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
        """`remove` for each key."""
        return [self.remove(key, force) for key in listed("keys", keys)]

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove the values whose keys contain a match of a (Python) regular expression: how many went, or a code."""
        wanted, objects = pattern(regex_pattern), self.client.objects
        if wanted is None or objects is None:
            return _INVALID
        return sum(not objects.remove(key, force=force) for key in list(objects.keys()) if wanted.search(key))

    def remove_all(self, force: bool = False) -> int:
        """Remove all values, those with a hard pin too: how many went."""
        objects = self.client.objects
        if objects is None:
            return _INVALID
        return sum(not objects.remove(key, force=force) for key in list(objects.keys()))

    def batch_replica_clear(self, keys: list[str], segment_name: str = "") -> list[str]:
        """Remove the replicas in a segment, or all: the keys of which something was removed. Leases hold it off."""
        objects = self.client.objects
        if objects is None:
            return []
        rank = objects.segments.rank_of(segment_name) if segment_name else None
        if segment_name and rank is None:
            return []
        cleared = []
        for key in listed("keys", keys):
            name = key_bytes(key)
            if not name or objects.leased(name):
                continue
            gone = objects.remove(name) if rank is None else objects.remove_at(name, rank)
            if not gone:
                cleared.append(key)
        return cleared

    # --- replicas ---
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The replicas of a value; none if there is no value. It counts as a read."""
        name, objects = key_bytes(key), self.client.objects
        return replicas_of(objects, name) if objects is not None and name else []

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """`get_replica_desc` for each key that has a value."""
        found = {key: self.get_replica_desc(key) for key in listed("keys", keys)}
        return {key: replicas for key, replicas in found.items() if replicas}

    def create_copy_task(self, key: str, targets: list[str]) -> tuple[Task, int]:
        """Copy a value into the segments of other clients: the task, and 0 or a code."""
        name, targets, objects = key_bytes(key), listed("targets", targets), self.client.objects
        return (NO_TASK, _INVALID) if objects is None else self.client.tasks.copy(objects, name, targets)

    def create_move_task(self, key: str, source: str, target: str) -> tuple[Task, int]:
        """Move a replica from the segment of one client to that of another: the task, and 0 or a code."""
        name, objects = key_bytes(key), self.client.objects
        return (NO_TASK, _INVALID) if objects is None else self.client.tasks.move(objects, name, source, target)

    def query_task(self, task_id: Task) -> tuple[QueryTaskResponse | None, int]:
        """How a task that this client created has ended, and 0; or None and a code."""
        if not isinstance(task_id, tuple | list) or len(task_id) != 2:
            raise TypeError(f"incompatible function arguments: a task is a pair of integers, not {task_id!r}")
        known = self.client.tasks.query((task_id[0], task_id[1]))
        return (known, ErrorCode.OK) if known else (None, ErrorCode.TASK_NOT_FOUND)

    # --- storing tensors ---
    # A tensor may lie on a GPU, have gaps, or belong to a graph: its values are stored. INVALID_PARAMS: it is one that
    # cannot be stored (`storable`).
    def put_tensor(self, key: str, tensor: object) -> int:
        """Store a tensor: 0 or a code."""
        return self.tensors.put(key_bytes(key), tensor, Placement(PLAIN), replace=False)

    def upsert_tensor(self, key: str, tensor: object) -> int:
        """Store a tensor, in place of what the key has: 0 or a code."""
        return self.tensors.put(key_bytes(key), tensor, Placement(PLAIN), replace=True)

    def pub_tensor(self, key: str, tensor: object, config: ReplicateConfig = PLAIN) -> int:
        """`put_tensor` as a config says."""
        return self.tensors.put(key_bytes(key), tensor, placement(config), replace=False)

    def upsert_pub_tensor(self, key: str, tensor: object, config: ReplicateConfig = PLAIN) -> int:
        """`upsert_tensor` as a config says."""
        return self.tensors.put(key_bytes(key), tensor, placement(config), replace=True)

    def batch_put_tensor(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """`put_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, replace=False)

    def batch_upsert_tensor(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """`upsert_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, replace=True)

    def batch_pub_tensor(
        self, keys: list[str], tensors_list: list[object], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`pub_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, config, replace=False)

    def batch_upsert_pub_tensor(
        self, keys: list[str], tensors_list: list[object], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`upsert_pub_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, config, replace=True)

    def _put_tensors(
        self,
        keys: object,
        tensors: object,
        config: ReplicateConfig = PLAIN,
        parallelisms: object = None,
        writer_partitions: object = None,
        split: tuple[int, int] | None = None,
        *,
        replace: bool,
    ) -> list[int]:
        """`Tensors.put` for each key."""
        each, given = names(keys), exact_list("tensors_list", tensors)
        wanted = placements(len(each), config, parallelisms, writer_partitions, split)
        if len(given) != len(each) or wanted is None:
            return [_INVALID] * len(each)
        return [self.tensors.put(*one, replace=replace) for one in zip(each, given, wanted, strict=True)]

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store a tensor that lies at an address, header and data, as `get_tensor_into` lays it: 0 or a code."""
        return self._put_tensor_from(key, buffer_ptr, size, Placement(PLAIN), replace=False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from`, in place of what the key has."""
        return self._put_tensor_from(key, buffer_ptr, size, Placement(PLAIN), replace=True)

    def _put_tensor_from(self, key: str, ptr: int, size: int, wanted: Placement | None, *, replace: bool) -> int:
        name, memory = key_bytes(key), Part(number("buffer_ptr", ptr), number("size", size))
        return self.tensors.put_from(name, memory, wanted, replace=replace)

    def batch_put_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`put_tensor_from` for each key. If one of them is no tensor, none is stored."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, replace=False)

    def batch_upsert_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`upsert_tensor_from` for each key. If one of them is no tensor, none is stored."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, replace=True)

    def _put_tensors_from(
        self,
        keys: object,
        buffer_ptrs: object,
        sizes: object,
        config: ReplicateConfig = PLAIN,
        parallelisms: object = None,
        writer_partitions: object = None,
        split: tuple[int, int] | None = None,
        *,
        replace: bool,
    ) -> list[int]:
        """`Tensors.put_from` for each key. Tensors that are stored whole are all stored, or none."""
        each, memory = names(keys), memory_of(buffer_ptrs, sizes)
        wanted = placements(len(each), config, parallelisms, writer_partitions, split)
        if memory is None or len(memory) != len(each) or wanted is None:
            return [_INVALID] * len(each)
        whole = parallelisms is None and writer_partitions is None and split is None
        if whole and any(header_at(*part) is None for part in memory):
            return [_INVALID] * len(each)
        return [self.tensors.put_from(*one, replace=replace) for one in zip(each, memory, wanted, strict=True)]

    # --- reading tensors ---
    # None stands for a key without a tensor: there is nothing, or a value that is no tensor. What comes back has the
    # dtype and shape that were stored, except that a tensor without dimensions has one of size 1, as the real store's.
    def get_tensor(self, key: str) -> torch.Tensor | None:
        """A copy of a tensor, in host memory."""
        return self.tensors.get(key_bytes(key))

    def batch_get_tensor(self, keys: list[str]) -> list[torch.Tensor | None]:
        """`get_tensor` for each key."""
        return [self.tensors.get(name) for name in names(keys)]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> torch.Tensor | None:
        """Copy header and data of a tensor to an address where `size` bytes are free: a tensor over the data there.

        The caller keeps that memory alive. None also if there is no room.
        """
        return self.tensors.get_into(key_bytes(key), Part(number("buffer_ptr", buffer_ptr), number("size", size)))

    def batch_get_tensor_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]
    ) -> list[torch.Tensor | int | None]:
        """`get_tensor_into` for each key. INVALID_PARAMS for each: lists of different lengths, or an address is 0."""
        return self._get_tensors_into(names(keys), memory_of(buffer_ptrs, sizes))

    def _get_tensors_into(self, each: list[bytes], memory: list[Part] | None) -> list[torch.Tensor | int | None]:
        known = memory is not None and len(memory) == len(each) and all(part.address for part in memory)
        if memory is None or not known or not self.client.is_set_up:
            return [_INVALID] * len(each)
        return [self.tensors.get_into(*one) for one in zip(each, memory, strict=True)]

    def get_tensor_into_cuda(self, key: str, tensor: object) -> int:
        """INVALID_PARAMS, as from each client of the real store that reaches memory by itself."""
        key_bytes(key)
        return _INVALID

    def batch_get_tensor_into_cuda(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """INVALID_PARAMS for each key, as `get_tensor_into_cuda`."""
        exact_list("tensors_list", tensors_list)
        return [_INVALID] * len(names(keys))

    # --- tensors divided among the ranks of tensor parallelism ---
    # The shard of rank r lies under "<key>_tp_<r>", with the shape of the whole and its place in it. All shards are of
    # the same size, so the dimension is divided evenly or the call is refused. `tp_rank` counts only for reading: a put
    # stores the shards of all ranks. A `tp_size` below 2 divides nothing.
    def put_tensor_with_tp(
        self, key: str, tensor: object, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Divide a tensor along a dimension, and store its shards: 0, or the code of the first that was not stored."""
        return self.pub_tensor_with_tp(key, tensor, PLAIN, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: object,
        config: ReplicateConfig = PLAIN,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` as a config says."""
        name, split = key_bytes(key), split_given(tp_rank, tp_size, split_dim)
        return self.tensors.put(name, tensor, placement(config, split=split), replace=False)

    def batch_put_tensor_with_tp(
        self, base_keys: list[str], tensors_list: list[object], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        """`put_tensor_with_tp` for each key."""
        return self.batch_pub_tensor_with_tp(base_keys, tensors_list, PLAIN, tp_rank, tp_size, split_dim)

    def batch_pub_tensor_with_tp(
        self,
        base_keys: list[str],
        tensors_list: list[object],
        config: ReplicateConfig = PLAIN,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`pub_tensor_with_tp` for each key."""
        split = split_given(tp_rank, tp_size, split_dim)
        return self._put_tensors(base_keys, tensors_list, config, split=split, replace=False)

    def put_tensor_with_tp_from(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Divide a tensor that lies at an address, header and data, and store its shards: 0 or a code."""
        wanted = Placement(PLAIN, split=split_given(tp_rank, tp_size, split_dim))
        return self._put_tensor_from(key, buffer_ptr, size, wanted, replace=False)

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for each key."""
        split = split_given(tp_rank, tp_size, split_dim)
        return self._put_tensors_from(base_keys, buffer_ptrs, sizes, split=split, replace=False)

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> torch.Tensor | None:
        """A copy of a rank's shard. `split_dim` is not needed: the shard is read as it was stored."""
        return self.tensors.get(shard_key(key_bytes(key), *shard_given(tp_rank, tp_size, split_dim)))

    def batch_get_tensor_with_tp(
        self, base_keys: list[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[torch.Tensor | None]:
        """`get_tensor_with_tp` for each key."""
        each, shard = names(base_keys), shard_given(tp_rank, tp_size)
        return [self.tensors.get(shard_key(name, *shard)) for name in each]

    def get_tensor_with_tp_into(
        self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> torch.Tensor | None:
        """`get_tensor_into` of a rank's shard."""
        name = shard_key(key_bytes(key), *shard_given(tp_rank, tp_size, split_dim))
        return self.tensors.get_into(name, Part(number("buffer_ptr", buffer_ptr), number("size", size)))

    def batch_get_tensor_with_tp_into(
        self, base_keys: list[str], buffer_ptrs: list[int], sizes: list[int], tp_rank: int = 0, tp_size: int = 1
    ) -> list[torch.Tensor | int | None]:
        """`batch_get_tensor_into` of a rank's shards. None for each key if the client is not set up."""
        each, shard, memory = names(base_keys), shard_given(tp_rank, tp_size), memory_of(buffer_ptrs, sizes)
        if not self.client.is_set_up:
            return [None] * len(each)
        return self._get_tensors_into([shard_key(name, *shard) for name in each], memory)

    # --- tensors in a layout ---
    # `parallelism` is a `TensorParallelism`, and `writer_partition` an object with `rank`, `size` and `split_dim`. At
    # most one of the two is given; INVALID_PARAMS otherwise, and if the tensor cannot be divided so. A call with many
    # keys takes a list of them, one for each key. `tensors` tells what is stored.
    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: object,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """Store a tensor in a layout: 0 or a code."""
        wanted = placement(config, parallelism, writer_partition)
        return self.tensors.put(key_bytes(key), tensor, wanted, replace=False)

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: object,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism`, in place of what is there."""
        wanted = placement(config, parallelism, writer_partition)
        return self.tensors.put(key_bytes(key), tensor, wanted, replace=True)

    def batch_put_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[object],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism` for each key."""
        return self._put_tensors(keys, tensors_list, config, parallelisms, writer_partitions, replace=False)

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[object],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism` for each key."""
        return self._put_tensors(keys, tensors_list, config, parallelisms, writer_partitions, replace=True)

    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """Store a tensor that lies at an address, header and data, in a layout: 0 or a code.

        With a tensor axis all its shards are stored; so the tensor has to be whole.
        """
        wanted = placement(config, parallelism, writer_partition)
        return self._put_tensor_from(key, buffer_ptr, size, wanted, replace=False)

    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism_from`, in place of what is there."""
        wanted = placement(config, parallelism, writer_partition)
        return self._put_tensor_from(key, buffer_ptr, size, wanted, replace=True)

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism_from` for each key."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, config, parallelisms, writer_partitions, replace=False)

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: list[str],
        buffer_ptrs: list[int],
        sizes: list[int],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism_from` for each key."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, config, parallelisms, writer_partitions, replace=True)

    # `target` is a `ReadTarget`; None reads the object of the key as it was stored.
    #
    # - "shard" with a layout: this rank's shard. If it was not stored so, it is made of the shards that were.
    # - "full" with a layout: the whole, made of all shards along the tensor axis.
    # - "full" without a layout: the whole, made of all shards of writers; without those the object of the key.
    #
    # None stands for what is not there, not all there, or not of one whole.
    def get_tensor_with_parallelism(self, key: str, target: object = None) -> torch.Tensor | None:
        """A copy of a tensor in a layout."""
        return self.tensors.get_target(key_bytes(key), target)

    def batch_get_tensor_with_parallelism(self, keys: list[str], targets: object = None) -> list[torch.Tensor | None]:
        """`get_tensor_with_parallelism` for each key, with a list of targets. None for each: that is no such list."""
        each = names(keys)
        wanted = targets_given(targets, len(each))
        if wanted is None:
            return [None] * len(each)
        return [self.tensors.get_target(*one) for one in zip(each, wanted, strict=True)]

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: object = None
    ) -> torch.Tensor | None:
        """Lay header and data of a tensor in a layout to an address: a tensor over the data there.

        The `size` bytes at the address have to be registered. None also if there is no room.
        """
        name, memory = key_bytes(key), Part(number("buffer_ptr", buffer_ptr), number("size", size))
        return self.tensors.get_target_into(name, memory, target)

    def batch_get_tensor_with_parallelism_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], targets: object = None
    ) -> list[torch.Tensor | None]:
        """`get_tensor_with_parallelism_into` for each key. None for each: lists of different lengths."""
        each, memory = names(keys), memory_of(buffer_ptrs, sizes)
        wanted = targets_given(targets, len(each))
        if wanted is None or memory is None or len(memory) != len(each):
            return [None] * len(each)
        return [self.tensors.get_target_into(*one) for one in zip(each, memory, wanted, strict=True)]

    # --- tensors in files ---
    # The package `safetensors` has to be installed; without it the calls fail as for a file that cannot be used.
    def save_tensor_to_safetensor(self, key: str, file_name: object = None) -> int:
        """Write a tensor to a file, which is named as the key if no name is given: 0 or a code.

        FILE_NOT_FOUND: the key has no tensor. INVALID_PARAMS: the file cannot be written, or the client is not set up.

        Raises:
            RuntimeError: `file_name` is no str.
        """
        name = key_bytes(key)
        return self.tensors.save(name, text(name if file_name is None else file_name))

    def load_tensor_from_safetensor(self, key: object = None, file_name: object = None) -> torch.Tensor | None:
        """Read the tensor of a file, which has to be named, and store it.

        It is stored under the key, or without one under the name of the file; a key that exists keeps its value. If the
        file has no tensor of the key's name, its first one is taken.

        Returns:
            The tensor of the file; None if the file cannot be read, or its tensor not stored.

        Raises:
            RuntimeError: `key` is no str.
            TypeError: `file_name` is no str.
        """
        if not isinstance(file_name, str | bytes):
            raise TypeError(f"incompatible function arguments: file_name must be a str, not {file_name!r}")
        path = text(file_name)
        return self.tensors.load(path if key is None else text(key), path)


def _move_each(
    move: Callable[[bytes, Sequence[Part] | None, Sequence[int]], int],
    keys: object,
    ptrs: object,
    sizes: object,
    offsets: object,
) -> list[int]:
    """`move(key, pieces, offsets)` for each key: a session's `write` or `read`."""
    keys, offsets, pieces = listed("keys", keys), listed("offsets", offsets), pieces_of(ptrs, sizes)
    if pieces is None or not len(pieces) == len(keys) == len(offsets):
        return [_INVALID] * len(keys)
    return [
        move(key_bytes(key), of_key, numbers("offsets", starts))
        for key, of_key, starts in zip(keys, pieces, offsets, strict=True)
    ]
