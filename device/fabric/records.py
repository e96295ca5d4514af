"""Records in the private memory of a reader on another host: what it fetches, and the room that the rounds work in."""

import triton.language as tl

from nanokv.device.segment.layout import HEAP_CTL, MAX_DIMS, OBJ_HEADER, WORD
from nanokv.device.segment.record import Field, Record

HEADER_WORDS = OBJ_HEADER.size // WORD

FETCH = Record(
    "Fetch",
    WORD,
    [
        Field("key_hash", "<i8", "low half of the key's digest"),
        Field("key_check", "<i8", "high half of the key's digest"),
        Field("status", "<i8", "the answer of the last round"),
        Field("owner", "<i8", "the rank whose segment has the object"),
        Field("slot", "<i8", "its header slot there"),
        Field("header", "<i8", "the header, before the bytes were read", repeat=HEADER_WORDS),
        Field("dst", "<i8", "where the bytes go: bytes from WORK.base"),
        Field("what", "<i8", "the descriptor: FORMAT bits and the shape", repeat=1 + MAX_DIMS),
    ],
)

WORK = Record(
    "Work",
    WORD,
    [
        Field("fetches", "<i8", "address of FETCHes"),
        Field("looks", "<i8", "address of room for LOOK words"),
        Field("most_looks", "<i8", "how many"),
        Field("places", "<i8", "address of room for as many words: where the line of each look is after the transfer"),
        Field("rows", "<i8", "address of room for twice as many ROWs"),
        Field("lines", "<i8", "address of registered memory for the lines that are read"),
        Field("most_lines", "<i8", "how many: at least as many as looks"),
        Field("gap", "<i8", "lines between two that are read over, rather than to begin another row"),
        Field("byte_gap", "<i8", "bytes between two payloads, on both sides, that are read over"),
        Field("controls", "<i8", "address of the first line of each rank's control block, as the card has it"),
        Field("base", "<i8", "the address from which FETCH.dst counts"),
    ],
)

ROW = Record(
    "Row",
    WORD,
    [
        Field("here", "<i8", "the address to which bytes are copied"),
        Field("there", "<i8", "the peer's address from which they come"),
        Field("nbytes", "<i8", "how many, more than 0"),
    ],
)

F_KEY_HASH = FETCH.at("key_hash")
F_KEY_CHECK = FETCH.at("key_check")
F_STATUS = FETCH.at("status")
F_OWNER = FETCH.at("owner")
F_SLOT = FETCH.at("slot")
F_HEADER = FETCH.at("header")
F_DST = FETCH.at("dst")
F_WHAT = FETCH.at("what")
FETCH_BYTES = FETCH.size_constant()

W_FETCHES = WORK.at("fetches")
W_LOOKS = WORK.at("looks")
W_MOST_LOOKS = WORK.at("most_looks")
W_PLACES = WORK.at("places")
W_ROWS = WORK.at("rows")
W_LINES = WORK.at("lines")
W_MOST_LINES = WORK.at("most_lines")
W_GAP = WORK.at("gap")
W_BYTE_GAP = WORK.at("byte_gap")
W_CONTROLS = WORK.at("controls")
W_BASE = WORK.at("base")

ROW_HERE = ROW.at("here")
ROW_THERE = ROW.at("there")
ROW_NBYTES = ROW.at("nbytes")
ROW_BYTES = ROW.size_constant()

