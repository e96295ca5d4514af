"""What every test has: settings of hypothesis, no settings from outside, the order of files; and the plugins below."""

import os
import signal
import threading

import hypothesis
import pytest

from tests.support.kept import kept

# stamps first: it notes what others import
pytest_plugins = ["tests.support.stamps", "tests.support.budget", "tests.support.worlds"]

# a shell that starts a run in the background lets it ignore SIGINT, and whatever the tests start would too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# read when a kernel is compiled, here and in the processes that tests start
os.environ["TRITON_CACHE_DIR"] = str(kept("triton"))

hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

#: files that take a minute or more: first, so that no process is left with one at the end
LONG = (
    "test_compile.py",
    "test_bodies.py",
    "test_gcn_bodies.py",
    "test_native_twin.py",
    "test_gcn_twin.py",
    "test_storms.py",
    "test_model.py",
    "test_heap_providers.py",
    "test_compiled.py",
    "test_conformance.py",
    "test_launch_machine.py",
    "test_linearizability.py",
    "test_examples.py",
    "test_bench_gpu.py",
    "test_demo.py",
)

_VARIABLES = (
    "NANOKV_ALLOC",
    "NANOKV_CHECKSUM",
    "NANOKV_HEAP",
    "NANOKV_NAME",
    "RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the others as they come."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
