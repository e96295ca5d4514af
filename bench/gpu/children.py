"""Runs items (bodies, tests, benchmarks) in child processes, so that one that hangs or faults costs itself and no more.

A kernel that hangs cannot be stopped from inside, and one that faults ends the use of the GPU for its whole process. So
a child works through a list of items and writes, into a file of JSON lines, when it begins one, what it finds, and how
it ended. If it dies or takes too long over one item, that item has failed, and a new child goes on with the rest.

The parent is `Items`; a child calls `work_through`.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nanokv.bench.suite.environment import child_environment

UNUSABLE = 3  #: a child's exit code: the device is of no more use to that process; its last item is written
START_SECONDS = 60.0  #: until a child begins its first item: it imports torch and Triton from a cold disk
FAREWELL_SECONDS = 5.0  #: for a process to print where it stands, and for the system to end it
LOOK_SECONDS = 0.05
TAIL = 6000  #: characters of a child's output that explain a failure

Result = dict[str, Any]  #: "name", "ok", "seconds", "note", and "rows", if there were any
Keep = Callable[[dict[str, Any]], None]  #: takes a row that an item has found


# --- a child -----------------------------------------------------------------------------------
def work_through(file: Path, items: Iterable[tuple[str, Callable[[Keep], str | None]]], device: torch.device) -> int:
    """Do each item, and write what comes of it, at once. Returns the exit code of this process.

    Args:
        file: gets the lines.
        items: name, and what to do. It passes rows to its argument, may return a note, and raises if it failed.
        device: is waited for after each item, so that a fault counts against the item whose kernel it was.
    """
    failed = False
    for name, work in items:
        write(file, {"began": name})
        start, note, ok = time.perf_counter(), "", False
        try:
            note = work(lambda row, name=name: write(file, {"of": name, "row": row})) or ""  # type: ignore[misc]
            _wait_for(device)
            ok = True
        except Exception:
            note = traceback.format_exc()
        write(file, {"name": name, "ok": ok, "seconds": round(time.perf_counter() - start, 2), "note": note})
        print("ok" if ok else "FAILED", name, f"{time.perf_counter() - start:.1f} s", note, flush=True)
        failed |= not ok
        if not ok:
            leave_if_unusable(device)
    return 1 if failed else 0


def leave_if_unusable(device: torch.device) -> None:
    """End this process if a kernel has faulted: whatever it does with the device from then on fails alike."""
    try:
        _wait_for(device)
    except Exception as error:
        print(f"{device} is of no more use to this process: {error}", flush=True)
        os._exit(UNUSABLE)  # destructors would wait for a device that no longer answers


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write(file: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


# --- the parent --------------------------------------------------------------------------------
class Items:
    """Items of one kind, and the command that works through them with `--items JSON --rows FILE` at its end.

    Args:
        command: a module of Python and its arguments.
        names: of the items, in their order.
        each: seconds that one item may take, before the child is ended.
        folder: gets the children's lines and output, NAME.jsonl and NAME.log; both are appended to.
        name: of these files.
    """

    def __init__(self, command: Sequence[str], names: Sequence[str], each: float, folder: Path, name: str) -> None:
        self.left = list(names)
        self._command = command
        self._each = each
        self._log, self._rows = folder / f"{name}.log", folder / f"{name}.jsonl"

    def run(self, end: Callable[[], float]) -> Iterator[Result]:
        """Yield the result of each item when it is there. At `end()` (`time.monotonic`) what is left stays in `left`.

        An item that is at work at that time yields what it has, with "cut": True, and stays, too.
        """
        while self.left and time.monotonic() < end():
            child = _Child([*self._command, "--items", json.dumps(self.left)], self._rows, self._log)
            before = len(self.left)
            try:
                yield from self._follow(child, end)
            finally:
                if not self.left:
                    child.leave()
                child.end()
            if child.cut:
                return
            if self.left and (child.code != UNUSABLE or before == len(self.left)):
                yield from self._blame(child)

    def _follow(self, child: "_Child", end: Callable[[], float]) -> Iterator[Result]:
        """Yield results until the child has ended, or is ended."""
        while True:
            has_ended = child.poll()  # before its lines are read: then there are no more
            for line in child.lines():
                if "name" in line:
                    yield self._done(line | ({"rows": child.rows} if child.rows else {}))
                    child.rows = []
            now = time.monotonic()
            if has_ended or not self.left:
                return
            if now >= end():
                child.cut = True
                if child.at is not None:
                    note = "cut off: the time of the whole run was over"
                    cut = {"name": child.at, "ok": False, "cut": True, "seconds": round(now - child.since, 1)}
                    yield cut | {"note": note, "rows": child.rows}
                return
            if now - child.since > (self._each if child.at is not None else max(START_SECONDS, self._each)):
                child.why = f"stopped after {now - child.since:.0f} s"
                return
            time.sleep(LOOK_SECONDS)

    def _done(self, result: Result) -> Result:
        self.left.remove(result["name"])
        return result

    def _blame(self, child: "_Child") -> Iterator[Result]:
        """Results of a child that ended without a word: its item failed; or all, if it never came to one."""
        why = child.why or child.ending()
        seconds = round(time.monotonic() - child.since, 1)
        note = f"{why}:\n{child.said()[-TAIL:]}"
        if child.at is not None:
            yield self._done({"name": child.at, "ok": False, "seconds": seconds, "note": note, "rows": child.rows})
            return
        for name in list(self.left):
            yield self._done({"name": name, "ok": False, "seconds": seconds, "note": f"never begun: {note}"})
            note, seconds = "the same", 0.0


class _Child:
    """A running child.

    Attributes:
        at: the item that it has begun. since: when it began that, or itself. rows: what the item has found.
        why: why it is ended. code: its exit code. cut: whether it is ended only because the time is over.
    """

    def __init__(self, module: list[str], rows: Path, log: Path) -> None:
        rows.touch()
        self._rows, self._at = rows, rows.stat().st_size
        self._log, self._log_at = log, log.stat().st_size if log.exists() else 0
        self.at: str | None = None
        self.since = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.why = ""
        self.cut = False
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", *module, "--rows", str(rows)],
                env=child_environment() | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
                stdout=said,
                stderr=subprocess.STDOUT,
                process_group=0,  # what it starts ends with it
            )

    @property
    def code(self) -> int | None:
        """The exit code; negative: minus the signal; None: it is running."""
        return self._process.returncode

    def poll(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines since the last call, which are noted here; whole ones only."""
        with self._rows.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        for text in whole.splitlines():
            line: dict[str, Any] = json.loads(text)
            self.since = time.monotonic()
            if "began" in line:
                self.at, self.rows = line["began"], []
            elif "row" in line:
                self.rows.append(line["row"])
            else:
                self.at = None
            yield line

    def leave(self) -> None:
        """Give it time to end by itself: it has nothing more to do."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL_SECONDS)

    def end(self) -> None:
        """End it and all that it has started. It first prints where it stands, if it still runs."""
        if not self.poll():
            for sign in (signal.SIGABRT, signal.SIGKILL):
                self._signal(sign)
                try:
                    self._process.wait(FAREWELL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
            else:
                self.why += "; it cannot be killed: it hangs in the driver"
        self._signal(signal.SIGKILL)  # what it started and left

    def _signal(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, sign)

    def said(self) -> str:
        """The output of the command."""
        with self._log.open("rb") as file:
            file.seek(self._log_at)
            return file.read().decode(errors="replace")

    def ending(self) -> str:
        """How it ended."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"died by {signal.Signals(-code).name}"
        return f"ended with {code}, without a result"
