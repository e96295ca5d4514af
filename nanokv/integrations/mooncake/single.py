"""Calls about one value: put, get, upsert, and those that only tell about it."""

from typing import Any

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig
from nanokv.integrations.mooncake.memory import BufferHandle, Part, part_of, take
from nanokv.integrations.mooncake.values import PLAIN, Values, config_code, key_bytes, number


class Single(Values):
    """One key a call."""

    # --- writing ---
    def put(self, key: str, value: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store a copy of a buffer. A key that exists keeps its value, which is no error."""
        return self._put_value(key, value, config, replace=False)

    def upsert(self, key: str, value: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store a copy of a buffer, in place of what the key has."""
        return self._put_value(key, value, config, replace=True)

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store buffers, one after another, as one value."""
        return self._put_parts(key, args, config, replace=False)

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig = PLAIN) -> int:
        """Store buffers, one after another, as one value, in place of what the key has."""
        return self._put_parts(key, args, config, replace=True)

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = PLAIN) -> int:
        """Store the bytes at an address."""
        return self._put_from(key, [(buffer_ptr, size)], config, replace=False)

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = PLAIN) -> int:
        """Store the bytes at an address, in place of what the key has."""
        return self._put_from(key, [(buffer_ptr, size)], config, replace=True)

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
        if not number("size", size):
            config_code(config)
            return Code.OK  # as the real one, which stores nothing then
        return self._put_from(key, [(metadata_buffer_ptr, metadata_size), (buffer_ptr, size)], config, replace=False)

    def _put_value(self, key: object, value: Any, config: ReplicateConfig, *, replace: bool) -> int:
        part, alive = part_of(value)
        if not part.nbytes or part.nbytes > self._local_buffer:
            key_bytes(key), config_code(config)
            return Code.INVALID_PARAMS
        done = self._store(key, (part,), config, replace=replace)
        del alive
        return done

    def _put_parts(self, key: str, values: tuple[Any, ...], config: ReplicateConfig, *, replace: bool) -> int:
        found = [part_of(value) for value in values]
        parts = [part for part, _ in found if part.nbytes]
        nbytes = sum(part.nbytes for part in parts)
        if not nbytes:
            key_bytes(key), config_code(config)
            return Code.OK if self._objects is not None else Code.INVALID_PARAMS  # as the real one: nothing to store
        if nbytes > self._local_buffer:
            return Code.INVALID_PARAMS
        return self._store(key, parts, config, replace=replace)

    def _put_from(self, key: object, given: Any, config: ReplicateConfig, *, replace: bool) -> int:
        parts = [Part(number("buffer_ptr", ptr), number("size", size)) for ptr, size in given]
        parts = [part for part in parts if part.nbytes]
        if not parts or not all(part.address for part in parts):
            key_bytes(key), config_code(config)
            return Code.INVALID_PARAMS
        return self._store(key, parts, config, replace=replace)

    # --- reading ---
    def get(self, key: str, /) -> bytes:
        """A copy of a value; empty if there is none."""
        if type(key) is str and key and self._objects is not None:
            small = self._objects.small.get(key)
            if small is not None and len(small) <= self._local_buffer:
                return small
        found = self._reading(key, self._within_buffer(take))
        return found if isinstance(found, bytes) else b""

    def get_buffer(self, key: str, /) -> BufferHandle | None:
        """A copy of a value as a writable buffer; None if there is none."""
        found = self._reading(key, self._within_buffer(BufferHandle.copied))
        return found if isinstance(found, BufferHandle) else None

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Copy a value to an address: its bytes, or a code."""
        return self._read_into(key, number("buffer_ptr", buffer_ptr), number("size", size))

    def get_size(self, key: str, /) -> int:
        """Bytes of a value, or a code."""
        return self._size(key)

    def is_exist(self, key: str, /) -> int:
        """1 if the key has a value that can be read, else 0; less for a client that is not set up."""
        name = key_bytes(key)
        if self._objects is None:
            return Code.INTERNAL_ERROR
        return int(bool(name) and self._objects.exists(name))

    def _within_buffer(self, copy: Any) -> Any:
        """`copy`, for values that the local buffer of this client can hold."""
        limit = self._local_buffer

        def made(address: int, nbytes: int) -> Any:
            return copy(address, nbytes) if nbytes <= limit else Code.INVALID_PARAMS

        return made

    # --- memory ---
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Let the store read and write a piece of memory. Pieces must not overlap."""
        added = self._registered.add(number("buffer_ptr", buffer_ptr), number("size", size))
        return Code.OK if added else Code.INVALID_PARAMS

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Take that back, by the address at which the piece begins."""
        return Code.OK if self._registered.drop(number("buffer_ptr", buffer_ptr)) else Code.INVALID_PARAMS

    def alloc_from_mem_pool(self, size: int, /) -> int:
        """0: only clients of another process have a pool."""
        number("size", size)
        return 0
