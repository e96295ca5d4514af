"""Tensors as files of safetensors, and back."""

from pathlib import Path

import pytest
import torch

from tests.integrations.mooncake.test_tensor_store import INVALID, NAME, NUMBERS, Store, same, surface

pytest.importorskip("safetensors")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@surface(NAME, "save_tensor_to_safetensor")
@surface(NAME, "load_tensor_from_safetensor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_a_tensor_goes_to_a_file_and_back(store: Store, tmp_path: Path, dtype: torch.dtype) -> None:
    tensor, path = NUMBERS.to(dtype), str(tmp_path / "file.safetensors")
    store.put_tensor("a", tensor)
    assert store.save_tensor_to_safetensor("a", path) == 0
    store.remove("a", True)
    loaded = store.load_tensor_from_safetensor("a", path)
    assert loaded is not None and same(loaded, tensor) and same(store.get_tensor("a"), tensor)


@surface(NAME, "save_tensor_to_safetensor")
@surface(NAME, "load_tensor_from_safetensor")
def test_without_a_name_it_is_the_others(store: Store, tmp_path: Path) -> None:
    store.put_tensor("a.safetensors", NUMBERS)
    assert store.save_tensor_to_safetensor("a.safetensors") == 0 and (tmp_path / "a.safetensors").is_file()
    store.remove("a.safetensors", True)
    assert store.load_tensor_from_safetensor(file_name="a.safetensors") is not None
    assert same(store.get_tensor("a.safetensors"), NUMBERS)


@surface(NAME, "load_tensor_from_safetensor")
def test_a_file_of_many_has_the_keys_or_else_its_first(store: Store, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = str(tmp_path / "many")
    save_file({"a": NUMBERS, "b": NUMBERS + 1}, path)
    first = store.load_tensor_from_safetensor("b", path)
    other = store.load_tensor_from_safetensor("other", path)
    assert first is not None and other is not None
    assert same(first, NUMBERS + 1) and same(other, NUMBERS)
    assert same(store.get_tensor("b"), NUMBERS + 1) and same(store.get_tensor("other"), NUMBERS)


@surface(NAME, "load_tensor_from_safetensor")
def test_a_key_that_exists_keeps_its_value(store: Store, tmp_path: Path) -> None:
    store.put_tensor("a", NUMBERS)
    store.save_tensor_to_safetensor("a", "file")
    store.upsert_tensor("a", NUMBERS + 1)
    assert same(store.load_tensor_from_safetensor("a", "file"), NUMBERS)
    assert same(store.get_tensor("a"), NUMBERS + 1)


@surface(NAME, "save_tensor_to_safetensor")
@surface(NAME, "load_tensor_from_safetensor")
def test_what_is_not_there_is_told(store: Store, tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"no safetensors")
    assert store.save_tensor_to_safetensor("missing", "file") == -1100 and not (tmp_path / "file").exists()
    store.put_tensor("a", NUMBERS)
    assert store.save_tensor_to_safetensor("a", str(tmp_path / "missing" / "file")) == INVALID
    for path in ("missing", "none"):
        assert store.load_tensor_from_safetensor("b", path) is None and store.is_exist("b") == 0
    store.save_tensor_to_safetensor("a", "file")
    assert store.load_tensor_from_safetensor("", "file") is None  # the empty key cannot be stored


@surface(NAME, "save_tensor_to_safetensor")
@surface(NAME, "load_tensor_from_safetensor")
def test_names_are_texts(store: Store) -> None:
    store.put_tensor("a", NUMBERS)
    with pytest.raises(RuntimeError):
        store.save_tensor_to_safetensor("a", 3)
    with pytest.raises(RuntimeError):
        store.load_tensor_from_safetensor(3, "file")
    with pytest.raises(TypeError):
        store.load_tensor_from_safetensor("a")


def test_a_client_that_is_not_set_up_has_nothing() -> None:
    assert Store().save_tensor_to_safetensor("a", "file") == INVALID
    assert Store().load_tensor_from_safetensor("a", "file") is None
