"""What every test has: settings of hypothesis, no settings from outside, the order of files; and the plugins below."""

import os
import signal
import threading

import hypothesis
import pytest

from tests.support.kept import kept

# stamps first: it notes what others import
pytest_plugins = ["tests.support.stamps", "tests.support.budget", "tests.support.share", "tests.support.worlds"]

# a shell that starts a run in the background lets it ignore SIGINT, and whatever the tests start would too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# read when a kernel is compiled, here and in the processes that tests start
os.environ["TRITON_CACHE_DIR"] = str(kept("triton"))

hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

#: files that take a minute or more, the longest first, so that no process is left with one at the end; those that wait
#: for other processes stand between those that compute
LONG = (
    *("test_compile.py", "test_bodies.py", "test_gcn_bodies.py", "test_failures.py", "test_conformance.py"),
    *("test_launch_machine.py", "test_warps.py", "test_demo_cluster.py", "test_bench_cluster.py", "test_bench_gpu.py"),
    *("test_nodes.py", "test_compiled.py", "test_deployment_runs.py", "test_several_warps.py", "test_documents.py"),
    *(
        "test_storms.py",
        "test_sim_transfers.py",
        "test_model.py",
        "test_kills.py",
        "test_budget.py",
        "test_gcn_twin.py",
    ),
    *("test_examples.py", "test_native_twin.py", "test_demo.py", "test_triton.py", "test_library.py", "test_bench.py"),
    *("test_heap_providers.py", "test_linearizability.py", "test_bench_peers.py", "test_objects.py", "test_stamps.py"),
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
