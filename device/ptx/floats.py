"""Floating-point arithmetic (PTX ISA, "Floating Point", "Half Precision" and "Mixed Precision" instructions).

Add, subtract, multiply, fma, divide and square root are rounded to the nearest once, as on a GPU. The approximations
(ex2, lg2, rcp, rsqrt, sin, cos, tanh, div.full, ...) are NumPy's in float64, rounded: a GPU's differ by some ulps.
NaNs have NumPy's payloads, but for min and max, whose NaN is the canonical one.
"""

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx import integers
from nanokv.device.ptx.kinds import is_float, size_of, unsigned
from nanokv.device.ptx.numbers import HALVES
from nanokv.device.ptx.operands import Instruction, Operand
from nanokv.device.ptx.writer import Writer, known, opcode

_INFIX = {"add": "+", "sub": "-", "mul": "*"}
FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")


def float_kind(i: Instruction, *also: str) -> str:
    """The kind of a floating-point instruction; modifiers other than the usual ones are refused."""
    kind = i.modifiers[-1]
    if kind not in FLOATS:
        raise Unsupported(f".{kind}")
    known(i, kind, "rn", "ftz", "sat", *also)
    return kind


def operand(w: Writer, i: Instruction, which: Operand, kind: str) -> str:
    """An operand as numbers: of 32 lanes, or of 64 where a register holds a pair."""
    found = w.read(which, kind)
    if kind in HALVES or kind == "f32x2":
        return f"numbers({found}, {kind!r})"
    return f"flushed({found})" if "ftz" in i.modifiers and kind == "f32" else found


def result(w: Writer, i: Instruction, expression: str, kind: str) -> None:
    """Write numbers to the register of a result."""
    if "sat" in i.modifiers:
        expression = f"saturated({expression})"
    if kind in HALVES or kind == "f32x2":
        w.write(i.operands[0], f"words({expression}, {kind!r})", kind)
    else:
        w.write(i.operands[0], f"flushed({expression})" if "ftz" in i.modifiers and kind == "f32" else expression, kind)


def _mixed(i: Instruction) -> bool:
    """add.rn.f32.bf16 and its like: a narrow number and wide ones."""
    return len(i.modifiers) > 1 and i.modifiers[-2] == "f32" and i.modifiers[-1] in ("f16", "bf16")


@opcode("add", "sub", "mul")
def _sum_or_product(w: Writer, i: Instruction) -> None:
    if _mixed(i):
        known(i, "rn", "sat", "f32", i.modifiers[-1])
        narrow = f"numbers({w.read(i.operands[1], i.modifiers[-1])}, {i.modifiers[-1]!r}).astype(Tf32)"
        result(w, i, f"{narrow} {_INFIX[i.opcode]} {w.read(i.operands[2], 'f32')}", "f32")
    elif i.modifiers[-1] not in FLOATS:
        integers.multiply(w, i) if i.opcode == "mul" else integers.sum_or_difference(w, i)
    else:
        kind = float_kind(i)
        a, b = (operand(w, i, each, kind) for each in i.operands[1:3])
        result(w, i, f"{a} {_INFIX[i.opcode]} {b}", kind)


def fused(w: Writer, i: Instruction) -> None:
    """fma, and mad of floating-point numbers."""
    if _mixed(i):
        known(i, "rn", "sat", "f32", i.modifiers[-1])
        narrow = i.modifiers[-1]
        parts = [f"numbers({w.read(each, narrow)}, {narrow!r})" for each in i.operands[1:3]]
        result(w, i, f"fma({', '.join(parts)}, {w.read(i.operands[3], 'f32')}).astype(Tf32)", "f32")
        return
    kind = float_kind(i, "relu")
    parts = [operand(w, i, each, kind) for each in i.operands[1:4]]
    made = f"fma64({', '.join(parts)})" if kind == "f64" else f"fma({', '.join(parts)})"
    if "relu" in i.modifiers:
        made = f"least_or_most(({made}, np.float64(0)), False, False, False)"
    result(w, i, f"{made}.astype(Tf32)" if kind in ("f32", "f32x2") else made, kind)


opcode("fma")(fused)


@opcode("div")
def _divide(w: Writer, i: Instruction) -> None:
    if not is_float(i.modifiers[-1]):
        integers.divide(w, i)
        return
    kind = float_kind(i, "approx", "full")
    result(w, i, f"{operand(w, i, i.operands[1], kind)} / {operand(w, i, i.operands[2], kind)}", kind)


@opcode("min", "max")
def _least_or_most(w: Writer, i: Instruction) -> None:
    if i.modifiers[-1] not in FLOATS:
        integers.least_or_most(w, i)
        return
    kind = float_kind(i, "NaN", "xorsign", "abs")
    parts = [operand(w, i, each, kind) for each in i.operands[1:]]
    made = (
        f"least_or_most(({', '.join(parts)},), {i.opcode == 'min'}, {'NaN' in i.modifiers}, {'xorsign' in i.modifiers})"
    )
    result(w, i, made, kind)


@opcode("neg", "abs")
def _sign(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    if kind not in FLOATS:
        (integers.negative if i.opcode == "neg" else integers.absolute)(w, i)
        return
    float_kind(i)
    if kind in HALVES:  # by the bits: NaNs keep theirs
        word = unsigned(kind)
        sign = w.constant(0x8000 if size_of(kind) == 2 else 0x80008000, word)
        value = w.read(i.operands[1], word)
        w.write(i.operands[0], f"{value} ^ {sign}" if i.opcode == "neg" else f"{value} & ~{sign}", word)
    else:
        value = operand(w, i, i.operands[1], kind)
        result(w, i, f"-{value}" if i.opcode == "neg" else f"np.abs({value})", kind)


_FUNCTIONS = {
    "ex2": "np.exp2({})",
    "lg2": "np.log2({})",
    "rcp": "np.reciprocal({})",
    "sqrt": "np.sqrt({})",
    "rsqrt": "np.reciprocal(np.sqrt({}))",
    "sin": "np.sin({})",
    "cos": "np.cos({})",
    "tanh": "np.tanh({})",
}


@opcode(*_FUNCTIONS)
def _function(w: Writer, i: Instruction) -> None:
    kind = float_kind(i, "approx")
    value = operand(w, i, i.operands[1], kind)
    made = _FUNCTIONS[i.opcode].format(f"{value}.astype(Tf64)" if kind == "f32" else value)
    result(w, i, f"({made}).astype(Tf32)" if kind == "f32" else made, kind)


@opcode("copysign")
def _copysign(w: Writer, i: Instruction) -> None:
    kind = i.modifiers[-1]
    known(i, "f32", "f64")
    w.write(i.operands[0], f"np.copysign({w.read(i.operands[2], kind)}, {w.read(i.operands[1], kind)})", kind)


@opcode("testp")
def _testp(w: Writer, i: Instruction) -> None:
    what, kind = i.modifiers
    value = w.let(w.read(i.operands[1], kind))
    tiny = f"np.abs({value}) < np.finfo(T{kind}).tiny"
    tests = {
        "finite": f"np.isfinite({value})",
        "infinite": f"np.isinf({value})",
        "number": f"~np.isnan({value})",
        "notanumber": f"np.isnan({value})",
        "normal": f"np.isfinite({value}) & ~({tiny})",
        "subnormal": f"({tiny}) & ({value} != 0)",
    }
    w.write(i.operands[0], tests[what], "pred")
