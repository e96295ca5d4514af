"""The eviction policies as a plain program, for one producer at a time: written from its description, not its code.

Header slots are taken as the protocol takes them: the one that was freed last, else one that was never used.
"""

from dataclasses import dataclass

WORDS, PLACES = 4, 8  #: ghosts per slot; those that may be a key's
ONE = 1 << 32


@dataclass
class Slot:
    """An object."""

    key: int
    time: int
    use: int


class Lifetimes:
    """A segment of `pages` pages and `slots` header slots, with objects of one page. `policy`: or "clock", "fifo"."""

    def __init__(self, pages: int, slots: int, policy: str = "lifetimes") -> None:
        self.pages, self.slots, self.policy = pages, slots, policy
        self.there: dict[int, Slot] = {}  # by slot
        self.free: list[int] = []
        self.head = self.hand = self.life = self.gain = 0
        self.gone = [0, 0]
        self.ghosts: list[tuple[int, int, int] | None] = [None] * (WORDS * slots)  # tag, kind, stamp

    @property
    def keys(self) -> dict[int, int]:
        """The keys that are there, and how often they were used again."""
        return {slot.key: slot.use for slot in self.there.values()}

    def put(self, key: int, now: int) -> None:
        """Put an object that is not there."""
        use = self._welcome(key) if self.life else 0
        slot = self.free.pop() if self.free else self.head
        self.head = max(self.head, slot + 1)
        if len(self.there) == self.pages:
            self._evict(now)
        self.there[slot] = Slot(key, now, use)

    def get(self, key: int, now: int) -> None:
        """Read an object that is there."""
        slot = next(slot for slot in self.there.values() if slot.key == key)
        if now - slot.time >= self.life >> 6:
            slot.use = min(slot.use + 1, 2)
        slot.time = now

    def _evict(self, now: int) -> None:
        number, ripe, found = self._choose(now)
        slot = self.there.pop(number)
        self.free.append(number)
        if self.policy == "lifetimes":
            self._learn(slot, ripe, found=found)

    def _learn(self, slot: Slot, ripe: int, *, found: bool) -> None:
        life = self.life if found else self.life - self.life // 20
        share = self.head // 8 + 1
        if not self.life:
            self.gain, self.life = ONE // 2, max(ripe, 1)
        elif ripe > life:
            self.life = max(life + (ripe - life) // share, 1)
        else:
            self.life = max(life - (life - ripe) // share, 1)
        kind = int(slot.use > 0)
        places = self._places(slot.key)
        ages = [self._age(self.ghosts[place]) for place in places]
        self.ghosts[places[ages.index(max(ages))]] = slot.key >> 32, kind, self.gone[kind]
        self.gone[kind] += 1

    def _choose(self, now: int) -> tuple[int, int, bool]:
        """The slot that goes, how ripe it is, and whether that is enough."""
        first_round = self.hand < self.head
        factor = {1: 256, 2: 512} if first_round else self._factors()
        best, ripest = -1, -1
        for look in range(64 + min(self.head, 4096)):
            step = 1 if look < 16 or look >= 64 else 1 << min((look - 16) // 8 + 1, 6)
            step = min(step, -(-self.head // 64))
            self.hand += step
            slot = self.there.get((self.hand - 1) % self.head)
            if slot is not None:
                age = now - slot.time
                ripe = age if slot.use == 0 else age * 256 // factor[slot.use]
                if self._stops(slot, ripe, self.life * 3 / 4 if first_round else self.life):
                    return (self.hand - 1) % self.head, ripe, True
                if ripe > ripest:
                    best, ripest = (self.hand - 1) % self.head, ripe
            if look >= 63 and best >= 0:
                break
        return best, ripest, False

    def _stops(self, slot: Slot, ripe: int, enough: float) -> bool:
        if self.policy == "fifo":
            return True
        if self.policy == "clock":
            used, slot.use = slot.use, 0
            return not used
        return bool(self.life) and ripe >= (enough if slot.use else self.life // 2)

    def _factors(self) -> dict[int, int]:
        whole, rest = divmod(self.gain, ONE)
        once = (256 + rest * 256 // ONE) << whole
        return {1: once, 2: once * min(256 + 2 * (once - 256), 512) // 256}

    def _places(self, key: int) -> list[int]:
        first = key % (1 << 63) % self.slots * WORDS
        return [(first + i) % len(self.ghosts) for i in range(PLACES)]

    def _age(self, ghost: tuple[int, int, int] | None) -> int:
        return (1 << 31) - 1 if ghost is None else self.gone[ghost[1]] - ghost[2]

    def _welcome(self, key: int) -> int:
        """How often the key counts as used again, by its ghost."""
        found = [place for place in self._places(key) if (ghost := self.ghosts[place]) and ghost[0] == key >> 32]
        if not found:
            return 0
        ghost = self.ghosts[found[-1]]
        assert ghost is not None
        age = self._age(ghost)
        self.ghosts[found[-1]] = None
        if age <= self.head // 5:
            self.gain += (6 * ONE // (self.head + 1)) * (1 if ghost[1] else -1)
            self.gain = min(max(self.gain, 0), 5 * ONE)
        return int(age <= self.head)
