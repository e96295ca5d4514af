"""The registry of a cluster in etcd: a key for each member, under a lease that this process keeps alive."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping

from nanokv.cluster.membership.addresses import EtcdAddress
from nanokv.cluster.membership.base import NO_SECRET, SECRET_BYTES, ClusterUnavailable, number_after
from nanokv.cluster.membership.etcd_gateway import (
    DENIED,
    INVALID,
    NOT_FOUND,
    PRECONDITION,
    Gateway,
    GatewayError,
    GatewayUnreachable,
)
from nanokv.cluster.membership.etcd_keys import (
    Keys,
    KeyValue,
    found,
    put_if_absent,
    put_if_held,
    put_if_unchanged,
    text64,
)
from nanokv.cluster.membership.etcd_watch import Watch
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View

logger = logging.getLogger("nanokv.cluster")

_PART = "lease"
_SLACK = 0.5  #: seconds by which etcd's report of a lease's rest may be off


class EtcdRegistry:
    """See `base.Registry`.

    Args:
        ttl: seconds; etcd rounds it up to whole seconds, and to at least 1.5 of its election timeouts (2 s by default).
    """

    def __init__(self, address: EtcdAddress, ttl: float, view: View, pulse: Pulse) -> None:
        self.what = str(address)
        self.period = ttl / 3
        self.duties: Mapping[str, Callable[[], None]] = {_PART: self._renew}
        self._ttl = ttl
        self._view = view
        self._pulse = pulse
        pulse.grace = math.ceil(ttl)
        self._keys = Keys(address.name)
        # with several endpoints the next one must be tried before a lease ends; with one, haste gains nothing
        patience = min(max(ttl / 4, 0.5), 2.0) if len(address.endpoints) > 1 else min(max(ttl / 2, 1.0), 2.0)
        self._gateway = Gateway(address, patience)
        self._watch = Watch(self._gateway, self._keys, view, pulse, pause=min(ttl / 6, 1.0))
        self._lock = threading.Lock()  # of what follows, which calls and the duty change
        self._own: tuple[str, bytes] | None = None
        self._stale = False  # the card is to be published again
        self._lease = 0
        self._secret: bytes | None = None

    def open(self, *, make: bool = True) -> None:
        """See `Registry`."""
        try:
            self._watch.read()
        except GatewayUnreachable:
            raise
        except GatewayError as error:
            if error.code in (0, INVALID, DENIED, PRECONDITION):
                raise ClusterUnavailable(f"{self.what} refuses: {error}") from error
            raise

    def start(self) -> None:
        """See `Registry`."""
        self._watch.start()

    def claim(self, member: str, card: bytes, pause: Callable[[], None]) -> None:
        """See `Registry`."""
        while True:
            with self._lock:
                if self._lease and not self._kept():  # of a try before, which may have published without our knowing
                    self._lease = 0
                holder = self._put(member, card)
                if holder == self._lease:
                    self._own = (member, card)
                    return
            self._await_end(member, holder, pause)

    def update(self, card: bytes) -> None:
        """See `Registry`."""
        with self._lock:
            assert self._own is not None
            self._own, self._stale = (self._own[0], card), True
            self._view.own(*self._own, self._incarnation)
            self._publish()

    def withdraw(self) -> None:
        """See `Registry`."""
        with self._lock:
            self._own = None
            self._view.disown()
            lease, self._lease = self._lease, 0
            if lease:
                try:
                    self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})
                except GatewayError as error:
                    if error.code != NOT_FOUND:
                        raise

    def secret(self, *, make: bool = True) -> bytes:
        """See `Registry`."""
        with self._lock:
            if self._secret is None:
                self._secret = self._stored_secret(secrets.token_bytes(SECRET_BYTES) if make else None)
            return self._secret

    def next_number(self, least: int) -> int:
        """See `Registry`."""
        key = self._keys.incarnation
        while True:
            kvs = self._gateway.call("/v3/kv/range", {"key": text64(key.encode())}).get("kvs", [])
            stored = KeyValue.of(kvs[0]) if kvs else KeyValue(key, b"", 0, 0)
            number = number_after(stored.value, least, f"key {key} of {self.what}")
            change = put_if_unchanged(key, b"%d" % number, stored.revision)
            if self._gateway.call("/v3/kv/txn", change).get("succeeded"):
                return number

    def hurry(self, seconds: float) -> None:
        """See `Registry`."""
        self._gateway.hurry(seconds)

    def stop(self) -> None:
        """See `Registry`."""
        self._watch.stop(timeout=2.0)
        self._gateway.close()

    @property
    def _incarnation(self) -> str:
        return f"{self._lease:x}"

    def _renew(self) -> None:
        """The duty: keep the lease alive, or get another one; or only ask whether etcd is there."""
        with self._lock:
            if self._own is None:
                self._gateway.call("/v3/kv/range", {"key": text64(self._keys.secret.encode()), "count_only": True})
                self._pulse.heard(_PART)
                return
            kept = bool(self._lease) and self._kept()
            self._pulse.heard(_PART)
            if not kept:
                self._lease = 0
                self._join_again(*self._own)
            elif self._stale or not self._view.has(self._own[0], self._incarnation):
                self._publish()

    def _kept(self) -> bool:
        """Keep the lease alive; False if it has ended."""
        return int(self._gateway.call("/v3/lease/keepalive", {"ID": str(self._lease)}).get("TTL", 0)) > 0

    def _join_again(self, member: str, card: bytes) -> None:
        # first the secret: who sees old members of an etcd that was empty must not get a new one
        same = self._secret is None or self._stored_secret(self._secret) == self._secret
        holder = self._put(member, card)
        if holder != self._lease:
            raise ClusterUnavailable(f"{self.what} has another process as member {member!r}, while this one was away")
        logger.warning("%s had dropped member %r, which has joined again", self.what, member)
        self._stale = False
        if not same:
            raise ClusterUnavailable(f"{self.what} has got another secret than the one that this process has")

    def _publish(self) -> None:
        """Put the card where it is missing or old."""
        assert self._own is not None
        member, card = self._own
        answer = self._gateway.call("/v3/kv/txn", put_if_held(self._keys.member(member), card, self._lease))
        if not answer.get("succeeded"):
            self._join_again(member, card)
        self._stale = False

    def _put(self, member: str, card: bytes) -> int:
        """Publish under a lease, if the id is free. Returns the lease of who holds it now."""
        if not self._lease:
            self._grant()
        try:
            answer = self._gateway.call("/v3/kv/txn", put_if_absent(self._keys.member(member), card, self._lease))
        except GatewayError as error:
            if error.code == NOT_FOUND:
                self._lease = 0  # it ended meanwhile: the next try takes another one
            raise
        holder = found(answer)
        if holder is not None and holder.lease != self._lease:
            return holder.lease
        self._view.own(member, card, self._incarnation)
        return self._lease

    def _grant(self) -> None:
        lease = secrets.randbelow((1 << 63) - 1) + 1  # chosen here: a repeated request does not leave a second lease
        try:
            granted = self._gateway.call("/v3/lease/grant", {"ID": str(lease), "TTL": str(math.ceil(self._ttl))})
            self._pulse.grace = max(self._ttl, float(granted.get("TTL", 0)))
        except GatewayError as error:
            if error.code != PRECONDITION:  # it is there: this was the repetition
                raise
        self._lease = lease

    def _await_end(self, member: str, lease: int, pause: Callable[[], None]) -> None:
        """Wait until the lease of a dead member has ended.

        Raises:
            ClusterUnavailable: somebody keeps it alive, as its rest is longer than if it had only run down.
        """
        if not lease:
            raise ClusterUnavailable(f"{self.what} has a member {member!r} without a lease, which is not of NanoKV")
        first = rest = self._rest(lease)
        since = time.monotonic()
        while rest >= 0:
            pause()
            ran = time.monotonic() - since
            rest = self._rest(lease)
            if rest >= first + 1 + _SLACK - ran:  # whole seconds: what was `first` was less than one more
                raise ClusterUnavailable(f"member id {member!r} is held by another living process, in {self.what}")

    def _rest(self, lease: int) -> int:
        """Seconds that a lease has left, rounded down; -1 if it has ended."""
        return int(self._gateway.call("/v3/lease/timetolive", {"ID": str(lease)}).get("TTL", 0))

    def _stored_secret(self, proposed: bytes | None) -> bytes:
        """What etcd has as the secret; that is `proposed` if it had none."""
        if proposed is None:
            kvs = self._gateway.call("/v3/kv/range", {"key": text64(self._keys.secret.encode())}).get("kvs", [])
            if not kvs:
                raise ClusterUnavailable(f"{self.what} has no secret: {NO_SECRET}")
            stored: KeyValue | None = KeyValue.of(kvs[0])
        else:
            stored = found(self._gateway.call("/v3/kv/txn", put_if_absent(self._keys.secret, proposed)))
        if stored is not None and len(stored.value) != SECRET_BYTES:
            raise ClusterUnavailable(f"key {stored.key} of {self.what} is not the secret of a cluster")
        if stored is not None:
            return stored.value
        assert proposed is not None
        return proposed
