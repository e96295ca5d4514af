"""Events to followers: in order, each once, and a follower that misses some is told so."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from nanokv.check.command_process import Commands, Program
from nanokv.check.machine.rank_process import wait_until
from nanokv.cluster.messages import feed
from nanokv.cluster.messages.feed import Publisher, Sequence, Subscriber
from nanokv.cluster.messages.sealed import Form, Message, Reason, Rejected, Seal, Sender
from nanokv.errors import CacheClosed, InvalidArgument
from tests.support.faults import Limits

SECRET = b"the secret of this cluster, only"
PATIENCE = 60.0  #: seconds
LOST = None  #: in what was heard


class Heard:
    """A subscriber, and what it was given: a body, or LOST, of each sender."""

    def __init__(self, secret: bytes = SECRET, **options: Any) -> None:
        self.all: list[tuple[Sender, bytes | None]] = []
        self.go_on = threading.Event()  # the listener waits for it
        self.go_on.set()
        self.subscriber = Subscriber(secret, self._hear, lambda sender: self.all.append((sender, LOST)), **options)

    def _hear(self, sender: Sender, body: bytes) -> None:
        self.all.append((sender, body))
        if body == b"raise":
            raise ValueError("of the listener")
        self.go_on.wait(PATIENCE)

    def of(self, member: str, incarnation: int = 1) -> list[bytes | None]:
        return [body for sender, body in list(self.all) if sender == (member, incarnation)]

    def until(self, member: str, *bodies: bytes | None, incarnation: int = 1) -> None:
        wait_until(f"{member}: {bodies}", lambda: self.of(member, incarnation) == [*bodies], lambda: self.all)

    def counted(self, **counts: int) -> None:
        expected = {Reason[name]: count for name, count in counts.items()}
        wait_until(f"{expected}", lambda: self.subscriber.counts == expected, lambda: self.subscriber.counts)


@pytest.fixture(autouse=True)
def quick_beats(limits: Limits) -> None:
    """A publisher is heard soon after it is followed."""
    limits(feed, BEAT=0.05)


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_heard(ends: ExitStack) -> Callable[..., Heard]:
    def make(*arguments: Any, **options: Any) -> Heard:
        heard = Heard(*arguments, **options)
        ends.callback(heard.subscriber.close)
        ends.callback(heard.go_on.set)
        return heard

    return make


@pytest.fixture
def heard(new_heard: Callable[..., Heard]) -> Heard:
    return new_heard()


@pytest.fixture
def new_publisher(ends: ExitStack) -> Callable[..., Publisher]:
    def make(me: str = "a", incarnation: int = 1, secret: bytes = SECRET, **options: Any) -> Publisher:
        publisher = Publisher(me, incarnation, secret, **options)
        ends.callback(publisher.close)
        return publisher

    return make


@pytest.mark.parametrize("which", ["address", "local_address"])
def test_events_come_in_order_and_before_the_first_is_a_loss(
    new_publisher: Callable[..., Publisher], heard: Heard, which: str
) -> None:
    publisher = new_publisher(local=True)
    address = getattr(publisher, which)
    assert address.startswith("tcp://127.0.0.1:" if which == "address" else "ipc://@nanokv-")
    publisher.publish(b"before")
    heard.subscriber.follow(address, "a")
    heard.until("a", LOST)
    bodies = [b"%d" % number for number in range(500)]
    for body in bodies:
        publisher.publish(body)
    heard.until("a", LOST, *bodies)
    assert heard.subscriber.counts == {}


def test_threads_and_publishers_each_have_their_order(new_publisher: Callable[..., Publisher], heard: Heard) -> None:
    publishers = {name: new_publisher(name, queue=10_000) for name in ("a", "b")}
    for name, publisher in publishers.items():
        heard.subscriber.follow(publisher.address, name)
        heard.until(name, LOST)

    def publish(thread: int) -> None:
        for number in range(100):
            publishers["ab"[thread % 2]].publish(b"%d/%03d" % (thread, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(4)))
    for name, threads in (("a", (0, 2)), ("b", (1, 3))):
        wait_until("all events", lambda name=name: len(heard.of(name)) == 201)  # type: ignore[misc]
        bodies = [body for body in heard.of(name) if body is not LOST]
        for thread in threads:
            mine = [body for body in bodies if body.startswith(b"%d/" % thread)]
            assert mine == [b"%d/%03d" % (thread, number) for number in range(100)]
    assert heard.subscriber.counts == {}


def test_a_slow_follower_misses_events_knows_it_and_holds_up_nobody(
    new_publisher: Callable[..., Publisher], new_heard: Callable[..., Heard]
) -> None:
    publisher = new_publisher(queue=1)
    slow, quick = new_heard(queue=1), new_heard()
    for each in (slow, quick):
        each.subscriber.follow(publisher.address, "a")
        each.until("a", LOST)
    slow.go_on.clear()
    body = bytes(64 << 10)
    for number in range(1000):  # 62 MiB, far more than the queues and the system hold
        publisher.publish(b"%06d" % number + body)
    slow.go_on.set()
    publisher.publish(b"at last")  # or a beat: it is missed too if the queue is still full

    def numbers(heard: Heard) -> list[int]:
        return [int(found[:6]) for found in heard.of("a") if found is not LOST and found != b"at last"]

    wait_until("the loss to be noticed", lambda: slow.of("a").count(LOST) >= 2)
    assert 0 < len(numbers(slow)) < 1000
    for each in (slow, quick):
        assert numbers(each) == sorted(set(numbers(each)))
    wait_until("the last of the quick one's", lambda: len(numbers(quick)) == 1000 or quick.of("a").count(LOST) >= 2)


class Forger:
    """A publisher that does not keep to the rules."""

    def __init__(self, socket: "zmq.Socket[bytes]", secret: bytes = SECRET) -> None:
        self._socket, self.secret = socket, secret
        socket.set(zmq.LINGER, 0)
        socket.bind("tcp://127.0.0.1:*")
        self.address = socket.get(zmq.LAST_ENDPOINT).decode()  # type: ignore[union-attr]

    def sealed(self, form: Form, number: int, body: bytes, me: str = "a", incarnation: int = 1) -> bytes:
        return Seal(self.secret).seal(form, number, Sender(me, incarnation), body)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(list(parts))

    def event(self, number: int, body: bytes, **options: Any) -> None:
        self.send(self.sealed(Form.EVENT, number, body, **options))

    def beat(self, number: int, **options: Any) -> None:
        self.send(self.sealed(Form.BEAT, number, b"", **options))

    def begin(self, heard: Heard) -> None:
        """Beat until it is followed."""

        def known() -> bool:
            self.beat(0)
            return bool(heard.of("a"))

        heard.subscriber.follow(self.address, "a")
        wait_until("the follower to hear", known, pause=0.01)


@pytest.fixture
def forger(heard: Heard) -> Iterator[Forger]:
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        forger = Forger(socket)
        forger.begin(heard)
        yield forger


def test_a_gap_is_noticed_by_the_next_event_or_beat(forger: Forger, heard: Heard) -> None:
    for number in (1, 2, 4, 5):
        forger.event(number, b"%d" % number)
    heard.until("a", LOST, b"1", b"2", LOST, b"4", b"5")
    forger.beat(5)
    forger.beat(6)
    forger.beat(6)
    forger.event(7, b"7")
    heard.until("a", LOST, b"1", b"2", LOST, b"4", b"5", LOST, b"7")
    assert heard.subscriber.counts == {}


def test_what_a_publisher_leaves_out_is_a_loss_to_all(
    new_publisher: Callable[..., Publisher], new_heard: Callable[..., Heard]
) -> None:
    publisher, both = new_publisher(), [new_heard(), new_heard()]
    for each in both:
        each.subscriber.follow(publisher.address, "a")
        each.until("a", LOST)
    publisher.publish(b"1")
    publisher.skip()
    publisher.publish(b"3")
    for each in both:
        each.until("a", LOST, b"1", LOST, b"3")
        assert each.subscriber.counts == {}
    publisher.close()
    publisher.skip()  # of no use, and no error


def test_an_event_that_is_sent_again_is_not_heard_again(forger: Forger, heard: Heard) -> None:
    for number in (1, 2, 1, 2, 3, 3):
        forger.event(number, b"%d" % number)
    forger.beat(2)
    heard.counted(REPLAYED=4)
    heard.until("a", LOST, b"1", b"2", b"3")


def test_a_new_incarnation_is_a_loss_and_ends_the_old(forger: Forger, heard: Heard) -> None:
    forger.event(1, b"old")
    forger.event(1, b"new", incarnation=2)
    forger.event(2, b"old again")
    forger.beat(9)
    forger.event(2, b"newer", incarnation=2)
    heard.until("a", LOST, b"new", b"newer", incarnation=2)
    heard.until("a", LOST, b"old")
    heard.counted(OLD_INCARNATION=2)


def test_what_is_not_authentic_or_not_an_event_is_counted_only(forger: Forger, heard: Heard) -> None:
    right = forger.sealed(Form.EVENT, 1, b"1")
    forger.secret = SECRET[::-1]
    forger.event(1, b"wrong secret")
    forger.beat(1)
    forger.secret = SECRET
    forger.event(1, b"stranger", me="b")
    for parts in ([right[:-1]], [b""], [right, right], [b"\1" + right[1:]], [bytes(1 << 20) + right]):
        forger.send(*parts)
    forger.send(right)
    heard.until("a", LOST, b"1")
    heard.counted(MAC=3, UNEXPECTED=1, TRUNCATED=1, MALFORMED=1, VERSION=1, OVERSIZED=1)


def test_a_listener_that_raises_is_logged_and_goes_on(
    forger: Forger, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    forger.event(1, b"raise")
    forger.event(2, b"2")
    heard.until("a", LOST, b"raise", b"2")
    assert "ValueError: of the listener" in caplog.text


def test_who_is_followed_again_is_heard_for_the_first_time(
    new_publisher: Callable[..., Publisher], heard: Heard
) -> None:
    a, b = new_publisher("a"), new_publisher("b")
    for publisher, name in ((a, "a"), (b, "b"), (b, "b")):
        heard.subscriber.follow(publisher.address, name)
    heard.until("a", LOST)
    heard.until("b", LOST)
    heard.subscriber.unfollow(a.address)
    heard.subscriber.unfollow(a.address)
    wait_until("a to be unfollowed", lambda: a.address not in heard.subscriber._followed)
    a.publish(b"nobody hears this")
    b.publish(b"1")
    heard.until("b", LOST, b"1")
    heard.subscriber.follow(a.address, "a")
    heard.until("a", LOST, LOST)
    a.publish(b"2")
    heard.until("a", LOST, LOST, b"2")


def test_another_secret_hears_nothing(new_publisher: Callable[..., Publisher], new_heard: Callable[..., Heard]) -> None:
    publisher, stranger = new_publisher(), new_heard(SECRET[::-1])
    stranger.subscriber.follow(publisher.address, "a")
    wait_until("beats to be refused", lambda: stranger.subscriber.counts.get(Reason.MAC, 0) >= 2)
    assert set(stranger.subscriber.counts) == {Reason.MAC}
    assert stranger.all == []


def test_close_is_idempotent_and_from_any_thread(new_publisher: Callable[..., Publisher], heard: Heard) -> None:
    publisher = new_publisher()
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(end.close) for end in (publisher, heard.subscriber) for _ in range(2)]:
            each.result(PATIENCE)
    with pytest.raises(CacheClosed, match="this publisher is closed"):
        publisher.publish(b"")
    heard.subscriber.follow(publisher.address, "a")  # of no use, and no error


def test_a_subscriber_may_be_closed_and_changed_by_its_listener(new_publisher: Callable[..., Publisher]) -> None:
    publisher = new_publisher()
    done = threading.Event()

    def lost(sender: Sender) -> None:
        subscriber.unfollow(publisher.address)
        subscriber.close()
        done.set()

    subscriber = Subscriber(SECRET, lambda sender, body: None, lost)
    subscriber.follow(publisher.address, "a")
    assert done.wait(PATIENCE)
    subscriber.close()


@pytest.mark.parametrize(("address", "sender"), [("tcp://", "a"), (5, "a"), ("tcp://127.0.0.1:4711", "")])
def test_wrong_arguments_are_refused(heard: Heard, address: Any, sender: str) -> None:
    with pytest.raises(InvalidArgument):
        heard.subscriber.follow(address, sender)


def test_a_wrong_publisher_is_refused(new_publisher: Callable[..., Publisher]) -> None:
    publisher = new_publisher()
    with pytest.raises(OSError, match="cannot listen at"):
        new_publisher(port=int(publisher.address.rsplit(":", 1)[1]))
    for wrong in ({"queue": 0}, {"me": ""}, {"secret": b""}, {"port": -1}):
        with pytest.raises(InvalidArgument):
            new_publisher(**wrong)
    with pytest.raises(InvalidArgument):
        publisher.publish("text")  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.booleans()), max_size=20))
def test_a_sequence_tells_each_loss(heard: list[tuple[int, int, bool]]) -> None:
    sequence, known = Sequence(), (0, 0)
    for incarnation, number, is_event in heard:
        form = Form.EVENT if is_event else Form.BEAT
        message = Message(form, number, Sender("a", incarnation), b"")
        old = (incarnation, number) <= known if is_event else (incarnation, number) < known
        if old or incarnation < known[0]:
            with pytest.raises(Rejected):
                sequence.hear(message)
            continue
        assert sequence.hear(message) == (incarnation != known[0] or number > known[1] + is_event)
        known = (incarnation, number)


class PublisherCommands(Commands):
    """A publisher in a process of its own."""

    def __init__(self, incarnation: int, port: int) -> None:
        self._publisher = Publisher("a", incarnation, SECRET, port=port)

    def address(self) -> str:
        return self._publisher.address

    def publish(self, body: bytes) -> None:
        self._publisher.publish(body)


def test_a_publisher_in_another_process_that_is_killed_and_started_again(heard: Heard, ends: ExitStack) -> None:
    def start(incarnation: int, port: int) -> tuple[Program, str]:
        process = ends.enter_context(Program("the publisher", partial(PublisherCommands, incarnation, port)))
        return process, process.ask("address")

    first, address = start(1, 0)
    heard.subscriber.follow(address, "a")
    heard.until("a", LOST)
    first.ask("publish", b"one")
    heard.until("a", LOST, b"one")
    first.kill()
    second, again = start(2, int(address.rsplit(":", 1)[1]))
    assert again == address
    heard.until("a", LOST, incarnation=2)
    second.ask("publish", b"two")
    heard.until("a", LOST, b"two", incarnation=2)
