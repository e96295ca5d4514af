"""Calls that store tensors in a layout; `parallelism_writes` tells what each stores."""

from typing import Any

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.config import ReplicateConfig, checked
from nanokv.integrations.mooncake.parallelism_writes import Asked, LaidOut, each_asked
from nanokv.integrations.mooncake.tensor_puts import TensorPuts, memory_of
from nanokv.integrations.mooncake.tensor_values import exact_list, names, of_each, segments_fit
from nanokv.integrations.mooncake.values import PLAIN, key_bytes, number

_INVALID = Code.INVALID_PARAMS


class ParallelismPuts(LaidOut, TensorPuts):
    """`parallelism`: a `TensorParallelism`. `writer_partition`: an object with `rank`, `size` and `split_dim`.

    At most one of the two is given; INVALID_PARAMS otherwise, and if the tensor cannot be divided so. A call with many
    keys takes a list of requests, one for each key, and answers with a code for each.
    """

    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: object,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """Store a tensor in a layout: 0 or a code."""
        asked = Asked(parallelism, writer_partition, config)
        return self._put_laid_out(key_bytes(key), tensor, asked, replace=False)

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: object,
        parallelism: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partition: object = None,
    ) -> int:
        """`put_tensor_with_parallelism`, in place of what is there."""
        asked = Asked(parallelism, writer_partition, config)
        return self._put_laid_out(key_bytes(key), tensor, asked, replace=True)

    def batch_put_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[object],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`put_tensor_with_parallelism` for each key."""
        return self._put_each(keys, tensors_list, parallelisms, config, writer_partitions, replace=False)

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: list[str],
        tensors_list: list[object],
        parallelisms: object = None,
        config: ReplicateConfig = PLAIN,
        writer_partitions: object = None,
    ) -> list[int]:
        """`upsert_tensor_with_parallelism` for each key."""
        return self._put_each(keys, tensors_list, parallelisms, config, writer_partitions, replace=True)

    def _put_each(
        self, keys: object, tensors: object, layouts: Any, config: ReplicateConfig, parts: Any, *, replace: bool
    ) -> list[int]:
        each, given = names(keys), exact_list("tensors_list", tensors)
        if layouts is None and parts is None:
            return self._pub_tensors(each, given, config, replace=replace)
        if len(given) != len(each):
            return [_INVALID] * len(each)

        def put(at: int, asked: Asked) -> int:
            return self._put_laid_out(each[at], given[at], asked, replace=replace)

        return each_asked(each, layouts, config, parts, put)

    # --- from memory ---
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
        asked = Asked(parallelism, writer_partition, config)
        name, ptr, nbytes = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        return self._put_laid_out_from(name, ptr, nbytes, asked, replace=False)

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
        asked = Asked(parallelism, writer_partition, config)
        name, ptr, nbytes = key_bytes(key), number("buffer_ptr", buffer_ptr), number("size", size)
        return self._put_laid_out_from(name, ptr, nbytes, asked, replace=True)

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
        return self._put_each_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, replace=False)

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
        return self._put_each_from(keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, replace=True)

    def _put_each_from(
        self,
        keys: object,
        buffer_ptrs: object,
        sizes: object,
        layouts: Any,
        config: ReplicateConfig,
        parts: Any,
        *,
        replace: bool,
    ) -> list[int]:
        each, memory = names(keys), memory_of(buffer_ptrs, sizes)
        if layouts is None and parts is None:
            single = of_each(checked(config), len(each))
            if single is None or not segments_fit(config):
                return [_INVALID] * len(each)
            return self._put_objects(each, buffer_ptrs, sizes, single, replace=replace)
        if memory is None or len(memory) != len(each):
            return [_INVALID] * len(each)

        def put(at: int, asked: Asked) -> int:
            return self._put_laid_out_from(each[at], *memory[at], asked, replace=replace)

        return each_asked(each, layouts, config, parts, put)
