"""Scalar arithmetic: one value for the wave, in Python's integers; SCC is its carry or its truth.

Source: AMD, "CDNA3 Instruction Set Architecture" (SOP2, SOPK, SOP1, SOPC).
"""

from collections.abc import Callable, Mapping
from functools import partial

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.gcn.module import Statement
from nanokv.device.gcn.operands import scalar_source, scalar_target
from nanokv.device.gcn.registers import MASK32, RegisterFile

Operation = Callable[[RegisterFile], None]
Function = Callable[..., int]


def signed(value: int, bits: int = 32) -> int:
    """The number whose two's complement is `value`."""
    return value - (1 << bits) if value >> bits - 1 else value


# --- functions of (wave, sources...) that return the result and may set SCC ---
def s_add_u32(wave: RegisterFile, a: int, b: int) -> int:
    wave.scc = a + b >> 32
    return a + b & MASK32


def s_addc_u32(wave: RegisterFile, a: int, b: int) -> int:
    total = a + b + wave.scc
    wave.scc = total >> 32
    return total & MASK32


def s_sub_u32(wave: RegisterFile, a: int, b: int) -> int:
    wave.scc = int(a < b)
    return a - b & MASK32


def s_subb_u32(wave: RegisterFile, a: int, b: int) -> int:
    borrow = wave.scc
    wave.scc = int(a < b + borrow)
    return a - b - borrow & MASK32


def s_add_i32(wave: RegisterFile, a: int, b: int) -> int:
    total = signed(a) + signed(b)
    wave.scc = int(not -(1 << 31) <= total < 1 << 31)
    return total & MASK32


def s_sub_i32(wave: RegisterFile, a: int, b: int) -> int:
    total = signed(a) - signed(b)
    wave.scc = int(not -(1 << 31) <= total < 1 << 31)
    return total & MASK32


def s_lshl_add(shift: int, wave: RegisterFile, a: int, b: int) -> int:
    total = (a << shift) + b
    wave.scc = int(total > MASK32)
    return total & MASK32


def s_bfe(bits: int, is_signed: bool, wave: RegisterFile, a: int, what: int) -> int:
    """A field of `a`: its first bit stands in bits 0 to 4 (5), its length in bits 16 to 22."""
    shift, length = what & bits - 1, min(what >> 16 & 0x7F, bits)
    found = a >> shift & (1 << length) - 1
    if is_signed and length and found >> length - 1:
        found |= (1 << bits) - (1 << length)
    wave.scc = int(found != 0)
    return found


def s_absolute(wave: RegisterFile, a: int) -> int:
    value = abs(signed(a)) & MASK32
    wave.scc = int(value != 0)
    return value


def s_select(wave: RegisterFile, a: int, b: int) -> int:
    return a if wave.scc else b


def s_min_max(smaller: bool, number: Callable[[int], int], wave: RegisterFile, a: int, b: int) -> int:
    first = number(a) < number(b) if smaller else number(a) > number(b)
    wave.scc = int(first)
    return a if first else b


def shift_left(bits: int, a: int, by: int) -> int:
    return a << (by & bits - 1)


def shift_right(bits: int, a: int, by: int) -> int:
    return a >> (by & bits - 1)


def shift_signed(bits: int, a: int, by: int) -> int:
    return signed(a, bits) >> (by & bits - 1)


def field(bits: int, length: int, first: int) -> int:
    """s_bfm: ones in a field."""
    return ((1 << (length & bits - 1)) - 1) << (first & bits - 1)


def reverse(bits: int, a: int) -> int:
    return int(f"{a:0{bits}b}"[::-1], 2)


def count_zeros(bits: int, a: int) -> int:
    return bits - a.bit_count()


def lowest_bit(a: int) -> int:
    """Where the lowest one stands; -1 if there is none."""
    return (a & -a).bit_length() - 1


def highest_bit(bits: int, a: int) -> int:
    """How many zeros stand above the highest one; -1 if there is none."""
    return bits - a.bit_length() if a else -1


def truth(bits: int, function: Callable[..., int], wave: RegisterFile, *sources: int) -> int:
    """A result of which SCC says whether it is not zero."""
    result: int = function(*sources) & (1 << bits) - 1
    wave.scc = int(result != 0)
    return result


def plain(bits: int, function: Callable[..., int], wave: RegisterFile, *sources: int) -> int:
    """A result that leaves SCC as it is."""
    result: int = function(*sources) & (1 << bits) - 1
    return result


LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def _arithmetic() -> dict[str, tuple[Function, tuple[int, ...], int]]:
    """Operation -> (function, bits of each source, bits of the result)."""
    table: dict[str, tuple[Function, tuple[int, ...], int]] = {
        "s_add_u32": (s_add_u32, (32, 32), 32),
        "s_addc_u32": (s_addc_u32, (32, 32), 32),
        "s_sub_u32": (s_sub_u32, (32, 32), 32),
        "s_subb_u32": (s_subb_u32, (32, 32), 32),
        "s_add_i32": (s_add_i32, (32, 32), 32),
        "s_sub_i32": (s_sub_i32, (32, 32), 32),
        "s_mul_i32": (partial(plain, 32, lambda a, b: a * b), (32, 32), 32),
        "s_mul_hi_u32": (partial(plain, 32, lambda a, b: a * b >> 32), (32, 32), 32),
        "s_mul_hi_i32": (partial(plain, 32, lambda a, b: signed(a) * signed(b) >> 32), (32, 32), 32),
        "s_abs_i32": (s_absolute, (32,), 32),
        "s_sext_i32_i8": (partial(plain, 32, lambda a: signed(a & 0xFF, 8)), (32,), 32),
        "s_sext_i32_i16": (partial(plain, 32, lambda a: signed(a & 0xFFFF, 16)), (32,), 32),
        "s_pack_ll_b32_b16": (partial(plain, 32, lambda a, b: a & 0xFFFF | b << 16), (32, 32), 32),
        "s_pack_lh_b32_b16": (partial(plain, 32, lambda a, b: a & 0xFFFF | b & 0xFFFF0000), (32, 32), 32),
        "s_pack_hh_b32_b16": (partial(plain, 32, lambda a, b: a >> 16 | b & 0xFFFF0000), (32, 32), 32),
    }
    for shift in (1, 2, 3, 4):
        table[f"s_lshl{shift}_add_u32"] = (partial(s_lshl_add, shift), (32, 32), 32)
    for bits in (32, 64):
        both = (bits, bits)
        for name, function in LOGIC.items():
            table[f"s_{name}_b{bits}"] = (partial(truth, bits, function), both, bits)
        table[f"s_lshl_b{bits}"] = (partial(truth, bits, partial(shift_left, bits)), (bits, 32), bits)
        table[f"s_lshr_b{bits}"] = (partial(truth, bits, partial(shift_right, bits)), (bits, 32), bits)
        table[f"s_ashr_i{bits}"] = (partial(truth, bits, partial(shift_signed, bits)), (bits, 32), bits)
        table[f"s_bfe_u{bits}"] = (partial(s_bfe, bits, False), (bits, 32), bits)
        table[f"s_bfe_i{bits}"] = (partial(s_bfe, bits, True), (bits, 32), bits)
        table[f"s_bfm_b{bits}"] = (partial(plain, bits, partial(field, bits)), (32, 32), bits)
        table[f"s_cselect_b{bits}"] = (s_select, both, bits)
        table[f"s_mov_b{bits}"] = (partial(plain, bits, lambda a: a), (bits,), bits)
        table[f"s_not_b{bits}"] = (partial(truth, bits, lambda a: ~a), (bits,), bits)
        table[f"s_brev_b{bits}"] = (partial(plain, bits, partial(reverse, bits)), (bits,), bits)
        table[f"s_bcnt1_i32_b{bits}"] = (partial(truth, 32, int.bit_count), (bits,), 32)
        table[f"s_bcnt0_i32_b{bits}"] = (partial(truth, 32, partial(count_zeros, bits)), (bits,), 32)
        table[f"s_ff1_i32_b{bits}"] = (partial(plain, 32, lowest_bit), (bits,), 32)
        table[f"s_flbit_i32_b{bits}"] = (partial(plain, 32, partial(highest_bit, bits)), (bits,), 32)
    for kind, number in (("i32", signed), ("u32", int)):
        table[f"s_min_{kind}"] = (partial(s_min_max, True, number), (32, 32), 32)
        table[f"s_max_{kind}"] = (partial(s_min_max, False, number), (32, 32), 32)
    return table


ARITHMETIC = _arithmetic()


def arithmetic(statement: Statement) -> Operation:
    """An instruction of ARITHMETIC."""
    function, widths, width = ARITHMETIC[statement.name]
    target, *texts = statement.operands
    if len(texts) != len(widths) or statement.modifiers:
        raise Unsupported("operands")
    write = scalar_target(target, width)
    if len(widths) == 1:
        only = scalar_source(texts[0], widths[0])
        return lambda wave: write(wave, function(wave, only(wave)))
    one, two = (scalar_source(text, bits) for text, bits in zip(texts, widths, strict=True))
    return lambda wave: write(wave, function(wave, one(wave), two(wave)))


