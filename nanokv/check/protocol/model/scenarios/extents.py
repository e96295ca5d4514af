"""Scenarios of extents: exhaustion, splitting, joining by a host, and a host that takes all of them."""

from functools import partial

from nanokv.check.protocol.model.scenario import PAGE, A, B, Scenario, expect, small
from nanokv.check.protocol.model.small_world import SmallWorld
from nanokv.device.protocol import extent, joining
from nanokv.device.protocol.status import Status
from nanokv.device.segment.layout import ABSENT, HEAP_CTL, JOINER_MASK, SIZE_CLASSES, WORD
from nanokv.space.coalesce import join_free_extents


class _Extents:
    """Takes and gives extents; no two tasks may have a page at once."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self.take, self.give = world.on_segment(extent.take), world.on_segment(extent.give)
        self.held: set[int] = set()

    def use(self, *classes: int, home: int = 0) -> None:
        """Take an extent of each class, then give all back. `home`: the list that is asked first."""
        mine: list[tuple[int, int]] = []
        for size_class in classes:
            page = self.take(size_class, home, 0)
            if page >= 0:
                pages = self._pages(page, size_class)
                expect(max(pages) < self.world.geometry.n_pages, f"I9: pages {pages} are beyond the end")
                expect(not pages & self.held, f"I1: pages {pages & self.held} were taken twice")
                self.held |= pages
                mine.append((page, size_class))
            self.world.ended()
        for page, size_class in mine:
            self.held -= self._pages(page, size_class)
            self.give(page, size_class)
            self.world.ended()

    def _pages(self, page: int, size_class: int) -> set[int]:
        return set(range(page, page + self.world.geometry.class_pages[size_class]))


@Scenario("exhaust", "takes from a heap that is too small", small(pages=3))
def _exhaust(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 0, 0))
    world.spawn("two", partial(extents.use, 1))
    world.spawn("three", partial(extents.use, 0))


@Scenario("shards", "takes from many lists, in a heap that is too small", small(pages=3, shards=2))
def _shards(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 0, 0))
    world.spawn("two", partial(extents.use, 0, home=1))
    world.spawn("three", partial(extents.use, 1, home=1))


def _free_whole(world: SmallWorld) -> None:
    extents = _Extents(world)
    largest = sum(size > 0 for size in world.geometry.class_pages) - 1
    extents.give(extents.take(largest, 0, 0), largest)


@Scenario("split", "takes that split one large extent", small(), prepare=_free_whole)
def _split(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 0))
    world.spawn("two", partial(extents.use, 1))
    world.spawn("three", partial(extents.use, 0))


# --- extents of any size, at any page ---------------------------------------------------------
ODD = (1, 2, 4, 7)  #: pages: a split of seven leaves two extents; a run of seven consists of extents in many ways


@Scenario(
    "split-odd",
    "takes that split an extent whose rest is several extents",
    small(pages=7, classes=ODD),
    prepare=_free_whole,
)
def _split_odd(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 0))
    world.spawn("two", partial(extents.use, 1))


ALL_CLASSES = tuple(range(1, SIZE_CLASSES + 1))


@Scenario(
    "marks",
    "the largest of all size classes: put, read and removed while another one takes a page of it",
    small(pages=SIZE_CLASSES, classes=ALL_CLASSES, objects=2),
)
def _largest_class(world: SmallWorld) -> None:
    words = SIZE_CLASSES * PAGE // WORD

    def come_and_go() -> None:
        if world.put(A, 1, words) == Status.OK:
            expect(world.get(A) == (Status.OK, 1), "I4: an object of the largest class cannot be read")
            expect(world.remove(A) == Status.OK, "an object of the largest class cannot be removed")

    world.spawn("large", come_and_go)
    world.spawn("small", lambda: (world.put(B, 1), world.remove(B)))


# --- a host that joins free extents -----------------------------------------------------------
def _free_pieces(world: SmallWorld, every: int = 1) -> None:
    """Take all pages, and give each back, or every second one: then all of the first list are free, none of another."""
    extents = _Extents(world)
    pages = [extents.take(0, 0, 0) for _ in range(world.geometry.n_pages)]
    for page in pages[::every]:
        extents.give(page, 0)


def _join_all(world: SmallWorld, rank: int) -> None:
    join_free_extents(world.machine(rank), 0)
    world.ended()


def _joined(world: SmallWorld) -> None:
    """When all pieces are free, joining makes the largest extent of them (I9)."""
    if not world.deaths():
        join_free_extents(world.machine(0), 0)
        expect(world.on_segment(extent.take)(2, 1, 0) == 0, "I9: free pages cannot be used")


@Scenario("join", "a host joins free pieces while others take", small(ranks=2), _joined, _free_pieces, mortal=("host",))
def _join(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 0))
    world.spawn("large", partial(extents.use, 2))
    world.spawn("host", partial(_join_all, world, 1), rank=1)


@Scenario(
    "join-twice", "two hosts join, the second over the first", small(ranks=2), _joined, _free_pieces, mortal=("host",)
)
def _join_twice(world: SmallWorld) -> None:
    def join_over() -> None:
        machine = world.machine(1)
        if join_free_extents(machine, 0) < 0:
            join_free_extents(machine, 0, over=machine.joining(0))
        world.ended()

    world.spawn("one", partial(_join_all, world, 0))
    world.spawn("host", join_over, rank=1)


def _never_full(world: SmallWorld) -> None:
    expect(world.results["producer"] != "full", "I9: FULL was an accident: all pages were free")


@Scenario(
    "join-full",
    "a producer finds nothing while a host joins all there is",
    small(ranks=2),
    _never_full,
    _free_pieces,
    rests=False,
)
def _join_or_full(world: SmallWorld) -> None:
    """A producer that finds nothing looks whether a host joins; if none does, it must find something."""
    take, joiner = world.on_segment(extent.take, rank=1), world.on_owner(joining.joiner_of, rank=1)

    def produce() -> str:
        if take(0, 1, 0) >= 0:
            return "taken"
        if joiner() & JOINER_MASK.value:
            return "a host joins"
        return "taken" if take(0, 1, 0) >= 0 else "full"

    world.spawn("producer", produce)
    world.spawn("host", partial(_join_all, world, 0))


Scenario(
    "shards-join",
    "a host joins free pieces of many lists",
    small(ranks=2, shards=2),
    _joined,
    _free_pieces,
    mortal=("host",),
)(_join)
Scenario(
    "shards-full",
    "a producer finds nothing in many lists while a host joins all there is",
    small(ranks=2, shards=2),
    _never_full,
    partial(_free_pieces, every=2),
    rests=False,
)(_join_or_full)


# --- runs that begin at any page --------------------------------------------------------------
def _free_odd_run(world: SmallWorld) -> None:
    """Page 0 is held; beside it lie free extents of 2, 1 and 4 pages: a run of seven that begins at page 1."""
    extents = _Extents(world)
    pages = [(extents.take(size_class, 0, 0), size_class) for size_class in (0, 1, 0, 2)]
    expect([page for page, _ in pages] == [0, 1, 3, 4], "prepare")
    for page, size_class in pages[1:]:
        extents.give(page, size_class)


def _seven_found(world: SmallWorld) -> None:
    """When all pieces are free, the run of seven holds an extent of seven, wherever it begins (I9)."""
    join_free_extents(world.machine(0), 0)
    expect(world.on_segment(extent.take)(3, 1, 0) == 1, "I9: seven free neighbours do not hold an extent of seven")


@Scenario(
    "join-odd",
    "a host joins a run that begins at an odd page while another takes a piece of it",
    small(pages=8, ranks=2, classes=ODD),
    _seven_found,
    _free_odd_run,
    rests=False,
)
def _join_odd(world: SmallWorld) -> None:
    extents = _Extents(world)
    world.spawn("one", partial(extents.use, 1))
    world.spawn("host", partial(_join_all, world, 1), rank=1)


# --- pages that were never used ---------------------------------------------------------------
@Scenario("join-fresh", "a host takes the pages that were never used while others take them", small(ranks=2))
def _join_fresh(world: SmallWorld) -> None:
    world.spawn("one", lambda: (world.put(A, 1), world.put(B, 2)))
    world.spawn("host", partial(_join_all, world, 1), rank=1)


# --- a rank that leaves -----------------------------------------------------------------------
def _nothing_to_take(world: SmallWorld) -> None:
    if world.results["host"]:
        expect(world.on_segment(extent.take)(0, 0, 0) < 0, "I2: a page of a segment without pages was taken")


def _make_absent(world: SmallWorld) -> None:
    """Make pages absent as `heap/shm.py` does it."""
    for page in range(world.geometry.n_pages):
        world.store(world.address("links_base") + page * WORD, 0, "relaxed")
    at, inside = divmod(HEAP_CTL.offsets["closed"], WORD)
    address = world.address() + at * WORD
    world.store(address, world.load(address, "relaxed") | ABSENT << 8 * inside, "relaxed")


@Scenario(
    "leave",
    "a host takes all pages, if none is in use, while others take and give",
    small(pages=2, ranks=2),
    _nothing_to_take,
    _free_pieces,
)
def _leave(world: SmallWorld) -> None:
    extents = _Extents(world)

    def take_all() -> bool:
        taken = False

        def note() -> None:
            nonlocal taken
            expect(not extents.held, f"I1: pages {extents.held} are in use, and their memory goes")
            _make_absent(world)
            taken = True

        join_free_extents(world.machine(1), 0, if_all=note)
        world.ended()
        return taken

    world.spawn("one", partial(extents.use, 0))
    world.spawn("large", partial(extents.use, 1))
    world.spawn("host", take_all)
