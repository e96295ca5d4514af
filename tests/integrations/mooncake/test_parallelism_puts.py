"""What is stored of a tensor in a layout, and under which keys."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanokv.integrations.mooncake.parallelism import Manifest, ParallelAxis
from tests.integrations.mooncake.test_parallelism import WHOLE, axis, header_of, keys, layout, part, tp
from tests.integrations.mooncake.test_tensor_store import INVALID, NAME, Store, config, same, surface


@surface(NAME, "put_tensor_with_parallelism")
def test_a_ranks_shard_is_stored_with_its_place_and_a_manifest(store: Store) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE[4:], tp(1, 2)) == 0
    header = header_of(store, "a_tp_1")
    assert (header.whole, header.shape, header.axes) == ((8, 6), (4, 6), ((1, 1, 2, 0, 0, 4),))
    assert same(store.get_tensor("a_tp_1"), WHOLE[4:])
    assert store.get("a__parallelism_manifest") == Manifest(torch.float32, (8, 6), 0, 2).packed()
    assert keys(store) == ["a__parallelism_manifest", "a_tp_1"]


@surface(NAME, "put_tensor_with_parallelism")
@pytest.mark.parametrize(
    ("other", "key"),
    [
        (axis("dp", 0, 2), "a__dp_0of2__tp_1of2_sd1"),
        (axis("pp", 1, 4, stage_id=7), "a__tp_1of2_sd1__pp_1of4_sid7"),
        (axis("ep", 0, 2, expert_id=3), "a__tp_1of2_sd1__ep_0of2_eid3"),
    ],
)
def test_of_more_axes_the_ranks_shard_of_the_whole_is_stored(store: Store, other: ParallelAxis, key: str) -> None:
    for both in (layout(axis("tp", 1, 2, 1), other), layout(other, axis("TP", 1, 2, 1))):
        assert store.upsert_tensor_with_parallelism("a", WHOLE, both) == 0
        assert same(store.get_tensor(key), WHOLE[:, 3:])
        assert keys(store) == sorted([key, "a__parallelism_manifest"])


@surface(NAME, "put_tensor_with_parallelism")
@pytest.mark.parametrize(
    ("only", "key", "stored"),
    [
        (axis("dp", 0, 2), "a__dp_0of2", (0, 0, 2, -1, 0, 0)),
        (axis("pp", 1, 4, stage_id=7), "a__pp_1of4_sid7", (3, 1, 4, -1, 7, 0)),
        (axis("ep", 0, 2, expert_id=3), "a__ep_0of2_eid3", (2, 0, 2, -1, 3, 0)),
    ],
)
def test_without_a_tensor_axis_it_is_stored_as_it_is(
    store: Store, only: ParallelAxis, key: str, stored: tuple[int, ...]
) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE, layout(only)) == 0
    header = header_of(store, key)
    assert header.is_shard and header.shape == header.whole == (8, 6) and header.axes == (stored,)
    assert keys(store) == [key] and same(store.get_tensor(key), WHOLE)


@surface(NAME, "put_tensor_with_parallelism")
def test_a_writers_shard_is_stored_with_a_manifest(store: Store) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE, writer_partition=part(1, 2, 1)) == 0
    assert same(store.get_tensor("a__writer_1of2_sd1"), WHOLE[:, 3:])
    assert header_of(store, "a__writer_1of2_sd1").axes == ((1, 1, 2, 1, 0, 3),)
    assert store.get("a__writer_manifest") == Manifest(torch.float32, (8, 6), 1, 2).packed()


@surface(NAME, "put_tensor_with_parallelism")
@surface(NAME, "upsert_tensor_with_parallelism")
def test_a_put_keeps_what_is_there_and_an_upsert_replaces_it(store: Store) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE) == store.put_tensor_with_parallelism("a", WHOLE + 1) == 0
    assert same(store.get_tensor("a"), WHOLE)
    assert store.upsert_tensor_with_parallelism("a", WHOLE + 1) == 0 and same(store.get_tensor("a"), WHOLE + 1)
    for rank, size in ((0, 2), (0, 4)):
        assert store.upsert_tensor_with_parallelism("b", WHOLE, writer_partition=part(rank, size, 0)) == 0
    assert store.get("b__writer_manifest") == Manifest(torch.float32, (8, 6), 0, 4).packed()


@surface(NAME, "put_tensor_with_parallelism")
@surface(NAME, "upsert_tensor_with_parallelism")
@pytest.mark.parametrize(
    "wrong",
    [
        layout(),
        layout(axis("zz", 0, 2)),
        tp(2, 2),
        tp(0, 0),
        tp(0, 2, 5),
        tp(0, 2, -1),
        layout(axis("tp", 0, 2)),
        layout(axis("dp", 0, 2, 0)),
        layout(axis("ep", 0, 2)),
        layout(axis("ep", 0, 2, 0, expert_id=1)),
        layout(axis("pp", 0, 2)),
        layout(axis("dp", 0, 2), axis("DP", 1, 2)),
        layout(axis("dp", 0, 2), axis("tp", 0, 3, 0)),
        layout(*[axis("dp", 0, 2)] * 5),
        3,
        SimpleNamespace(axes=[3]),
    ],
)
def test_a_layout_that_cannot_be_is_refused(store: Store, wrong: Any) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE, wrong) == INVALID
    assert store.upsert_tensor_with_parallelism("a", WHOLE, wrong) == INVALID
    assert store.batch_put_tensor_with_parallelism(["a"], [WHOLE], [wrong]) == [INVALID]
    assert keys(store) == []


@surface(NAME, "put_tensor_with_parallelism")
@pytest.mark.parametrize("wrong", [part(2, 2, 0), part(0, 3, 0), part(0, 2, 2), part(0, 2, -1), part(0, 0, 0), 3])
def test_a_part_that_cannot_be_is_refused(store: Store, wrong: Any) -> None:
    assert store.put_tensor_with_parallelism("a", WHOLE, writer_partition=wrong) == INVALID
    assert store.put_tensor_with_parallelism("a", WHOLE, tp(0, 2), writer_partition=part(0, 2, 0)) == INVALID
    assert keys(store) == []


@surface(
    NAME,
    "put_tensor_with_parallelism",
    differs="what is no tensor is INVALID_PARAMS in each layout; the real one raises AttributeError in some",
)
@pytest.mark.parametrize("request_", [None, tp(0, 2), layout(axis("dp", 0, 2))])
@pytest.mark.parametrize("given", [None, [1.0], torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse()])
def test_what_is_no_tensor_is_refused(store: Store, given: object, request_: object) -> None:
    assert store.put_tensor_with_parallelism("a", given, request_) == INVALID
    assert store.put_tensor_with_parallelism("a", given, writer_partition=part(0, 2, 0)) == INVALID
    assert keys(store) == []


@surface(NAME, "put_tensor_with_parallelism")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda store: store.put_tensor_with_parallelism(3, WHOLE), TypeError),
        (lambda store: store.put_tensor_with_parallelism("a", WHOLE, None, None), TypeError),
        (lambda store: store.put_tensor_with_parallelism("a", WHOLE, writer_partition=part("0", 2, 0)), RuntimeError),
        (lambda store: store.put_tensor_with_parallelism("a", WHOLE, writer_partition=part(0, 2.0, 0)), RuntimeError),
        (lambda store: store.put_tensor_with_parallelism("a", WHOLE, SimpleNamespace(axes=3)), RuntimeError),
        (
            lambda store: store.put_tensor_with_parallelism("a", WHOLE, SimpleNamespace(axes=[part(0, 2, 0)])),
            None,  # it has no `kind`
        ),
        (
            lambda store: store.put_tensor_with_parallelism(
                "a", WHOLE, SimpleNamespace(axes=[SimpleNamespace(kind="tp", rank=0, size=2)])
            ),
            AttributeError,
        ),
        (lambda store: store.batch_put_tensor_with_parallelism(["a"], (WHOLE,)), TypeError),
        (lambda store: store.put_tensor_with_parallelism_from("a", "0", 5), TypeError),
    ],
)
def test_fields_of_other_types_are_told(
    store: Store, call: Callable[[Store], object], error: type[Exception] | None
) -> None:
    if error is None:
        assert call(store) == INVALID
    else:
        with pytest.raises(error):
            call(store)
    assert keys(store) == []


@surface(NAME, "put_tensor_with_parallelism")
def test_an_object_with_the_same_fields_is_a_layout(store: Store) -> None:
    fields = SimpleNamespace(kind="tp", rank=0, size=2, split_dim=0, expert_id=None, stage_id=None)
    assert store.put_tensor_with_parallelism("a", WHOLE[:4], SimpleNamespace(axes=(fields,))) == 0
    assert same(store.get_tensor("a_tp_0"), WHOLE[:4])


# --- many ---
@surface(NAME, "batch_put_tensor_with_parallelism")
@surface(NAME, "batch_upsert_tensor_with_parallelism")
def test_many_tensors_each_in_its_layout(store: Store) -> None:
    for put in (store.batch_put_tensor_with_parallelism, store.batch_upsert_tensor_with_parallelism):
        assert put(["a", "b", "c"], [WHOLE[:4], WHOLE, WHOLE], [tp(0, 2), None, tp(0, 0)]) == [0, 0, INVALID]
        assert same(store.get_tensor("a_tp_0"), WHOLE[:4]) and same(store.get_tensor("b"), WHOLE)
        assert put(["d", "e"], [WHOLE] * 2, writer_partitions=[part(0, 2, 0), None]) == [0, 0]
        assert put(["f"], [WHOLE]) == [0] and same(store.get_tensor("f"), WHOLE)
        assert put(["g", "h"], [WHOLE] * 2, [tp(0, 2)] * 2, config(group_ids=["x", "y"])) == [0, 0]
        store.remove_all(True)


@surface(NAME, "batch_put_tensor_with_parallelism")
@surface(NAME, "batch_upsert_tensor_with_parallelism")
@pytest.mark.parametrize(
    ("tensors", "layouts", "groups", "parts"),
    [
        ([WHOLE], None, None, None),
        ([WHOLE] * 2, [None], None, None),
        ([WHOLE] * 2, (None, None), None, None),
        ([WHOLE] * 2, [None] * 2, None, [None] * 2),
        ([WHOLE] * 2, [None] * 2, ["x"], None),
        ([WHOLE], [None] * 2, None, None),
    ],
)
def test_lists_that_do_not_fit_store_nothing(
    store: Store, tensors: list[object], layouts: object, groups: list[str] | None, parts: object
) -> None:
    how = config(group_ids=groups)
    assert store.batch_put_tensor_with_parallelism(["a", "b"], tensors, layouts, how, parts) == [INVALID] * 2
    assert store.batch_upsert_tensor_with_parallelism(["a", "b"], tensors, layouts, how, parts) == [INVALID] * 2
    assert keys(store) == []
