"""Tensors read in a layout: as they were stored, or in another one."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from nanokv.integrations.mooncake.parallelism import Manifest, ParallelAxis, TensorParallelism
from nanokv.integrations.mooncake.tensor_bytes import DTYPES
from nanokv.integrations.mooncake.tensors import Join
from tests.integrations.mooncake.test_parallelism import WHOLE, axis, layout, part, target, tp
from tests.integrations.mooncake.test_tensor_store import NAME, Store, same, surface

CUBE = torch.arange(8 * 12 * 4, dtype=torch.float32).reshape(8, 12, 4)


def beside(kind: str) -> list[ParallelAxis]:
    """The axes that a layout has beside its tensor axis."""
    kinds = {"dp": axis("dp", 1, 2), "pp": axis("pp", 0, 2, stage_id=7), "ep": axis("ep", 0, 2, expert_id=11)}
    return [kinds[name] for name in kind.split("+") if name]


def put_all(store: Store, key: str, whole: torch.Tensor, size: int, dim: int, kind: str = "") -> None:
    """Store each rank's shard, as each rank would."""
    for rank, shard in enumerate(whole.chunk(size, dim)):
        own = layout(*beside(kind), axis("tp", rank, size, dim))
        assert store.put_tensor_with_parallelism(key, whole if kind else shard, own) == 0


@surface(NAME, "get_tensor_with_parallelism")
def test_without_a_target_it_is_read_as_it_is(store: Store) -> None:
    store.put_tensor("a", WHOLE)
    assert same(store.get_tensor_with_parallelism("a"), WHOLE)
    assert same(store.get_tensor_with_parallelism("a", target("as_stored")), WHOLE)
    assert same(store.get_tensor_with_parallelism("a", target("full")), WHOLE)
    assert store.get_tensor_with_parallelism("a", target("as_stored", tp(0, 2))) is None
    assert store.get_tensor_with_parallelism("a", target("shard")) is None


