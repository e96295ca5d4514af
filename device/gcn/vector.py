"""Vector arithmetic: one value per lane, written where EXEC says so.

An instruction is a function of NumPy arrays, the types of its sources and of its result. Its encoding may read a lane's
neighbour (DPP) or a part of a register (SDWA): see `lanes`.
Source: AMD, "CDNA3 Instruction Set Architecture" (VOP2, VOP1, VOPC, VOP3).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.emulation.floats import to_integers
from nanokv.device.gcn import floats
from nanokv.device.gcn.lanes import VectorWrite, moved_source, selected_source, selected_target, writes_part
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import VectorSource, mask_source, mask_target, vector_source, vector_target
from nanokv.device.gcn.registers import LANES, RegisterFile, to_bits
from nanokv.device.gcn.scalar import Operation

U32, U64, I64 = np.uint32, np.uint64, np.int64


class Arithmetic(NamedTuple):
    """result = function(*sources)."""

    function: Callable[..., Any]
    sources: tuple[str, ...]
    result: str


def shift_left(a: Any, by: Any) -> Any:
    return a << (by.astype(a.dtype) & a.dtype.type(8 * a.dtype.itemsize - 1))


def shift_right(a: Any, by: Any) -> Any:
    return a >> (by.astype(a.dtype) & a.dtype.type(8 * a.dtype.itemsize - 1))


def high(wide: Any) -> Any:
    """The upper half of products."""
    return (wide >> wide.dtype.type(32)).astype(U32)


def low24(a: Any) -> Any:
    """24 bits, as 64."""
    return (a & U32(0xFFFFFF)).astype(U64)


def signed24(a: Any) -> Any:
    """24 bits with a sign, as 64."""
    return (low24(a).astype(I64) ^ 0x800000) - 0x800000


def field_u32(a: Any, first: Any, length: Any) -> Any:
    """v_bfe_u32."""
    return a >> (first & U32(31)) & ((U32(1) << (length & U32(31))) - U32(1))


def field_i32(a: Any, first: Any, length: Any) -> Any:
    """v_bfe_i32: the field's highest bit is its sign."""
    length = length & U32(31)
    field = field_u32(a, first, length)
    sign = np.where(length == 0, U32(0), U32(1) << (length - U32(1) & U32(31)))
    return ((field ^ sign) - sign).view(np.int32)


def bytes_of_two(a: Any, b: Any, selectors: Any) -> Any:
    """v_perm_b32: each byte of the result is one of the eight of a:b, or a constant, as a byte of the selector says."""
    both = a.astype(U64) << U64(32) | b.astype(U64)
    made = np.zeros(LANES, U32)
    for place in range(0, 32, 8):
        which = selectors >> U32(place) & U32(0xFF)
        byte = (both >> (which & U32(7)).astype(U64) * U64(8) & U64(0xFF)).astype(U32)
        sign_of = (which - U32(8) & U32(3)).astype(U64) * U64(16) + U64(15)
        sign = (both >> sign_of & U64(1)).astype(U32) * U32(0xFF)
        chosen = np.where(which < 8, byte, np.where(which < 12, sign, np.where(which == 12, U32(0), U32(0xFF))))
        made = made | chosen << U32(place)
    return made


