"""The registry in a folder, which vanishes, is emptied, fills up, and has files of others in it."""

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanokv.cluster.membership import ClusterUnavailable, member_file
from nanokv.cluster.membership.member_file import LEFT, MemberFile, is_temporary, member_of, put, read, take
from tests.support.memberships import FOLDER_TTL, PATIENT_TTL, Place, Record, place, seen
from tests.support.until import until

pytestmark = pytest.mark.exhaustive  # a minute of waits for leases


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the cluster; not there yet."""
    return tmp_path / "below" / "cluster"


@pytest.fixture
def at(folder: Path) -> Iterator[Place]:
    """The cluster in it."""
    with place(f"file://{folder}", FOLDER_TTL) as made:
        yield made


@pytest.fixture
def patient(folder: Path) -> Iterator[Place]:
    """The same, with a ttl for members that must not be dropped."""
    with place(f"file://{folder}", PATIENT_TTL) as made:
        yield made


def two_with_records(at: Place) -> tuple[Record, Record]:
    """Members a and b, which know each other, and what each is told from now on."""
    pair = at.open("a", b"1"), at.open("b", b"2")
    records = Record(), Record()
    for membership, record in zip(pair, records, strict=True):
        seen(membership, {"a": b"1", "b": b"2"})
        membership.listen(record)
    return records


# --- the folder is away ---
def test_the_folder_is_away_for_a_while(patient: Place, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = two_with_records(patient)
    first, second = patient.opened
    gone = patient.process("gone")
    seen(first, {"a": b"1", "b": b"2", "gone": b""})
    aside = folder.with_name("aside")
    folder.rename(aside)
    gone.kill()
    until(lambda: first.away_for() > 1.5 * patient.ttl)
    first.update(b"new")
    assert first.members() == {"a": b"new", "b": b"2", "gone": b""}
    assert not folder.exists()
    assert caplog.text.count("does not answer") == 2  # once for each
    aside.rename(folder)
    seen(second, {"a": b"new", "b": b"2"})
    seen(first, {"a": b"new", "b": b"2"})
    assert first.away_for() == 0.0 == second.away_for()
    assert all(record.always_had("a", "b") for record in records)


def test_the_folder_is_removed_and_comes_back_empty(patient: Place, folder: Path) -> None:
    records = two_with_records(patient)
    first, second = patient.opened
    secret = first.secret()
    shutil.rmtree(folder, ignore_errors=True)
    until(lambda: first.away_for() > 0.0 and second.away_for() > 0.0)
    assert not threading.Event().wait(1.5 * patient.ttl)
    newcomer = patient.open("c", b"3")
    for membership in patient.opened:
        seen(membership, {"a": b"1", "b": b"2", "c": b"3"})
    assert newcomer.secret() == secret == second.secret()
    assert all(record.always_had("a", "b") for record in records)


def test_the_folder_is_emptied(patient: Place, folder: Path) -> None:
    records = two_with_records(patient)
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    until(lambda: (folder / "a.member").exists() and (folder / "b.member").exists())
    assert not threading.Event().wait(1.5 * patient.ttl)
    assert all(record.always_had("a", "b") for record in records)


def test_the_disc_is_full_for_a_while(
    patient: Place, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = two_with_records(patient)
    first, second = patient.opened

    def fail(path: Path, content: bytes, durable: bool) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(member_file, "_write", fail)
        until(lambda: first.away_for() > 1.5 * patient.ttl and second.away_for() > 0.0)
    until(lambda: first.away_for() == 0.0 == second.away_for())
    assert caplog.text.count("does not answer") == 2
    assert not threading.Event().wait(1.5 * patient.ttl)
    assert not [path for path in folder.iterdir() if is_temporary(path.name)]
    assert all(record.always_had("a", "b") for record in records)


def test_leaving_while_the_folder_is_away(at: Place, folder: Path) -> None:
    first, second = at.open("a"), at.open("b")
    seen(first, {"a": b"", "b": b""})
    aside = folder.with_name("aside")
    folder.rename(aside)
    first.leave()
    second.close()
    assert first.members().keys() == {"b"}
    aside.rename(folder)
    seen(first, {})
    until(lambda: first.away_for() == 0.0)


# --- what is in the folder ---
def test_foreign_files_are_ignored(at: Place, folder: Path) -> None:
    first = at.open("a", b"1")
    (folder / "empty.member").touch()
    (folder / "noise.member").write_bytes(os.urandom(10_000))
    (folder / "no member.member").write_bytes(MemberFile.of("0" * 32, 1, b"").text())
    (folder / ".member").write_bytes(MemberFile.of("1" * 32, 1, b"").text())
    (folder / "README").write_text("a")
    (folder / "folder.member").mkdir()
    (folder / "link.member").symlink_to(folder / "a.member")
    (folder / "broken.member").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "fifo.member")
    whole = MemberFile.of("2" * 32, 1, b"card").text()
    (folder / "short.member").write_bytes(whole[:-1])
    (folder / "changed.member").write_bytes(whole[:-1] + b"D")
    second = at.open("b", b"2")
    for membership in (first, second):
        seen(membership, {"a": b"1", "b": b"2"})
    first.leave()
    first.join("noise", b"3")  # in the place of a file of nobody
    seen(second, {"noise": b"3", "b": b"2"})
    assert first.away_for() == 0.0


def test_a_members_file_is_damaged(at: Place, folder: Path) -> None:
    first, second = at.open("a", b"1"), at.open("b", b"2")
    seen(second, {"a": b"1", "b": b"2"})
    for content in (b"", b"rubbish", MemberFile.of("2" * 32, 1, b"card").text()[:-1]):
        (folder / "a.member").write_bytes(content)
        until(lambda: read(folder / "a.member") is not None)
    seen(second, {"a": b"1", "b": b"2"})
    assert first.away_for() == 0.0


def test_files_are_for_this_user_only(at: Place, folder: Path) -> None:
    at.open("a").secret()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"cluster": 0o700, "a.member": 0o600, "secret": 0o600}


def test_a_secret_that_is_none(at: Place, folder: Path) -> None:
    first = at.open()
    (folder / "secret").touch()
    with pytest.raises(ClusterUnavailable, match="is not the secret of a cluster"):
        first.secret()


def test_what_the_dead_left_is_removed(tmp_path: Path) -> None:
    with place(f"file://{tmp_path}", 0.3) as at:
        at.process("dead").kill()
        (tmp_path / ".dead.member.0123456789ab.tmp").touch()
        (tmp_path / ".foreign.tmp").touch()
        first, second = at.open("a"), at.open("b")
        second.close()
        until(lambda: sorted(path.name for path in tmp_path.iterdir()) == [".foreign.tmp", "a.member"])
        seen(first, {"a": b""})


def test_a_dead_member_stays_dead_when_the_folder_comes_back(at: Place, folder: Path) -> None:
    at.process("dead").kill()
    first, record = at.open("a"), Record()
    seen(first, {"a": b""})
    first.listen(record)
    aside = folder.with_name("aside")
    folder.rename(aside)
    until(lambda: first.away_for() > 0.0)
    aside.rename(folder)
    until(lambda: first.away_for() == 0.0)
    assert not threading.Event().wait(0.5 * at.ttl)
    assert all(told == {"a": b""} for told in record.told)


def test_a_displaced_member_takes_its_id_back_from_the_dead(at: Place) -> None:
    here = at.open("here")
    old = at.process("a", "old")
    seen(here, {"here": b"", "a": b"old"})
    old.suspend()
    seen(here, {"here": b""})
    new = at.process("a", "new")
    seen(here, {"here": b"", "a": b"new"})
    old.resume()
    new.kill()
    seen(here, {"here": b"", "a": b"old"})


# --- the file of a member ---
def test_names_of_files() -> None:
    assert [member_of(name) for name in ("a.member", ".a.member", ".member", "a", "a b.member")] == [
        "a",
        ".a",
        None,
        None,
        None,
    ]
    assert is_temporary(".a.member.0123456789ab.tmp") and is_temporary(".secret.0123456789ab.tmp")
    assert not is_temporary(".a.tmp") and not is_temporary("a.member")


def test_reading_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.member"
    for card in (b"", b"\n", os.urandom(4096), os.urandom(1 << 20)):
        for beat in (LEFT, 0, 10**17):
            file = MemberFile.of("0123456789abcdef" * 2, beat, card)
            assert put(path, file.text(), replace=True)
            assert read(path) == file == read(path, file) == read(path, MemberFile.of("0" * 32, 1, b""))
    assert not put(path, b"", replace=False)
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_expected_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.member"
    old, new = (MemberFile.of("0" * 32, beat, b"") for beat in (1, 2))
    answers = iter([True, False])
    put(path, new.text(), replace=True)
    assert not take(path, lambda found: found == old)
    assert not take(path, lambda found: next(answers))  # as if it had been replaced just now
    assert read(path) == new
    assert take(path, lambda found: found == new)
    assert not take(path, lambda found: True)
    assert not list(tmp_path.iterdir())
