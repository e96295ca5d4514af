"""The examples run; those of the device library compile for every GPU, and match docs/device_library.md.

For other cases than success see tests/gpu/library_bodies.py, which test_launch_machine interprets.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from examples import attention_prefill, paged_decode, rope_prefill
from nanokv.cache.cache import NanoKVCache
from nanokv.device import library
from nanokv.device.protocol.request import REQUEST
from nanokv.device.protocol.status import Status
from tests.support.assembly import atomics, count
from tests.support.compiling import NVIDIA, Kernel, assembly
from tests.support.several_warps import apart, undrained, unordered

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "device_library.md").read_text(encoding="utf-8")

MOST_STACK = 32  #: bytes per thread

POINTERS = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "rotated_q_ptr", "out_ptr"), "*bf16"),
    **dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32"),
    **dict.fromkeys(("positions_ptr", "lengths_ptr", "pages_ptr"), "*i64"),
    "scale": "fp32",
}
CONSTANTS = {
    **{"Q_HEADS": 32, "KV_HEADS": 8, "GROUP": 4, "DIM": 128, "BLOCK": 16},
    **{"TILE": rope_prefill.TILE, "WIDE": False},
}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(
            "rope_prefill",
            ["torch.float32:layer:0:block:2: (2, 8, 2, 32) on rank 1", "the same again: DUPLICATE"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "attention_prefill",
            ["torch.float32:layer:0:block:2: (2, 2, 6, 32) on rank 1", "within 0.02 of torch"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "generate",
            ["rank 0: 0 of 203 prompt tokens were read", "rank 1: 192 of 204 prompt tokens were read"],
            marks=pytest.mark.exhaustive,
        ),
        ("two_processes", ["read 8 blocks of (4, 2, 8, 16, 64), each as it was put by rank 0"]),
        ("write_in_kernel", ["block:42 was written and published by a kernel, and read by rank 1"]),
        ("ptx_machine", ["the storage of `x_ptr`, which has 4000 bytes"]),
        ("find_a_race", ["with a barrier: wrong in 0 of 20 orders of warps"]),
        pytest.param(
            "paged_decode",
            ["3 sequences in place, pinned: within 0.02 of torch", "lost a block: MISS"],
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_an_example_runs(name: str, says: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [text for text in says if text not in done.stdout] == []


# --- compiled ---------------------------------------------------------------------------------
def kernel(function: Any, *, moves_payload: bool = False) -> Kernel:
    """With bfloat16 and the sizes of a real model, and as many registers as it needs."""
    names = function.arg_names
    types = {name: POINTERS.get(name, "i64") for name in names if name not in CONSTANTS}
    return Kernel(function, moves_payload, types, {name: CONSTANTS[name] for name in names if name in CONSTANTS}, 255)


def check_registers(text: str, target: str) -> None:
    """Only a few scalars are spilled; payload is moved by sixteen bytes."""
    if target in NVIDIA:
        (stack,) = re.findall(r"^// .*\bSTACK:(\d+) ", text, re.M)
        assert int(stack) <= MOST_STACK
        assert re.search(r"(st\.global|ld\.global\.cg)\S*\.v4\.b32", text)
    else:
        (stack,) = re.findall(r"private_segment_fixed_size: (\d+)\n", text)
        assert int(stack) <= MOST_STACK and "vgpr_spill_count: 0\n" in re.sub(" +", " ", text)
        assert re.search(r"(global|flat|buffer)_(load|store)_dwordx4", text)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])  # test_compile compiles what they call for all targets
def test_the_kernels_compile(target: str) -> None:
    """Every atomic is at system scope; a prefill publishes by a release, a read is validated by one."""
    prefill = assembly(kernel(rope_prefill.rope_prefill_kernel), target, rope_prefill.WARPS)
    attention = assembly(kernel(attention_prefill.attention_prefill_kernel), target, attention_prefill.WARPS)
    validated = assembly(kernel(paged_decode.validated_decode_kernel), target)
    pinned = assembly(kernel(paged_decode.paged_decode_kernel, moves_payload=True), target)
    for text in (prefill, attention, validated, pinned):
        check_registers(text, target)
        assert [found for found in atomics(text, target) if not found.system] == []
    for text in (prefill, attention):
        assert count(atomics(text, target), "cas", releases=True) > 0
        assert count(atomics(text, target), "add", acquires=True, releases=True) > 0  # a CTA arrives
        assert (apart(text) + unordered(text) if target in NVIDIA else undrained(text)) == []
    assert count(atomics(validated, target), "add", releases=True) > 0
    assert atomics(pinned, target) == []


# --- the documentation ------------------------------------------------------------------------
def device_functions() -> dict[str, JITFunction[Any]]:
    """The device functions of the library."""
    found = {name: getattr(library, name) for name in library.__all__}
    return {name: value for name, value in found.items() if isinstance(value, JITFunction)}


def test_the_document_names_each_function_with_its_arguments() -> None:
    functions = device_functions()
    shown: dict[str, list[str]] = {}
    for name, args in re.findall(r"`(\w+)\(([\w, ]*)\)`", DOC):
        shown[name] = [arg.strip() for arg in args.split(",") if arg.strip()]
        assert name in functions, f"{name} is not in the library"
    assert shown == {name: list(function.arg_names) for name, function in functions.items()}


def test_the_document_names_what_exists() -> None:
    documented = set(re.findall(r"`([A-Z][A-Z_]+)`", DOC))
    assert {status.name for status in Status} <= documented
    assert documented - set(library.__all__) <= {"TRITON_INTERPRET", "WRITING", "READY", "DEAD"}
    assert hasattr(NanoKVCache, "world_table") and "cache.world_table" in DOC
    fields = re.findall(r"^\| `(\w+)` +\| `?(Q_\w+)?", DOC, re.M)
    assert [name for name, _ in fields if name in REQUEST.offsets] == list(REQUEST.offsets)
    for name, constant in fields:
        if constant:
            assert getattr(library, constant).value == REQUEST.offsets[name]
