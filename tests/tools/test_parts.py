"""Parts of the exhaustive tests: together they are all tests, and each has all that are not exhaustive."""

import argparse

import pytest

from tests.support.parts import ALL, is_in, part_named


def test_each_exhaustive_test_is_in_one_part(request: pytest.FixtureRequest) -> None:
    items = [_named(request.node, f"test_of[{number}]") for number in range(200)]
    for item in items:
        item.add_marker("exhaustive")
    parts = [[is_in(part_named(f"{number}/4"), item) for item in items] for number in range(4)]
    assert all(sum(of) == 1 for of in zip(*parts, strict=True))
    assert all(sum(part) > 30 for part in parts)
    assert all(is_in(ALL, item) for item in items)


def test_other_tests_are_in_every_part(request: pytest.FixtureRequest) -> None:
    assert all(is_in((number, 4), _named(request.node, "test_of")) for number in range(4))


@pytest.mark.parametrize("text", ["4/4", "x", "/4", "1/", "1", "-1/4", "1/0"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no part"):
        part_named(text)


def _named(node: pytest.Function, name: str) -> pytest.Item:
    return pytest.Function.from_parent(node.parent, name=name, callobj=lambda: None)
