"""Compiles kernels for every supported GPU, on a machine without one. Needs Triton and NumPy, no torch.

python -m tests.support.compiling sm_90 /tmp/out     compiles every kernel; leaves <kernel>.s and report.json
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from nanokv.device import library, remote
from nanokv.device.kernels import copies, many, payload, reshape_and_cache, ring, slices
from nanokv.device.kernels.frame import arguments, call_kernel
from nanokv.device.library import OK, copy_tile, get, put
from nanokv.device.machines.entries import ENTRIES, NativeEntry
from nanokv.device.memory import triton as memory
from nanokv.device.memory.triton import load64
from nanokv.device.protocol.freelist import pop, push
from nanokv.device.segment.layout import WORD_BYTES


class Kernel(NamedTuple):
    """A kernel, its constants, the type of each other argument, and the registers of a thread on NVIDIA.

    `aligned`: arguments that are multiples of 16, as Triton finds them at a launch.
    """

    function: Any
    moves_payload: bool
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    registers: int | None = None
    aligned: tuple[str, ...] = ()


TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
NVIDIA = tuple(name for name in TARGETS if name.startswith("sm_"))
AMD = tuple(name for name in TARGETS if name.startswith("gfx"))
ONE_OF_EACH_MAKE = ("sm_90", "gfx942")
#: calls whose accesses tests look at for every GPU
COMPARED = (
    *("call_begin", "call_commit", "call_finish", "call_validate", "call_remove", "call_find", "call_pin"),
    *("call_release", "call_state", "call_drain", "call_detach_class"),
)
LAYOUT_OF_HEADS = (32, 1, 16 * 8, 8)  #: a paged cache whose heads lie apart: 256 bytes each, 8 of them, 16 tokens
#: functions of the library that are in other kernels, here or in the examples, or are a load
IN_OTHERS = ("put", "get", "begin_put_part", "table64", "store64", "word", "copy_bytes", "copy_tile")
LAYOUT_OF_TOKENS = (8, 128, 16, 128, 128, -1, 1024)  #: a paged cache of 16 tokens per block, 8 heads of 128 elements
REPORT = "report.json"


@triton.jit
def remote_probe_kernel(
    word_ptr: tl.tensor, heap_bases: tl.tensor, out_ptr: tl.tensor, from_rank: int, to_rank: int
) -> None:
    """Calls each function of `remote` with every parameter, with runtime ranks, and with plain integers."""
    lanes = tl.arange(0, 128)
    mask = lanes < 100
    words = word_ptr + lanes
    values = remote.load(words, from_rank, to_rank, heap_bases, mask, -1, ".cv", False, 16)
    values += remote.load(words, from_rank, to_rank, heap_bases, mask, -1, None, True, 16)
    remote.store(words, values + 1, from_rank, to_rank, heap_bases, mask, 16, ".wt")
    remote.copy(words, words + 128, from_rank, to_rank, to_rank, heap_bases, mask, 0, ".ca", ".cs", 16)
    remote.get(words, words + 256, from_rank, to_rank, heap_bases, mask, 0, ".cg", ".wb", 16)
    remote.put(words, words + 384, from_rank, to_rank, heap_bases, mask, 0, ".cg", ".cg", 16)
    seen = remote.atomic_add(word_ptr, 1, from_rank, to_rank, heap_bases, sem="relaxed", scope="sys")
    seen += remote.atomic_cas(word_ptr, seen, seen + 1, from_rank, to_rank, heap_bases, sem="acquire", scope="sys")
    seen += remote.atomic_cas(word_ptr, 12, 88, from_rank, to_rank, heap_bases, "release", "sys")
    seen += remote.atomic_xchg(word_ptr, seen, from_rank, to_rank, heap_bases, sem="release", scope="sys")
    seen += remote.atomic_and(word_ptr, 1, from_rank, to_rank, heap_bases, None, "relaxed", "sys")
    seen += remote.atomic_or(word_ptr, 2, from_rank, to_rank, heap_bases, None, "acquire", "sys")
    seen += remote.atomic_xor(word_ptr, 3, from_rank, to_rank, heap_bases, None, "release", "sys")
    seen += remote.atomic_min(word_ptr, 4, from_rank, to_rank, heap_bases, None, "acq_rel", "sys")
    seen += remote.atomic_max(word_ptr, 5, from_rank, to_rank, heap_bases, None, "relaxed", "sys")
    remote.atomic_add(words, 1, from_rank, to_rank, heap_bases, mask, "relaxed", "sys", 16)
    remote.atomic_max(words, 1, from_rank, to_rank, heap_bases, mask, "relaxed", "sys", 16)
    seen += remote.kv_commit_ready(word_ptr, seen, from_rank, to_rank, heap_bases)
    tl.store(out_ptr, seen)


@triton.jit
def poll_word_kernel(word: tl.int64, out: tl.int64, limit: tl.int64) -> None:
    """A bounded wait on one word, as in users' kernels; compilers have been seen to delete such loops."""
    tries = memory.word(0)
    seen = load64(word, "acquire")
    while (seen == 0) & (tries < limit):
        seen = load64(word, "acquire")
        tries += 1
    memory.store64(out, seen, "relaxed")


