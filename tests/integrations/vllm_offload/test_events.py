"""Events of a tier and of a manager: together they tell what is there."""

from collections.abc import Callable, Iterator

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

from vllm.v1.kv_offload.base import Locality, Medium, OffloadKey

from nanokv import local_world
from nanokv.host_poller.events import Event, EventKind
from nanokv.integrations.vllm_offload import announcing
from nanokv.integrations.vllm_offload.announcing import Announcer
from tests.integrations.vllm_offload.offloaded import Offloaded
from tests.integrations.vllm_offload.parts import Tiered, keys_of
from tests.support.faults import Limits
from tests.support.until import until

TIER, MANAGER = "vLLM SecondaryTierManager", "vLLM OffloadingManager"
ROOM = 8  #: blocks
TIERED = {"chunks": 12, "events": True, "enable_kv_events": True, "size": ROOM * 8192, "page_bytes": 8192}
SPEC = {"workers": 2, "events": True, "size": 2 * ROOM * 1024}
Start = Callable[..., Tiered]
StartSpec = Callable[..., Offloaded]
Told = list[tuple[bool, OffloadKey]]


class Listener:
    """What was told so far of one engine: whether each was a removal, and of which block."""

    def __init__(self, engine: Tiered | Offloaded) -> None:
        self.manager = engine.manager
        self.source = engine.tier if isinstance(engine, Tiered) else engine.manager
        self.told: Told = []

    def hear(self, count: int) -> Told:
        """Until there are so many more; returns them."""
        before = len(self.told)

        def all_told() -> bool:
            for event in self.source.take_events():
                assert (event.medium, event.locality, event.ownership) == (Medium.CPU, Locality.LOCAL, "nanokv")
                self.told += [(event.removed, key) for key in event.keys]
            return len(self.told) >= before + count

        until(all_told)
        return sorted(self.told[before:])

    def left(self) -> set[OffloadKey]:
        """The blocks that are there by what was told. Stores and removals of each must take turns."""
        there: set[OffloadKey] = set()
        for removed, key in self.told:
            assert removed == (key in there), "stores and removals do not take turns"
            there ^= {key}
        return there


def check_all_is_told(engine: Tiered | Offloaded) -> None:
    listener, old, new = Listener(engine), keys_of(range(ROOM)), keys_of(range(100, 100 + ROOM))
    engine.compute(old)
    assert listener.hear(ROOM) == [(False, key) for key in old]
    if isinstance(engine, Tiered):
        engine.forget()
    engine.compute(old[:4])  # known: nothing new
    if isinstance(engine, Tiered):
        engine.forget()
    engine.compute(new)
    assert listener.hear(2 * ROOM) == [(False, key) for key in new] + [(True, key) for key in old]
    assert listener.left() == set(new)


@pytest.mark.surface(TIER, "take_events", differs="of the process' own segment; needs enable_kv_events")
def test_a_tier_tells_what_was_stored_and_what_went(start: Start) -> None:
    check_all_is_told(start(**TIERED))


@pytest.mark.surface(MANAGER, "take_events")
def test_a_manager_tells_what_was_stored_and_what_went(start_spec: StartSpec) -> None:
    check_all_is_told(start_spec(**SPEC))


def check_churn_is_told(engine: Tiered | Offloaded, there: Callable[[list[OffloadKey]], list[bool]]) -> None:
    """Blocks come and go faster than the poller looks: in the end what was told is what is there."""
    listener, keys = Listener(engine), keys_of(range(ROOM * 4))
    for turn in range(40):
        start = turn * 5 % len(keys)
        engine.compute(keys[start : start + 5])
        if isinstance(engine, Tiered):
            engine.forget()
    until(lambda: listener.hear(0) is not None and listener.left() == set(_those(keys, there(keys))))


def _those(keys: list[OffloadKey], there: list[bool]) -> list[OffloadKey]:
    return [key for key, one in zip(keys, there, strict=True) if one]


def test_what_a_tier_told_is_what_is_there(start: Start) -> None:
    tiered = start(**TIERED)
    check_churn_is_told(tiered, tiered.tier.joined.world.exists_many)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_manager_told_is_what_is_there(start_spec: StartSpec, workers: int) -> None:
    engine = start_spec(**(SPEC | {"workers": workers}))
    check_churn_is_told(engine, engine.manager._are_there)


def test_without_the_flags_no_events_are_told(start: Start, start_spec: StartSpec) -> None:
    for number, settings in enumerate(({"events": True}, {"enable_kv_events": True})):
        tiered = start(chunks=8, name=f"tier-{number}", **settings)
        tiered.compute(keys_of(range(4)))
        assert list(tiered.tier.take_events()) == []
    engine = start_spec()
    engine.compute(keys_of(range(4)))
    assert list(engine.manager.take_events()) == []


class Poller:
    """An `Announcer` that is told by the test what the poller sees."""

    def __init__(self) -> None:
        (self.world,) = local_world(1, heap_bytes=1 << 20, page_bytes=1024)
        self.announcing = Announcer(self.world, Locality.LOCAL)
        self.announcing.close()

    def tell(self, kind: EventKind, *names: bytes) -> None:
        """The poller has seen something of objects."""
        self.announcing._hear([Event(kind, self.world.digest(name), None, 0) for name in names])

    def told(self) -> Told:
        """Since the last call."""
        return [(event.removed, key) for event in self.announcing.take() for key in event.keys]


@pytest.fixture
def poller(limits: Limits) -> Iterator[Poller]:
    """One, in a world of one rank."""
    limits(announcing, _KEPT=2)
    made = Poller()
    yield made
    made.world.close()


def test_a_block_is_announced_when_all_its_objects_were_seen(poller: Poller) -> None:
    (key,) = keys_of([1])
    poller.announcing.expect({key: [b"a", b"b"]})
    poller.tell(EventKind.STORED, b"a")
    poller.announcing.ended([key], [key])
    assert poller.told() == []
    poller.tell(EventKind.STORED, b"b")
    assert poller.told() == [(False, key)]
    poller.tell(EventKind.EVICTED, b"b")
    poller.tell(EventKind.REMOVED, b"a")
    assert poller.told() == [(True, key)]
    poller.world.put(b"a", torch.zeros(1))  # this part is there when the block is stored again
    poller.announcing.expect({key: [b"a", b"b"]})
    poller.announcing.ended([key], [key])
    poller.tell(EventKind.STORED, b"b")
    assert poller.told() == [(False, key)]


def test_a_block_that_went_before_its_store_is_known_to_have_ended_is_not_announced(poller: Poller) -> None:
    first, second = keys_of([1, 2])
    poller.announcing.expect({first: [b"a"], second: [b"b"]})
    poller.tell(EventKind.STORED, b"a", b"b")
    poller.tell(EventKind.EVICTED, b"a")
    assert poller.told() == []
    poller.announcing.ended([first, second], [first, second])
    assert poller.told() == [(False, second)]
    assert not poller.announcing._stores and not poller.announcing._coming


def test_blocks_that_the_poller_never_saw_are_forgotten(poller: Poller) -> None:
    keys = keys_of(range(6))
    poller.announcing.expect({key: [key] for key in keys})
    poller.world.put(keys[0], torch.zeros(1))
    poller.announcing.ended(keys, keys)
    assert list(poller.announcing._stores) == keys[:1]
    poller.tell(EventKind.STORED, keys[0])
    assert poller.told() == [(False, keys[0])]
