"""Calls that store whole tensors: from a tensor, or from memory that has the header and the data."""

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig, checked
from nanokv.integrations.mooncake.tensor_memory import header_at
from nanokv.integrations.mooncake.tensor_values import TensorValues, exact_list, names, segments_fit
from nanokv.integrations.mooncake.values import PLAIN, key_bytes, listed, number

_INVALID = Code.INVALID_PARAMS


class TensorPuts(TensorValues):
    """A key that exists keeps its value, which is no error; the calls with `upsert` in their names replace it.

    A tensor may lie on a GPU, have gaps, or belong to a graph; what is stored is its values. INVALID_PARAMS: it cannot
    be stored (`tensor_memory.storable`). A call with many keys answers with a code for each, and stores nothing if the
    lists are of different lengths.
    """

    def put_tensor(self, key: str, tensor: object) -> int:
        """Store a tensor: 0 or a code."""
        return self._put_tensor(key_bytes(key), tensor, PLAIN, replace=False)

    def upsert_tensor(self, key: str, tensor: object) -> int:
        """Store a tensor, in place of what the key has: 0 or a code."""
        return self._put_tensor(key_bytes(key), tensor, PLAIN, replace=True)

    def pub_tensor(self, key: str, tensor: object, config: ReplicateConfig = PLAIN) -> int:
        """`put_tensor` as a config says."""
        return self._pub_tensor(key, tensor, config, replace=False)

    def upsert_pub_tensor(self, key: str, tensor: object, config: ReplicateConfig = PLAIN) -> int:
        """`upsert_tensor` as a config says."""
        return self._pub_tensor(key, tensor, config, replace=True)

    def _pub_tensor(self, key: object, tensor: object, config: ReplicateConfig, *, replace: bool) -> int:
        name = key_bytes(key)
        if not segments_fit(checked(config)):
            return _INVALID
        return self._put_tensor(name, tensor, config, replace=replace)

    # --- many keys ---
    def batch_put_tensor(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """`put_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, PLAIN, replace=False)

    def batch_upsert_tensor(self, keys: list[str], tensors_list: list[object]) -> list[int]:
        """`upsert_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, PLAIN, replace=True)

    def batch_pub_tensor(
        self, keys: list[str], tensors_list: list[object], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`pub_tensor` for each key."""
        return self._pub_tensors(keys, tensors_list, config, replace=False)

    def batch_upsert_pub_tensor(
        self, keys: list[str], tensors_list: list[object], config: ReplicateConfig = PLAIN
    ) -> list[int]:
        """`upsert_pub_tensor` for each key."""
        return self._pub_tensors(keys, tensors_list, config, replace=True)

    def _pub_tensors(self, keys: object, tensors: object, config: ReplicateConfig, *, replace: bool) -> list[int]:
        each, given = names(keys), exact_list("tensors_list", tensors)
        if not segments_fit(checked(config)):
            return [_INVALID] * len(each)
        return self._put_tensors(each, given, config, replace=replace)

    # --- from memory ---
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store a tensor that lies at an address, header and data, as `get_tensor_into` lays it: 0 or a code."""
        return self._put_tensor_from(key, buffer_ptr, size, replace=False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from`, in place of what the key has."""
        return self._put_tensor_from(key, buffer_ptr, size, replace=True)

    def _put_tensor_from(self, key: object, buffer_ptr: int, size: int, *, replace: bool) -> int:
        name, ptr, nbytes = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        if header_at(ptr, nbytes) is None:
            return _INVALID
        return self._put_object(name, ptr, nbytes, PLAIN, replace=replace)

    def batch_put_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`put_tensor_from` for each key. If one of them is no tensor, none is stored."""
        return self._put_objects(keys, buffer_ptrs, sizes, PLAIN, replace=False)

    def batch_upsert_tensor_from(self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]) -> list[int]:
        """`upsert_tensor_from` for each key. If one of them is no tensor, none is stored."""
        return self._put_objects(keys, buffer_ptrs, sizes, PLAIN, replace=True)

    def _put_objects(
        self, keys: object, buffer_ptrs: object, sizes: object, config: ReplicateConfig, *, replace: bool
    ) -> list[int]:
        each, memory = names(keys), memory_of(buffer_ptrs, sizes)
        if memory is None or len(memory) != len(each) or any(header_at(*part) is None for part in memory):
            return [_INVALID] * len(each)
        return [self._put_object(name, *part, config, replace=replace) for name, part in zip(each, memory, strict=True)]


def memory_of(buffer_ptrs: object, sizes: object) -> list[tuple[int, int]] | None:
    """Address and bytes of each of the buffers that a call was given; None for lists of different lengths.

    Raises:
        TypeError: they are no lists of addresses and sizes.
    """
    addresses = [number("buffer_ptr", ptr) for ptr in listed("buffer_ptrs", buffer_ptrs)]
    rooms = [number("size", size) for size in listed("sizes", sizes)]
    return list(zip(addresses, rooms, strict=True)) if len(addresses) == len(rooms) else None
