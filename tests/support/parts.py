"""Parts of the exhaustive tests: `pytest --part 2/4` runs a quarter of them, and all other tests.

The name of a test decides to which part it belongs, so the parts together are all tests.
"""

import argparse
import zlib

import pytest

Part = tuple[int, int]  #: (number, how many parts there are)

ALL: Part = (0, 1)
#: files whose exhaustive tests are in every part: every change is compiled for every GPU
IN_EVERY_PART = ("test_compile.py",)


def part_named(text: str) -> Part:
    """The part that a text such as 2/4 names.

    Raises:
        argparse.ArgumentTypeError: it names none.
    """
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and int(number) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part, such as 0/4, 1/4, 2/4, 3/4")
    return int(number), int(parts)


def is_in(part: Part, item: pytest.Item) -> bool:
    """Whether a test is run with a part."""
    if item.get_closest_marker("exhaustive") is None or item.path.name in IN_EVERY_PART:
        return True
    number, parts = part
    return zlib.crc32(item.nodeid.encode()) % parts == number
