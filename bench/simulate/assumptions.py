"""What the simulation is built on. Each value can be changed: `--set name=value`."""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

_MODEL = "python -m bench.gpu.model"
_ASSUMED = "assumed: no published figure for this hardware"


def assumed(value: float, unit: str, least: float, source: str) -> Any:
    """A field of a dataclass of assumptions."""
    return field(default=value, metadata={"unit": unit, "least": least, "source": source})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The constants of the model. The sources stand beside the values."""

    node: int = assumed(8, "ranks", 1, "ranks that reach each other by NVLink: one HGX board")
    ctas: int = assumed(
        132, "at once", 1, "operations in flight per rank, one per multiprocessor of an H100; others queue"
    )
    put_work_us: float = assumed(8.75, "µs", 0, f"a put into the own segment, 5.7 to 11.8: {_MODEL}")
    get_work_us: float = assumed(5.95, "µs", 0, f"a get from the own segment, 3.9 to 8.0: {_MODEL}")
    nvlink_us: float = assumed(0.75, "µs", 0, f"an access there and back, on top, 0.5 to 1.0: {_MODEL}")
    nic_us: float = assumed(
        4.0, "µs", 0, "RDMA there and back, on top; 1 to 5 in public surveys (fridayswithfaraday.com)"
    )
    nvlink_gbps: float = assumed(450.0, "GB/s", 1e-3, "line rate of a GPU's NVLink, one direction (H100 data sheet)")
    nic_gbps: float = assumed(50.0, "GB/s", 1e-3, "line rate of a 400 Gb/s NIC, one per rank")
    own_gbps: float = assumed(1100.0, "GB/s", 1e-3, f"a copy within a GPU: {_MODEL}")
    word_ns: float = assumed(10.0, "ns", 0, f"between two atomics on one word, over NVLink; {_ASSUMED}")
    nic_word_ns: float = assumed(
        400, "ns", 0, "the same by RDMA; assumed; older NICs had 2 to 3 M/s (Kalia et al. 2016), not verified"
    )
    nic_message_ns: float = assumed(10.0, "ns", 0, f"between two messages that a rank's NIC serves; {_ASSUMED}")
    lists: int = assumed(64, "lists", 1, "free lists of each kind per owner: SHARDS in device/segment/layout.py")
    master_us: float = assumed(
        300, "µs", 0, "processor time of v1's master per request: python -m bench.simulate.master"
    )
    message_us: float = assumed(
        50, "µs", 0, f"to the master and back, by TCP, without the master's own time; {_ASSUMED}"
    )
    keys: int = assumed(100_000, "keys", 1, "that are read, by Zipf's law")
    zipf: float = assumed(0.99, "", 0, "exponent of Zipf's law: YCSB (Cooper et al. 2010)")
    copied_keys: int = assumed(64, "keys", 0, "the hottest ones, which have copies where the case says so")
    limit: float = assumed(10.0, "times", 1, "p99 may be so many times the p50 of the idle world")


def all_fields() -> "tuple[Field[Any], ...]":
    """The fields, in order; `metadata` has "unit", "least" and "source"."""
    return fields(Assumptions)


def changed(kind: Any, settings: Sequence[str]) -> Any:
    """A frozen dataclass with settings such as "node=72" applied.

    Raises:
        ValueError: there is no such field, or it cannot have that value.
    """
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if name not in known or not equals:
            raise ValueError(f"{setting!r} is not NAME=VALUE with a NAME of {', '.join(known)}")
        changes[name] = _value(known[name], text)
    made = replace(kind, **changes)
    for name, value in changes.items():
        least = known[name].metadata.get("least", -math.inf)
        if not isinstance(value, str) and not least <= value < math.inf:
            raise ValueError(f"{name} must be at least {least:g} and finite, not {value}")
    return made


def _value(which: "Field[Any]", text: str) -> Any:
    kind = which.type if which.type in (int, float) else str
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{which.name} must be of type {kind.__name__}, not {text!r}") from None
