"""What events and cards cost a process, measured on this machine: `python -m bench.simulate.cluster.costs`.

Publisher and follower are of one process, and what counts is its processor time, all threads together. So the time for
a follower has both ends in it: sending to it, and its own work. Messages come in bursts, which wake threads less often
than single ones: real ones cost more.
"""

import argparse
import secrets
import time
from collections.abc import Callable

import numpy as np

import nanokv
from nanokv.cluster.card import Card, WorldId
from nanokv.cluster.locations import Locations
from nanokv.cluster.messages.feed import Publisher, Subscriber
from nanokv.device.segment.location import LOCATION

BURST = 200  #: messages that are under way at most: less than a queue has room for
SECONDS = 30.0  #: to wait for messages


def feed(followers: int, messages: int) -> float:
    """Processor time in us of a message of one event, with so many followers.

    Raises:
        SystemExit: messages did not come.
    """
    secret, body, heard = secrets.token_bytes(32), bytes(LOCATION.size), [0] * followers
    publisher = Publisher("a", 1, secret)

    def listener(i: int) -> Callable[..., None]:
        def hear(*_: object) -> None:
            heard[i] += 1

        return hear

    ends = [Subscriber(secret, listener(i), lambda _: None) for i in range(followers)]
    try:
        for end in ends:
            end.follow(publisher.address, "a")

        def is_heard() -> bool:
            publisher.publish(body)
            return min(heard, default=1) > 0

        _until(is_heard)
        time.sleep(0.1)
        sent, begun = min(heard, default=0), time.process_time()
        for _ in range(messages // BURST):
            for _ in range(BURST):
                publisher.publish(body)
            sent += BURST
            _until(lambda sent=sent: min(heard, default=sent) >= sent)  # type: ignore[misc]
        return (time.process_time() - begun) * 1e6 / messages
    finally:
        for end in ends:
            end.close()
        publisher.close()


def _until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"messages did not come in {SECONDS} s")
        time.sleep(0.002)


def learning(count: int) -> float:
    """Processor time in us of a location that is learnt."""
    locations, events = Locations(count), np.zeros(count, LOCATION.dtype)
    words = np.random.default_rng(1).integers(1 << 62, size=(2, count))
    events["key_hash"], events["key_check"], events["node"] = words[0], words[1], 1
    world = WorldId("a", b"")
    locations.learn(world, events[:1])
    begun = time.process_time()
    locations.learn(world, events)
    return (time.process_time() - begun) * 1e6 / count


def opening(count: int) -> float:
    """Processor time in us of a card that is opened."""
    secret, places = secrets.token_bytes(32), ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    with nanokv.local_world(1, 1 << 20)[0] as cache:
        card = Card("a", 0, 1, cache.engine.geometry, (1 << 40,), (bytes(64),), False, "nixl", bytes(256), *places)
    sealed = card.sealed(secret)
    begun = time.process_time()
    for _ in range(count):
        Card.opened(sealed, secret)
    return (time.process_time() - begun) * 1e6 / count


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulate.cluster.costs", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=4000, help="of events")
    messages = parser.parse_args().messages
    if messages < BURST:
        parser.error(f"--messages must be at least {BURST}, not {messages}")
    publish, both = feed(0, messages), feed(1, messages)
    found = {
        "publish_us": publish,
        "follow_us": both - publish,
        "learn_us": learning(100_000),
        "card_us": opening(1000),
    }
    for name, us in found.items():
        print(f"{name:11} {us:7.2f}")


if __name__ == "__main__":
    main()
