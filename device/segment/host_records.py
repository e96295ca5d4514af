"""Records in the private memory of an owner's host: what Python and native code tell each other."""

import triton.language as tl

from nanokv.device.segment.layout import MAX_DIMS, OBJ_HEADER, WORD
from nanokv.device.segment.record import Field, Record

CHANGE = Record(
    "Change",
    WORD,
    [
        Field("kind", "<i8", "STORED, REMOVED or EVICTED"),
        Field("slot", "<i8", "header slot"),
        Field("header", "<i8", "the header as the index had it, or has it now", repeat=OBJ_HEADER.size // WORD),
    ],
)

ROUNDS = Record(
    "Rounds",
    WORD,
    [
        # set by the host before a call
        Field("lives", "<i8", "address of the index: per slot the STATE word of its row, without pins, or NO_ROW"),
        Field("rows", "<i8", "address of the index: per slot a header"),
        Field("hints", "<i8", "address of room for hints"),
        Field("changes", "<i8", "address of room for two CHANGEs per hint; 0: nobody wants them"),
        Field("room", "<i8", "hints that there is room for"),
        Field("asked", "<i8", "address of a word, which any thread writes; not 0: the call ends soon"),
        Field("end", "<i8", "ns: when the call ends at the latest"),
        Field("patience", "<i8", "ns without a hint after which the call ends"),
        Field("least_pause", "<i8", "ns between two rounds, after one with hints"),
        Field("most_pause", "<i8", "ns between two rounds: each without hints doubles the pause, up to this"),
        Field("hole_patience", "<i8", "ns to come back to a ring slot whose producer has not filled it"),
        # kept from call to call
        Field("tail", "<i8", "tickets consumed"),
        Field("head", "<i8", "the ticket before which the last look ended"),
        Field("hole", "<i8", "the ticket that the tail waits for, or -1"),
        Field("hole_since", "<i8", "ns: since when"),
        Field("hole_head", "<i8", "the head then"),
        # answers of a call
        Field("taken", "<i8", "hints"),
        Field("removed", "<i8", "of these: removals"),
        Field("corrupt", "<i8", "of these: of no known kind, or about a slot that does not exist"),
        Field("wanted", "<i8", "1 + the largest size class that a producer did not get; 0: none"),
        Field("changed", "<i8", "CHANGEs in `changes`"),
        Field("header", "<i8", "room for a header", repeat=OBJ_HEADER.size // WORD),
    ],
)

WATCH = Record(
    "Watch",
    WORD,
    [
        Field("copy", "<i8", "address of the driver's function that copies to the host: cuMemcpyDtoHAsync"),
        Field("synchronize", "<i8", "address of that which waits for a stream: cuStreamSynchronize"),
        Field("stream", "<i8", "the driver's handle of a stream that nobody else uses"),
        Field("there", "<i8", "address of a word in the GPU's memory"),
        Field("here", "<i8", "address of a word of pinned host memory"),
        Field("seen", "<i8", "the call ends once the word there is another one"),
        Field("pause", "<i8", "ns before the first look"),
        Field("most_pause", "<i8", "ns between two looks: each doubles the pause, up to this"),
        Field("end", "<i8", "ns: when the call ends at the latest"),
        Field("asked", "<i8", "address of a word, which any thread writes; not 0: the call ends soon"),
    ],
)

WHAT = Record(
    "What",
    WORD,
    [
        Field("nbytes", "<i8", "bytes of a tensor"),
        Field("format", "<i8", "its dtype and number of dimensions: FORMAT bits; 0 with a get: any"),
        Field("dims", "<i8", "its shape", repeat=MAX_DIMS),
    ],
)

WHAT_BYTES = WHAT.at("nbytes")
WHAT_FORMAT = WHAT.at("format")
WHAT_D0, WHAT_D1, WHAT_D2, WHAT_D3, WHAT_D4, WHAT_D5, WHAT_D6 = (
    tl.constexpr(WHAT.offsets["dims"] + i * WORD) for i in range(MAX_DIMS)
)

TENSOR = Record(
    "Tensor",
    WORD,
    [
        # a DLTensor, which torch fills
        Field("data", "<i8", "address of the tensor's storage"),
        Field("device", "<i8", "its kind, and its number"),
        Field("kind", "<i8", "the number of dimensions in the lower half, and the dtype in the upper half"),
        Field("dims", "<i8", "address of its shape"),
        Field("strides", "<i8", "address of its strides, in elements"),
        Field("offset", "<i8", "bytes from the storage to the tensor's first element"),
        # what it is compared with, and by what
        Field("type", "<i8", "address of the type of tensors"),
        Field("function", "<i8", "address of torch's function that fills the DLTensor"),
        Field("what", "<i8", "address of the WHAT record of such tensors"),
        Field("like_device", "<i8", "a device"),
        Field("like_kind", "<i8", "a kind"),
        Field("like_dims", "<i8", "a shape", repeat=MAX_DIMS),
    ],
)

NOT_ALIKE = tl.constexpr(-1)  #: no address of a tensor's bytes
LOWEST = tl.constexpr(1 << 36)  #: address: below it may be an offset in a storage that has no memory, whose base is 0
NOT_TAKEN = tl.constexpr(-2)  #: no bytes of an object were copied that count
UNUSUAL = tl.constexpr(-1)  #: no status: native code leaves a call to Python, and has done nothing
T_TYPE = TENSOR.at("type")
T_FUNCTION = TENSOR.at("function")
T_WHAT = TENSOR.at("what")
T_DATA = TENSOR.at("data")
T_DEVICE = TENSOR.at("device")
T_KIND = TENSOR.at("kind")
T_DIMS = TENSOR.at("dims")
T_STRIDES = TENSOR.at("strides")
T_OFFSET = TENSOR.at("offset")
T_LIKE_DEVICE = TENSOR.at("like_device")
T_LIKE_KIND = TENSOR.at("like_kind")
T_LIKE_DIMS = TENSOR.at("like_dims")

PREFIX_WORDS = 2
PREFIX_BYTES = tl.constexpr(PREFIX_WORDS * WORD)
HASHING = Record(
    "Hashing",
    WORD,
    [
        Field(
            "prefix",
            "<i8",
            "of all keys: the digest of the identity and the namespace",
            repeat=PREFIX_BYTES.value // WORD,
        ),
        Field("upper", "<i8", "the tag of both, as the upper half of `key_check`"),
        Field("tag", "<i8", "the tag, signed"),
        Field("str_type", "<i8", "address of the type str"),
        Field("digest_type", "<i8", "address of the type KeyDigest"),
        Field("function", "<i8", "address of the function object that hashes bytes to 16 bytes"),
        Field("size", "<i8", "room for the size of a text"),
    ],
)

H_PREFIX = HASHING.at("prefix")
H_UPPER = HASHING.at("upper")
H_TAG = HASHING.at("tag")
H_STR_TYPE = HASHING.at("str_type")
H_DIGEST_TYPE = HASHING.at("digest_type")
H_FUNCTION = HASHING.at("function")
H_SIZE = HASHING.at("size")

COPY = Record(
    "Copy",
    WORD,
    [
        Field("rank", "<i8", "the rank whose segment gets the copy"),
        Field("status", "<i8", "the answer: OK, or why there is no copy"),
        Field("sleeps", "<i8", "1 if that rank's poller sleeps and must be woken"),
        Field("slot", "<i8", "header slot"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of the first page"),
        Field("phase", "<i8", "the grace phase to leave"),
    ],
)

COPY_BYTES = COPY.size_constant()
C_RANK = COPY.at("rank")
C_STATUS = COPY.at("status")
C_SLEEPS = COPY.at("sleeps")
C_SLOT = COPY.at("slot")
C_EPOCH = COPY.at("epoch")
C_PAYLOAD = COPY.at("payload")
C_PHASE = COPY.at("phase")

CHANGE_KIND = CHANGE.at("kind")
CHANGE_SLOT = CHANGE.at("slot")
CHANGE_HEADER = CHANGE.at("header")
CHANGE_BYTES = CHANGE.size_constant()

SECOND = 1_000_000_000  #: ns
SLEEPS = tl.constexpr(1 << 32)  #: added to a status if the owner's poller sleeps and must be woken
NO_HOLE = tl.constexpr(-1)  #: no ticket
NO_ROW = tl.constexpr(-1)  #: no STATE word of a READY header has it

R_LIVES = ROUNDS.at("lives")
R_ROWS = ROUNDS.at("rows")
R_HINTS = ROUNDS.at("hints")
R_CHANGES = ROUNDS.at("changes")
R_ROOM = ROUNDS.at("room")
R_ASKED = ROUNDS.at("asked")
R_END = ROUNDS.at("end")
R_PATIENCE = ROUNDS.at("patience")
R_LEAST_PAUSE = ROUNDS.at("least_pause")
R_MOST_PAUSE = ROUNDS.at("most_pause")
R_HOLE_PATIENCE = ROUNDS.at("hole_patience")
R_TAIL = ROUNDS.at("tail")
R_HEAD = ROUNDS.at("head")
R_HOLE = ROUNDS.at("hole")
R_HOLE_SINCE = ROUNDS.at("hole_since")
R_HOLE_HEAD = ROUNDS.at("hole_head")
R_TAKEN = ROUNDS.at("taken")
R_REMOVED = ROUNDS.at("removed")
R_CORRUPT = ROUNDS.at("corrupt")
R_WANTED = ROUNDS.at("wanted")
R_CHANGED = ROUNDS.at("changed")
R_HEADER = ROUNDS.at("header")

WATCH_COPY = WATCH.at("copy")
WATCH_SYNCHRONIZE = WATCH.at("synchronize")
WATCH_STREAM = WATCH.at("stream")
WATCH_THERE = WATCH.at("there")
WATCH_HERE = WATCH.at("here")
WATCH_SEEN = WATCH.at("seen")
WATCH_PAUSE = WATCH.at("pause")
WATCH_MOST_PAUSE = WATCH.at("most_pause")
WATCH_END = WATCH.at("end")
WATCH_ASKED = WATCH.at("asked")
