"""The cache of compiled code: what makes a new digest, and that code is loaded for exactly the sources it came from."""

import errno
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nanokv.device import sources
from nanokv.device.machines import code_cache, native_compiler
from nanokv.device.machines.code_cache import CodeFile, cache_directory
from nanokv.device.machines.compile_progress import compile_progress
from nanokv.device.machines.native_code import CompiledEntries, compiled, native_function
from nanokv.device.machines.native_entries import NATIVE_ENTRIES
from nanokv.device.machines.native_library import ObjectCode
from nanokv.device.sources import COMPILED_ROOMS, DEVICE, files_digest
from nanokv.errors import HeapUnavailable, InvalidArgument

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes a file that was written again within a second, in the same length, for the older one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of `device/`, to be changed."""
    return shutil.copytree(DEVICE, tmp_path / "device", ignore=shutil.ignore_patterns("__pycache__"))


def test_a_copy_has_the_same_digest(copied: Path) -> None:
    assert files_digest(copied) == files_digest()


@pytest.mark.parametrize("room", COMPILED_ROOMS)
def test_a_change_of_what_is_compiled_is_seen(copied: Path, room: str) -> None:
    before = files_digest(copied)
    path = next(path for path in sorted((copied / room).glob("*.py")) if path.name != "__init__.py")
    path.write_text(path.read_text() + "\n")
    assert files_digest(copied) != before


def test_a_change_below_a_subfolder_is_seen(copied: Path) -> None:
    before = files_digest(copied)
    (copied / "protocol" / "deeper").mkdir()
    (copied / "protocol" / "deeper" / "more.py").write_text("")
    added = files_digest(copied)
    (copied / "protocol" / "deeper" / "more.py").rename(copied / "protocol" / "deeper" / "other.py")
    assert len({before, added, files_digest(copied)}) == 3


@pytest.mark.parametrize(
    "path", ["__init__.py", "library/steps.py", "kernels/many.py", "machines/native.py", "sim/memory.py"]
)
def test_a_change_of_what_is_not_compiled_is_not(copied: Path, path: str) -> None:
    before = files_digest(copied)
    (copied / path).write_text((copied / path).read_text() + "\n")
    assert files_digest(copied) == before


@pytest.mark.parametrize("name", ["native_compiler.py", "python_calls.py"])
def test_a_change_of_the_compilers_options_is_seen(copied: Path, name: str) -> None:
    before = files_digest(copied)
    path = copied / "machines" / name
    path.write_text(path.read_text() + "\n")
    assert files_digest(copied) != before


def test_every_compiled_function_comes_from_a_room_of_the_digest() -> None:
    for entry in NATIVE_ENTRIES.values():
        parts = Path(entry.function.fn.__code__.co_filename).resolve().relative_to(DEVICE.resolve()).parts
        assert parts[0] in COMPILED_ROOMS
    assert compiled(rare=True).keys() == NATIVE_ENTRIES.keys()


# --- the files --------------------------------------------------------------------------------
LOADS_ALL = """
import nanokv
from nanokv.device.machines.native_entries import NATIVE_ENTRIES
from nanokv.device.machines.native_library import ObjectCode
from nanokv.device.sources import COMPILED_ROOMS, DEVICE, files_digest
from nanokv.device.machines.native_code import code
print(nanokv.__file__, [name for name in NATIVE_ENTRIES if not code().load(name)])
"""

SMALL = """
import triton
import triton.language as tl
from nanokv.device.memory.triton import word

STEP = tl.constexpr({step})

@triton.jit
def helper(x):
    return x * {factor} + STEP

@triton.jit
def small(x):
    return helper(word(x))

@triton.jit
def fails(x):
    return word(1) // x
