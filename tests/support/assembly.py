"""Reads the orderings of atomics from PTX and AMDGCN.

On NVIDIA scope and ordering are part of an instruction (`atom.global.acq_rel.sys.cas.b64`). On AMD (CDNA 3 and 4) `sc1`
at an atomic means system scope; `buffer_wbl2 sc0 sc1` before it is the release, `buffer_inv sc0 sc1` after it the
acquire.
"""

import re
from typing import NamedTuple

from tests.support.compiling import NVIDIA


class Atomic(NamedTuple):
    """One atomic instruction, or an acquiring load or releasing store."""

    line: int
    operation: str  #: "cas", "add", "swap", "load" or "store"
    acquires: bool
    releases: bool
    system: bool


def ptx_atomics(lines: list[str]) -> list[Atomic]:
    """The atomics of a PTX text."""
    found = []
    for at, line in enumerate(lines):
        match = re.search(r"\b(atom|red|ld|st)((?:\.\w+)+)", line)
        parts = match.group(2).split(".") if match else []
        if match is None or (match.group(1) in ("ld", "st") and not {"acquire", "release", "relaxed"} & set(parts)):
            continue
        names = {"cas": "cas", "add": "add", "exch": "swap"}
        plain = {"ld": "load", "st": "store"}.get(match.group(1), "other")
        operation = next((names[part] for part in parts if part in names), plain)
        acquires, releases = bool({"acquire", "acq_rel"} & set(parts)), bool({"release", "acq_rel"} & set(parts))
        found.append(Atomic(at, operation, acquires, releases, "sys" in parts))
    return found


def gcn_atomics(lines: list[str]) -> list[Atomic]:
    """The atomics of an AMDGCN text."""
    found = []
    for at, line in enumerate(lines):
        match = re.match(r"\s*(?:global|flat|buffer)_atomic_(\w+?)(?:_x2)?\s", line)
        if match:
            names = {"cmpswap": "cas", "add": "add", "swap": "swap"}
            before = [text.strip() for text in lines[max(at - 3, 0) : at]]
            after = [text.strip() for text in lines[at + 1 : at + 4]]
            acquires, releases = "buffer_inv sc0 sc1" in after, "buffer_wbl2 sc0 sc1" in before
            found.append(Atomic(at, names.get(match.group(1), "other"), acquires, releases, "sc1" in line.split()))
    return found


def atomics(text: str, target: str) -> list[Atomic]:
    """The atomics of a kernel's assembly."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"\s*(;|//|\.loc|\.cfi|\.Ltmp)", line)]
    return ptx_atomics(lines) if target in NVIDIA else gcn_atomics(lines)


def count(found: list[Atomic], operation: str, *, acquires: bool = False, releases: bool = False) -> int:
    """The number of atomics of an operation with at least these orderings."""
    return sum(a.operation == operation and a.acquires >= acquires and a.releases >= releases for a in found)


def without_barrier(text: str) -> list[str]:
    """The atomics of a PTX text that are not ordered for the whole CTA.

    A `bar.sync` stands between a releasing one and the access before it, and between an acquiring one and the access
    after it. A label counts as an access: this does not look at what jumps to it.
    """
    lines = [
        line for line in text.splitlines() if line.strip() and not re.match(r"\s*(//|\.loc|\.file|\$L__tmp)", line)
    ]

    def bare(way: list[str]) -> bool:
        first = (
            line for line in way if re.search(r"\bbar\.sync|^\s*[$\w]+:|\b(atom|red|ld|st)\.(?!param|shared)", line)
        )
        return "bar.sync" not in next(first, "")

    return [
        lines[atomic.line].strip()
        for atomic in ptx_atomics(lines)
        if (atomic.releases and bare(lines[: atomic.line][::-1]))
        or (atomic.acquires and bare(lines[atomic.line + 1 :]))
    ]


def spills_inside(text: str) -> list[str]:
    """Accesses to scratch memory in AMDGCN text that do not stand at the ends of a function.

    At its ends a function saves the registers of its caller, and gives them back: once per call.
    """
    wrong = []
    for function in re.split(r"; -- Begin function ", text)[1:]:
        blocks = re.split(r"^\.LBB\w+:", function.split("; -- End function")[0], flags=re.M)
        name = function.split(None, 1)[0]
        last = max((n for n, block in enumerate(blocks) if "s_setpc_b64" in block or "s_endpgm" in block), default=0)
        wrong += [f"{name}: a store" for block in blocks[1:] if "scratch_store" in block]
        wrong += [f"{name}: a load" for n, block in enumerate(blocks) if n != last and "scratch_load" in block]
    return wrong


def polls_in_a_loop(text: str) -> bool:
    """True if some atomic access stands between a label and a later branch back to it."""
    lines = text.splitlines()
    labels = {match.group(1): at for at, line in enumerate(lines) if (match := re.match(r"\s*([.$]\w+):", line))}
    for at, line in enumerate(lines):
        match = re.search(r"\b(?:bra|s_branch|s_cbranch_\w+)(?:\.uni)?\s+([.$]\w+)", line)
        if match and labels.get(match.group(1), at) < at:
            body = "\n".join(lines[labels[match.group(1)] : at])
            if re.search(r"_atomic_|\batom\.|\bld\.[\w.]*acquire|global_load\w* .*sc0 sc1", body):
                return True
    return False
