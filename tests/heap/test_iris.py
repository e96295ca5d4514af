"""iris: what its import and its choice of a GPU can end in."""

from pathlib import Path

import pytest
import torch

from nanokv.errors import HeapUnavailable
from nanokv.heap import open_heap
from nanokv.heap.iris import _check_gpu
from tests.support.heap_ranks import small_world


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ImportError('no xio')", "no xio; it is installed from its repository"),
        ("raise OSError('libamdhip64.so: cannot open shared object file')", "cannot open.*LD_LIBRARY_PATH"),
        ('raise RuntimeError("Can\'t swap an already initialized allocator")', "import iris before anything uses"),
        ("raise RuntimeError('Fine-grained allocator library not found')", "not found; is it built and installed?"),
        ("import torch; torch.cuda.no_such_thing", "no attribute 'no_such_thing'"),
        ("", "another one than ROCm's"),
    ],
)
def test_an_import_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "iris.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "iris", raising=False)
    with pytest.raises(HeapUnavailable, match=message):
        open_heap("iris", small_world(1), 0)


def test_the_gpu_that_iris_takes_is_the_current_one_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    _check_gpu(1, 1, torch.device("cuda", 1))
    _check_gpu(1, None, torch.device("cpu"))
    assert current == []
    with pytest.raises(HeapUnavailable, match=r"rank 5 was given GPU 1 .* GPU 0 is the current one: .*set_device\(1\)"):
        _check_gpu(5, 0, torch.device("cuda", 1))
    assert current == [0]  # the caller's device is current again