@triton.jit
def pop_push_kernel(head: tl.int64, links: tl.int64, count: tl.int64) -> None:
    """One free-list pop and push, without other code, so that their instructions can be told apart."""
    node = pop(head, links, count, head + WORD_BYTES)
    if node >= 0:
        push(head, links, node, head + WORD_BYTES)


@triton.jit
def put_get_probe_kernel(world: tl.int64, key: tl.int64, src: tl.int64, dst: tl.int64, nbytes: tl.int64) -> None:
    """A whole put and a whole get by one CTA, and a copy of the first tile, as in a user's kernel."""
    status, _ = put(world, 0, key, key, src, nbytes, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if status == OK:
        get(world, key, key, dst, nbytes, 0)
        copy_tile(src, dst)


@triton.jit
def call_library_kernel(frame: tl.int64, function: tl.constexpr, n_arguments: tl.constexpr) -> None:
    """Calls a function of the device library, whose world is the address of the table, with words of a frame."""
    function(*arguments(frame, n_arguments))


def _called(entry: NativeEntry) -> Kernel:
    constants = {"function": entry.function, "n_arguments": entry.arguments, "n_answers": entry.answers}
    return Kernel(call_kernel, False, {"frame": "i64"}, constants)


def _writers_of_tokens() -> dict[str, Kernel]:
    """`reshape_and_cache_kernel` for vLLM's layouts: each kind of launch of bfloat16, and one each that quantizes."""
    function, registers = reshape_and_cache.reshape_and_cache_kernel, reshape_and_cache.REGISTERS
    kinds = {
        "only_writes": ((False, False, False), "bf16", LAYOUT_OF_TOKENS),
        "between_layers": ((True, False, False), "bf16", LAYOUT_OF_TOKENS),
        "last_of_layers": ((True, False, True), "bf16", LAYOUT_OF_TOKENS),
        "one_layer": ((True, True, True), "bf16", LAYOUT_OF_TOKENS),
        "one_older_layer": ((True, True, True), "bf16", (8, 128, 16, 8, 1, -1, 512)),
        "last_of_fp8_layers": ((True, False, True), "fp8e5", (8, 128, 16, 128, 128, 1, 1024)),
    }
    found = {}
    for name, (flags, kind, layout) in kinds.items():
        constants = dict(zip(("publishes", "is_first", "is_last"), flags, strict=True)) | {"layout": layout}
        types = {argument: "i64" for argument in function.arg_names if argument not in constants}
        types |= {"key_ptr": "*bf16", "value_ptr": "*bf16", "k_cache_ptr": f"*{kind}", "v_cache_ptr": f"*{kind}"}
        types |= {"slots_ptr": "*i64", "k_scale_ptr": "*fp32", "v_scale_ptr": "*fp32"}
        aligned = tuple(
            each for each in types if each.endswith(("_ptr", "_stride", "_block", "_slot", "_head", "_outer"))
        )
        found[f"reshape_and_cache_{name}"] = Kernel(function, False, types, constants, registers, aligned)
    words = dict.fromkeys(reshape_and_cache.abandon_blocks_kernel.arg_names, "i64")
    found["abandon_blocks_kernel"] = Kernel(reshape_and_cache.abandon_blocks_kernel, False, words, {})
    return found


def kernels() -> dict[str, Kernel]:
    """Every kernel of the project, and four probes, of users' kernels and of the free lists.

    `call_NAME` is the generic kernel with the entry NAME, `library_NAME` calls a function of the device library.
    """
    found = {f"call_{name}": _called(entry) for name, entry in ENTRIES.items()}
    for name in library.__all__:
        if isinstance(function := getattr(library, name), JITFunction) and name not in IN_OTHERS:
            constants = {"function": function, "n_arguments": len(function.arg_names)}
            found[f"library_{name}"] = Kernel(call_library_kernel, False, {"frame": "i64"}, constants)
    for module in (copies, many, payload, ring):
        for name, function in vars(module).items():
            if name.endswith("_kernel") and function.__module__ == module.__name__ and name != "move_many_kernel":
                found[name] = Kernel(function, False, dict.fromkeys(function.arg_names, "i64"), {})
    words = dict.fromkeys(slices.get_slices_kernel.arg_names, "i64")
    words.pop("layout")
    found["get_slices_kernel"] = Kernel(slices.get_slices_kernel, False, words, {"layout": (32, 1)}, many.REGISTERS)
    for name, layout in (("", ()), ("_of_heads", LAYOUT_OF_HEADS)):
        for verb in ("put", "get"):
            constants = {"is_put": verb == "put", "layout": layout}
            words = {argument: "i64" for argument in many.move_many_kernel.arg_names if argument not in constants}
            moved = Kernel(many.move_many_kernel, False, words, constants, many.REGISTERS)
            found[f"{verb}_many_kernel{name}"] = moved
    found |= _writers_of_tokens()
    pointers = {"word_ptr": "*i64", "heap_bases": "*i64", "out_ptr": "*i64"}
    found["remote_probe_kernel"] = Kernel(
        remote_probe_kernel, True, pointers | {"from_rank": "i32", "to_rank": "i32"}, {}
    )
    words = {"word": "i64", "out": "i64", "limit": "i64"}
    found["poll_word_kernel"] = Kernel(poll_word_kernel, False, words, {})
    found["pop_push_kernel"] = Kernel(pop_push_kernel, False, {"head": "i64", "links": "i64", "count": "i64"}, {})
    words = dict.fromkeys(("world", "key", "src", "dst", "nbytes"), "i64")
    found["put_get_probe_kernel"] = Kernel(put_get_probe_kernel, False, words, {})
    return found


def kernels_for(target: str) -> dict[str, Kernel]:
    """The kernels that tests compile for a GPU: for one of each make all; for the others those that move bytes or wait.

    Most kernels call one function of the protocol or the library, by words (`call_NAME`, `library_NAME`). For the other
    GPUs of a make these are left out, `COMPARED` aside: the functions are in the kernels that stay, too.
    """
    if target in ONE_OF_EACH_MAKE:
        return kernels()
    found = kernels()
    return {name: found[name] for name in found if name in COMPARED or not name.startswith(("call_", "library_"))}


def assembly(kernel: Kernel, target: str, warps: int | None = None) -> str:
    """The PTX or AMDGCN of a kernel, from Triton's cache if its sources were compiled before.

    After the PTX of a kernel whose registers are limited stand those that ptxas gave it, and its stack, as a comment.

    `warps`: per CTA; by default one, or four of a kernel that moves payload on NVIDIA.
    """
    made = compiled(kernel, target, warps)
    if target in AMD:
        return str(made.asm["amdgcn"])  # its metadata gives registers and stack
    resources = f"\n// {_resources(made.asm['cubin'])}\n" if kernel.registers else ""
    return f"{made.asm['ptx']}{resources}"


def compiled(kernel: Kernel, target: str, warps: int | None = None) -> Any:
    """What Triton makes of a kernel. `warps`: see `assembly`."""
    warps = warps or (4 if kernel.moves_payload and target in NVIDIA else 1)
    signature = {name: kernel.types.get(name, "constexpr") for name in kernel.function.arg_names}
    constants = {(kernel.function.arg_names.index(name),): value for name, value in kernel.constants.items()}
    aligned = {(kernel.function.arg_names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned}
    source = ASTSource(fn=kernel.function, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps} | ({"maxnreg": kernel.registers} if kernel.registers and target in NVIDIA else {})
    return triton.compile(source, target=TARGETS[target], options=options)


def _resources(cubin: bytes) -> str:
    """The resources of a kernel, by the tool that comes with Triton: REG:64 STACK:0 SHARED:0 ..."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, timeout=500, check=True)
    return done.stdout.strip().splitlines()[-1].strip()


@cache
def compiled_for(target: str) -> dict[str, str]:
    """kernel -> assembly; or, for a kernel that does not compile, a text that begins with "error:".

    In a process of its own. What was compiled before comes from Triton's cache, whose key has all that shapes a kernel
    (tests/machines/test_triton_keys.py); without it a target takes minutes.
    """
    with tempfile.TemporaryDirectory() as directory:
        return _compiled_in(target, Path(directory))


def _compiled_in(target: str, out: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiling", target, str(out)],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3600,  # beside all tests, and giving way to them, it is one of the last to end
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the compiling process for {target} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    report = json.loads((out / REPORT).read_text())
    return {
        name: f"error: {result}" if isinstance(result, str) else (out / f"{name}.s").read_text()
        for name, result in report.items()
    }


def main(target: str, directory: str) -> None:
    """Compile every kernel for one target; write the assembly and a report {kernel: seconds or an error}."""
    report: dict[str, float | str] = {}
    for name, kernel in kernels_for(target).items():
        start = time.perf_counter()
        try:
            (Path(directory) / f"{name}.s").write_text(assembly(kernel, target))
            report[name] = round(time.perf_counter() - start, 3)
        except Exception as error:
            report[name] = f"{type(error).__name__}: {error}"[:2000]
    (Path(directory) / REPORT).write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
