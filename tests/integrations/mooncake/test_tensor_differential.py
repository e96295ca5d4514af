"""The same calls about tensors to the real Mooncake Store and to NanoKV's: the same signatures, the same answers."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanokv.integrations.mooncake import MooncakeDistributedStore
from tests.integrations.mooncake import real_store
from tests.integrations.mooncake.test_tensor_store import NAME, surface

COUNT = 1500
SIGNATURES = """
import json
from mooncake.store import MooncakeDistributedStore as Store
print(json.dumps({name: getattr(Store, name).__doc__.splitlines()[0] for name in dir(Store) if "tensor" in name}))
"""


def arguments(signature: str) -> list[tuple[str, str]]:
    """Names and defaults in a line as pybind11 writes it; of a default that is an object only that there is one."""
    inside = re.sub(r"<.*?>", "config", signature[signature.index("(") + 1 : signature.rindex(") ->")])
    each = [part.partition(" = ") for part in re.split(r", (?=\w+: )", inside)]
    return [(name.partition(":")[0], default) for name, _, default in each if not name.startswith("self")]


@surface(NAME, "load_tensor_from_safetensor", differs="`file_name` has a default, as Python needs; it must be given")
def test_every_call_has_the_real_ones_arguments() -> None:
    real_store.need()
    told = subprocess.run([sys.executable, "-c", SIGNATURES], check=True, capture_output=True, text=True, timeout=120)
    real = json.loads(told.stdout)
    assert len(real) > 40
    for name, line in real.items():
        own = list(inspect.signature(getattr(MooncakeDistributedStore, name)).parameters.values())[1:]
        ours = [
            (each.name, "" if each.default is each.empty else "config" if each.name == "config" else str(each.default))
            for each in own
        ]
        if name == "load_tensor_from_safetensor":
            ours[1] = ("file_name", "")
        assert ours == arguments(line), name
    assert {name for name in vars(MooncakeDistributedStore) if "tensor" in name and name[0] != "_"} <= set(real)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_random_calls_are_answered_alike(seed: int, tmp_path: Path) -> None:
    theirs, mine = real_store.both("tensor_calls", seed, COUNT, tmp_path)
    mislabelled = 0
    for number, (one, other) in enumerate(zip(theirs, mine, strict=True)):
        if one != other:  # the real one returns a shard of another layout
            assert one.get("mislabelled") and other["answer"] is None, f"call {number}: {one} {other}"
            mislabelled += 1
    found = [line for line in theirs if "torch" in str(line["answer"])]
    assert len(found) > COUNT // 10 > mislabelled
