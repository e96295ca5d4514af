"""Files of saved objects: their bytes, files that were cut or changed, and saves that do not end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import nanokv
from nanokv import NanoKVCache
from nanokv.device.segment.layout import LAYOUT
from nanokv.errors import FileUnusable, InvalidArgument, NanoKVError, SegmentCorrupt
from nanokv.saved.layout import ALIGN, HEADER, OBJECT, SAVED_VERSION
from nanokv.saved.own_segment import OwnSegment
from nanokv.saved.reading import open_saved
from tests.api.test_identity import MINE
from tests.support.faults import Calls

PAGE = 4096
OBJECTS = {f"k{number}": torch.full((number * 911,), number, dtype=torch.int16) for number in range(8)}


def cache_of(**options: Any) -> NanoKVCache:
    (cache,) = nanokv.local_world(1, 64 * PAGE, page_bytes=PAGE, identity=MINE, **options)
    return cache


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a file with all OBJECTS."""
    path = tmp_path_factory.mktemp("saved") / "whole"
    with cache_of() as cache:
        for key, tensor in OBJECTS.items():
            cache.put(key, tensor)
        cache.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def target() -> Iterator[NanoKVCache]:
    """A cache to load into; it is empty before each load."""
    with cache_of() as cache:
        yield cache


def refused(target: NanoKVCache, path: Path, data: bytes) -> tuple[str, int]:
    """Load a file that is wrong: (the error, how many objects came all the same, each of which is right)."""
    path.write_bytes(data)
    with pytest.raises(SegmentCorrupt) as error:
        target.load(path)
    there = [key for key in OBJECTS if key in target]
    for key in there:
        assert torch.equal(target.get(key), OBJECTS[key]), f"{key} is wrong"
    target.flush()
    assert target.clear() == len(there), "there is an object under another key"
    return str(error.value), len(there)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


# --- the bytes --------------------------------------------------------------------------------
def test_the_format_is_as_written_down(whole: bytes) -> None:
    """Files outlive builds: a change here needs another SAVED_VERSION."""
    assert SAVED_VERSION == 2 and whole[:8] == b"NKVSAVE1"
    assert (HEADER.size, OBJECT.size, LAYOUT.size, ALIGN) == (4096, 256, 128, 4096)
    assert list(HEADER.offsets.items()) == [
        ("magic", 0),
        ("version", 8),
        ("file_bytes", 16),
        ("payload_bytes", 24),
        ("objects", 32),
        ("layouts", 40),
        ("options_bytes", 48),
        ("check", 56),
        ("saved_wall", 64),
        ("saved_clock", 72),
        ("saved_boot", 80),
    ]
    assert list(OBJECT.offsets.items()) == [
        ("key_hash", 0),
        ("key_check", 8),
        ("format", 16),
        ("dims", 24),
        ("bytes_total", 80),
        ("offset", 88),
        ("checksum", 96),
        ("last_used", 104),
        ("rank", 112),
        ("priority", 116),
        ("group", 120),
        ("until", 128),
    ]


