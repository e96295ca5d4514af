"""The flags of the connector: `nanokv.*` in vLLM's `kv_connector_extra_config`. Imports no vLLM."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from nanokv.arguments import integer, seconds
from nanokv.config import Alloc
from nanokv.errors import InvalidArgument
from nanokv.heap import KINDS, HeapKind
from nanokv.heap.world_spec import Stale

PREFIX = "nanokv."
Load = Literal["async", "layer"]
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def _flag(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Settings:
    """One field per flag; `nanokv.` and its name is the flag. The texts are shown by `nanokv vllm-flags`."""

    name: str = _flag("", "the world's name on this host; engines that share KV give the same. Default: of this engine")
    alloc: Alloc = _flag("device", "device: the producer allocates (v2); host: rank 0 does (v1)")
    heap: HeapKind | None = _flag(None, "where segments lie: local, shm, torch_symm or iris. Default: shm")
    size: int = _flag(1 << 30, "bytes of each rank's segment, as 4GiB")
    page_bytes: int = _flag(0, "bytes of a page; all engines give the same. Default: the KV of one block of a rank")
    world_size: int = _flag(0, "ranks of all engines together. Default: those of this engine")
    rank: int = _flag(0, "this engine's first rank; its workers take the ranks from there on")
    target: int = _flag(-1, "the first rank of the engine that reads what this one stores. Default: this engine")
    namespace: str = _flag("", "engines of different namespaces share nothing: a tenant, an experiment")
    model: str = _flag("", "the name of the model in keys. Default: as vLLM was given it")
    hold: float = _flag(60.0, "seconds for which a kv_producer's blocks are kept for their first reader; 0: not kept")
    load: Load = _flag("async", "async: a request waits outside of steps; layer: each layer waits for its own KV")
    save_generated: bool = _flag(True, "whether blocks of generated tokens are stored too")
    checksum: bool = _flag(False, "store a checksum with each block, and verify it at each load")
    attach_timeout: float = _flag(600.0, "seconds to wait for the other engines at start")
    on_stale: Stale = _flag("replace", "replace or recover a world whose engines have all died; error: refuse to start")

    def __post_init__(self) -> None:
        for name, allowed in (
            ("alloc", get_args(Alloc)),
            ("heap", (None, *KINDS)),
            ("load", get_args(Load)),
            ("on_stale", get_args(Stale)),
        ):
            if getattr(self, name) not in allowed:
                shown = ", ".join(map(str, allowed))
                raise InvalidArgument(f"{PREFIX}{name} must be one of {shown}, not {getattr(self, name)!r}")
        for name in ("name", "namespace", "model"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgument(f"{PREFIX}{name} must be a string, not {getattr(self, name)!r}")
        for name in ("save_generated", "checksum"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{PREFIX}{name} must be true or false, not {getattr(self, name)!r}")
        for name, low in (("size", 1), ("page_bytes", 0), ("world_size", 0), ("rank", 0), ("target", -1)):
            object.__setattr__(self, name, integer(PREFIX + name, getattr(self, name), low))
        for name in ("hold", "attach_timeout"):
            object.__setattr__(self, name, seconds(PREFIX + name, getattr(self, name)))
        if self.hold < 0 or not self.attach_timeout > 0:
            raise InvalidArgument(f"{PREFIX}hold must not be negative, and {PREFIX}attach_timeout positive")

    def ranks(self, workers: int) -> tuple[int, int]:
        """The number of ranks of the world, and the first rank that reads what an engine of so many workers stores.

        Raises:
            InvalidArgument: the ranks of this engine, or the target, are not in the world.
        """
        world_size = self.world_size or self.rank + workers
        if self.rank + workers > world_size:
            raise InvalidArgument(
                f"{workers} workers from {PREFIX}rank={self.rank} on are more than {PREFIX}world_size={world_size}"
            )
        target = self.rank if self.target < 0 else self.target
        if target >= world_size:
            raise InvalidArgument(f"{PREFIX}target={target} is no rank: {PREFIX}world_size is {world_size}")
        if world_size > workers and not self.name:
            raise InvalidArgument(f"engines that share a world need the same {PREFIX}name")
        return world_size, target


def parse(extra: Mapping[str, Any]) -> Settings:
    """The settings in a `kv_connector_extra_config`.

    Raises:
        InvalidArgument: an unknown flag, or a value that is not allowed.
    """
    known = {flag.name for flag in fields(Settings)}
    given: dict[str, Any] = {}
    for flag, value in extra.items():
        name = flag.removeprefix(PREFIX)
        if flag == name or name not in known:
            flags = ", ".join(PREFIX + each for each in sorted(known))
            raise InvalidArgument(f"there is no flag {flag!r} in kv_connector_extra_config; the flags are {flags}")
        given[name] = _size(flag, value) if name in ("size", "page_bytes") else value
    return Settings(**given)


def _size(flag: str, value: object) -> int:
    """Bytes: a number, or a text such as 4GiB, 512 MB (of 1024 each), 65536."""
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value.strip())
        if matched is None:
            raise InvalidArgument(f"{flag} must be a size such as 4GiB, not {value!r}")
        return int(matched[1]) * _UNITS[matched[2].lower()]
    return integer(flag, value, 0)