# A LOOK word: the line of a word, and who asked for it. Lines are aligned, and buckets, headers, descriptors and the
# first words of a control block are one line each.
LOOK_LINE = 64  #: bytes
LINE_SHIFT = tl.constexpr(LOOK_LINE.bit_length() - 1)
LINE_WORDS = tl.constexpr(LOOK_LINE // WORD)
ASKER_BITS = tl.constexpr(20)
ASKER_MASK = tl.constexpr((1 << ASKER_BITS.value) - 1)
MOST_LOOKS = 1 << ASKER_BITS.value
LOOKS_A_KEY = 4  #: two buckets; or the headers of so many candidates; or a header, and its descriptor or control block

#: the fields in the first line of a control block: they say whose segment it is, and stay as long as it is that
IDENTITY_FIELDS = tuple(name for name, at in HEAP_CTL.offsets.items() if at < LOOK_LINE)
assert IDENTITY_FIELDS[-1] == "hdr_count" and HEAP_CTL.offsets["hdr_count"] + WORD == LOOK_LINE

NIXL = Record(
    "Nixl",
    WORD,
    [
        # NIXL's C functions, by address
        Field("create", "<i8", "nixl_capi_create_xfer_req"),
        Field("post", "<i8", "nixl_capi_post_xfer_req"),
        Field("status", "<i8", "nixl_capi_get_xfer_status"),
        Field("release", "<i8", "nixl_capi_release_xfer_req"),
        Field("destroy", "<i8", "nixl_capi_destroy_xfer_req"),
        Field("add", "<i8", "nixl_capi_xfer_dlist_add_desc"),
        Field("clear", "<i8", "nixl_capi_xfer_dlist_clear"),
        # what they are given
        Field("agent", "<i8", "the agent"),
        Field("options", "<i8", "opt_args with the backend"),
        Field("here", "<i8", "a list of descriptors of this process' memory"),
        Field("there", "<i8", "a list of descriptors of the peer's memory"),
        Field("here_device", "<i8", "the number of the device that has the memory here"),
        Field("there_device", "<i8", "the number of the device that has the peer's"),
        Field("peer", "<i8", "address of the peer's name"),
        Field("timeout", "<i8", "ns that a transfer may take"),
        Field("lock", "<i8", "address of the agent's lock: 1 while a thread calls NIXL"),
        # answers
        Field("request", "<i8", "a transfer that is still under way; 0: none"),
        Field("transfers", "<i8", "how many transfers have begun"),
    ],
)

N_CREATE = NIXL.at("create")
N_POST = NIXL.at("post")
N_STATUS = NIXL.at("status")
N_RELEASE = NIXL.at("release")
N_DESTROY = NIXL.at("destroy")
N_ADD = NIXL.at("add")
N_CLEAR = NIXL.at("clear")
N_AGENT = NIXL.at("agent")
N_OPTIONS = NIXL.at("options")
N_HERE = NIXL.at("here")
N_THERE = NIXL.at("there")
N_HERE_DEVICE = NIXL.at("here_device")
N_THERE_DEVICE = NIXL.at("there_device")
N_PEER = NIXL.at("peer")
N_TIMEOUT = NIXL.at("timeout")
N_LOCK = NIXL.at("lock")
N_REQUEST = NIXL.at("request")
N_TRANSFERS = NIXL.at("transfers")

# how a transfer ended
ENDED = tl.constexpr(0)  #: all of its bytes are there
BROKEN = tl.constexpr(1)  #: the link could not do it
LATE = tl.constexpr(2)  #: it is still under way, and may write at any time

PULL = Record(
    "Pull",
    WORD,
    [
        # what the producer asks for
        Field("key_hash", "<i8", "low half of the key's digest"),
        Field("key_check", "<i8", "high half of the key's digest"),
        Field("nbytes", "<i8", "bytes of the object"),
        Field("what", "<i8", "its descriptor: FORMAT bits and the shape", repeat=1 + MAX_DIMS),
        Field("access", "<i8", "its terms: TERMS bits, with the seconds from now of a lease"),
        Field("group", "<i8", "its group"),
        Field("until", "<i8", "ns from now after which it goes; 0: never"),
        Field(
            "source", "<i8", "the producer's address of its bytes; or their offset in those that the question brings"
        ),
        # these five are what the owner has begun, as in PULLED
        Field("status", "<i8", "OK; or why there is no object"),
        Field("rank", "<i8", "the rank whose segment gets it; -1: the key's home rank"),
        Field("slot", "<i8", "header slot"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of the first page"),
    ],
)

PULLED = Record(
    "Pulled",
    WORD,
    [
        Field("status", "<i8", "OK; or why there is no object"),
        Field("rank", "<i8", "the rank whose segment has it"),
        Field("slot", "<i8", "its header slot there"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of its first page"),
    ],
)

#: where the end of a PULL begins, which is a PULLED
PULLED_AT = PULL.offsets["status"]
assert [PULL.offsets[name] - PULLED_AT for name in PULLED.offsets] == list(PULLED.offsets.values())
P_KEY_HASH = PULL.at("key_hash")
P_KEY_CHECK = PULL.at("key_check")
P_NBYTES = PULL.at("nbytes")
P_WHAT = PULL.at("what")
P_ACCESS = PULL.at("access")
P_GROUP = PULL.at("group")
P_UNTIL = PULL.at("until")
P_SOURCE = PULL.at("source")
P_RANK = PULL.at("rank")
P_STATUS = PULL.at("status")
P_SLOT = PULL.at("slot")
P_EPOCH = PULL.at("epoch")
P_PAYLOAD = PULL.at("payload")
PULL_BYTES = PULL.size_constant()

A_STATUS = PULLED.at("status")
A_RANK = PULLED.at("rank")
A_SLOT = PULLED.at("slot")
A_EPOCH = PULLED.at("epoch")
A_PAYLOAD = PULLED.at("payload")
PULLED_BYTES = PULLED.size_constant()