"""

COMPILES_SMALL = """
import importlib.util, sys
from nanokv.device.machines.native_code import native_function
spec = importlib.util.spec_from_file_location("small_functions", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(native_function(module.small)(5))
"""


CALLS_WRONGLY = (
    COMPILES_SMALL
    + """
assert "numba" not in sys.modules
small, fails = native_function(module.small), native_function(module.fails)
for function, wrong in ((small, ()), (small, (1, 2)), (small, ("1",)), (small, (2**63,)), (fails, (0,))):
    try:
        function(*wrong)
    except Exception as error:
        print(type(error).__name__)
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that are compiled, not loaded."""
    seen: list[str] = []
    compile_them = native_compiler.compile_functions

    def compile_and_note(functions: Any, *rest: Any) -> Any:
        seen.extend(functions)
        return compile_them(functions, *rest)

    monkeypatch.setattr(native_compiler, "compile_functions", compile_and_note)
    return seen


def small(tmp_path: Path, factor: int = 2, step: int = 1) -> Any:
    """The device function `small` of `small_functions`."""
    return small_functions(tmp_path, factor, step).small


def small_functions(tmp_path: Path, factor: int = 2, step: int = 1) -> Any:
    """Device functions in a file of their own, always the same file and lines."""
    path = tmp_path / "small_functions.py"
    path.write_text(SMALL.format(factor=factor, step=step))
    spec = importlib.util.spec_from_file_location("small_functions", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_python(code: str, *arguments: str, root: Path = ROOT) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True)


USES_A_CACHE = """
import torch, nanokv
(cache,) = nanokv.local_world(1, 1 << 20, page_bytes=4096)
cache.put("k", torch.ones(3), preferred_segment=0)
assert torch.equal(cache.get("k"), torch.ones(3)) and "k" in cache
cache.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc fills memory that was freed")
def test_functions_outlive_the_modules_at_the_end_of_a_process() -> None:
    """Freed memory is filled with other bytes, so that whoever uses it still is found out."""
    compiled()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "2"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USES_A_CACHE],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done


def test_another_clone_of_the_same_version_compiles_nothing(tmp_path: Path) -> None:
    compiled(rare=True)
    for name in ("nanokv", "device", "host_poller", "compat_v1"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored, copy_function=shutil.copyfile)
    with start_python(LOADS_ALL, root=tmp_path) as clone:
        answer, _ = clone.communicate(timeout=500)
    assert answer.split() == [str(tmp_path / "nanokv" / "__init__.py"), "[]"]


@pytest.mark.usefixtures("folder")
def test_a_function_is_loaded_from_the_cache(tmp_path: Path, compilations: list[str]) -> None:
    assert native_function(small(tmp_path))(5) == 11
    assert native_function(small(tmp_path))(5) == 11
    assert compilations == ["small"]


@pytest.mark.usefixtures("folder")
def test_a_change_in_a_function_that_is_called_is_compiled(tmp_path: Path, compilations: list[str]) -> None:
    assert native_function(small(tmp_path))(5) == 11
    assert native_function(small(tmp_path, factor=3))(5) == 16
    assert native_function(small(tmp_path, step=4))(5) == 14
    assert len(compilations) == 3


def test_a_file_that_changes_after_it_was_loaded_lends_its_digest_to_nothing(tmp_path: Path, folder: Path) -> None:
    old = small(tmp_path)
    new = small(tmp_path, factor=3)  # the file has changed, and `old` is not compiled yet
    assert native_function(old)(5) == 11
    assert native_function(new)(5) == 16
    assert list(folder.glob("nanokv/*/*.code"))


@pytest.mark.parametrize("change", ["cut", "flip", "empty"])
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    native_function(small(tmp_path))
    (path,) = folder.glob("nanokv/*/*.code")
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes({"cut": whole[:100], "flip": flipped, "empty": b""}[change])
    assert native_function(small(tmp_path))(5) == 11
    assert "damaged" in caplog.text
    assert CodeFile(path.stem, path.read_bytes()[16:32]).load() is not None


