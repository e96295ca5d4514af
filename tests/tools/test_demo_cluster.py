"""`make demo-cluster`, as a user runs it: three nodes, one killed; and what becomes of it when something goes wrong."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from tests.support.needed import is_needed, leave_out

if not is_needed("transformers"):
    pytest.importorskip("transformers", reason="the demo needs the extra nanokv[demo]")
if not is_needed("nixl"):
    pytest.importorskip("zmq", reason="the demo needs the extra nanokv[cluster]")

from examples.cluster import demo
from examples.cluster.crew import Crew

ROOT = Path(__file__).parents[2]
PROMPTS, TOKENS = 4, 4  #: the fewest prompts, and few tokens
RUN_SECONDS = 300  #: a bound for a busy machine; a run takes about 25 seconds
END_SECONDS = 30.0
MET = "are members of one cluster"  #: a line in the middle: all nodes are at work
BEGUN = "  registry "  #: a line at the beginning: the nodes are starting

pytestmark = pytest.mark.timeout(RUN_SECONDS + 60)


class Ran(NamedTuple):
    """A run of the demo that has ended."""

    pid: int
    code: int
    lines: list[str]
    errors: str

    @property
    def name(self) -> str:
        """Of its layout: the beginning of its namespaces and of its folder."""
        return f"nanokv-{self.pid}"

    def __str__(self) -> str:
        return f"exit code {self.code}\n{''.join(self.lines)}\n{self.errors}"


def run(
    *arguments: str,
    at: str = "",
    send: signal.Signals | None = None,
    kill: str = "",
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """A run to its end.

    Args:
        at: the beginning or a part of a line.
        send: a signal, sent to the whole group when that line comes, as Ctrl-C is.
        kill: the node whose process is killed then.
    """
    words = arguments or ("--prompts", str(PROMPTS), "--tokens", str(TOKENS))
    with subprocess.Popen(
        [sys.executable, "-m", "examples.cluster.demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | dict(environment or {}),
        start_new_session=True,  # a group of its own, as a shell makes one
    ) as process:
        watchdog = threading.Timer(RUN_SECONDS, process.kill)
        watchdog.start()
        assert process.stdout is not None and process.stderr is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if at and at in line:
                if send is not None:
                    os.killpg(process.pid, send)
                if kill:
                    os.kill(next(pid for pid, said in processes(process.pid) if f'"node": "{kill}"' in said), 9)
        errors = process.stderr.read()
        watchdog.cancel()
    return Ran(process.pid, process.returncode, lines, errors)


def processes(demo_pid: int) -> list[tuple[int, str]]:
    """Process id and command line of all that a run has started: nodes, etcd, `ip`. The registry's name is in each."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            said = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if re.search(rf"\bnanokv-{demo_pid}\b", said):
                found.append((int(entry.name), said))
    return found


def namespaces() -> str:
    """Of this machine, as `ip` lists them."""
    if shutil.which("ip") is None:
        return ""
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False, timeout=30).stdout


