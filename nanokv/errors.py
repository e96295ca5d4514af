"""Every error that NanoKV raises. Statuses inside the protocol become these at the edge of the API.

NanoKVError
├── InvalidArgument (ValueError)   the call itself is wrong; nothing was done
├── KeyNotFound (KeyError)         no object has this key
├── DuplicateKey                   the key exists, or somebody is writing it
├── NotReady                       the object exists, its bytes do not yet
│   └── WaitTimeout (TimeoutError) ... and did not in the time that the caller gave
├── ObjectPinned                   somebody reads the object in place
├── OutOfMemory (MemoryError)      no room: pages, header slots, directory entries or pins
├── WriteLost                      the object was reclaimed while it was being written
├── SegmentCorrupt                 a segment, or a word in one, cannot be what it should be
├── HeapUnavailable                this kind of heap does not work here, or a name cannot be used
└── PeerLost (ConnectionError)     a rank that is needed is dead, closed, or does not answer
"""


class NanoKVError(Exception):
    """The base of every error here."""


class InvalidArgument(NanoKVError, ValueError):
    """The call itself is wrong. Raised before anything is changed."""


class KeyNotFound(NanoKVError, KeyError):
    """No object has this key."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's own would put the message in quotes


class DuplicateKey(NanoKVError):
    """The key exists already, or another producer is writing it. Objects are immutable: remove, then put."""


class NotReady(NanoKVError):
    """The object exists, its bytes do not yet."""


class WaitTimeout(NotReady, TimeoutError):
    """A wait with a deadline ended without what was waited for."""


class ObjectPinned(NanoKVError):
    """The object cannot be removed while somebody reads it in place."""


class OutOfMemory(NanoKVError, MemoryError):
    """No room in the owner's segment: pages, header slots, directory entries or pins."""


class WriteLost(NanoKVError):
    """The object was reclaimed while it was being written: its producer took longer than `write_timeout`."""


class SegmentCorrupt(NanoKVError):
    """A segment, or a word in one, cannot be what it should be: magic, version, geometry, an offset out of bounds."""


class HeapUnavailable(NanoKVError):
    """This kind of heap does not work here, or its name cannot be used."""


class PeerLost(NanoKVError, ConnectionError):
    """A rank that is needed is dead, closed, or does not answer within the stated time."""
