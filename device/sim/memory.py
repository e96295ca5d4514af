"""Simulated memory: sequentially consistent, or weak with release/acquire views.

Weak memory. Each word keeps the history of its messages in modification order. A task has a view: for each word the
oldest message that it may still read.
- A load may read any message that is not older than the view; the view moves to it. An acquire load also joins the view
  that the message carries.
- A store may take any place in the modification order after the view, except between a read-modify-write and the
  message that this one read. A release store carries the task's view; a relaxed one carries nothing.
- A read-modify-write reads the newest message and puts its own behind it. It passes on the view that the message it
  read carries (a release sequence), and its own view if it releases.
- A compare-and-swap that fails is a load: it may read an old message, also when the newest one has the expected value.
- A copy between memories is torn into words. A word that is read may be read as late as the task's next release.
- A transfer to another host (`transfers`) reads each word on its own: any message that is not older than the view with
  which it began. When it has ended, its reader's view joins what every message that was read comes after: the view that
  it carries, and what its writer had acquired, or done by read-modify-writes, before it. This is more than C11 says: it
  holds where a store becomes visible to all other observers at once, and not before a read-modify-write of its own
  thread that precedes it.

Source: the view machine of Kang et al. (2017), without promises: a load is not delayed past a later relaxed store of
its own task, except the loads of a copy. So only copies show load buffering.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Protocol

SHARED = 1 << 56  #: addresses from here on are simulated; below lies the memory of this process
_WORD = 8
_SIGN, _SPAN = 1 << 63, 1 << 64

View = dict[int, float]
Watch = Callable[[int, int], None]  #: (the word that was there, the word that comes)


class MemoryFault(Exception):
    """An access outside of the simulated memory, or one that is not aligned."""


class Reader(Protocol):
    """A task, as memory sees it."""

    view: View
    behind: View  #: what its stores come after, as transfers see them; replaced, never changed


def signed(value: int) -> int:
    """A value as a signed 64-bit word."""
    return value if -_SIGN <= value < _SIGN else (value + _SIGN) % _SPAN - _SIGN


class Memory:
    """Words from SHARED on, sequentially consistent: every load reads the newest word.

    Args:
        words: the first content.
    """

    name = "sc"

    def __init__(self, words: list[int]) -> None:
        self.words = words
        self.watched: dict[int, Watch] = {}
        self.pick: Callable[[int], int] = lambda count: 0  #: chooses one of `count` possible outcomes

    def _at(self, address: int) -> int:
        at, rest = divmod(address - SHARED, _WORD)
        if rest or not 0 <= at < len(self.words):
            raise MemoryFault(f"access to {address - SHARED:#x} of {len(self.words) * _WORD:#x} shared bytes")
        return at

    def _write(self, address: int, value: int) -> None:
        at = self._at(address)
        watch = self.watched.get(address)
        if watch is not None:
            watch(self.words[at], value)
        self.words[at] = value

    def newest(self, address: int) -> int:
        """The last word of the modification order, for observers outside of the execution."""
        return self.words[self._at(address)]

    def load(self, task: Reader, address: int, sem: str) -> int:
        return self.words[self._at(address)]

    def store(self, task: Reader, address: int, value: int, sem: str) -> None:
        self._write(address, signed(value))

    def glance(self, task: Reader, address: int) -> tuple[int, View]:
        """A word that a transfer reads: its value, and what is to be joined to the view of its reader in the end."""
        return self.words[self._at(address)], {}

    def cas(self, task: Reader, address: int, expected: int, new: int, sem: str) -> int:
        old = self.words[self._at(address)]
        if old == signed(expected):
            self._write(address, signed(new))
        return old

    def add(self, task: Reader, address: int, value: int, sem: str) -> int:
        old = self.words[self._at(address)]
        self._write(address, signed(old + value))
        return old

    def exchange(self, task: Reader, address: int, value: int, sem: str) -> int:
        old = self.words[self._at(address)]
        self._write(address, signed(value))
        return old


class Message:
    """One write: its place in the modification order of its word, its value, the view that it carries."""

    __slots__ = ("behind", "carried", "glued", "stamp", "value")

    def __init__(self, stamp: float, value: int, carried: View | None, glued: bool, behind: View) -> None:
        self.stamp = stamp
        self.value = value
        self.carried = carried
        self.behind = behind  #: what its writer's stores came after
        self.glued = glued  #: a read-modify-write: nothing may come between it and the message before


def _stamp(message: Message) -> float:
    return message.stamp


def join(view: View, other: View | None) -> None:
    """Move a view on to everything that another view has seen."""
    if other:
        for address, stamp in other.items():
            if view.get(address, 0.0) < stamp:
                view[address] = stamp


def joined(view: View, other: View | None) -> View:
    """A view of everything that two views have seen."""
    if not other:
        return view
    both = dict(view)
    join(both, other)
    return both


class WeakMemory(Memory):
    """Release/acquire memory by views. `words` has the newest of each word."""

    name = "weak"

    def __init__(self, words: list[int]) -> None:
        super().__init__(words)
        self.history: dict[int, list[Message]] = {}

    def load(self, task: Reader, address: int, sem: str) -> int:
        messages = self.history.get(address)
        if messages is None:
            return self.words[self._at(address)]
        return self._read(task, address, messages, sem, None)

    def _read(self, task: Reader, address: int, messages: list[Message], sem: str, unlike: int | None) -> int:
        """Read one of the messages that the task may read, and none whose value is `unlike`."""
        message = self._one_of(task, address, messages, unlike)
        task.view[address] = message.stamp
        if sem in ("acquire", "acq_rel"):
            join(task.view, message.carried)
            task.behind = joined(task.behind, message.carried)
        return message.value

    def _one_of(self, task: Reader, address: int, messages: list[Message], unlike: int | None) -> Message:
        oldest = bisect_left(messages, task.view.get(address, 0.0), key=_stamp)
        readable = messages[: oldest - 1 : -1] if oldest else messages[::-1]
        if unlike is not None:
            readable = [message for message in readable if message.value != unlike]
        return readable[self.pick(len(readable))] if len(readable) > 1 else readable[0]

    def glance(self, task: Reader, address: int) -> tuple[int, View]:
        messages = self.history.get(address)
        if messages is None:
            return self.words[self._at(address)], {}
        message = self._one_of(task, address, messages, None)
        seen = joined(message.behind, message.carried) | {address: message.stamp}
        return message.value, seen

    def _messages(self, address: int) -> list[Message]:
        messages = self.history.get(address)
        if messages is None:
            messages = self.history[address] = [Message(0.0, self.words[self._at(address)], None, False, {})]
        return messages

    def store(self, task: Reader, address: int, value: int, sem: str) -> None:
        messages = self._messages(address)
        first = bisect_right(messages, task.view.get(address, 0.0), key=_stamp)
        places = [at for at in range(len(messages), first - 1, -1) if at == len(messages) or not messages[at].glued]
        at = places[self.pick(len(places))] if len(places) > 1 else places[0]
        self._insert(task, address, at, signed(value), sem, None)

    def _insert(self, task: Reader, address: int, at: int, value: int, sem: str, read: Message | None) -> None:
        messages = self.history[address]
        before = messages[at - 1]
        after = messages[at].stamp if at < len(messages) else before.stamp + 2.0
        stamp = (before.stamp + after) / 2
        task.view[address] = stamp
        carried = None
        if sem in ("release", "acq_rel"):
            carried = dict(task.view)
            join(carried, read.carried if read is not None else None)
        elif read is not None:
            carried = read.carried
        watch = self.watched.get(address)
        if watch is not None:
            watch(before.value, value)
        messages.insert(at, Message(stamp, value, carried, read is not None, task.behind))
        if read is not None:
            task.behind = dict(task.view) if sem == "acq_rel" else task.behind | {address: stamp}
        if at == len(messages) - 1:
            self.words[self._at(address)] = value

    def _modify(self, task: Reader, address: int, value: int, sem: str) -> None:
        messages = self._messages(address)
        newest = messages[-1]
        if sem in ("acquire", "acq_rel"):
            join(task.view, newest.carried)
            task.behind = joined(task.behind, newest.carried)
        self._insert(task, address, len(messages), value, sem, newest)

    def cas(self, task: Reader, address: int, expected: int, new: int, sem: str) -> int:
        messages = self._messages(address)
        expected = signed(expected)
        oldest = bisect_left(messages, task.view.get(address, 0.0), key=_stamp)
        if messages[-1].value == expected:
            stale = any(message.value != expected for message in messages[oldest:-1])
            if not (stale and self.pick(2)):
                self._modify(task, address, signed(new), sem)
                return expected
        return self._read(task, address, messages, "relaxed" if sem == "release" else sem, expected)

    def add(self, task: Reader, address: int, value: int, sem: str) -> int:
        old = self._messages(address)[-1].value
        self._modify(task, address, signed(old + value), sem)
        return old

    def exchange(self, task: Reader, address: int, value: int, sem: str) -> int:
        old = self._messages(address)[-1].value
        self._modify(task, address, signed(value), sem)
        return old
