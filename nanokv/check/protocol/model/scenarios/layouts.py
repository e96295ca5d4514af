"""Scenarios of the table of layouts: hosts that write rows at once, and one that dies."""

from functools import partial

from nanokv.allocation.stored_layouts import Rows, layout_in, row_of
from nanokv.check.protocol.model.scenario import Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol.status import Status
from nanokv.keys.identity import Identity
from nanokv.keys.kv_layout import KVLayout

_LAYOUTS = [KVLayout(layers=n, kv_heads=1, head_size=8, block_size=2, dtype="float16") for n in (1, 2)]
_ROWS: list[Rows] = [row_of(Identity("m", layout=layout)) for layout in _LAYOUTS]


def _held(world: SmallWorld) -> list[KVLayout | None]:
    """The layouts of the rows that are taken; None: a row that is not whole."""
    (view,) = world.segments.views()[:1]
    return [layout_in(row) for row in view.layouts if row["identity"]]


def _write(world: SmallWorld, which: int, rank: int = 0) -> int:
    return world.machine(rank).write_layout(0, _ROWS[which])


def _one_row_each(world: SmallWorld) -> None:
    expect(set(world.results.values()) == {Status.OK}, f"refused: {world.results}")
    held = _held(world)
    expect(len(held) == 2 and all(layout in held for layout in _LAYOUTS), f"the rows are {held}")


@Scenario("layouts", "three hosts write two rows of the table of layouts", small(), _one_row_each)
def _layouts(world: SmallWorld) -> None:
    for name, which in (("one", 0), ("same", 0), ("other", 1)):
        world.spawn(name, partial(_write, world, which))


def _completed(world: SmallWorld) -> None:
    for which in (0, 1):
        expect(_write(world, which) == Status.OK, "a row cannot be completed")
    held = _held(world)
    expect(len(held) == 2 and all(layout in held for layout in _LAYOUTS), f"the rows are {held}")


@Scenario(
    "layouts-die",
    "a host dies while it writes a row of the table of layouts; others write theirs, and then its own",
    small(ranks=2),
    _completed,
    mortal=("one",),
    rests=False,
)
def _layouts_die(world: SmallWorld) -> None:
    world.spawn("one", partial(_write, world, 0, 1), rank=1)
    world.spawn("other", partial(_write, world, 1))
