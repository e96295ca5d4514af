"""Comparisons and conversions (PTX ISA, setp, set, cvt, cvt.pack)."""

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.kinds import DTYPES, Array, is_float, size_of
from nanokv.device.ptx.numbers import FP8, HALVES
from nanokv.device.ptx.operands import Instruction, Operand, Pair
from nanokv.device.ptx.writer import Writer, helper, known, opcode

_INTEGER_COMPARISONS = {
    "eq": "{a} == {b}",
    "ne": "{a} != {b}",
    **dict.fromkeys(("lt", "lo"), "{a} < {b}"),
    **dict.fromkeys(("le", "ls"), "{a} <= {b}"),
    **dict.fromkeys(("gt", "hi"), "{a} > {b}"),
    **dict.fromkeys(("ge", "hs"), "{a} >= {b}"),
}
_FLOAT_COMPARISONS = {
    "eq": "{a} == {b}",
    "ne": "({a} < {b}) | ({a} > {b})",
    "lt": "{a} < {b}",
    "le": "{a} <= {b}",
    "gt": "{a} > {b}",
    "ge": "{a} >= {b}",
    "equ": "~(({a} < {b}) | ({a} > {b}))",
    "neu": "{a} != {b}",
    "ltu": "~({a} >= {b})",
    "leu": "~({a} > {b})",
    "gtu": "~({a} <= {b})",
    "geu": "~({a} < {b})",
    "num": "~(np.isnan({a}) | np.isnan({b}))",
    "nan": "np.isnan({a}) | np.isnan({b})",
}
_COMBINED = {"and": "&", "or": "|", "xor": "^"}
_ROUNDINGS = {"rzi": "np.trunc", "rni": "np.rint", "rmi": "np.floor", "rpi": "np.ceil"}


def comparison(w: Writer, i: Instruction, kind: str) -> str:
    """The comparison of operands 1 and 2."""
    how = i.modifiers[0]
    a, b = (w.read(each, kind) for each in i.operands[1:3])
    if kind in HALVES:
        a, b = f"numbers({a}, {kind!r})", f"numbers({b}, {kind!r})"
    elif "ftz" in i.modifiers:
        a, b = f"flushed({a})", f"flushed({b})"
    floats = kind in HALVES or is_float(kind)
    return (_FLOAT_COMPARISONS if floats else _INTEGER_COMPARISONS)[how].format(a=w.let(a), b=w.let(b))


@opcode("setp")
def _setp(w: Writer, i: Instruction) -> None:
    how, kind = i.modifiers[0], i.modifiers[-1]
    known(i, how, kind, "ftz", *_COMBINED)
    if size_of(kind) == 1 or kind.endswith("x2"):
        raise Unsupported(f"setp of {kind}")
    made = w.let(comparison(w, i, kind))
    combined = next((each for each in i.modifiers[1:-1] if each in _COMBINED), None)
    to = i.operands[0]
    results: list[tuple[Operand, str]] = (
        [(to.first, made), (to.second, f"~{made}")] if isinstance(to, Pair) else [(to, made)]
    )
    other = w.let(w.read(i.operands[3], "pred")) if combined else ""
    for register, value in results:
        w.write(register, f"{value} {_COMBINED[combined]} {other}" if combined else value, "pred")


@opcode("set")
def _set(w: Writer, i: Instruction) -> None:
    how, to, of = i.modifiers[0], i.modifiers[-2], i.modifiers[-1]
    known(i, how, to, of, "ftz")
    made = comparison(w, i, of)
    if of in ("f16x2", "bf16x2") and to == of:
        w.write(i.operands[0], f"words(({made}).astype(Tf64), {of!r})", of)
    elif to in ("u32", "s32") and not of.endswith("x2"):
        w.write(i.operands[0], f"-(({made}).astype(Ts32))", "s32")
    elif to == "f32" and not of.endswith("x2"):
        w.write(i.operands[0], f"({made}).astype(Tf32)", "f32")
    else:
        raise Unsupported(f"set.{to}.{of}")


