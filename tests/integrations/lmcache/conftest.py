"""Backends of LMCache with a connector of NanoKV, made by LMCache's own loader, and adapters by its factory."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worlds of each test lie in a folder of its own."""
    monkeypatch.setenv("NANOKV_SHM_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread, as LMCache's does."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever, daemon=True)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join(60)
    running.close()


@pytest.fixture
def backends(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[..., Any]]:
    """backends(settings, **config) -> a connector in LMCache's backends; closed at the end."""
    from tests.integrations.lmcache import parts

    made: list[parts.Backends] = []

    def make(settings: dict[str, Any] | None = None, **config: Any) -> Any:
        made.append(parts.Backends(loop, settings, **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def adapters() -> Iterator[Callable[..., Any]]:
    """adapters(**params) -> an adapter of LMCache's factory; closed at the end."""
    from tests.integrations.lmcache import parts

    made: list[Any] = []

    def make(spec: dict[str, Any] | None = None, **params: Any) -> Any:
        made.append(parts.adapter(spec or parts.spec(**params)))
        return made[-1]

    yield make
    for each in made:
        each.close()
