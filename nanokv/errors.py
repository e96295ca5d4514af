"""Every error that NanoKV raises. Statuses inside the protocol become these at the edge of the API.

NanoKVError
├── InvalidArgument (ValueError)   the call itself is wrong; nothing was done
├── ReuseViolation                 a digest is of another identity than the cache; nothing was done
├── KeyNotFound (KeyError)         no object has this key
├── DuplicateKey                   the key exists, or a producer is writing its object
├── NotReady                       the object exists, its bytes are not complete yet
│   └── WaitTimeout (TimeoutError) ... and were not within the caller's timeout
├── ObjectPinned                   a reader holds the object in place
├── OutOfMemory (MemoryError)      no room: pages, header slots, directory entries or pins
├── Cancelled                      an asynchronous operation was cancelled before it began
├── WriteLost                      the object was reclaimed while it was being written
├── SegmentCorrupt                 a segment, a word in one, or a file of saved objects has an impossible value
├── CacheClosed                    the cache was closed before the call
├── Forked                         this process is a child of a fork, and the cache its parent's
├── FileUnusable (OSError)         a file of saved objects cannot be written or read
├── ClusterUnavailable (ConnectionError) the registry of a cluster does not answer, or another process is this member
├── LinkUnavailable                what moves bytes between hosts is not installed, or does not work here
├── HeapUnavailable                this kind of heap does not work here, or a name cannot be used
│   └── RankTaken                  ... because a living process has this rank
└── PeerLost (ConnectionError)     a rank that is needed is dead, closed, or does not answer
"""


class NanoKVError(Exception):
    """The base of every error here."""


class InvalidArgument(NanoKVError, ValueError):
    """The call itself is wrong. Raised before anything is changed."""


class ReuseViolation(NanoKVError):
    """A digest names another identity or namespace than the cache has: its object would be of no use, or a secret."""


class KeyNotFound(NanoKVError, KeyError):
    """No object has this key."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's own would put the message in quotes


class DuplicateKey(NanoKVError):
    """The key exists already, or another producer is writing it. Objects are immutable: remove, then put."""


class NotReady(NanoKVError):
    """The object exists, its bytes are not complete yet."""


class WaitTimeout(NotReady, TimeoutError):
    """The objects of a wait were not all READY at its deadline."""


class ObjectPinned(NanoKVError):
    """The object cannot be removed while a reader holds it in place."""


class OutOfMemory(NanoKVError, MemoryError):
    """No room in the owner's segment: pages, header slots, directory entries or pins."""


class Cancelled(NanoKVError):
    """An asynchronous operation was cancelled before it began."""


class WriteLost(NanoKVError):
    """The object was reclaimed while it was being written: its producer took longer than `write_timeout`."""


class SegmentCorrupt(NanoKVError):
    """A segment, or a word in one, has an impossible value: magic, version, geometry, an offset out of bounds.

    Also: a file is no file of saved objects, or it was cut or changed.
    """


class CacheClosed(NanoKVError):
    """The cache was closed before the call. Nothing was done."""


class Forked(NanoKVError):
    """This process is a child of a fork, and the cache its parent's. What turns errors into answers lets it through."""


class FileUnusable(NanoKVError, OSError):
    """A file of saved objects cannot be written or read: no space, no permission, no such file."""


class HeapUnavailable(NanoKVError):
    """This kind of heap does not work here, or its name cannot be used."""


class RankTaken(HeapUnavailable):
    """A living process has this rank of the world."""


class ClusterUnavailable(NanoKVError, ConnectionError):
    """The registry of a cluster cannot be reached, refuses this process, or has its member id from somebody else."""


class LinkUnavailable(NanoKVError):
    """The library of a link between hosts is not installed, or does not work on this machine."""


class PeerLost(NanoKVError, ConnectionError):
    """A rank that is needed is dead, closed, or does not answer within the stated time."""