@surface(NAME, "get_tensor_with_parallelism")
@pytest.mark.parametrize("kind", ["", "dp", "pp", "ep", "dp+ep+pp"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_tensor_is_read_in_any_number_of_shards(store: Store, kind: str, dim: int) -> None:
    put_all(store, "a", CUBE, 4, dim, kind)
    for size in (1, 2, 4):
        for rank, shard in enumerate(CUBE.chunk(size, dim)):
            own = layout(axis("tp", rank, size, dim), *beside(kind)[::-1])
            assert same(store.get_tensor_with_parallelism("a", target("shard", own)), shard)
            assert same(store.get_tensor_with_parallelism("a", target("full", own)), CUBE)


@surface(NAME, "get_tensor_with_parallelism")
def test_shards_need_not_be_multiples_of_each_other(store: Store) -> None:
    put_all(store, "a", CUBE, 6, 1)
    for rank, shard in enumerate(CUBE.chunk(4, 1)):  # of 3 rows: half of a shard, and one; or one, and half of one
        assert same(store.get_tensor_with_parallelism("a", target("shard", tp(rank, 4, 1))), shard)


@surface(NAME, "get_tensor_with_parallelism")
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_is_joined_bit_by_bit(store: Store, dtype: torch.dtype) -> None:
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (4, 6 * dtype.itemsize), dtype=torch.uint8)
    whole = raw.view(dtype)
    for rank, shard in enumerate(whole.chunk(2, 1)):
        store.put_tensor_with_parallelism("a", shard, tp(rank, 2, 1))
    assert same(store.get_tensor_with_parallelism("a", target("full", tp(0, 2, 1))), whole)


@surface(NAME, "get_tensor_with_parallelism")
def test_a_tensor_without_elements_is_joined(store: Store) -> None:
    whole = torch.empty(4, 0)
    put_all(store, "a", whole, 2, 0, "dp")
    own = layout(*beside("dp"), axis("tp", 1, 2, 0))
    assert same(store.get_tensor_with_parallelism("a", target("full", own)), whole)
    assert same(store.get_tensor_with_parallelism("a", target("shard", own)), whole[2:])


@surface(NAME, "get_tensor_with_parallelism")
def test_writers_shards_are_joined(store: Store) -> None:
    for rank in range(3):
        assert store.get_tensor_with_parallelism("a", target("full")) is None  # not all are there
        assert store.put_tensor_with_parallelism("a", WHOLE, writer_partition=part(rank, 3, 1)) == 0
    assert same(store.get_tensor_with_parallelism("a", target("full")), WHOLE)
    assert same(store.get_tensor_with_parallelism("a", target("shard", tp(2, 3, 1))), WHOLE[:, 4:])
    assert store.get_tensor_with_parallelism("a", target("full", tp(0, 3, 1))) is None  # no rank has stored one


@surface(NAME, "get_tensor_with_parallelism")
def test_shards_of_the_older_calls_are_joined(store: Store) -> None:
    store.put_tensor_with_tp("a", WHOLE, 0, 2)  # they have no manifest
    assert same(store.get_tensor_with_parallelism("a", target("full", tp(0, 4))), WHOLE)
    assert same(store.get_tensor_with_parallelism("a", target("shard", tp(3, 4))), WHOLE[6:])


@surface(NAME, "get_tensor_with_parallelism")
def test_what_does_not_fit_is_none(store: Store) -> None:
    put_all(store, "a", WHOLE, 2, 0, "dp")
    dp, other = axis("dp", 1, 2), axis("dp", 0, 2)
    wrong: list[TensorParallelism] = [
        layout(other, axis("tp", 0, 2, 0)),  # another copy
        layout(dp, axis("tp", 0, 2, 1)),  # another dimension
        layout(dp, axis("tp", 0, 3, 0)),  # not even
        layout(dp),
        tp(0, 2),
        layout(),
        layout(dp, axis("tp", 2, 2, 0)),
    ]
    for mode in ("full", "shard"):
        for each in wrong:
            assert store.get_tensor_with_parallelism("a", target(mode, each)) is None
        assert store.get_tensor_with_parallelism("b", target(mode, tp(0, 2))) is None


@surface(NAME, "get_tensor_with_parallelism")
def test_shards_are_joined_only_if_all_are_of_one_whole(store: Store) -> None:
    full = target("full", tp(0, 2))
    store.put_tensor_with_parallelism("a", WHOLE[:4], tp(0, 2))
    assert store.get_tensor_with_parallelism("a", full) is None
    second = [WHOLE[4:].int(), WHOLE[:2], WHOLE[4:, :3], WHOLE[4:].flatten()]
    for shard in second:  # another dtype, extent, width, number of dimensions
        store.upsert_tensor_with_parallelism("a", shard, tp(1, 2))
        store.upsert("a__parallelism_manifest", Manifest(torch.float32, (8, 6), 0, 2).packed())
        assert store.get_tensor_with_parallelism("a", full) is None
    store.upsert_tensor("a_tp_1", WHOLE[4:])  # a tensor that does not say which shard it is
    assert store.get_tensor_with_parallelism("a", full) is None
    store.upsert_tensor_with_parallelism("a", WHOLE[4:], tp(1, 2))
    assert same(store.get_tensor_with_parallelism("a", full), WHOLE)


@surface(NAME, "get_tensor_with_parallelism")
@pytest.mark.parametrize("value", [b"x" * 96, b"x", Manifest(torch.float32, (8, 6), 0, 3).packed()])
def test_without_a_manifest_that_fits_the_shards_tell(store: Store, value: bytes) -> None:
    put_all(store, "a", WHOLE, 2, 0)
    store.upsert("a__parallelism_manifest", value)
    assert same(store.get_tensor_with_parallelism("a", target("full", tp(0, 2))), WHOLE)


@surface(NAME, "get_tensor_with_parallelism")
def test_a_rank_reads_the_tensor_that_a_program_divided_itself(store: Store) -> None:
    store.put_tensor("a_tp_1", WHOLE)
    assert same(store.get_tensor_with_parallelism("a", target("shard", tp(1, 2))), WHOLE)
    store.put_tensor("b", WHOLE)
    assert same(store.get_tensor_with_parallelism("b", target("shard", tp(0, 1))), WHOLE)
    assert store.get_tensor_with_parallelism("b", target("shard", tp(0, 2))) is None


@surface(
    NAME,
    "get_tensor_with_parallelism",
    differs="None where a shard of that rank is there, but of another layout; the real one returns that shard",
)
def test_another_layouts_shard_is_not_read_as_the_ranks_own(store: Store) -> None:
    put_all(store, "a", WHOLE, 2, 0)
    assert store.get_tensor_with_parallelism("a", target("shard", tp(1, 3))) is None
    assert store.get_tensor_with_parallelism("a", target("shard", tp(1, 2, 1))) is None


@surface(NAME, "get_tensor_with_parallelism")
def test_a_shard_that_is_replaced_before_it_is_copied_ends_the_join(store: Store) -> None:
    put_all(store, "a", WHOLE, 2, 0)
    found, out = store.tensors.find(b"a", target("full", tp(0, 2))), torch.empty(8, 6)
    assert isinstance(found, Join) and store.tensors.copy(found, out) and same(out, WHOLE)
    store.upsert_tensor_with_parallelism("a", WHOLE[4:].int(), tp(1, 2))
    assert not store.tensors.copy(found, out)
    store.remove("a_tp_1", True)
    assert not store.tensors.copy(found, out)


@surface(NAME, "get_tensor_with_parallelism")
@surface(NAME, "upsert_tensor_with_parallelism")
def test_readers_see_each_shard_whole_while_it_is_replaced(store: Store) -> None:
    shape, full = (2, 64 << 10), target("full", tp(0, 2))

    def write() -> None:
        for value in range(150):
            for rank in range(2):
                shard = torch.full(shape, value, dtype=torch.int32)
                assert store.upsert_tensor_with_parallelism("a", shard, tp(rank, 2)) == 0

    put_all(store, "a", torch.zeros(4, shape[1], dtype=torch.int32), 2, 0)
    with ThreadPoolExecutor(1) as pool:
        writer, reads = pool.submit(write), 0
        while not writer.done() or not reads:
            whole = store.get_tensor_with_parallelism("a", full)
            if whole is not None:  # while it is replaced, a shard is missing for a moment
                reads += 1
                for shard in whole.chunk(2):
                    assert (shard == shard[0, 0]).all()
        writer.result()


@surface(NAME, "batch_get_tensor_with_parallelism")
def test_many_tensors_each_with_its_target(store: Store) -> None:
    store.put_tensor("a", WHOLE)
    put_all(store, "b", WHOLE, 2, 0)
    targets = [None, target("full", tp(0, 2)), target("shard", tp(3, 4))]
    a, whole, shard = store.batch_get_tensor_with_parallelism(["a", "b", "b"], targets)
    assert same(a, WHOLE) and same(whole, WHOLE) and same(shard, WHOLE[6:])
    a, missing = store.batch_get_tensor_with_parallelism(["a", "b"])
    assert same(a, WHOLE) and missing is None
    assert store.batch_get_tensor_with_parallelism(["a", "b"], targets) == [None, None]
    assert store.batch_get_tensor_with_parallelism(["a"], (None,)) == [None]


@surface(NAME, "get_tensor_with_parallelism")
def test_an_object_with_the_same_fields_is_a_target(store: Store) -> None:
    put_all(store, "a", WHOLE, 2, 0)
    made = SimpleNamespace(mode="FULL", parallelism=tp(0, 2))
    assert same(store.get_tensor_with_parallelism("a", made), WHOLE)
    for wrong in (3, SimpleNamespace(mode="half", parallelism=None), SimpleNamespace(mode="full", parallelism=3)):
        assert store.get_tensor_with_parallelism("a", wrong) is None
    with pytest.raises(RuntimeError):
        store.get_tensor_with_parallelism("a", SimpleNamespace(mode=3, parallelism=None))


def test_a_client_that_is_not_set_up_has_nothing() -> None:
    store = Store()
    assert store.put_tensor_with_parallelism("a", WHOLE[:4], tp(0, 2)) == -600
    for each in (None, target("full"), target("full", tp(0, 2)), target("shard", tp(0, 2))):
        assert store.get_tensor_with_parallelism("a", each) is None
