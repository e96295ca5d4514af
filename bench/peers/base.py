"""A system as a client that puts and gets sees it: NanoKV and each of its peers.

What a system does not have is None, and not measured. Its memory is always in another process, unless its guarantees
say otherwise.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

import torch

from nanokv.bench.suite.ring import Plan


class SystemFailed(Exception):
    """A system refused to start, answered with an error, or returned other bytes than were put."""


class Guarantees(NamedTuple):
    """What a client gets for the time that a put takes. All of it stands beside the figures."""

    keys: str  #: by what an object is found
    allocation: str  #: who finds room for it
    process: str  #: where its bytes are
    copies: str  #: of the payload, by processors: in a put and in a get
    checksum: str
    promise: str  #: what holds when put returns

    def __str__(self) -> str:
        named = (f"{name}: {value}" for name, value in self._asdict().items() if name != "promise")
        return f"{'; '.join(named)}; when put returns, {self.promise}"


class Ring(NamedTuple):
    """How many objects of `size` bytes a system must hold at a time; there is one more while a put is on its way."""

    size: int
    slots: int

    @classmethod
    def of(cls, size: int, ring_bytes: int) -> Self:
        """A ring of as many objects as `latency` measures with.

        Raises ValueError: such an object does not fit into a heap of NanoKV.
        """
        return cls(size, Plan(size, ring_bytes).slots)

    @property
    def nbytes(self) -> int:
        """Bytes of all objects together."""
        return self.size * self.slots


class System(ABC):
    """One system, with room for one ring. In its `with` block its processes run; they and its files end with it.

    Attributes:
        name: in figures.
        module: the Python package that its client needs.
        packages: whose versions belong to its figures.
        guarantees: what its figures pay for.
        everywhere: it listens on all interfaces, whatever it is told: it runs only where there is none but loopback.
        exists, remove, exists_many, round_trip: what not every system has. `round_trip` is a question of 8 bytes to
            the other process, and its answer.
    """

    name: ClassVar[str]
    module: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ()
    guarantees: ClassVar[Guarantees]
    everywhere: ClassVar[bool] = False

    exists: Callable[[Any], bool] | None = None
    remove: Callable[[Any], None] | None = None
    exists_many: Callable[[Sequence[Any]], Sequence[bool]] | None = None
    round_trip: Callable[[], None] | None = None

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stack = ExitStack()  #: what must be closed, last things first

    @classmethod
    def why_not(cls) -> str | None:
        """Why it cannot run on this machine, in words that say what to install; None: it can."""
        if find_spec(cls.module) is None:
            return f"the Python package {cls.module} is not installed: see `make bench-peers`"
        return None

    @classmethod
    def versions(cls) -> dict[str, str]:
        """The versions of its packages that are installed."""
        found = {}
        for package in cls.packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return found

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    @abstractmethod
    def start(self) -> None:
        """Start its processes, connect to them, and make room for the ring. What to close goes onto `stack`.

        Raises:
            SystemFailed: it did not start within its time.
        """

    def folder(self) -> Path:
        """A new folder for sockets, logs and what else goes when the system ends."""
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="nanokv-peer-")))

    def buffer(self) -> torch.Tensor:
        """Memory of one object that its client may use: registered where it has to be."""
        return torch.zeros(self.ring.size, dtype=torch.uint8)

    def source(self) -> torch.Tensor:
        """The one tensor that is given to `put`."""
        return self.buffer()

    def target(self) -> torch.Tensor:
        """The one tensor that is given to `get_into`."""
        return self.buffer()

    def key(self, i: int) -> Any:
        """What object number i is called. Systems without keys have places: `i % self.ring.slots`."""
        return f"object {i}"

    @abstractmethod
    def put(self, key: Any, tensor: torch.Tensor) -> None:
        """Store the bytes. Raises SystemFailed, or an error of the system's own."""

    @abstractmethod
    def get_into(self, key: Any, tensor: torch.Tensor) -> None:
        """Read the bytes. Raises SystemFailed, or an error of the system's own."""