def assert_nothing_is_left(ran: Ran) -> None:
    """No process, no namespace, no folder of a run."""
    end = time.monotonic() + END_SECONDS  # a killed process may take a moment to be gone
    while (left := processes(ran.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, str(ran)
    assert ran.name not in namespaces(), str(ran)
    assert not list(Path(tempfile.gettempdir()).glob(f"{ran.name}*")), str(ran)


@pytest.fixture
def only(tmp_path: Path) -> Path:
    """A folder for a PATH: what a test links into it is all that there is."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def can_make_namespaces() -> bool:
    """Whether this user may."""
    name = f"probe-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


# --- whole runs ---
@pytest.mark.exhaustive
def test_every_token_is_equal_and_nothing_is_left() -> None:
    apart = can_make_namespaces()
    ran = run()
    assert ran.code == 0, str(ran)
    total = PROMPTS * TOKENS
    assert ran.lines[-1] == f"Every token equal: {total} of {total} are those of a run without a cache\n"
    text = "".join(ran.lines)
    assert ("each in a network namespace of its own" in text) == apart
    assert ("went over the bridge" in text) == apart
    assert "memory is killed (SIGKILL)" in text and "memory's lease has ended" in text
    assert re.search(r"a read by prefill is PeerLost \d+ ms after the kill", text)
    again = [int(count) for count in re.findall(r"blocks are gone \([^)]*\), (\d+) computed again", text)]
    assert sum(again) > 0, text
    assert sum(map(int, re.findall(r"read \d+ blocks, (\d+) from other nodes", text))) > 0
    assert_nothing_is_left(ran)


@pytest.mark.exhaustive
def test_without_ip_and_etcd_it_runs_on_loopback_with_a_folder(only: Path) -> None:
    ran = run(environment={"PATH": str(only)})
    assert ran.code == 0, str(ran)
    text = "".join(ran.lines)
    assert "No network namespaces here (there is no `ip` (Debian: iproute2)): three nodes on loopback:" in text
    assert "etcd is not installed (Debian: etcd-server): a folder takes its place" in text
    assert "registry file;" in text and "went over the bridge" not in text
    assert ran.lines[-1].startswith("Every token equal")
    assert_nothing_is_left(ran)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "at"),
    [(signal.SIGINT, MET), (signal.SIGTERM, BEGUN)],
    ids=["ctrl-c", "terminated-early"],
)
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, at: str) -> None:
    ran = run("--prompts", "32", "--tokens", "64", at=at, send=number)  # long: it must not end before the signal
    assert ran.code == demo.INTERRUPTED, str(ran)
    assert ran.errors.endswith("interrupted; nothing is left\n"), str(ran)
    assert "Traceback" not in ran.errors, str(ran)
    assert_nothing_is_left(ran)


@pytest.mark.exhaustive
def test_a_node_that_dies_by_itself_fails_the_run() -> None:
    ran = run("--prompts", "32", "--tokens", "64", at=MET, kill="decode")
    assert ran.code == 1, str(ran)
    assert ran.errors.startswith("node decode ended unexpectedly (exit status -9)\n"), str(ran)
    assert_nothing_is_left(ran)


@pytest.mark.exhaustive
def test_a_node_that_fails_is_told_with_the_end_of_its_log() -> None:
    ran = run(environment={"NANOKV_CLUSTER_SECRET": "too short"})
    assert ran.code == 1, str(ran)
    assert re.match(r"node \w+ failed: InvalidArgument: NANOKV_CLUSTER_SECRET must have at least 16 bytes", ran.errors)
    assert "Traceback" in ran.errors and "examples/cluster/node.py" in ran.errors
    assert_nothing_is_left(ran)


# --- the pieces ---
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompts", "3"), "argument --prompts: invalid choice: 3"),
        (("--prompts", "33"), "argument --prompts: invalid choice: 33"),
        (("--tokens", "1"), "argument --tokens: invalid choice: 1"),
        (("--seed", "x"), "argument --seed: invalid int value: 'x'"),
        (("more",), "unrecognized arguments: more"),
    ],
)
def test_wrong_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("package", "extra"), [("transformers", "nanokv[cluster,demo]"), ("zmq", "cluster")])
def test_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str, extra: str
) -> None:
    monkeypatch.setattr("examples.cluster.demo.find_spec", lambda name: None if name == package else find_spec(name))
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == 2
    said = capsys.readouterr().err
    assert f"the demo needs {package}" in said and extra in said


@pytest.mark.parametrize("has_etcd", [True, False])
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], only: Path, has_etcd: bool
) -> None:
    etcd = shutil.which("etcd")
    if has_etcd and etcd is None:
        leave_out("etcd", "there is no etcd on this machine")
    if has_etcd:
        (only / "etcd").symlink_to(cast(str, etcd))
    monkeypatch.setenv("PATH", str(only))
    name = f"missing-{os.getpid()}"
    with demo.laid_out(name) as layout:
        assert not layout.is_apart and len(layout.hosts) == len(demo.NODES)
        assert layout.registry.startswith("etcd://127.0.0.1:" if has_etcd else "file://")
        assert layout.folder.is_dir()
    said = capsys.readouterr().out
    assert "No network namespaces here" in said and "on loopback" in said
    assert ("a folder takes its place" in said) == (not has_etcd)
    assert not layout.folder.exists()


@pytest.mark.parametrize(
    ("equal", "again", "code", "line"),
    [
        (8, 3, 0, "Every token equal: 8 of 8 are those of a run without a cache"),
        (7, 3, 1, "1 of 8 tokens DIFFER from the run without a cache"),
        (7, 0, 1, "1 of 8 tokens DIFFER from the run without a cache"),
        (8, 0, 1, "no block was lost, so this proves nothing: take another seed"),
    ],
)
def test_the_verdict(capsys: pytest.CaptureFixture[str], equal: int, again: int, code: int, line: str) -> None:
    story = demo.Story(cast(Crew, None), [[1], [2]], 4)
    story.equal, story.wanted, story.computed_again = equal, 8, again
    assert demo.verdict(story) == code
    assert capsys.readouterr().out == f"{line}\n"


def test_a_short_answer_is_no_equal_one() -> None:
    crew = cast(Crew, _Answers({"event": "done", "blocks": 1, "missing": 0, "lost": 0, "tokens": [5]}))
    story = demo.Story(crew, [[1], [2]], 2)
    story._decode_one(0, [5, 6])
    assert (story.equal, story.wanted) == (1, 2)


class _Answers:
    """A crew whose nodes give one answer to everything."""

    def __init__(self, answer: dict[str, object]) -> None:
        self._answer, self._asked = answer, ""

    def give(self, name: str, do: str, **arguments: object) -> None:
        self._asked = name

    def listen(self) -> tuple[str, dict[str, object]]:
        return self._asked, self._answer
