"""The device library: the functions for users' kernels, under names that stay. docs/device_library.md explains them.

Each function checks its arguments and the launch, then calls the protocol's of the same name. The protocol itself
checks neither: NanoKV's own kernels and machines pass what they have made.

    parts        many CTAs, one object: begin_put_part, sum_put_part, finish_put_part; and the same for get
    operations   one CTA, one object: put, get, remove
    steps        its steps: begin, describe, lease, wanted, seal_payload, finish, abort, leave
    in_place     a read in place: lookup, lookup_described, validate, verify, touch; pin, unpin
    addresses    segment, copy_tile, copy_bytes
    arguments    the checks
    launch       the check of the launch

Besides these, private tables: table64, store64, REQUEST_BYTES, TICKET_BYTES, Q_* (the fields of a request); and the
statuses: OK, MISS, ... (`protocol.status`), and NOT_LAST.

All of them run in CTAs of any number of warps (`memory.triton` says how), and not in clusters (`launch`).
"""

from nanokv.device.library.addresses import copy_tile, segment
from nanokv.device.library.in_place import lookup, lookup_described, pin, touch, unpin, validate, verify
from nanokv.device.library.operations import get, put, remove
from nanokv.device.library.parts import (
    begin_get_part,
    begin_put_part,
    finish_get_part,
    finish_put_part,
    sum_get_part,
    sum_put_part,
)
from nanokv.device.library.steps import abort, begin, describe, finish, lease, leave, seal_payload, wanted
from nanokv.device.memory.triton import copy_bytes, store64, table64, word
from nanokv.device.protocol.cooperative import NOT_LAST
from nanokv.device.protocol.request import (
    Q_ADDRESS,
    Q_BLOCK,
    Q_BYTES,
    Q_GROUP,
    Q_KEY_CHECK,
    Q_KEY_HASH,
    Q_LEASE,
    Q_OWNER,
    Q_PLANE,
    Q_UNTIL,
    REQUEST,
    REQUEST_BYTES,
)
from nanokv.device.protocol.status import (
    BUSY,
    CORRUPT,
    DUPLICATE,
    FULL,
    INVALID,
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

__all__ = [
    "BUSY",
    "CORRUPT",
    "DUPLICATE",
    "FULL",
    "INVALID",
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
    "Q_GROUP",
    "Q_LEASE",
    "Q_OWNER",
    "Q_PLANE",
    "Q_UNTIL",
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
