"""A share of the dear tests: `pytest --one-in 4` leaves out three of four tests that are marked `exhaustive`.

CI has ninety minutes of two cores, and from nothing all tests take more. So each change runs all that `make test` runs
and a quarter of the rest: which, is a digest of the sources and of the test's name, so the same sources run the same
quarter wherever they are tried, and others another. `make test-all` runs everything; it is what a release needs, and
whoever hands in a change has run it.
"""

import hashlib
from functools import cache

import pytest

from tests.support.stamps import modules


@cache
def sources() -> str:
    """A digest of every module of the project and its tests."""
    digest = hashlib.blake2b(digest_size=8)
    for name, path in sorted(modules().items()):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def is_in_share(sources: str, test: str, one_in: int) -> bool:
    """Whether sources run a test that is marked `exhaustive`."""
    digest = hashlib.blake2b(f"{sources} {test}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % one_in == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--one-in`."""
    parser.addoption("--one-in", type=int, default=1, help="of the exhaustive tests run one in so many, by the sources")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out."""
    one_in = config.getoption("--one-in")
    return None if one_in == 1 else f"exhaustive tests: one in {one_in}, chosen by the sources, {sources()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the share."""
    one_in = config.getoption("--one-in")
    if one_in == 1:
        return
    left_out = {
        item
        for item in items
        if item.get_closest_marker("exhaustive") and not is_in_share(sources(), item.nodeid, one_in)
    }
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
