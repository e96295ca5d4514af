"""Engines without a GPU: vLLM's own managers, whose primary tier the test itself fills. See `parts.py`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worlds of each test lie in a folder of its own."""
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """start(**settings of the tier) -> a `parts.Tiered`, shut down after the test."""
    from tests.integrations.vllm_offload.parts import Tiered

    with ExitStack() as stack:

        def started(**settings: Any) -> Tiered:
            tiered = Tiered(**settings)
            stack.callback(tiered.close)
            return tiered

        yield started


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What is logged at WARNING here. vLLM's loggers do not propagate."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.nanokv")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


@pytest.fixture
def start_spec() -> Iterator[Callable[..., Any]]:
    """start_spec(**settings of the spec) -> an `offloaded.Offloaded`, shut down after the test."""
    from tests.integrations.vllm_offload.offloaded import Offloaded

    with ExitStack() as stack:

        def started(**settings: Any) -> Offloaded:
            engine = Offloaded(**settings)
            stack.callback(engine.close)
            return engine

        yield started
