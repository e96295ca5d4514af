"""The kinds of messages between members."""

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a message. Stored in messages: never renumber them."""

    PULL = 1  #: `pull_message`
    REMOVE = 2  #: digests, 16 bytes each; the answer is a status each, 8 bytes
    USED = 3  #: rank, slot and epoch of objects that were read, 8 bytes each; the answer is empty
    STATS = 4  #: the answer is JSON
    FSCK = 5  #: the answer is JSON
    GENERATION = 6  #: `generations`
    OVER = 7  #: numbers of PULL questions that were given up, 8 bytes each; the answer: a byte each, 1: it is over
    HEADERS = 8  #: `serving.headers_question`; the answer: how many headers are in use, and some of them