@helper
def clamped(values: Array, kind: str) -> Array:
    """.sat of integers: within the range of the kind."""
    import numpy as np

    bounds = np.iinfo(DTYPES[kind])
    return np.array([min(max(value, bounds.min), bounds.max) for value in values.tolist()], DTYPES[kind])


@opcode("cvt")
def _cvt(w: Writer, i: Instruction) -> None:
    to, of = i.modifiers[-2:]
    if to in FP8:
        _pack_fp8(w, i)
        return
    known(i, to, of, "sat", "ftz", "rn", "rz", *_ROUNDINGS)
    how = next((each for each in i.modifiers[:-2] if each.startswith("r")), "")
    if to in ("f16x2", "bf16x2") and of == "f32" and len(i.operands) == 3:
        _pack(w, i, how)
        return
    if to not in DTYPES or of not in DTYPES or to.endswith("x2") or of.endswith("x2") or "tf32" in (to, of):
        raise Unsupported(f"cvt.{to}.{of}")
    value = w.read(i.operands[1], of)
    floats = tuple(is_float(each) or each == "bf16" for each in (to, of))
    if "ftz" in i.modifiers and of == "f32":
        value = f"flushed({value})"
    if of == "bf16":
        value = f"from_bf16({value})"
    if floats == (False, False):
        made = f"clamped({value}, {to!r})" if "sat" in i.modifiers else f"{value}.astype(T{to})"
    elif floats == (False, True):
        made = f"to_integers({value}, T{to}, {_ROUNDINGS[how]})"
    else:
        made = _to_float(value, to, of, how, sat="sat" in i.modifiers)
        if "ftz" in i.modifiers and to == "f32":
            made = f"flushed({made})"
    w.write(i.operands[0], made, to)


def _to_float(value: str, to: str, of: str, how: str, *, sat: bool) -> str:
    if how in _ROUNDINGS:
        if size_of(to) != size_of(of):
            raise Unsupported(f".{how} from {of} to {to}")
        value = f"{_ROUNDINGS[how]}({value})"
    if sat:
        value = f"saturated({value}{'' if is_float(of) or of == 'bf16' else '.astype(Tf64)'})"
    if to == "bf16":
        if of in ("u64", "s64") or how == "rz":
            raise Unsupported(f"cvt.{how}.bf16.{of}")
        return f"to_bf16({value}{'' if of in ('f32', 'f64', 'bf16') else '.astype(Tf64)'})"
    if how == "rz" and is_float(of):
        return f"toward_zero({value}, T{to})"
    if how == "rz":
        raise Unsupported(f"cvt.rz.{to}.{of}")
    return f"to_f16({value}).view(Tf16)" if to == "f16" and is_float(of) else f"{value}.astype(T{to})"


def _pack_fp8(w: Writer, i: Instruction) -> None:
    """Two float32 as a pair of fp8 numbers; the first operand is the upper half."""
    to = i.modifiers[-2]
    known(i, "rn", "satfinite", to, "f32")
    high, low = (f"to_fp8({w.read(each, 'f32')}, {to!r})" for each in i.operands[1:3])
    w.write(i.operands[0], f"({high} << {w.constant(8, 'u16')}) | {low}", "u16")


def _pack(w: Writer, i: Instruction, how: str) -> None:
    """Two float32 as a pair of narrow numbers; the first operand is the upper half."""
    to = i.modifiers[-2]
    if "sat" in i.modifiers or (how == "rz" and to == "bf16x2"):
        raise Unsupported(f"cvt.{'.'.join(i.modifiers)}")
    one = {"bf16x2": "to_bf16({})", "f16x2": "to_f16({})" if how == "rn" else "toward_zero({}, Tf16).view(Tu16)"}[to]
    high, low = (one.format(w.read(each, "f32")) + ".astype(Tu32)" for each in i.operands[1:3])
    w.write(i.operands[0], f"({high} << {w.constant(16, 'u32')}) | {low}", "u32")
