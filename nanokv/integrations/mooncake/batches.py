"""Calls about many values: a list of keys, and a code or a value for each."""

import ctypes
from collections.abc import Sequence
from typing import Any

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import BufferHandle, part_of
from nanokv.integrations.mooncake.single import Single
from nanokv.integrations.mooncake.values import PLAIN, config_code, key_bytes, listed, number


class Batches(Single):
    """Many keys a call. A list of another length than the keys is INVALID_PARAMS, and nothing is done."""

    def put_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig = PLAIN) -> int:
        """`put` for each key: 0, or the code of the first one that failed. An empty value: nothing is stored."""
        return self._value_batch(keys, values, config, replace=False)

    def upsert_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig = PLAIN) -> int:
        """`upsert` for each key; of a key that is named twice the first value counts."""
        return self._value_batch(keys, values, config, replace=True)

    def _value_batch(self, keys: list[str], values: list[Any], config: ReplicateConfig, *, replace: bool) -> int:
        keys, values = listed("keys", keys), listed("values", values)
        code = config_code(config, len(keys))
        if len(keys) != len(values) or code or self._objects is None:
            return code or Code.INVALID_PARAMS
        if not all(part_of(value)[0].nbytes for value in values):
            return Code.INVALID_PARAMS
        each, done = _each_of(config), set()
        worst = Code.OK
        for key, value, its in zip(keys, values, each(len(keys)), strict=True):
            if key in done:
                continue
            done.add(key)
            code = self._put_value(key, value, its, replace=replace)
            worst = worst or code
        return worst

    def batch_put_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`put_from` for each key."""
        return self._from_batch(keys, buffer_ptrs, sizes, config, replace=False)

    def batch_upsert_from(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`upsert_from` for each key."""
        return self._from_batch(keys, buffer_ptrs, sizes, config, replace=True)

    def _from_batch(
        self, keys: list[str], ptrs: list[int], sizes: list[int], config: ReplicateConfig, *, replace: bool
    ) -> list[int]:
        keys, ptrs, sizes = listed("keys", keys), listed("buffer_ptrs", ptrs), listed("sizes", sizes)
        code = config_code(config, len(keys))
        if not len(keys) == len(ptrs) == len(sizes) or code:
            return [code or Code.INVALID_PARAMS] * len(keys)
        each = zip(keys, ptrs, sizes, _each_of(config)(len(keys)), strict=True)
        return [int(self._put_from(key, [(ptr, size)], its, replace=replace)) for key, ptr, size, its in each]

    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        config: ReplicateConfig = PLAIN,
    ) -> list[int]:
        """Store for each key several pieces of memory, one after another, as one value."""
        keys = listed("keys", keys)
        code = config_code(config, len(keys))
        pieces = pieces_of(all_buffer_ptrs, all_sizes)
        if pieces is None or len(pieces) != len(keys) or code:
            return [code or Code.INVALID_PARAMS] * len(keys)
        each = zip(keys, pieces, _each_of(config)(len(keys)), strict=True)
        return [
            Code.INVALID_PARAMS if of_key is None else int(self._put_from(key, of_key, its, replace=False))
            for key, of_key, its in each
        ]

    # --- reading ---
    def get_batch(self, keys: list[str], /) -> list[bytes]:
        """`get` for each key; for no keys a list with one empty value, as the real one."""
        return [self.get(key) for key in listed("keys", keys)] or [b""]

    def batch_get_buffer(self, keys: list[str], /) -> list[BufferHandle | None]:
        """`get_buffer` for each key."""
        return [self.get_buffer(key) for key in listed("keys", keys)]

    def batch_is_exist(self, keys: list[str], /) -> list[int]:
        """`is_exist` for each key."""
        names = [key_bytes(key) for key in listed("keys", keys)]
        if self._objects is None:
            return [Code.INTERNAL_ERROR] * len(names)
        found = self._objects.exist(names)
        return [int(there and bool(name)) for there, name in zip(found, names, strict=True)]

    def batch_get_into(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`get_into` for each key."""
        keys, ptrs, sizes = listed("keys", keys), listed("buffer_ptrs", buffer_ptrs), listed("sizes", sizes)
        if not len(keys) == len(ptrs) == len(sizes):
            return [Code.INVALID_PARAMS] * len(keys)
        return [int(self.get_into(*each)) for each in zip(keys, ptrs, sizes, strict=True)]

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
        keys = listed("keys", keys)
        pieces = pieces_of(all_buffer_ptrs, all_sizes)
        if pieces is None or len(pieces) != len(keys):
            return [Code.INVALID_PARAMS] * len(keys)
        return [
            Code.INVALID_PARAMS if of_key is None else int(self._reading(key, _scatter(of_key)))
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
        ptrs = [number("buffer_ptr", ptr) for ptr in listed("buffer_ptrs", buffer_ptrs)]
        given = [listed("a list", each) for each in (all_keys, all_dst_offsets, all_src_offsets, all_sizes)]
        shaped = all(len(each) == len(ptrs) for each in given)
        answers = []
        for at, ptr in enumerate(ptrs):
            keys, *ranges = (each[at] if at < len(each) else [] for each in given)
            fits = shaped and all(len(each) == len(keys) for each in ranges)
            answers.append([self._ranges_of(ptr, key, fits, ranges, number_) for number_, key in enumerate(keys)])
        return answers

    def _ranges_of(self, ptr: int, key: str, fits: bool, ranges: Sequence[Any], at: int) -> list[int]:
        """The answers for the ranges of one key."""
        dst, src, sizes = [_numbers(each[at]) if at < len(each) else [] for each in ranges]
        count = max(len(dst), len(src), len(sizes))
        if not fits or not len(dst) == len(src) == len(sizes):
            return [Code.INVALID_PARAMS] * count
        room = self._registered.room(ptr)

        def copy(address: int, nbytes: int) -> list[int]:
            return [
                _copied(ptr + to, address + start, size)
                if size and to + size <= room and start + size <= nbytes
                else Code.INVALID_PARAMS
                for to, start, size in zip(dst, src, sizes, strict=True)
            ]

        found = self._reading(key, copy)
        return found if isinstance(found, list) else [int(found)] * count


def _copied(address: int, source: int, nbytes: int) -> int:
    ctypes.memmove(address, source, nbytes)
    return nbytes


def pieces_of(all_ptrs: object, all_sizes: object) -> list[list[tuple[int, int]] | None] | None:
    """Per key its pieces, None for lists of different lengths; None if not all keys have both lists.

    Raises:
        TypeError: an address or a size is none.
    """
    ptrs, sizes = listed("all_buffer_ptrs", all_ptrs), listed("all_sizes", all_sizes)
    if len(ptrs) != len(sizes):
        return None
    each = [(_numbers(of_key), _numbers(its)) for of_key, its in zip(ptrs, sizes, strict=True)]
    return [list(zip(*lists, strict=True)) if len(lists[0]) == len(lists[1]) and lists[0] else None for lists in each]


def _numbers(given: object) -> list[int]:
    return [number("an item", each) for each in listed("a list", given)]


def _scatter(pieces: list[tuple[int, int]]) -> Any:
    wanted, are_there = sum(size for _, size in pieces), all(ptr for ptr, size in pieces if size)

    def copy(address: int, nbytes: int) -> int:
        if not are_there:
            return Code.INVALID_PARAMS
        if nbytes != wanted:
            return Code.TRANSFER_FAIL if nbytes < wanted else Code.INVALID_PARAMS
        for ptr, size in pieces:
            ctypes.memmove(ptr, address, size)
            address += size
        return nbytes

    return copy


def _each_of(config: ReplicateConfig) -> Any:
    """The config of each object of a batch: the same, and of the groups the object's own."""
    if config is PLAIN or config.group_ids is None:
        return lambda count: [config] * count

    def single(count: int) -> list[ReplicateConfig]:
        ours = ReplicateConfig()
        for name in ReplicateConfig.__slots__:
            setattr(ours, name, getattr(config, name))
        ours.group_ids = None
        return [ours] * count

    return single