def test_a_reader_of_the_table_finds_the_objects(whole: bytes) -> None:
    """By nothing but the tables of `saved.layout`."""
    header = np.frombuffer(whole[: HEADER.size], HEADER.dtype)[0]
    at = HEADER.size + int(header["payload_bytes"])
    rows = np.frombuffer(whole[at:][: int(header["objects"]) * OBJECT.size], OBJECT.dtype)
    assert len(rows) == len(OBJECTS) and header["layouts"] == 1 and header["file_bytes"] == len(whole)
    for row, tensor in zip(rows, OBJECTS.values(), strict=True):
        start, nbytes = int(row["offset"]), int(row["bytes_total"])
        stored = -(-nbytes // ALIGN) * ALIGN
        assert start % ALIGN == 0 and row["dims"].tolist() == [tensor.numel(), 0, 0, 0, 0, 0, 0]
        assert whole[start : start + stored] == tensor.numpy().tobytes().ljust(stored, b"\0")
        assert row["checksum"] == xxhash.xxh3_64_intdigest(whole[start : start + stored])
    assert (np.diff(rows["last_used"].astype(np.int64)) > 0).all()
    options = json.loads(whole[-int(header["options_bytes"]) :])
    assert (options["page_bytes"], options["world_size"], options["alloc"]) == (PAGE, 1, "device")


def test_the_objects_that_were_used_last_come_last(path: Path) -> None:
    with cache_of() as cache:
        for key in "abc":
            cache.put(key, torch.ones(3))
        cache.get("a")
        cache.save(path)
        with open_saved(path) as file:
            hashes = [cache.digest(key).key_hash for key in "bca"]
            assert file.rows["key_hash"].view(np.int64).tolist() == hashes


def test_an_empty_segment_is_a_file_too(path: Path, target: NanoKVCache) -> None:
    with cache_of() as cache:
        assert cache.save(path) == (0, 0, 0, 0)
        assert target.load(path) == (0, 0, 0, 0, 0)


# --- files that were cut or changed -----------------------------------------------------------
@settings(max_examples=200)
@given(data=st.data())
def test_any_changed_byte_is_noticed(whole: bytes, target: NanoKVCache, tmp_path_factory: Any, data: Any) -> None:
    payloads = len(whole) - len(OBJECTS) * OBJECT.size  # about: the tail, the header and the payloads alike
    region = data.draw(st.sampled_from([(0, 128), (128, HEADER.size), (HEADER.size, payloads), (payloads - 900, 0)]))
    at = data.draw(st.integers(region[0], (region[1] or len(whole)) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    message, there = refused(target, tmp_path_factory.getbasetemp() / "changed", bytes(changed))
    if "damaged" in message:
        assert HEADER.size <= at and there == len(OBJECTS) - 1 and message.startswith(f"1 of {len(OBJECTS)}")
    else:
        assert there == 0


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_that_was_cut_or_has_grown_is_noticed(
    whole: bytes, target: NanoKVCache, tmp_path_factory: Any, data: Any
) -> None:
    cut = data.draw(st.one_of(st.integers(0, len(whole) - 1), st.integers(0, 200)))
    for wrong in (whole[:cut], whole + bytes(cut + 1), whole[:cut] + whole[cut + 1 :]):
        assert refused(target, tmp_path_factory.getbasetemp() / "cut", wrong)[1] == 0


@pytest.mark.parametrize("data", [b"", b"\0" * 5000, b"PK\3\4" * 5000, b"{}\n"])
def test_another_file_is_none_of_ours(data: bytes, path: Path, target: NanoKVCache) -> None:
    message, _ = refused(target, path, data)
    assert str(path) in message and "no file of saved objects" in message


def test_another_version_is_named(whole: bytes, path: Path, target: NanoKVCache) -> None:
    other = bytearray(whole)
    other[8] = 1
    assert "of version 1, this build reads 2" in refused(target, path, bytes(other))[0]


def rewritten(whole: bytes, change: Callable[[Any, Any, Any], None]) -> bytes:
    """The file after `change(header, rows, layouts)`, with a right checksum: written to deceive."""
    header = np.frombuffer(bytearray(whole[: HEADER.size]), HEADER.dtype)
    at = HEADER.size + int(header["payload_bytes"][0])
    tail = bytearray(whole[at:])
    count = int(header["objects"][0]) * OBJECT.size
    change(
        header[0],
        np.frombuffer(tail, OBJECT.dtype, int(header["objects"][0])),
        np.frombuffer(tail, LAYOUT.dtype, 1, count),
    )
    header["check"] = 0
    header["check"] = xxhash.xxh3_64_intdigest(header.tobytes() + bytes(tail))
    return header.tobytes() + whole[HEADER.size : at] + bytes(tail)


def setter(field: str, at: int, value: int) -> Callable[[Any, Any, Any], None]:
    def change(header: Any, rows: Any, layouts: Any) -> None:
        rows[field][at] = np.uint64(value % 2**64) if rows[field].ndim == 1 else value

    return change


def backwards(header: Any, rows: Any, layouts: Any) -> None:
    """A payload whose end lies before its beginning: its size and its place add up to less, in 64 bits."""
    rows["format"][3:5], rows["dims"][3:5] = 0, 0
    rows["bytes_total"][3] = 2**64 - ALIGN
    rows["offset"][4] = rows["offset"][3] - ALIGN
    rows["bytes_total"][4] = rows["offset"][5] - rows["offset"][4]


@pytest.mark.parametrize(
    "change",
    [
        backwards,
        setter("offset", 3, 0),
        setter("offset", 3, 2**64 - 4096),
        setter("offset", 7, 2**40),
        setter("bytes_total", 3, 2**64 - 1),
        setter("bytes_total", 3, 2**63),
        setter("bytes_total", 7, 2**20),
        setter("format", 3, 200 | 1 << 8),
        setter("format", 3, 1 | 9 << 8),
        setter("dims", 3, 2**62),
        lambda header, rows, layouts: layouts["check"].__setitem__(0, 1),
        lambda header, rows, layouts: header.__setitem__("objects", 2**61),
        lambda header, rows, layouts: header.__setitem__("payload_bytes", 2**64 - 4096),
        lambda header, rows, layouts: header.__setitem__("options_bytes", 1),
    ],
)
def test_a_file_that_was_written_to_deceive_is_refused(
    change: Callable[[Any, Any, Any], None], whole: bytes, path: Path, target: NanoKVCache
) -> None:
    assert refused(target, path, rewritten(whole, change))[1] == 0


def test_a_file_that_is_written_anew_without_a_change_is_loaded(whole: bytes, path: Path, target: NanoKVCache) -> None:
    """So the tests above fail for what they change."""
    path.write_bytes(rewritten(whole, lambda header, rows, layouts: None))
    assert target.load(path).objects == len(OBJECTS)
    target.clear()


def test_what_cannot_be_opened(tmp_path: Path, target: NanoKVCache) -> None:
    os.mkfifo(tmp_path / "pipe")
    for wrong in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        for call in (target.load, target.save):
            with pytest.raises(InvalidArgument, match="no"):
                call(wrong)
    for call, name in ((target.load, "none"), (target.save, "no/folder"), (target.save, "x" * 300)):
        with pytest.raises(FileUnusable, match=name):
            call(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


# --- saves that do not end --------------------------------------------------------------------
def test_a_save_replaces_a_file_and_keeps_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    with cache_of() as cache:
        cache.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600, "KV is as secret as its prompt"
    with open_saved(tmp_path / "file") as file:
        assert len(file.rows) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError, NanoKVError])
def test_an_error_leaves_the_older_file(error: type[BaseException], tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def stop(*_: Any) -> None:
        assert len(list(tmp_path.iterdir())) == 2, "it is written in the same folder"
        raise error("stop")

    calls.instead(OwnSegment, "read", stop)
    with cache_of() as cache:
        cache.put("k", torch.ones(9))
        with pytest.raises(FileUnusable if error is OSError else error):
            cache.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"


FULL = """
import resource, signal, sys
import nanokv, torch
from nanokv.errors import FileUnusable
cache, = nanokv.local_world(1, 64 * 4096, page_bytes=4096)
for number in range(20):
    cache.put(f"k{number}", torch.ones(4096, dtype=torch.uint8))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    cache.save(sys.argv[1])
except FileUnusable as error:
    print("refused:", error)
cache.close()
"""


@pytest.mark.parametrize("room", [100, 40_000, 4096 * 21 + 100])
def test_a_full_disk_leaves_the_older_file(room: int, tmp_path: Path) -> None:
    """Full at the first bytes, among the payloads, and among the rows behind them."""
    path = tmp_path / "file"
    path.write_text("old")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", FULL, str(path), str(room)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("refused: ") and "File too large" in done.stdout, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"


def test_the_disk_is_not_full_for_the_test_above(tmp_path: Path) -> None:
    """With room for the file, the same program saves it."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", FULL, str(tmp_path / "file"), str(1 << 20)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "" and (tmp_path / "file").stat().st_size > 4096 * 21