def comparison(statement: Statement) -> Operation:
    """s_cmp_COMPARE_TYPE: sets SCC."""
    _, _, how, kind = statement.name.split("_")
    bits = int(kind[1:])
    one, two = (scalar_source(text, bits) for text in statement.operands)
    compare = COMPARE[how]

    def compared(wave: RegisterFile) -> None:
        a, b = one(wave), two(wave)
        wave.scc = int(compare(signed(a, bits), signed(b, bits)) if kind[0] == "i" else compare(a, b))

    return compared


def with_constant(statement: Statement) -> Operation:
    """SOPK: an operand is a constant of 16 bits, extended by its sign (s_cmpk_..._u32: by zeros)."""
    target, text = statement.operands
    raw = int(text, 0) & 0xFFFF
    value = raw if statement.name.endswith("_u32") else signed(raw, 16)
    read, write = scalar_source(target, 32), scalar_target(target, 32)
    name = statement.name
    if name == "s_movk_i32":
        return lambda wave: write(wave, value & MASK32)
    if name == "s_addk_i32":
        return lambda wave: write(wave, s_add_i32(wave, read(wave), value & MASK32))
    if name == "s_mulk_i32":
        return lambda wave: write(wave, signed(read(wave)) * value & MASK32)
    compare = COMPARE[name.split("_")[2]]
    number = int if name.endswith("_u32") else signed

    def compared(wave: RegisterFile) -> None:
        wave.scc = int(compare(number(read(wave)), value))

    return compared


def one_bit(statement: Statement) -> Operation:
    """s_bitset0, s_bitset1: write one bit; s_bitcmp0, s_bitcmp1: SCC says whether it is as named."""
    bits = int(statement.name[-2:])
    first, second = statement.operands
    wanted = int("1_" in statement.name)
    if "bitcmp" in statement.name:
        read, place = scalar_source(first, bits), scalar_source(second, 32)

        def compared(wave: RegisterFile) -> None:
            wave.scc = int((read(wave) >> (place(wave) & bits - 1) & 1) == wanted)

        return compared
    read, write, place = scalar_source(first, bits), scalar_target(first, bits), scalar_source(second, 32)

    def written(wave: RegisterFile) -> None:
        bit = 1 << (place(wave) & bits - 1)
        write(wave, read(wave) | bit if wanted else read(wave) & ~bit)

    return written


def save_exec(statement: Statement) -> Operation:
    """s_OPERATION_saveexec_b64: the old EXEC is kept, the new one is source OPERATION EXEC; SCC: any lane acts."""
    function = LOGIC[statement.name.removeprefix("s_").removesuffix("_saveexec_b64")]
    target, text = statement.operands
    read, write = scalar_source(text, 64), scalar_target(target, 64)

    def saved(wave: RegisterFile) -> None:
        old, source = wave.exec, read(wave)
        write(wave, old)
        new = function(source, old) & (1 << 64) - 1
        wave.set_exec(new)
        wave.scc = int(new != 0)

    return saved


def move_if(statement: Statement) -> Operation:
    """s_cmov: written if SCC is set."""
    bits = int(statement.name[-2:])
    read, write = scalar_source(statement.operands[1], bits), scalar_target(statement.operands[0], bits)
    return lambda wave: write(wave, read(wave)) if wave.scc else None


BUILDERS: Mapping[str, Callable[[Statement], Operation]] = (
    dict.fromkeys(ARITHMETIC, arithmetic)
    | {f"s_cmp_{how}_{kind}": comparison for how in COMPARE for kind in ("i32", "u32")}
    | {f"s_cmp_{how}_u64": comparison for how in ("eq", "lg")}
    | {f"s_cmpk_{how}_{kind}": with_constant for how in COMPARE for kind in ("i32", "u32")}
    | dict.fromkeys(("s_movk_i32", "s_addk_i32", "s_mulk_i32"), with_constant)
    | {f"s_bit{what}{bit}_b{bits}": one_bit for what in ("set", "cmp") for bit in "01" for bits in (32, 64)}
    | {f"s_{name}_saveexec_b64": save_exec for name in LOGIC}
    | {f"s_cmov_b{bits}": move_if for bits in (32, 64)}
)
