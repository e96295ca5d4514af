"""Small PTX modules around one instruction, run on the machine with many operands; and exact references for them."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import torch

from nanokv.device.ptx import Machine
from nanokv.device.ptx.kinds import LANES, size_of, unsigned

_LETTERS = {1: "rs", 2: "rs", 4: "r", 8: "rd"}


class Value(NamedTuple):
    """A register of a module: an operand, or a result."""

    name: str
    kind: str


def module(
    body: str, inputs: Sequence[Value], outputs: Sequence[Value], *, target: str = "sm_90a", head: str = ""
) -> str:
    """A kernel in which each thread loads its operands, does `body`, and stores its results.

    Args:
        body: statements on registers %NAME of `inputs` and `outputs`; it may use %p0 to %p9, %t0 to %t9 (32 bits) and
            %w0 to %w9 (64 bits).
        head: declarations of the module.
    """
    slots = len(inputs) + len(outputs)
    lines = [".reg .pred %p<10>;", ".reg .b32 %t<10>;", ".reg .b64 %w<10>, %slot;", ".reg .b32 %thread, %cta;"]
    for name, kind in (*inputs, *outputs):
        lines.append(f".reg .{'pred' if kind == 'pred' else 'b' + str(8 * max(size_of(kind), 2))} %{name};")
    lines += [
        "ld.param.u64 %slot, [data];",
        "mov.u32 %thread, %tid.x;",
        "mov.u32 %cta, %ctaid.x;",
        "mad.lo.s32 %thread, %cta, 32, %thread;",
        f"mad.wide.u32 %slot, %thread, {8 * slots}, %slot;",
    ]
    for n, (name, kind) in enumerate(inputs):
        if kind == "pred":
            lines += [f"ld.global.b32 %t0, [%slot+{8 * n}];", f"setp.ne.b32 %{name}, %t0, 0;"]
        else:
            lines.append(f"ld.global.{unsigned(kind)} %{name}, [%slot+{8 * n}];")
    lines += ["{", body, "}"]
    for n, (name, kind) in enumerate(outputs, len(inputs)):
        if kind == "pred":
            lines += [f"selp.b32 %t0, 1, 0, %{name};", f"st.global.b32 [%slot+{8 * n}], %t0;"]
        else:
            lines.append(f"st.global.{unsigned(kind)} [%slot+{8 * n}], %{name};")
    code = "\n    ".join([*lines, "ret;"])
    return (
        f".version 8.6\n.target {target}\n.address_size 64\n{head}\n"
        f".visible .entry kernel(\n    .param .u64 data\n)\n.reqntid 32\n{{\n    {code}\n}}\n"
    )


def signed(value: int, bits: int) -> int:
    """A word as a signed integer."""
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def run_module(
    ptx: str,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    rows: Sequence[Sequence[int]],
    machine: Machine | None = None,
) -> list[list[int]]:
    """The results of each row of operands, all as words without sign. The last warp is filled with copies of row 0."""
    slots = len(inputs) + len(outputs)
    padded = [*rows, *[rows[0]] * (-len(rows) % LANES)]
    data = torch.tensor([[signed(word, 64) for word in (*row, *[0] * len(outputs))] for row in padded])
    machine = machine or Machine()
    machine.launch(ptx, (len(padded) // LANES, 1, 1), [("data", data)])
    made = data.reshape(len(padded), slots)[: len(rows), len(inputs) :].tolist()
    bits = [32 if kind == "pred" else 8 * size_of(kind) for _, kind in outputs]
    return [[word % (1 << width) for word, width in zip(row, bits, strict=True)] for row in made]


# --- numbers, by fractions ------------------------------------------------------------------------
class Format(NamedTuple):
    """A binary floating-point format."""

    bits: int
    mantissa: int  #: explicit bits

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.mantissa - 2)) - 1


FORMATS = {"f16": Format(16, 10), "bf16": Format(16, 7), "f32": Format(32, 23), "f64": Format(64, 52)}


def value_of(word: int, kind: str) -> Fraction | float:
    """The number that a word is: a fraction, or an infinity or NaN as a float; -0 is the float -0.0."""
    form = FORMATS[kind]
    sign = -1 if word >> (form.bits - 1) else 1
    exponent = word >> form.mantissa & ((1 << (form.bits - 1 - form.mantissa)) - 1)
    fraction = word & ((1 << form.mantissa) - 1)
    if exponent == 2 * form.bias + 1:
        return math.nan if fraction else sign * math.inf
    if not exponent and not fraction and sign < 0:
        return -0.0
    whole = fraction + (1 << form.mantissa if exponent else 0)
    return sign * Fraction(whole) * Fraction(2) ** (max(exponent, 1) - form.bias - form.mantissa)


def nearest(value: Fraction | float, kind: str) -> int | None:
    """The word of a number rounded to the nearest, ties to even; None: any NaN."""
    form = FORMATS[kind]
    top = form.bits - 1
    infinity = (2 * form.bias + 1) << form.mantissa
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return (1 << top if math.copysign(1, value) < 0 else 0) | (infinity if math.isinf(value) else 0)
    if not value:
        return 0
    sign, size = (1 << top if value < 0 else 0), abs(value)
    exponent = max(math.floor(math.log2(size.numerator) - math.log2(size.denominator)) - 1, 1 - form.bias)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    units = size / Fraction(2) ** (exponent - form.mantissa)
    whole = units.numerator // units.denominator
    rest = units - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1)
    word = whole if exponent == 1 - form.bias else whole + ((exponent + form.bias - 1) << form.mantissa)
    return sign | min(word, infinity)


def is_nan(word: int, kind: str) -> bool:
    """Whether a word is a NaN."""
    found = value_of(word, kind)
    return isinstance(found, float) and math.isnan(found)
