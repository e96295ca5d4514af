"""What a follower has heard of one member: which messages come next, and whether any were missed."""

from nanokv.cluster.messages.sealed import Form, Message, Reason, Rejected


class Sequence:
    """Of one sender. Its events are numbered from 1, anew in each of its incarnations."""

    def __init__(self) -> None:
        self._incarnation = 0  # below any: nothing was heard
        self._last = 0

    def hear(self, message: Message) -> bool:
        """Take an event or a beat. True if messages before it were missed, or may have been, as before the first.

        Raises:
            Rejected: it was heard before, or its sender was started again since.
        """
        incarnation = message.sender.incarnation
        if incarnation < self._incarnation:
            raise Rejected(Reason.OLD_INCARNATION)
        anew = incarnation > self._incarnation
        expected = self._last + (message.form is Form.EVENT)
        if message.number < expected and not anew:
            raise Rejected(Reason.REPLAYED)
        self._incarnation, self._last = incarnation, message.number
        return anew or message.number > expected
