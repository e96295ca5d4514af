"""Scenarios of single free lists, and of the list of header slots: ABA, hand-over, a host that takes the whole list."""

from collections.abc import Callable

from nanokv.check.model.scenario import Scenario, expect, small
from nanokv.check.model.small_world import Stage
from nanokv.device.protocol import freelist, header
from nanokv.device.segment.layout import FREE_HEAD, HEADER_BYTES, LOW32, WORD

# --- one list ---------------------------------------------------------------------------------
NODES = 3


def _list(stage: Stage) -> tuple[int, int, int]:
    """Head, links and payload of the list of pages: a word of each page stands for what is in it."""
    base, at = stage.world.bases[0], stage.geometry.offsets
    return base + FREE_HEAD.value, base + at["links_base"], base + at["heap_base"]


def _push_nodes(stage: Stage) -> None:
    head, links, _ = _list(stage)
    for node in range(NODES):
        stage.function(freelist.push)(head, links, node)


class _Hands:
    """Who pushed a node last, as Python knows it; the word in the page must say the same."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.head, self.links, self.pages = _list(stage)
        self.pop, self.push = stage.function(freelist.pop), stage.function(freelist.push)
        self.held: set[int] = set()
        self.last: dict[int, int] = {}
        self.load, self.store = (stage.simulation.vocabulary[name] for name in ("load64", "store64"))

    def take(self) -> int:
        node: int = self.pop(self.head, self.links, NODES)
        if node >= 0:
            expect(node not in self.held, f"I2: node {node} was popped twice")
            self.held.add(node)
            said = self.load(self._page(node), "relaxed")
            expect(said == self.last.get(node, 0), f"what was done to node {node} is not visible to who popped it")
        self.stage.ended()
        return node

    def give(self, node: int, who: int) -> None:
        self.store(self._page(node), who, "relaxed")
        self.last[node] = who
        self.held.discard(node)
        self.push(self.head, self.links, node)
        self.stage.ended()

    def _page(self, node: int) -> int:
        return self.pages + node * self.stage.geometry.page_bytes

    def swap(self, who: int) -> Callable[[], None]:
        def body() -> None:
            node = self.take()
            if node >= 0:
                self.give(node, who)

        return body

    def two(self, who: int) -> Callable[[], None]:
        def body() -> None:
            nodes = [self.take(), self.take()]
            for node in nodes:
                if node >= 0:
                    self.give(node, who)

        return body


def _swap_twice(stage: Stage) -> None:
    hands = _Hands(stage)
    stage.spawn("one", hands.swap(1))
    stage.spawn("two", hands.swap(2))


def _aba(stage: Stage) -> None:
    hands = _Hands(stage)
    stage.spawn("one", hands.swap(1))
    stage.spawn("two", hands.two(2))
    stage.spawn("three", hands.swap(3))


def _whole_list(stage: Stage) -> None:
    head, links, _ = _list(stage)
    newest = stage.simulation.memory.newest
    node = newest(head) & LOW32.value
    seen: list[int] = []
    while node and len(seen) <= NODES:
        seen.append(node - 1)
        node = newest(links + (node - 1) * WORD) & LOW32.value
    expect(sorted(seen) == list(range(NODES)), f"I2: the list has nodes {seen}")


def _take_and_put_back(stage: Stage, hands: _Hands) -> None:
    """What a host does with a list: all of it out, and in again."""
    first = stage.function(freelist.detach)(hands.head)
    last = first
    while first >= 0:
        after = (hands.load(hands.links + last * WORD, "relaxed") & LOW32.value) - 1
        if after < 0:
            stage.function(freelist.push_chain)(hands.head, hands.links, first, last)
            break
        last = after
    stage.ended()


def _detach(stage: Stage) -> None:
    hands = _Hands(stage)
    stage.spawn("one", hands.swap(1))
    stage.spawn("host", lambda: _take_and_put_back(stage, hands))
    stage.spawn("two", hands.swap(2))


def _push_tag_four(stage: Stage) -> None:
    """A list of nodes 2, 1, 0 whose tag is 4: what a host's two pops and two pushes make of a tag that began anew."""
    head, links, _ = _list(stage)
    pop, push, chain = (stage.function(function) for function in (freelist.pop, freelist.push, freelist.push_chain))
    stage.simulation.vocabulary["store64"](links + WORD, 1, "relaxed")  # node 1 is followed by node 0
    chain(head, links, 1, 0)
    push(head, links, 2)
    push(head, links, pop(head, links, NODES))


def _detach_aba(stage: Stage) -> None:
    hands = _Hands(stage)

    def host() -> None:
        _take_and_put_back(stage, hands)
        hands.two(0)()

    stage.spawn("one", hands.swap(1))
    stage.spawn("host", host)


LIST = Scenario(
    "list",
    "pop and push of one node, twice",
    small(),
    _swap_twice,
    _whole_list,
    _push_nodes,
    rests=False,
    exhaustive=True,
)
ABA = Scenario(
    "list-aba", "pops and pushes that bring the first node back", small(), _aba, _whole_list, _push_nodes, rests=False
)
DETACH = Scenario(
    "list-detach",
    "a host takes the whole list and puts it back",
    small(),
    _detach,
    _whole_list,
    _push_nodes,
    rests=False,
)
DETACH_ABA = Scenario(
    "detach-aba",
    "a list is taken whole and comes back under a pop",
    small(),
    _detach_aba,
    _whole_list,
    _push_tag_four,
    rests=False,
)


# --- header slots -----------------------------------------------------------------------------
def _slots(stage: Stage) -> None:
    world, seg = stage.world.table(0), stage.world.bases[0]
    take, reserve, kill, give = (
        stage.function(function) for function in (header.take_slot, header.reserve, header.kill, header.give_slot)
    )
    held: set[int] = set()
    epochs: dict[int, int] = {}

    def use(home: int) -> None:
        for _ in range(2):
            slot = take(world, seg, home)
            stage.ended()
            if slot >= 0:
                expect(slot not in held, f"I2: slot {slot} was taken twice")
                held.add(slot)
                epoch = reserve(world, seg, slot, 1, 1, 0)
                expect(epoch > epochs.get(slot, 0), f"I7: slot {slot} got epoch {epoch} after {epochs.get(slot)}")
                epochs[slot] = epoch
                kill(stage.world.bases[0] + stage.geometry.offsets["hdr_base"] + slot * HEADER_BYTES.value, 0, epoch)
                held.discard(slot)
                give(world, seg, slot)
                stage.ended()

    for home, name in enumerate(("one", "two", "three")):
        stage.spawn(name, lambda home=home: use(home))  # type: ignore[misc]


SLOTS = Scenario("slots", "three take and give two header slots", small(objects=2), _slots)
SHARDS_SLOTS = Scenario(
    "shards-slots", "three take and give header slots of many lists", small(objects=3, shards=2), _slots
)

SCENARIOS = [LIST, ABA, DETACH, DETACH_ABA, SLOTS, SHARDS_SLOTS]
