"""A client in a child of a fork: it is the parent's, and no call acts under the parent's rank."""

import ctypes
from collections.abc import Callable

import torch

from nanokv.integrations.mooncake import MooncakeDistributedStore, ReplicateConfig
from tests.support.forks import answers_of_a_child, check_refused


def test_a_child_of_a_fork_cannot_use_the_client_and_takes_nothing_away(store: MooncakeDistributedStore) -> None:
    store.put("k", b"value")
    memory = bytearray(64)
    address = ctypes.addressof((ctypes.c_char * 64).from_buffer(memory))
    store.register_buffer(address, 64)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("x", b"value"),
        "upsert": lambda: store.upsert("k", b"other"),
        "put_batch": lambda: store.put_batch(["x"], [b"value"]),
        "put_parts": lambda: store.put_parts("x", b"a", b"b"),
        "put_from": lambda: store.put_from("x", address, 8),
        "put with a config": lambda: store.put("x", b"value", ReplicateConfig()),
        "put_tensor": lambda: store.put_tensor("x", torch.ones(2)),
        "get": lambda: store.get("k"),
        "get_batch": lambda: store.get_batch(["k"]),
        "get_buffer": lambda: store.get_buffer("k"),
        "get_into": lambda: store.get_into("k", address, 64),
        "get_tensor": lambda: store.get_tensor("k"),
        "is_exist": lambda: store.is_exist("k"),
        "batch_is_exist": lambda: store.batch_is_exist(["k"]),
        "get_size": lambda: store.get_size("k"),
        "remove": lambda: store.remove("k", True),
        "remove_all": lambda: store.remove_all(True),
        "get_replica_desc": lambda: store.get_replica_desc("k"),
    }
    check_refused(calls)
    assert answers_of_a_child({"close": store.close}) == {"close": "returned 0"}
    assert store.get("k") == b"value" and store.is_exist("x") == 0 and store.put("x", b"value") == 0


def test_another_default_device_changes_nothing(store: MooncakeDistributedStore) -> None:
    given = {
        "matrix": torch.arange(12, dtype=torch.float32).view(3, 4),
        "strided": torch.arange(12, dtype=torch.int16).view(3, 4).t(),
        "scalar": torch.tensor(3.5),
        "half": torch.ones(5).to(torch.bfloat16),
    }
    memory = (ctypes.c_char * 4096)()
    address = ctypes.addressof(memory)
    store.register_buffer(address, 4096)
    with torch.device("meta"):
        assert store.put("k", b"value") == 0 and store.get("k") == b"value" and store.get_batch(["k"]) == [b"value"]
        for name, tensor in given.items():
            assert store.put_tensor(name, tensor) == 0
            assert is_equal(store.get_tensor(name), tensor)
            assert is_equal(store.get_tensor_into(name, address, 4096), tensor)
        assert all(map(is_equal, store.batch_get_tensor(list(given)), given.values()))
        assert store.put_tensor_with_tp("tp", given["matrix"], 0, 2, 1) == 0
        assert is_equal(store.get_tensor_with_tp("tp", 0, 2), given["matrix"][:, :2])


def is_equal(found: torch.Tensor | None, given: torch.Tensor) -> bool:
    return found is not None and found.device.type == "cpu" and torch.equal(found.view(given.shape), given)