def reversed_bits(a: Any) -> Any:
    """v_bfrev_b32."""
    whole = np.atleast_1d(a)
    bits = np.unpackbits(np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(U32)[:, 0]


def count_bits(a: Any, b: Any) -> Any:
    """v_bcnt_u32_b32: ones of a, plus b."""
    return np.bitwise_count(a).astype(U32) + b


def leading_zeros(a: Any) -> Any:
    """v_ffbh_u32: zeros above the highest one; all ones if there is none."""
    return np.where(a == 0, U32(0xFFFFFFFF), U32(31) - np.log2(np.maximum(a, 1).astype(np.float64)).astype(U32))


def trailing_zeros(a: Any) -> Any:
    """v_ffbl_b32: where the lowest one stands; all ones if there is none."""
    lowest = a & (~a + U32(1))
    return np.where(a == 0, U32(0xFFFFFFFF), np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(U32))


def _table() -> dict[str, Arithmetic]:
    two, three = ("u32", "u32"), ("u32", "u32", "u32")
    table = {
        "v_mov_b32": Arithmetic(lambda a: a, ("u32",), "u32"),
        **dict.fromkeys(
            ("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"), Arithmetic(lambda a: a, ("u32",), "u32")
        ),
        "v_mov_b64": Arithmetic(lambda a: a, ("u64",), "u64"),
        "v_not_b32": Arithmetic(lambda a: ~a, ("u32",), "u32"),
        "v_bfrev_b32": Arithmetic(reversed_bits, ("u32",), "u32"),
        "v_ffbh_u32": Arithmetic(leading_zeros, ("u32",), "u32"),
        "v_ffbl_b32": Arithmetic(trailing_zeros, ("u32",), "u32"),
        "v_bcnt_u32_b32": Arithmetic(count_bits, two, "u32"),
        "v_add_u32": Arithmetic(lambda a, b: a + b, two, "u32"),
        "v_sub_u32": Arithmetic(lambda a, b: a - b, two, "u32"),
        "v_subrev_u32": Arithmetic(lambda a, b: b - a, two, "u32"),
        "v_add_u16": Arithmetic(lambda a, b: a + b, ("u16", "u16"), "u16"),
        "v_sub_u16": Arithmetic(lambda a, b: a - b, ("u16", "u16"), "u16"),
        "v_subrev_u16": Arithmetic(lambda a, b: b - a, ("u16", "u16"), "u16"),
        "v_mul_lo_u16": Arithmetic(lambda a, b: a * b, ("u16", "u16"), "u16"),
        "v_mad_u16": Arithmetic(lambda a, b, c: a * b + c, ("u16", "u16", "u16"), "u16"),
        "v_and_b32": Arithmetic(lambda a, b: a & b, two, "u32"),
        "v_or_b32": Arithmetic(lambda a, b: a | b, two, "u32"),
        "v_xor_b32": Arithmetic(lambda a, b: a ^ b, two, "u32"),
        "v_xnor_b32": Arithmetic(lambda a, b: ~(a ^ b), two, "u32"),
        "v_or3_b32": Arithmetic(lambda a, b, c: a | b | c, three, "u32"),
        "v_and_or_b32": Arithmetic(lambda a, b, c: a & b | c, three, "u32"),
        "v_bfi_b32": Arithmetic(lambda a, b, c: a & b | ~a & c, three, "u32"),
        "v_add3_u32": Arithmetic(lambda a, b, c: a + b + c, three, "u32"),
        "v_xad_u32": Arithmetic(lambda a, b, c: (a ^ b) + c, three, "u32"),
        "v_lshl_add_u32": Arithmetic(lambda a, by, c: shift_left(a, by) + c, three, "u32"),
        "v_add_lshl_u32": Arithmetic(lambda a, b, by: shift_left(a + b, by), three, "u32"),
        "v_lshl_or_b32": Arithmetic(lambda a, by, c: shift_left(a, by) | c, three, "u32"),
        # the ISA takes three bits of the count, and shifts by at most four
        "v_lshl_add_u64": Arithmetic(
            lambda a, by, c: (a << (by & U32(7)).astype(U64)) + c, ("u64", "u32", "u64"), "u64"
        ),
        "v_bfe_u32": Arithmetic(field_u32, three, "u32"),
        "v_bfe_i32": Arithmetic(field_i32, three, "i32"),
        "v_perm_b32": Arithmetic(bytes_of_two, three, "u32"),
        "v_alignbit_b32": Arithmetic(
            lambda a, b, by: ((a.astype(U64) << U64(32) | b.astype(U64)) >> (by & U32(31)).astype(U64)).astype(U32),
            three,
            "u32",
        ),
        "v_mul_lo_u32": Arithmetic(lambda a, b: a * b, two, "u32"),
        "v_mul_hi_u32": Arithmetic(lambda a, b: high(a.astype(U64) * b.astype(U64)), two, "u32"),
        "v_mul_hi_i32": Arithmetic(lambda a, b: high(a.astype(I64) * b.astype(I64)), ("i32", "i32"), "u32"),
        "v_mul_u32_u24": Arithmetic(lambda a, b: (low24(a) * low24(b)).astype(U32), two, "u32"),
        "v_mul_hi_u32_u24": Arithmetic(lambda a, b: high(low24(a) * low24(b)), two, "u32"),
        "v_mul_i32_i24": Arithmetic(lambda a, b: (signed24(a) * signed24(b)).astype(U32), two, "u32"),
        "v_mul_hi_i32_i24": Arithmetic(lambda a, b: high(signed24(a) * signed24(b)), two, "u32"),
        "v_mad_i32_i24": Arithmetic(lambda a, b, c: (signed24(a) * signed24(b)).astype(U32) + c, three, "u32"),
        "v_mad_u32_u24": Arithmetic(lambda a, b, c: (low24(a) * low24(b)).astype(U32) + c, three, "u32"),
        "v_cvt_f32_u32": Arithmetic(lambda a: a.astype(np.float32), ("u32",), "f32"),
        "v_cvt_f32_i32": Arithmetic(lambda a: a.astype(np.float32), ("i32",), "f32"),
        "v_cvt_u32_f32": Arithmetic(lambda a: to_integers(a, np.dtype(U32), np.trunc), ("f32",), "u32"),
        "v_cvt_i32_f32": Arithmetic(lambda a: to_integers(a, np.dtype(np.int32), np.trunc), ("f32",), "i32"),
        # accurate to one unit in the last place: code that LLVM writes must bear that
        "v_rcp_f32": Arithmetic(lambda a: np.float32(1) / a, ("f32",), "f32"),
        "v_rcp_iflag_f32": Arithmetic(lambda a: np.float32(1) / a, ("f32",), "f32"),
        "v_trunc_f32": Arithmetic(np.trunc, ("f32",), "f32"),
        "v_floor_f32": Arithmetic(np.floor, ("f32",), "f32"),
        "v_ceil_f32": Arithmetic(np.ceil, ("f32",), "f32"),
        "v_rndne_f32": Arithmetic(np.rint, ("f32",), "f32"),
        "v_add_f32": Arithmetic(lambda a, b: a + b, ("f32", "f32"), "f32"),
        "v_sub_f32": Arithmetic(lambda a, b: a - b, ("f32", "f32"), "f32"),
        "v_subrev_f32": Arithmetic(lambda a, b: b - a, ("f32", "f32"), "f32"),
        "v_mul_f32": Arithmetic(lambda a, b: a * b, ("f32", "f32"), "f32"),
        "v_min_f32": Arithmetic(np.fmin, ("f32", "f32"), "f32"),
        "v_max_f32": Arithmetic(np.fmax, ("f32", "f32"), "f32"),
        "v_max3_f32": Arithmetic(lambda a, b, c: np.fmax(np.fmax(a, b), c), ("f32", "f32", "f32"), "f32"),
        "v_exp_f32": Arithmetic(np.exp2, ("f32",), "f32"),
        "v_ldexp_f32": Arithmetic(np.ldexp, ("f32", "i32"), "f32"),
        "v_div_fixup_f32": Arithmetic(floats.fixed_up, ("f32", "f32", "f32"), "f32"),
        "v_fma_f32": Arithmetic(floats.fused, ("f32", "f32", "f32"), "f32"),
        "v_fmamk_f32": Arithmetic(floats.fused, ("f32", "f32", "f32"), "f32"),
        "v_fmaak_f32": Arithmetic(floats.fused, ("f32", "f32", "f32"), "f32"),
    }
    for bits in (16, 32, 64):
        unsigned, integer, by = f"u{bits}", f"i{bits}", "u16" if bits == 16 else "u32"
        table[f"v_lshlrev_b{bits}"] = Arithmetic(lambda by, a: shift_left(a, by), (by, unsigned), unsigned)
        table[f"v_lshrrev_b{bits}"] = Arithmetic(lambda by, a: shift_right(a, by), (by, unsigned), unsigned)
        table[f"v_ashrrev_i{bits}"] = Arithmetic(lambda by, a: shift_right(a, by), (by, integer), integer)
    for kind in ("u16", "i16", "u32", "i32"):
        table[f"v_min_{kind}"] = Arithmetic(np.minimum, (kind, kind), kind)
        table[f"v_max_{kind}"] = Arithmetic(np.maximum, (kind, kind), kind)
    return table


ARITHMETIC = _table()


def arithmetic(statement: Statement) -> Operation:
    """An instruction of ARITHMETIC."""
    if statement.modifiers == {"clamp": ""} and statement.name in ("v_add_u32", "v_sub_u32"):
        return clamped(statement)
    function, kinds, kind = ARITHMETIC[statement.name]
    return _written(statement, function, kinds, kind, statement.operands[1:])


def accumulate(statement: Statement) -> Operation:
    """v_fmac_f32: the target is the third source."""
    return _written(statement, floats.fused, ("f32",) * 3, "f32", (*statement.operands[1:], statement.operands[0]))


def clamped(statement: Statement) -> Operation:
    """v_add_u32, v_sub_u32 with clamp: what does not fit becomes the nearest that does."""
    sign = 1 if statement.name == "v_add_u32" else -1

    def function(a: Any, b: Any) -> Any:
        return np.clip(a.astype(I64) + sign * b.astype(I64), 0, 2**32 - 1).astype(U32)

    return _written(statement._replace(modifiers={}), function, ("u32", "u32"), "u32", statement.operands[1:])


def _written(
    statement: Statement, function: Callable[..., Any], kinds: tuple[str, ...], kind: str, texts: tuple[str, ...]
) -> Operation:
    """target = function(*sources), whatever the encoding."""
    if len(texts) != len(kinds):
        raise Unsupported(f"{len(texts)} sources")
    reads, write = _decoded(statement, kinds, kind, texts)
    if len(reads) == 1:
        (only,) = reads
        return lambda wave: write(wave, function(only(wave)))
    if len(reads) == 2:
        one, two = reads
        return lambda wave: write(wave, function(one(wave), two(wave)))
    return lambda wave: write(wave, function(*[read(wave) for read in reads]))


def _decoded(
    statement: Statement, kinds: tuple[str, ...], kind: str, texts: tuple[str, ...]
) -> tuple[list[VectorSource], VectorWrite]:
    """What reads the sources, and what writes the target."""
    write: VectorWrite = vector_target(statement.operands[0], kind)
    if statement.encoding == "dpp":
        first, write = moved_source(statement, texts[0], kinds[0], write)
        return [first, *(vector_source(text, each) for text, each in zip(texts[1:], kinds[1:], strict=True))], write
    if statement.encoding == "sdwa":
        reads = [selected_source(statement, n, text, kinds[n]) for n, text in enumerate(texts)]
        return reads, selected_target(statement) if writes_part(statement) else write
    if statement.modifiers:
        raise Unsupported(f"modifiers {statement.modifiers}")
    return [vector_source(text, each) for text, each in zip(texts, kinds, strict=True)], write


# --- with carries, one bit per lane ---
def carrying(statement: Statement) -> Operation:
    """v_add_co, v_addc_co and their kin: the carry out goes to a mask, the carry in comes from one."""
    target, out, *texts = statement.operands
    name = statement.name.removesuffix("_co_u32").removeprefix("v_")
    one, two = (vector_source(text, "u32") for text in texts[:2])
    if "rev" in name:
        one, two = two, one
    takes = name in ("addc", "subb", "subbrev")
    carry_in = mask_source(texts[2]) if takes else None
    write, write_out = vector_target(target, "u32"), mask_target(out)
    plus = name.startswith("add")

    def carried(wave: RegisterFile) -> None:
        a, b = one(wave).astype(I64), two(wave).astype(I64)
        carry = carry_in(wave).astype(I64) if carry_in is not None else 0
        total = np.broadcast_to(a + b + carry if plus else a - b - carry, LANES)
        write(wave, (total & 0xFFFFFFFF).astype(U32))
        write_out(wave, to_bits((total >> 32 != 0) & wave.active))

    return carried


def multiply_add(statement: Statement) -> Operation:
    """v_mad_u64_u32, v_mad_i64_i32: 64 bits of a * b + c; the carry out goes to a mask."""
    target, out, *texts = statement.operands
    wide = np.dtype(U64) if statement.name == "v_mad_u64_u32" else np.dtype(I64)
    kind = "u32" if wide == U64 else "i32"
    one, two = (vector_source(text, kind) for text in texts[:2])
    three = vector_source(texts[2], "u64")
    write, write_out = vector_target(target, "u64"), mask_target(out)

    def added(wave: RegisterFile) -> None:
        product = (one(wave).astype(wide) * two(wave).astype(wide)).astype(U64)
        total = product + three(wave)
        write(wave, total)
        write_out(wave, to_bits(np.broadcast_to(total < product, LANES) & wave.active))

    return added


def select(statement: Statement) -> Operation:
    """v_cndmask_b32: the second source where a mask has a one."""
    _, one, two, *mask = statement.operands
    read_mask = mask_source(mask[0] if mask else "vcc")
    (no, yes), write = _decoded(statement, ("u32", "u32"), "u32", (one, two))
    return lambda wave: write(wave, np.where(read_mask(wave), yes(wave), no(wave)))


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "nlt": lambda a, b: ~(a < b),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "nge": lambda a, b: ~(a >= b),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}


