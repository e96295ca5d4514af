"""Instructions that access memory: ld, st, atom, red, fence, membar, cvta, cp.async (PTX ISA, "Data Movement", ...)."""

from typing import TYPE_CHECKING, Any

from nanokv.device.emulation.errors import Unsupported
from nanokv.device.ptx.access import Access
from nanokv.device.ptx.kinds import Array, size_of, unsigned
from nanokv.device.ptx.operands import Address, Immediate, Instruction, KernelParam, Operand, ParamVariable, Register
from nanokv.device.ptx.spaces import WINDOWS
from nanokv.device.ptx.writer import Writer, helper, opcode

if TYPE_CHECKING:
    from nanokv.device.ptx.warp import Warp

SPACES = ("global", "shared", "local", "param", "const")
SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
OPERATIONS = ("add", "cas", "exch", "or", "and", "xor", "min", "max", "inc", "dec")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
#: where data may be cached, which nothing here depends on
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
_HINTS = ("L1::", "L2::", "evict_", "no_allocate")


def space_of(i: Instruction) -> str:
    """The state space of an access."""
    for each in i.modifiers:
        name = each.split("::")[0]
        if name in SPACES:
            if "::" in each and each not in ("shared::cta", "param::entry", "param::func"):
                raise Unsupported(f".{each}")
            return name
    return "generic"


def is_global(i: Instruction) -> bool:
    """Whether an instruction accesses memory that other warps share by way of the machine's `Memory`."""
    if i.opcode in ("ld", "st", "atom", "red"):
        return space_of(i) in ("global", "generic", "const")
    return i.opcode in ("fence", "membar") or (i.opcode == "cp" and i.modifiers[1:2] in (("ca",), ("cg",)))


def access_of(w: Writer, i: Instruction, kind: str, count: int, what: str) -> Access:
    """What the instruction says about its access."""
    cache = [each for each in i.modifiers if each in _CACHE or each.startswith(_HINTS)]
    vector = [each for each in i.modifiers if each in VECTORS]
    semantics = [each for each in i.modifiers if each in SEMANTICS]
    scopes = [each for each in i.modifiers if each in SCOPES]
    operation = [each for each in i.modifiers if each in OPERATIONS]
    space = [each for each in i.modifiers if each.split("::")[0] in SPACES]
    mmio = [each for each in i.modifiers if each in ("mmio", "noftz", "relaxed")]
    strange = {*i.modifiers} - {*cache, *vector, *semantics, *scopes, *operation, *space, *mmio, kind}
    if strange or len(semantics) > 1 or "L2::cache_hint" in cache:
        raise Unsupported(f".{'.'.join(sorted(strange) or i.modifiers)}")
    default = "relaxed" if what == "atomic" else "weak"
    scope = scopes[0] if scopes else "gpu" if what == "atomic" else "sys" if semantics == ["volatile"] else ""
    name = f"{operation[0]}.{kind}" if operation else ""
    return Access(what, size_of(kind), count, semantics[0] if semantics else default, scope, name, i.about)


@helper
def param(w: "Warp", offset: int, dtype: Any) -> Array:
    """A parameter of the launch."""
    return w.launch.param(offset, dtype)


@opcode("ld", "ldu")
def _ld(w: Writer, i: Instruction) -> None:
    kind, to = i.modifiers[-1], w.items(i.operands[0])
    space, address = space_of(i), i.operands[1]
    count = next((VECTORS[each] for each in i.modifiers if each in VECTORS), 1)
    if count != len(to) or not isinstance(address, Address):
        raise Unsupported(f"{len(to)} registers")
    access = access_of(w, i, kind, count, "load")
    if space == "param":
        for n, register in enumerate(to):
            _load_param(w, address, address.offset + n * access.size, register, kind)
        return
    where, lanes = w.address(address), w.lanes()
    space = "global" if space == "const" else space
    if w.late and space == "global":
        _load_late(w, access, where, lanes, to, kind)
        return
    found = w.let(f"load(W, {w.keep(access)}, {space!r}, {where}, {lanes})")
    for n, register in enumerate(to):
        value = f"{found}[{n}]"
        w.write(register, value if kind == unsigned(kind) else f"{value}.view(T{kind})", kind)


def _load_param(w: Writer, address: Address, offset: int, to: Operand, kind: str) -> None:
    if isinstance(address.base, KernelParam):
        if offset + size_of(kind) > address.base.size:
            raise Unsupported(f"{address.base.name}+{offset} is not within the parameter")
        w.write(to, f"param(W, {address.base.offset + offset}, T{kind})", kind)
    elif isinstance(address.base, ParamVariable):
        w.write(to, w.read(address.base.places[offset], kind), kind)
    else:
        raise Unsupported(f"the address {address}")


def _load_late(w: Writer, access: Access, where: str, lanes: str, to: list[Operand], kind: str) -> None:
    """The load in the tail of the block, and a function that fills its registers when the values are there."""
    at, which = w.let(where), w.let(lanes)
    fill, registers = w.temporary(), []
    w.tail.append(f"def {fill}(v):")
    for n, register in enumerate(to):
        if isinstance(register, Register):
            made = w.widened(register, f"v[{n}].view(T{kind})", kind)
            kept = f"{made} if {which} is None else where({which}, {made}, R[{register.index}])"
            w.tail.append(f"    R[{register.index}] = {kept}")
            w.incoming.setdefault(register.index, register)
            registers.append(register.index)
    w.tail.append("    return None")
    w.tail.append(f"load_late(W, {w.keep(access)}, {at}, {which}, {fill}, {(*registers,)})")


