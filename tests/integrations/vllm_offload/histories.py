"""What random histories of two engines over one world have in common."""

import itertools
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

ENGINES = st.integers(0, 1)
_worlds = itertools.count()


class TwoEngines(RuleBasedStateMachine):
    """Two engines, which a subclass starts in the world `name`, and ends here."""

    def __init__(self) -> None:
        super().__init__()
        self.name = f"random-{next(_worlds)}"
        self.engines: list[Any] = []

    def teardown(self) -> None:
        """End the engines; all that they hold can be given back."""
        for engine in self.engines:
            engine.close()


def case(machine: type[TwoEngines], examples: int, steps: int) -> Any:
    """So many histories of so many steps, as a test case."""
    made: Any = machine.TestCase
    made.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    return made