@pytest.mark.usefixtures("folder")
def test_code_that_uses_a_symbol_that_this_process_lacks_is_not_loaded(tmp_path: Path) -> None:
    native_function(small(tmp_path))
    file = CodeFile("small_functions.small", code_cache.function_digest(small(tmp_path)))
    code = file.load()
    assert code is not None
    file.keep(ObjectCode(code.names, [*code.needs, "no_such_symbol"], code.code))
    assert file.load() is None


def test_sources_that_change_under_a_process_neither_lend_nor_take_code(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native_function(small(tmp_path))
    code = CodeFile("small_functions.small", code_cache.function_digest(small(tmp_path))).load()
    assert code is not None
    CodeFile("of_rooms").keep(code)
    code_cache._loads.cache_clear()
    assert CodeFile("of_rooms").load() == code
    monkeypatch.setattr(sources, "DEVICE", shutil.copytree(DEVICE, tmp_path / "device"))
    monkeypatch.setattr(sources, "files_digest", lambda: files_digest(sources.DEVICE))
    (sources.DEVICE / "protocol" / "put.py").write_text("")
    code_cache._loads.cache_clear()
    assert CodeFile("of_rooms").load() is None
    CodeFile("another").keep(code)
    assert not list(folder.glob("nanokv/*/another*")) and "sources have changed" in caplog.text
    code_cache._loads.cache_clear()


# --- calls from Python -------------------------------------------------------------------------
@pytest.mark.usefixtures("folder")
def test_a_call_takes_words_and_nothing_else(tmp_path: Path) -> None:
    function = native_function(small(tmp_path))
    assert [function(x) for x in (-(2**62), True)] == [-(2**63) + 1, 3]
    for wrong in ((), (1, 2), ("1",), (1.5,), (None,)):
        with pytest.raises(TypeError):
            function(*wrong)
    with pytest.raises(OverflowError):
        function(2**63)


@pytest.mark.usefixtures("folder")
def test_a_process_without_the_compiler_raises_the_same_errors(tmp_path: Path) -> None:
    functions = small_functions(tmp_path)
    for function in (functions.small, functions.fails):
        native_function(function)
    process = start_python(CALLS_WRONGLY, str(tmp_path / "small_functions.py"))
    assert process.communicate(timeout=500)[0].splitlines() == [
        "11",
        "TypeError",
        "TypeError",
        "TypeError",
        "OverflowError",
        "ArithmeticError",
    ]


def test_processes_may_write_at_the_same_time(tmp_path: Path, folder: Path) -> None:
    small(tmp_path)
    path = str(tmp_path / "small_functions.py")
    processes = [start_python(COMPILES_SMALL, path) for _ in range(3)]
    assert [process.communicate(timeout=500)[0].strip() for process in processes] == ["11"] * 3
    assert [p.suffix for p in folder.glob("nanokv/*/*")] == [".code"]


def test_a_named_folder_that_cannot_be_made_is_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(InvalidArgument, match=r"file/cache.*: Not a directory.*set NANOKV_CACHE_DIR"):
        native_function(small(tmp_path))


def test_without_any_folder_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("NANOKV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    with pytest.raises(HeapUnavailable, match="set NANOKV_CACHE_DIR"):
        cache_directory()


def test_the_temporary_folder_must_belong_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("NANOKV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert cache_directory().parent == tmp_path / f"nanokv-{os.getuid()}"
    monkeypatch.setattr("os.getuid", lambda: 4242)
    (tmp_path / "nanokv-4242").mkdir()
    os.chown(tmp_path / "nanokv-4242", os.geteuid() or 4243, -1)
    with pytest.raises(HeapUnavailable, match="another user"):
        cache_directory()


def test_code_that_cannot_be_kept_runs_and_warns(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    function = small(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert native_function(function)(5) == 11
    assert "No space left on device" in caplog.text and "NANOKV_CACHE_DIR" in caplog.text
    assert list(folder.glob("nanokv/*/*")) == []


# --- what is compiled, and what is said -------------------------------------------------------
def test_rare_entries_come_when_they_are_called(compilations: list[str]) -> None:
    compiled(rare=True)
    code = CompiledEntries()
    code.require_common()
    assert "put_now" in code and not {"install", "recount"} & code.keys()
    assert callable(code["recount"]) and "recount" in code
    assert compilations == []


def test_a_line_is_logged_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    functions = [entry.function for entry in NATIVE_ENTRIES.values()]
    with compile_progress(functions):
        pass
    (record,) = caplog.records
    assert record.name == "nanokv.compile" and record.levelno == logging.WARNING
    assert "once per version and user" in record.message


def test_nothing_is_said_when_it_is_quick_or_silenced(caplog: pytest.LogCaptureFixture) -> None:
    with compile_progress([NATIVE_ENTRIES["recount"].function]):
        pass
    with caplog.at_level(logging.ERROR, "nanokv"), compile_progress([NATIVE_ENTRIES["begin"].function]):
        pass
    assert caplog.records == []


@pytest.mark.usefixtures("folder")
def test_a_terminal_shows_a_bar_that_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("nanokv.device.machines.compile_progress.WORTH_SAYING", 1)
    function = small(tmp_path)
    with compile_progress([function]):
        native_function(function)
    assert "nanokv compiles its protocol" in terminal.getvalue() and "100%" in terminal.getvalue()


# --- other users, other masks -----------------------------------------------------------------
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Files are opened, made and judged as by another user who is not root."""
    os.seteuid(NOBODY)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getuid", lambda: NOBODY)
            yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A named folder that all users can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("NANOKV_CACHE_DIR", str(folder / "cache"))
    yield folder / "cache"
    shutil.rmtree(folder)


def small_code(tmp_path: Path) -> ObjectCode:
    native_function(small(tmp_path))
    code = CodeFile("small_functions.small", code_cache.function_digest(small(tmp_path))).load()
    assert code is not None
    return code


@needs_root
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_code_that_root_has_kept_in_a_named_folder_is_for_all(tmp_path: Path, shared: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        code = small_code(tmp_path)
    finally:
        os.umask(before)
    stamp = code_cache.function_digest(small(tmp_path))
    assert all(not path.stat().st_mode & 0o022 for path in shared.rglob("*"))
    with as_nobody():
        assert CodeFile("small_functions.small", stamp).load() == code
        assert cache_directory().parent == shared / "nanokv"


@needs_root
def test_a_named_folder_that_may_not_be_entered_is_passed_over(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (shared / "nanokv").mkdir(parents=True)
    (shared / "nanokv").chmod(0o700)
    own = shared.parent / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    code_cache._warn_once.cache_clear()
    with as_nobody():
        assert cache_directory().parent == own / "nanokv"
    assert "NANOKV_CACHE_DIR cannot be used" in caplog.text and str(own) in caplog.text


@needs_root
@pytest.mark.parametrize("how", ["theirs", "group", "others"])
def test_code_that_another_user_can_have_written_is_not_loaded(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    small_code(tmp_path)
    (path,) = folder.glob("nanokv/*/*.code")
    if how == "theirs":
        os.chown(path, NOBODY, -1)
    else:
        path.chmod(0o664 if how == "group" else 0o646)
    assert CodeFile(path.stem, code_cache.function_digest(small(tmp_path))).load() is None
    assert "another user can have written it" in caplog.text
    small_code(tmp_path)  # compiled again, in its place
    assert path.stat().st_uid == 0 and not path.stat().st_mode & 0o022


def test_without_descriptors_the_code_is_not_compiled_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_code(tmp_path)
    file = CodeFile("small_functions.small", code_cache.function_digest(small(tmp_path)))

    def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", none_left)
    with pytest.raises(HeapUnavailable, match="Too many open files"):
        file.load()
