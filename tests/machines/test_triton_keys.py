"""Triton's cache never hands out a kernel of other sources: what its key leaves out, device functions do not use.

The key has the text of a kernel, of each function that it calls, and the constants that these name. It leaves out
functions that run while a kernel is compiled (TRITON_BUILTIN), constants that are defaults of parameters, and constants
that are reached through a module. `nanokv.device.memory.warps` says how NanoKV brings the first into the key.
"""

import ast
import importlib
import inspect
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import triton
from triton.language import core
from triton.runtime.jit import JITFunction

import nanokv
from nanokv.device.sources import file_digest
from tests.support.compiling import kernels

ROOT = Path(__file__).parents[2]
FIRST_WITHOUT_ORDER = (3, 9)  #: of Triton
PROBE = "put_get_probe_kernel"
#: need packages or processes of their own when they are imported, and have no device functions
LEFT_OUT = (
    "nanokv.integrations",
    "nanokv.bench",
    "nanokv.tools.demo",
    "nanokv.check.machine.preload",
)


def device_functions() -> list[JITFunction]:
    """Every device function of the project, and the probes that stand for users' kernels."""
    names = [each.name for each in pkgutil.walk_packages(nanokv.__path__, "nanokv.", onerror=lambda name: None)]
    chosen = [name for name in names if not name.startswith(LEFT_OUT) and not name.endswith("__main__")]
    modules = [importlib.import_module(name) for name in [*chosen, "tests.support.compiling", "tests.gpu.every_body"]]
    found = {id(f): f for m in modules for f in vars(m).values() if isinstance(f, JITFunction)}
    return list(found.values())


def named(function: Any) -> list[tuple[ast.AST, Any]]:
    """The names and attributes in a function's text, and what each stands for at the level of its module."""
    found: list[tuple[ast.AST, Any]] = []
    for node in ast.walk(function.parse()):
        if isinstance(node, ast.Name):
            found.append((node, function.__globals__.get(node.id)))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = function.__globals__.get(node.value.id)
            if isinstance(module, ModuleType):
                found.append((node, getattr(module, node.attr, None)))
    return found


def is_ours(value: Any) -> bool:
    """Whether it is a function of the project that runs while Triton compiles."""
    return bool(getattr(value, core.TRITON_BUILTIN, False)) and not value.__module__.startswith("triton.")


def wrong(function: Any) -> list[str]:
    """What Triton's key leaves out of a device function."""
    tree = function.parse().body[0]
    defaults = [each for each in (*tree.args.defaults, *tree.args.kw_defaults) if each is not None]
    said = [f"the default {ast.unparse(each)} is not in the key" for each in defaults if not is_plain(each)]
    for node, value in named(function):
        if isinstance(node, ast.Attribute) and isinstance(value, core.constexpr):
            said.append(f"the constant {ast.unparse(node)} is not in the key: import its name")
        if isinstance(node, ast.Attribute) and is_ours(value):
            said.append(f"{ast.unparse(node)} is not in the key: import its name")
    values = {node.id: value for node, value in named(function) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and is_ours(called := values[node.func.id]):
            first = ast.unparse(node.args[0]) if node.args else ""
            given = getattr(values.get(first), "value", None)
            if given != file_digest(inspect.getfile(inspect.unwrap(called))):
                said.append(f"{ast.unparse(node)} does not bring the digest of the file of {node.func.id} into the key")
    return said


def is_plain(node: ast.AST) -> bool:
    """Whether a default is written out where it stands."""
    return not any(isinstance(each, ast.Name | ast.Attribute) for each in ast.walk(node))


def test_everything_that_shapes_a_kernel_is_in_its_key() -> None:
    functions = device_functions()
    assert len(functions) > 300
    assert sum(is_ours(value) for function in functions for _, value in named(function)) >= 5
    assert {f"{f.__module__}.{f.__name__}": said for f in functions if (said := wrong(f))} == {}


ORDER = """
import sys
from tests.support.compiling import kernels
from nanokv.device.machines.launch import settle_functions
names = "put_many_kernel", "get_many_kernel", "call_put", "put_get_probe_kernel"
chosen = [kernels()[name].function for name in names]
if sys.argv[1] == "ours":
    assert settle_functions() > 300
keys = [function.cache_key for function in (chosen if sys.argv[2] == "on" else chosen[::-1])]
print(*(keys if sys.argv[2] == "on" else keys[::-1]))
"""


def keys_of(*arguments: str) -> str:
    """The keys of four kernels, by a process that hashes them on or back, by our rule or as they come."""
    return run_apart(ORDER, *arguments)


def run_apart(program: str, *arguments: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_keys_do_not_depend_on_what_was_launched_first() -> None:
    assert keys_of("ours", "on") == keys_of("ours", "back")
    if tuple(map(int, triton.__version__.split(".")[:2])) < FIRST_WITHOUT_ORDER:
        assert keys_of("theirs", "on") != keys_of("theirs", "back")


COMPARED = """
from tests.support.compiling import kernels
from nanokv.device.machines.launch import settle_functions
settle_functions()
ours, theirs = (kernels()[name].function for name in ("put_many_kernel", "put_get_probe_kernel"))
print(theirs.cache_key and len(ours.used_global_vals), sorted({name for name, _ in theirs.used_global_vals}))
"""


def test_no_constant_of_ours_is_compared_with_a_launch() -> None:
    assert run_apart(COMPARED) == "0 ['OK']\n"


def key_elsewhere(root: Path) -> str:
    """The key's part of the sources for a whole put and get, with the `nanokv` of a folder."""
    program = f"from tests.support.compiling import kernels; print(kernels()[{PROBE!r}].function.cache_key)"
    environment = {"PYTHONPATH": f"{root}:{Path(__file__).parents[2]}", "PATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("changed", ["memory/warps.py", "library/launch.py"])
def test_a_change_of_what_runs_while_a_kernel_is_compiled_changes_its_key(changed: str, tmp_path: Path) -> None:
    """A byte more in the file, so that its functions could do anything."""
    package = tmp_path / "nanokv"
    package.mkdir()
    for path in Path(nanokv.__file__).parent.iterdir():
        if path.name == "device":
            shutil.copytree(path, package / "device", ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (package / path.name).symlink_to(path)
    with (package / "device" / changed).open("a") as file:
        file.write("#")
    assert key_elsewhere(tmp_path) != kernels()[PROBE].function.cache_key


def test_the_same_sources_elsewhere_have_the_same_key(tmp_path: Path) -> None:
    assert key_elsewhere(tmp_path) == kernels()[PROBE].function.cache_key
