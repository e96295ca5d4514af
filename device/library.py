"""The device library: the functions for users' kernels, under names that stay. docs/device_library.md explains them.

Nothing is defined here. Protocol functions may move from file to file; this list of names stays.

    many CTAs, one object    begin_put_part, sum_put_part, finish_put_part; and the same for get
    one CTA, one object      put, get, remove
    its steps                begin, describe, lease, wanted, seal_payload, finish, abort, leave
    a read in place          lookup, lookup_described, validate, verify, touch; pin, unpin
    addresses                segment, copy_tile, copy_bytes
    private tables           table64, store64, REQUEST_BYTES, TICKET_BYTES, Q_* (the fields of a request)
    statuses                 OK, MISS, ... (`protocol.status`), and NOT_LAST

All of them run in CTAs of ONE warp (`memory.triton` says why), except `copy_tile` and `copy_bytes`.
"""

from nanokv.device.kernels.shares import copy_tile
from nanokv.device.memory.triton import copy_bytes, store64, table64, word
from nanokv.device.protocol.activity import leave
from nanokv.device.protocol.checksum import wanted
from nanokv.device.protocol.cooperative import (
    NOT_LAST,
    begin_get_part,
    begin_put_part,
    finish_get_part,
    finish_put_part,
    sum_get_part,
    sum_put_part,
)
from nanokv.device.protocol.get import get, lookup, lookup_described, validate, verify
from nanokv.device.protocol.header import describe
from nanokv.device.protocol.lease import lease, touch
from nanokv.device.protocol.pins import pin, unpin
from nanokv.device.protocol.put import abort, begin, finish, put, seal_payload
from nanokv.device.protocol.remove import remove
from nanokv.device.protocol.request import (
    Q_ADDRESS,
    Q_BLOCK,
    Q_BYTES,
    Q_KEY_CHECK,
    Q_KEY_HASH,
    Q_LEASE,
    Q_OWNER,
    Q_PLANE,
    REQUEST,
    REQUEST_BYTES,
)
from nanokv.device.protocol.status import (
    BUSY,
    CORRUPT,
    DUPLICATE,
    FULL,
    LOST,
    MISS,
    NO_ENTRY,
    NO_HEADER,
    NO_PIN,
    NOT_READY,
    OK,
    PINNED,
    SIZE,
    TOO_LARGE,
    TORN,
)
from nanokv.device.protocol.ticket import TICKET, TICKET_BYTES
from nanokv.device.segment.layout import WORD_BYTES
from nanokv.device.segment.world_table import segment

__all__ = [
    "BUSY",
    "CORRUPT",
    "DUPLICATE",
    "FULL",
    "LOST",
    "MISS",
    "NOT_LAST",
    "NOT_READY",
    "NO_ENTRY",
    "NO_HEADER",
    "NO_PIN",
    "OK",
    "PINNED",
    "Q_ADDRESS",
    "Q_BLOCK",
    "Q_BYTES",
    "Q_KEY_CHECK",
    "Q_KEY_HASH",
    "Q_LEASE",
    "Q_OWNER",
    "Q_PLANE",
    "REQUEST",
    "REQUEST_BYTES",
    "SIZE",
    "TICKET",
    "TICKET_BYTES",
    "TOO_LARGE",
    "TORN",
    "WORD_BYTES",
    "abort",
    "begin",
    "begin_get_part",
    "begin_put_part",
    "copy_bytes",
    "copy_tile",
    "describe",
    "finish",
    "finish_get_part",
    "finish_put_part",
    "get",
    "lease",
    "leave",
    "lookup",
    "lookup_described",
    "pin",
    "put",
    "remove",
    "seal_payload",
    "segment",
    "store64",
    "sum_get_part",
    "sum_put_part",
    "table64",
    "touch",
    "unpin",
    "validate",
    "verify",
    "wanted",
    "word",
]
