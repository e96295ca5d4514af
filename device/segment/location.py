"""Records in private memory: where an object lies, as nodes tell each other, and the queue of what is to be told."""

import triton.language as tl

from nanokv.device.segment.layout import WORD
from nanokv.device.segment.record import Field, Record

LOCATION = Record(
    "Location",
    WORD,
    [
        Field("key_hash", "<i8", "low half of the key's digest"),
        Field("key_check", "<i8", "high half of the key's digest"),
        Field(
            "node",
            "<i8",
            "the number of a world of a node, from 1; 0: an empty entry; of an event -1: the object was removed, "
            "-2: it was evicted",
        ),
        Field("rank", "<i8", "the rank whose segment has the object"),
        Field("slot", "<i8", "its header slot"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of its bytes"),
        Field("nbytes", "<i8", "how many"),
        Field("check", "<i8", "of the words before (`check_of`); 0 in an event"),
    ],
)
LOCATION_BYTES = LOCATION.size_constant()
L_HASH = LOCATION.at("key_hash")
L_CHECK = LOCATION.at("key_check")
L_NODE = LOCATION.at("node")
L_RANK = LOCATION.at("rank")
L_SLOT = LOCATION.at("slot")
L_EPOCH = LOCATION.at("epoch")
L_PAYLOAD = LOCATION.at("payload")
L_NBYTES = LOCATION.at("nbytes")
L_CHECKED = LOCATION.at("check")

STORED_NODE = tl.constexpr(1)  #: of an event: the object is there
GONE_NODE = tl.constexpr(-1)
EVICTED_NODE = tl.constexpr(-2)

OUTBOX = Record(
    "Outbox",
    WORD,
    [
        # set once
        Field("rows", "<i8", "address of room for LOCATIONs"),
        Field("room", "<i8", "how many: a power of two"),
        Field("rank", "<i8", "whose segment they are about"),
        Field("futex", "<i8", "number of the system call; 0: nobody can sleep on a word"),
        # of the thread that writes
        Field("written", "<i8", "rows, since ever", own_line=True),
        Field("lost", "<i8", "rows for which there was no room, since ever"),
        # of the thread that reads
        Field("taken", "<i8", "rows, since ever", own_line=True),
        Field("known", "<i8", "how many were lost when it looked last"),
        Field("over", "<i8", "1: it need not wait any more"),
        Field("asleep", "<i8", "32 bits of it: 1 while it sleeps, and wants to be woken"),
    ],
)
O_ROWS = OUTBOX.at("rows")
O_ROOM = OUTBOX.at("room")
O_RANK = OUTBOX.at("rank")
O_FUTEX = OUTBOX.at("futex")
O_WRITTEN = OUTBOX.at("written")
O_LOST = OUTBOX.at("lost")
O_TAKEN = OUTBOX.at("taken")
O_KNOWN = OUTBOX.at("known")
O_OVER = OUTBOX.at("over")
O_ASLEEP = OUTBOX.at("asleep")
