"""Keeps a view equal to what etcd has: a range read, and a watch of all that changed since the revision of that read.

Whenever a watch ends (connection lost, silence, compaction, etcd without a leader) all is read again, in two steps:
first without cards, which is all that is needed if nothing has changed. A watch from a revision that etcd does not have
yet waits for it in silence, so after etcd has lost its data the old revision must not be used.
"""

import contextlib
import logging
import threading

from nanokv.cluster.membership.base import MemberEntry
from nanokv.cluster.membership.etcd_gateway import Gateway, GatewayError, Stream
from nanokv.cluster.membership.etcd_keys import Json, Keys, KeyValue
from nanokv.cluster.membership.pulse import Pulse
from nanokv.cluster.membership.view import View

logger = logging.getLogger("nanokv.cluster")

_SILENCE = 60.0  #: seconds; a watch without news is opened again, as one whose connection was lost unseen is silent too
_PART = "watch"


class _Ended(GatewayError):
    """etcd ended the watch, and says why."""


class Watch:
    """A thread that feeds a view.

    Args:
        pause: seconds between two tries while etcd does not answer.
    """

    def __init__(self, gateway: Gateway, keys: Keys, view: View, pulse: Pulse, pause: float) -> None:
        self._gateway = gateway
        self._keys = keys
        self._view = view
        self._pulse = pulse
        self._pause = pause
        self._revision = 0
        self._known: dict[str, tuple[int, int]] | None = None  # key: revision and lease
        self._stop = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name="nanokv-members-watch", daemon=True)

    def read(self) -> None:
        """Read all members. By the caller before `start`, and by the thread after it.

        Raises:
            GatewayError: etcd refuses, or cannot be reached.
        """
        if self._known is not None and self._unchanged():
            return
        answer = self._gateway.call("/v3/kv/range", self._keys.all_members())
        stored = [KeyValue.of(kv) for kv in answer.get("kvs", [])]
        self._pulse.heard(_PART)
        if self._known is not None:
            self._pulse.returned()  # there may have been no etcd, or another one, in between
        self._revision = int(answer["header"]["revision"])
        self._known = {each.key: (each.revision, each.lease) for each in stored}
        named = ((self._keys.member_of(each.key), each) for each in stored)
        self._view.replace({member: _entry(each) for member, each in named if member is not None})

    def start(self) -> None:
        """Begin to follow. Once."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread, waiting at most `timeout` seconds. Idempotent."""
        self._stop.set()
        stream = self._stream
        if stream is not None:
            stream.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _unchanged(self) -> bool:
        answer = self._gateway.call("/v3/kv/range", self._keys.all_members() | {"keys_only": True})
        stored = [KeyValue.of(kv) for kv in answer.get("kvs", [])]
        if {each.key: (each.revision, each.lease) for each in stored} != self._known:
            return False
        self._pulse.heard(_PART)
        self._revision = int(answer["header"]["revision"])
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except TimeoutError:
                pass  # silence
            except OSError as error:
                self._failed(error)
            except Exception as error:  # the thread must live on
                logger.exception("unexpected, in the watch of the membership")
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._stop.is_set() and not isinstance(error, _Ended):
            self._pulse.lost(_PART, error)
            self._gateway.avoid()
        self._stop.wait(self._pause)

    def _follow(self) -> None:
        """Read what is there, then apply changes until the watch ends, which is always an error."""
        if self._reread:
            self.read()
        self._reread = True
        create = self._keys.all_members() | {"start_revision": str(self._revision + 1)}
        with contextlib.closing(self._gateway.stream("/v3/watch", {"create_request": create}, _SILENCE)) as stream:
            self._stream = stream
            if self._stop.is_set():
                return
            for answer in stream:
                self._apply(answer)

    _reread = False  # the first time, `read` was called just before

    def _apply(self, answer: Json) -> None:
        if answer.get("canceled"):
            self._gateway.forget_token()  # it may be the reason; another one is asked for soon enough
            reason = answer.get("cancel_reason")
            if reason:
                raise GatewayError(f"etcd refuses the watch: {reason}")
            raise _Ended(f"compacted at revision {answer.get('compact_revision')}")
        self._pulse.heard(_PART)
        for event in answer.get("events", []):
            self._event(KeyValue.of(event["kv"]), deleted=event.get("type") == "DELETE")
        self._revision = int(answer["header"]["revision"])

    def _event(self, stored: KeyValue, deleted: bool) -> None:
        assert self._known is not None
        member = self._keys.member_of(stored.key)
        if deleted:
            self._known.pop(stored.key, None)
            if member is not None:
                self._view.drop(member)
            return
        self._known[stored.key] = (stored.revision, stored.lease)
        if member is not None:
            self._view.put(member, _entry(stored))


def _entry(stored: KeyValue) -> MemberEntry:
    return MemberEntry(stored.value, f"{stored.lease:x}")
