"""The device library checks what it is given: arguments, interpreted; the launch, where it is compiled too."""

from typing import Any

import pytest
import triton
from triton.compiler import ASTSource, CompilationError
from triton.runtime.jit import JITFunction

from nanokv.device import library
from tests.gpu.interpreted import interpreted, passed
from tests.gpu.library_calls import ANY_LAUNCH, ANY_VALUE, BARE, SENTENCE, WRONG, functions, whole_message
from tests.support.compiling import NVIDIA, TARGETS, call_library_kernel
from tests.support.targets import every_target

pytestmark = [pytest.mark.proved, pytest.mark.timeout(1800)]  # the first interpreted test pays for all of them


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", interpreted("library"))
def test_interpreted(name: str) -> None:
    assert passed("library", name)


def test_every_argument_of_every_function_has_wrong_values() -> None:
    """Or it may have any value. The tables name nothing else."""
    checked = {name: function.arg_names for name, function in functions().items() if name not in BARE}
    public = {name for name in library.__all__ if isinstance(getattr(library, name), JITFunction)}
    assert {*checked, *BARE} == public
    arguments = {argument for names in checked.values() for argument in names}
    assert arguments == {*WRONG, *ANY_VALUE}


def compile_call(name: str, target: str, **options: int) -> Any:
    """Compile a kernel that calls one function of the library."""
    function = functions()[name]
    types = {"frame": "i64", "function": "constexpr", "n_arguments": "constexpr"}
    constants = {(1,): function, (2,): len(function.arg_names)}
    return triton.compile(ASTSource(call_library_kernel, types, constants), target=TARGETS[target], options=options)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Compile without the cache."""
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.exhaustive)])
def test_kernels_in_clusters_do_not_compile(target: str) -> None:
    """On the others Triton itself says that there are no clusters."""
    for name in functions().keys() - set(ANY_LAUNCH):
        with pytest.raises(CompilationError) as raised:
            compile_call(name, target, num_ctas=2)
        assert SENTENCE in whole_message(raised.value), name


@pytest.mark.usefixtures("fresh")
@every_target
def test_kernels_of_any_number_of_warps_compile(target: str) -> None:
    """The others: `library_*` in test_compile, and several_warps."""
    for warps in (1, 2, 4, 8):
        compiled = compile_call("leave", target, num_warps=warps)
        assert compiled.metadata.num_warps == warps
        assert ("ptx" if target in NVIDIA else "amdgcn") in compiled.asm
