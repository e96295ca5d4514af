"""Beside each ordering of the protocol stands its reason, and the scenario that `orderings` names for it."""

import inspect
import re

import pytest

from nanokv.check.protocol.model.orderings import FOUND_BY, KEPT, orderings
from nanokv.device.sim.mutants import ORDERED, WeakOrdering


def comment(weaker: WeakOrdering) -> str:
    """The comment beside the call, or the lines of comment right above it."""
    lines = inspect.getsource(weaker.function.fn).splitlines()
    calls = [at for at, line in enumerate(lines) for _ in re.findall(rf"\b({'|'.join(ORDERED)})\(", line)]
    first = last = calls[weaker.call]
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first : last + 1]).partition("# ")[2]


@pytest.mark.parametrize("weaker", orderings(), ids=lambda weaker: weaker.name)
def test_the_comment_gives_a_reason_and_its_scenario(weaker: WeakOrdering) -> None:
    reason = comment(weaker)
    assert re.match(r"(acquire|release|acq_rel)\b", reason)
    scenario = FOUND_BY.get(weaker.name, "").partition("/")[0]
    assert ("kept)" if weaker.name in KEPT else f"(scenario {scenario})") in reason