def comparison(statement: Statement) -> Operation:
    """v_cmp_COMPARE_TYPE: a mask; lanes that do not act give zeros."""
    _, _, how, kind = statement.name.split("_")
    target, *texts = statement.operands
    if statement.encoding == "sdwa":
        one, two = (selected_source(statement, n, text, kind) for n, text in enumerate(texts))
    elif statement.modifiers:
        raise Unsupported(f"modifiers {statement.modifiers}")
    else:
        one, two = (vector_source(text, kind) for text in texts)
    write, compare = mask_target(target), COMPARE[how]
    return lambda wave: write(wave, to_bits(np.broadcast_to(compare(one(wave), two(wave)), LANES) & wave.active))


BUILDERS: Mapping[str, Callable[[Statement], Operation]] = (
    dict.fromkeys(ARITHMETIC, arithmetic)
    | {"v_fmac_f32": accumulate, "v_cndmask_b32": select}
    | dict.fromkeys(("v_mad_u64_u32", "v_mad_i64_i32"), multiply_add)
    | {f"v_{name}_co_u32": carrying for name in ("add", "addc", "sub", "subb", "subrev", "subbrev")}
    | {
        f"v_cmp_{how}_{kind}": comparison
        for kind in ("u16", "i16", "u32", "i32", "u64", "i64")
        for how in ("eq", "ne", "gt", "ge", "lt", "le")
    }
    | {f"v_cmp_{how}_f32": comparison for how in COMPARE if how != "ne"}
)
