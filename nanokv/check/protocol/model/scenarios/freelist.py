"""Scenarios of single free lists, and of the list of header slots: ABA, hand-over, a host that takes the whole list."""

from functools import partial

from nanokv.check.protocol.model.scenario import Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol import freelist, header
from nanokv.device.protocol.structs import Key
from nanokv.device.segment.layout import ACTIVITY, FREE_HEAD, HEADER_BYTES, LOW32, WORD

# --- one list ---------------------------------------------------------------------------------
NODES = 3


class _List:
    """The list of pages: a word of each page names the task that pushed it last, and Python knows it too."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self.head, self.links = world.address() + FREE_HEAD.value, world.address("links_base")
        self._retries = world.address("activity_base") + ACTIVITY.offsets["retries"]
        self._pop, self._push = world.function(freelist.pop), world.function(freelist.push)
        self._pop_run = world.function(freelist.pop_run)
        self._held: set[int] = set()
        self._last: dict[int, int] = {}

    def pop(self) -> int:
        return int(self._pop(self.head, self.links, NODES, self._retries))

    def push(self, node: int) -> None:
        self._push(self.head, self.links, node, self._retries)

    def push_chain(self, first: int, last: int) -> None:
        self.world.function(freelist.push_chain)(self.head, self.links, first, last, self._retries)

    def link(self, node: int) -> int:
        """The address of a node's link."""
        return self.links + node * WORD

    def _page(self, node: int) -> int:
        return self.world.address("heap_base") + node * self.world.geometry.page_bytes

    def take(self) -> int:
        node = self.pop()
        if node >= 0:
            self._hold(node)
        self.world.ended()
        return node

    def take_run(self, most: int) -> list[int]:
        node, count = map(int, self._pop_run(self.head, self.links, NODES, most, self._retries))
        taken = []
        for _ in range(count):
            self._hold(node)
            taken.append(node)
            node = (self.world.load(self.link(node), "relaxed") & LOW32.value) - 1
        self.world.ended()
        return taken

    def _hold(self, node: int) -> None:
        expect(node not in self._held, f"I2: node {node} was popped twice")
        self._held.add(node)
        found = self.world.load(self._page(node), "relaxed")
        expect(found == self._last.get(node, 0), f"the task that popped node {node} does not see its last owner")

    def give(self, node: int, task: int) -> None:
        self.world.store(self._page(node), task, "relaxed")
        self._last[node] = task
        self._held.discard(node)
        self.push(node)
        self.world.ended()

    def swap(self, task: int, count: int = 1) -> None:
        """Pop some nodes, then push them."""
        nodes = [self.take() for _ in range(count)]
        for node in nodes:
            if node >= 0:
                self.give(node, task)

    def swap_run(self, task: int, most: int) -> None:
        """Pop a run of nodes, then push them."""
        for node in self.take_run(most):
            self.give(node, task)

    def take_and_put_back(self) -> None:
        """Take the whole list and put it back, as a host does."""
        first = last = self.world.function(freelist.detach)(self.head)
        while first >= 0:
            after = (self.world.load(self.link(last), "relaxed") & LOW32.value) - 1
            if after < 0:
                self.push_chain(first, last)
                break
            last = after
        self.world.ended()


def _push_nodes(world: SmallWorld) -> None:
    for node in range(NODES):
        _List(world).push(node)


def _push_tag_four(world: SmallWorld) -> None:
    """A list of nodes 2, 1, 0 whose tag is 4, as a host's two pops and two pushes leave a tag that began anew."""
    nodes = _List(world)
    world.store(nodes.link(1), 1, "relaxed")  # node 1 is followed by node 0
    nodes.push_chain(1, 0)
    nodes.push(2)
    nodes.push(nodes.pop())


def _whole_list(world: SmallWorld) -> None:
    nodes, newest = _List(world), world.simulation.memory.newest
    node = newest(nodes.head) & LOW32.value
    seen: list[int] = []
    while node and len(seen) <= NODES:
        seen.append(node - 1)
        node = newest(nodes.link(node - 1)) & LOW32.value
    expect(sorted(seen) == list(range(NODES)), f"I2: the list has nodes {seen}")


@Scenario("list", "pop and push of one node, twice", small(), _whole_list, _push_nodes, rests=False, exhaustive=True)
def _swap_twice(world: SmallWorld) -> None:
    nodes = _List(world)
    world.spawn("one", partial(nodes.swap, 1))
    world.spawn("two", partial(nodes.swap, 2))


@Scenario("list-aba", "pops and pushes that bring the first node back", small(), _whole_list, _push_nodes, rests=False)
def _aba(world: SmallWorld) -> None:
    nodes = _List(world)
    world.spawn("one", partial(nodes.swap, 1))
    world.spawn("two", partial(nodes.swap, 2, count=2))
    world.spawn("three", partial(nodes.swap, 3))


@Scenario("list-run", "runs of two nodes against pops of one", small(), _whole_list, _push_nodes, rests=False)
def _runs(world: SmallWorld) -> None:
    nodes = _List(world)
    world.spawn("one", partial(nodes.swap_run, 1, 2))
    world.spawn("two", partial(nodes.swap, 2, count=2))
    world.spawn("three", partial(nodes.swap_run, 3, 2))


@Scenario("list-detach", "a host takes the whole list and puts it back", small(), _whole_list, _push_nodes, rests=False)
def _detach(world: SmallWorld) -> None:
    nodes = _List(world)
    world.spawn("one", partial(nodes.swap, 1))
    world.spawn("host", nodes.take_and_put_back)
    world.spawn("two", partial(nodes.swap, 2))


@Scenario(
    "detach-aba", "a list is taken whole and comes back under a pop", small(), _whole_list, _push_tag_four, rests=False
)
def _detach_aba(world: SmallWorld) -> None:
    nodes = _List(world)

    def host() -> None:
        nodes.take_and_put_back()
        nodes.swap(0, count=2)

    world.spawn("one", partial(nodes.swap, 1))
    world.spawn("host", host)


# --- header slots -----------------------------------------------------------------------------
@Scenario("shards-slots", "three take and give header slots of many lists", small(objects=3, shards=2))
@Scenario("slots", "three take and give two header slots", small(objects=2))
def _slots(world: SmallWorld) -> None:
    take, reserve, give = map(world.on_segment, (header.take_slot, header.reserve, header.give_slot))
    kill = world.function(header.kill)
    held: set[int] = set()
    epochs: dict[int, int] = {}

    def use(home: int) -> None:
        for _ in range(2):
            slot, epoch = take(home)
            world.ended()
            if slot >= 0:
                expect(slot not in held, f"I2: slot {slot} was taken twice")
                held.add(slot)
                reserve(slot, epoch, Key(1, 1), 0)
                expect(epoch > epochs.get(slot, 0), f"I7: slot {slot} got epoch {epoch} after {epochs.get(slot)}")
                epochs[slot] = epoch
                kill(world.address("hdr_base") + slot * HEADER_BYTES.value, 0, epoch)
                held.discard(slot)
                give(slot)
                world.ended()

    for home, name in enumerate(("one", "two", "three")):
        world.spawn(name, partial(use, home))