@opcode("st")
def _st(w: Writer, i: Instruction) -> None:
    kind, address, values = i.modifiers[-1], i.operands[0], w.items(i.operands[1])
    space = space_of(i)
    count = next((VECTORS[each] for each in i.modifiers if each in VECTORS), 1)
    if count != len(values) or not isinstance(address, Address):
        raise Unsupported(f"{len(values)} registers")
    access = access_of(w, i, kind, count, "store")
    if space == "param":
        if not isinstance(address.base, ParamVariable) or i.guard:
            raise Unsupported(f"the address {address}")
        for n, value in enumerate(values):
            place = address.base.places[address.offset + n * access.size]
            w.write(place, w.read(value, unsigned(kind)), unsigned(kind))
        return
    words = ", ".join(w.read(value, unsigned(kind)) for value in values)
    w.line(f"store(W, {w.keep(access)}, {space!r}, {w.address(address)}, {w.lanes()}, ({words},))")


@opcode("atom", "red")
def _atom(w: Writer, i: Instruction) -> None:
    kind, space = i.modifiers[-1], space_of(i)
    if i.modifiers[0] == "async" or size_of(kind) == 1:
        raise Unsupported(f".{'.'.join(i.modifiers)}")
    access = access_of(w, i, kind, 1, "atomic")
    address, *operands = i.operands[1:] if i.opcode == "atom" else i.operands
    where, lanes = w.let(w.address(address)), w.lanes()
    vectors = [w.items(each) for each in operands]
    found = []
    for n in range(len(vectors[0])):  # a vector is atomic for each element
        words = ", ".join(w.read(vector[n], unsigned(kind)) for vector in vectors)
        at = f"{where} + {w.constant(n * access.size, 'u64')}" if n else where
        found.append(w.let(f"atomic(W, {w.keep(access)}, {space!r}, {at}, {lanes}, ({words},))"))
    if i.opcode == "atom":
        for register, old in zip(w.items(i.operands[0]), found, strict=True):
            w.write(register, old, unsigned(kind))


@opcode("fence", "membar")
def _fence(w: Writer, i: Instruction) -> None:
    levels = {"gl": "gpu", "cta": "cta", "sys": "sys"}
    if i.opcode == "membar":
        semantics, scope = "sc", levels[i.modifiers[0]]
    else:
        scope = next((each for each in i.modifiers if each in SCOPES), "")
        semantics = next((each for each in i.modifiers if each in SEMANTICS), "acq_rel")
        if not scope or {*i.modifiers} - {scope, semantics}:
            raise Unsupported(f".{'.'.join(i.modifiers)}")
    access = Access("fence", 0, 0, semantics, scope, "", i.about)
    w.line(f"fence(W, {w.keep(access)}, {w.lanes()})")


@opcode("cvta")
def _cvta(w: Writer, i: Instruction) -> None:
    kind, space = i.modifiers[-1], space_of(i)
    if {*i.modifiers} - {"to", kind, space, f"{space}::cta"} or kind not in ("u32", "u64"):
        raise Unsupported(f".{'.'.join(i.modifiers)}")
    window = WINDOWS[space]
    if window and kind != "u64":
        raise Unsupported(f"a generic address of 32 bits in .{space}")
    found = w.read(i.operands[1], kind)
    if window:
        found = f"{found} {'-' if 'to' in i.modifiers else '+'} {w.constant(window, kind)}"
    w.write(i.operands[0], found, kind)


@opcode("isspacep")
def _isspacep(w: Writer, i: Instruction) -> None:
    space = space_of(i)
    first = WINDOWS[space]
    last = {"shared": WINDOWS["local"], "local": 1 << 63, "global": WINDOWS["shared"]}[space]
    value = w.let(w.read(i.operands[1], "u64"))
    low, high = w.constant(first, "u64"), w.constant(last, "u64")
    w.write(i.operands[0], f"({value} >= {low}) & ({value} < {high})", "pred")


@opcode("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def _hint(w: Writer, i: Instruction) -> None:
    if i.opcode in ("discard", "createpolicy"):
        raise Unsupported(i.opcode)


@opcode("cp")
def _cp(w: Writer, i: Instruction) -> None:
    if i.modifiers[:1] != ("async",) or "mbarrier" in i.modifiers or "bulk" in i.modifiers:
        raise Unsupported(f".{'.'.join(i.modifiers)}")
    what = i.modifiers[1]
    if what == "commit_group":
        w.line("W.copies.append([])")
    elif what in ("wait_group", "wait_all"):
        groups = i.operands[0] if what == "wait_group" else Immediate(-1)
        assert isinstance(groups, Immediate)
        w.line(f"wait_copies(W, {int(groups.value)})")
    elif what in ("ca", "cg"):
        strange = {*i.modifiers} - {"async", what, "shared", "shared::cta", "global", "L2::128B", "L2::256B", "L2::64B"}
        size = i.operands[2]
        if strange or not isinstance(size, Immediate) or len(i.operands) > 4:
            raise Unsupported(f".{'.'.join(i.modifiers)}")
        width = int(size.value)
        access = Access("load", min(width, 8), width // min(width, 8), "weak", "", "", i.about)
        present = w.read(i.operands[3], "u32") if len(i.operands) > 3 else w.constant(width, "u32")
        to, of = w.address(i.operands[0]), w.address(i.operands[1])
        w.line(f"copy_async(W, {w.keep(access)}, {to}, {of}, {w.lanes()}, {present}, {width})")
    else:
        raise Unsupported(f".{'.'.join(i.modifiers)}")
