"""Reads from PTX and AMDGCN whether the warps of one CTA stay together, and whether a release is the whole CTA's."""

import re
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction of PTX. `writes` and `reads` are registers; the guard is also read."""

    text: str
    name: str
    guard: str | None
    writes: tuple[str, ...]
    reads: tuple[str, ...]

    @property
    def kinds(self) -> set[str]:
        """The parts of the name."""
        return set(self.name.split("."))


class Block(NamedTuple):
    """A straight run of instructions, and the places of the blocks that may follow it."""

    instructions: list[Instruction]
    after: list[int]


WRITES_NOTHING = ("st", "red", "bar", "bra", "ret", "fence", "membar")
REGISTER = r"%[a-z]+\d+|%tid\.x|%laneid|%warpid"
OF_THREAD = frozenset(("%tid.x", "%laneid", "%warpid"))


def instruction(line: str) -> Instruction | None:
    """Read a line of PTX; None if no instruction stands there."""
    match = re.match(r"(?:@!?(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*);$", line)
    if match is None:
        return None
    guard, name, operands = match.groups()
    result = re.match(r"\{[^}]*\}|[^,]*", operands)
    written = result.group() if result and name.split(".")[0] not in WRITES_NOTHING else ""
    reads = re.findall(REGISTER, operands[len(written) :]) + ([guard] if guard else [])
    return Instruction(line, name, guard, tuple(re.findall(REGISTER, written)), tuple(reads))


def ptx_instructions(text: str) -> list[Instruction]:
    """The instructions of a kernel, in the order of the text."""
    lines = (line.split("//")[0].strip() for line in text[text.index(".visible .entry") :].splitlines())
    return [found for line in lines if (found := instruction(line))]


def ptx_blocks(text: str) -> list[Block]:
    """The blocks of a kernel; the first one is its entry."""
    blocks, labels, falls = [Block([], [])], {}, True
    targets: list[tuple[int, str]] = []
    for line in text[text.index(".visible .entry") :].splitlines():
        said = line.split("//")[0].strip()
        label = re.match(r"(\$L__BB\w+):", said)
        found = instruction(said)
        if label or (blocks[-1].instructions and blocks[-1].instructions[-1].name.startswith(("bra", "ret"))):
            if falls:
                blocks[-1].after.append(len(blocks))
            blocks.append(Block([], []))
            falls = True
        if label:
            labels[label.group(1)] = len(blocks) - 1
        if found:
            blocks[-1].instructions.append(found)
            if found.name.startswith("bra"):
                targets.append((len(blocks) - 1, re.findall(r"\$L__BB\w+", said)[0]))
            falls = not found.name.startswith("ret") and (not found.name.startswith("bra") or found.guard is not None)
    for at, name in targets:
        blocks[at].after.append(labels[name])
    return blocks


def _own_after(own: frozenset[str], run: list[Instruction]) -> frozenset[str]:
    """The registers that hold a warp's own value after a run of instructions."""
    now = set(own)
    for each in run:
        if each.name.startswith("ld.volatile") or now.intersection(each.reads):
            now.update(each.writes)
        elif each.guard is None:
            now.difference_update(each.writes)
    return frozenset(now)


def _outlives_its_block(blocks: list[Block]) -> frozenset[str]:
    """The registers that some block reads before it writes them."""
    found: set[str] = set()
    for run, _ in blocks:
        written: set[str] = set()
        for each in run:
            found.update(set(each.reads) - written)
            written.update(each.writes if each.guard is None else ())
    return frozenset(found)


def apart(text: str) -> list[str]:
    """The branches of a PTX text that the warps of a CTA could take differently.

    A value is a warp's own if it depends on the thread, or on a word that each warp loads for itself while others may
    change it (`ld.volatile`). It stays so through registers and shuffles. What all load from one place of shared memory
    is the same for all.
    """
    blocks = ptx_blocks(text)
    kept = _outlives_its_block(blocks) | OF_THREAD
    before: dict[int, frozenset[str]] = {0: OF_THREAD}
    waiting = [0]
    while waiting:
        at = waiting.pop()
        own = _own_after(before[at], blocks[at].instructions) & kept
        for following in blocks[at].after:
            joined = before.get(following, frozenset()) | own
            if joined != before.get(following):
                before[following] = joined
                waiting.append(following)
    return [
        run[-1].text
        for at, (run, _) in enumerate(blocks)
        if at in before and run and run[-1].name == "bra" and run[-1].guard in _own_after(before[at], run[:-1])
    ]


def unordered(text: str) -> list[str]:
    """The releases of a PTX text without a barrier before them, and the acquires without one behind.

    Between them stands no access to global memory, and no branch.
    """
    found = ptx_instructions(text)
    wrong = []
    for at, each in enumerate(found):
        releases, acquires = each.kinds & {"release", "acq_rel"}, each.kinds & {"acquire", "acq_rel"}
        if (releases and not _meets_barrier(found[:at][::-1])) or (acquires and not _meets_barrier(found[at + 1 :])):
            wrong.append(each.text)
    return wrong


def _meets_barrier(run: list[Instruction]) -> bool:
    for each in run:
        if each.name.startswith("bar"):
            return True
        if each.kinds & {"global", "bra", "ret"}:
            return False
    return False


CHANGE = r"(global|flat|buffer)_(store|atomic)"


def undrained(text: str) -> list[str]:
    """The releases of an AMDGCN text before which the waves of a CTA do not wait for their own loads and stores.

    In front of `buffer_wbl2 sc0 sc1` stands `s_barrier`, in front of that `s_waitcnt vmcnt(0)`; between them no store,
    no atomic, and no branch but that of the lanes that do not release.
    """
    lines = [line for raw in text.splitlines() if (line := raw.split(";")[0].strip()) and line[0] != "."]
    wrong = []
    for at, line in enumerate(lines):
        if line == "buffer_wbl2 sc0 sc1":
            before = lines[:at][::-1]
            end = next((n for n, each in enumerate(before) if re.match(rf"{CHANGE}|s_branch|s_cbranch_[vs]", each)), at)
            said = " ".join(before[:end])
            if not re.search(r"s_barrier.* s_waitcnt vmcnt\(0\)", said):
                wrong.append(f"line {at}: {said}")
    return wrong
