"""Nobody reaches into another object's private names: what the rest of the project takes has a public name.

A private name is used by its own file: by the class that has it, and by functions and classes beside it. Names of other
projects that have no public ones, and the few reaches of our own, are listed with their reasons.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("nanokv", "device", "host_poller", "compat_v1", "bench", "examples")
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}
#: private names of other projects, which have no public one: what they are of
OF_OTHERS = {
    "_exit": "os and C: the end of a process without its destructors",
    "_neg_view": "torch: a lazily negated tensor",
    "_cdata": "torch: the address of its object",
    "_version": "torch: how often a tensor was changed",
    "_C": "torch",
    "_DisableTorchDispatch": "torch",
    "_DisableFuncTorch": "torch",
    "_foreach_copy_": "torch",
    "_init_amx": "torch",
    "_is_amx_tile_supported": "torch",
    "_sleep": "torch: a kernel that waits",
    "_SymmetricMemory": "torch",
    "_register_process_group": "torch.distributed",
    "_unregister_process_group": "torch.distributed",
    "_all_token_ids": "vLLM: the tokens of a request, which connectors shorten",
    "_devices": "torch.distributed: options of gloo",
    "_threads": "torch.distributed: options of gloo",
    "_timeout": "torch.distributed: options of gloo",
    "_Options": "torch.distributed: options of gloo",
    "_source_rank": "torch.distributed: who has sent",
    "_forward_pre_hooks": "torch.nn",
    "_init_handles": "Triton: how a compiled kernel is loaded",
    "_active": "Triton: the driver in use",
    "_getframe": "sys",
    "_fields_": "ctypes",
    "_preempt_request": "vLLM",
    "_scheduler": "our connector, which vLLM makes: its benchmark looks into an engine",
    "_worker": "the same",
}
#: files whose reaches are their purpose
MEANT = {
    "nanokv/check/protocol/model/mutants": "mutants break private functions by name",
    "nanokv/check/nodes/mutants.py": "as those",
    "nanokv/check/protocol/model/scenarios": "scenarios call single steps of the host's classes",
    "nanokv/check/protocol/model/remote_put.py": "as those",
    "nanokv/check/machine/corruption/case.py": "it leaves a world as a crash would",
    "nanokv/heap/shm.py": "a constructor of a subclass calls steps of its base class",
    "nanokv/heap/symmetric.py": "as that",
}


def files() -> Iterator[Path]:
    """Every file of the product, each once."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            if not any(part.is_symlink() for part in file.parents):
                yield file


def own_names(tree: ast.AST) -> set[str]:
    """The private names that a file defines: attributes of self and of classes, methods, functions, slots."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of __slots__
    return names


def reaches(tree: ast.AST) -> Iterator[str]:
    """What is taken of another object by a private name that this file does not define."""
    own = own_names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        if not (of_self or of_super or node.attr in own or node.attr in NAMED_TUPLE or node.attr in OF_OTHERS):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_each_file_keeps_to_public_names() -> None:
    found = {}
    for file in files():
        name = str(file.relative_to(ROOT))
        if not any(name.startswith(each) for each in MEANT) and (said := [*reaches(ast.parse(file.read_text()))]):
            found[name] = said
    assert found == {}


@pytest.mark.parametrize("each", MEANT)
def test_what_is_left_out_is_there(each: str) -> None:
    assert (ROOT / each).exists()


def found_in_tests(look: Callable[[ast.AST], Iterator[str]]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} {each}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for each in look(ast.parse(file.read_text()))
    ]


def test_tests_seldom_look_inside() -> None:
    """A test that needs a private name of the product is rare; its number only falls."""
    found = found_in_tests(reaches)
    assert len(found) <= 97, found


def patches(tree: ast.AST) -> Iterator[str]:
    """What a test replaces of the product by a monkeypatch: what is not imported from elsewhere is the product's."""
    others = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] not in ROOMS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            target = ast.unparse(node.args[0]).strip("'")
            if target.partition(".")[0] not in others:
                yield f"line {node.lineno}: {target}"


def test_faults_are_said_by_fixtures() -> None:
    """A patch of the product that no fixture of `tests/support/faults.py` says is rare; its number only falls."""
    found = found_in_tests(patches)
    assert len(found) <= 60, found
