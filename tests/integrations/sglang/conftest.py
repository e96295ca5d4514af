"""SGLang without a GPU: its own factory, host pools and controllers, on CPUs. See `parts.py`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.without_torchvision import stand_in

if find_spec("sglang") is not None:
    stand_in()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worlds of each test lie in a folder of its own."""
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """start(pool, **of the configuration) -> a backend made by SGLang's factory, closed after the test."""
    from tests.integrations.sglang.parts import made

    with ExitStack() as stack:

        def started(pool: Any = None, **given: Any) -> Any:
            backend = made(**given)
            stack.callback(backend.close)
            if pool is not None:
                backend.register_mem_pool_host(pool)
            return backend

        yield started
