"""The world of protocol functions on a CPU: the address of the table, whose attributes are loads.

`World.page_bytes` of `world_table` is a load of that word of the table here: it costs next to nothing, no word
is passed from function to function, and a host passes one integer. `World.table` is the address itself.
"""

from typing import Any

from numba.core import types
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import lower_getattr_generic

from nanokv.device.segment.world_table import WORLD, World

# mypy: disallow-untyped-decorators=false


@infer_getattr
class _WorldWords(AttributeTemplate):  # type: ignore[misc]
    key = types.Integer

    def generic_resolve(self, address: Any, name: str) -> Any:
        return types.int64 if name in World._fields else None


@lower_getattr_generic(types.Integer)
def _word_of_world(context: Any, builder: Any, kind: Any, address: Any, name: str) -> Any:
    if name == "table":
        return address
    at = builder.add(address, address.type(WORLD.offsets[name]))
    return builder.load(builder.inttoptr(at, address.type.as_pointer()))
