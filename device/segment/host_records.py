"""Records in a process's private memory, by which Python and native code talk."""

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
        # set by the host before a call
        Field("outboxes", "<i8", "address of the addresses of OUTBOXes, which hear of each change"),
        Field("outbox_count", "<i8", "how many"),
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

NOT_ALIKE = tl.constexpr(-1)  #: no address of a tensor's bytes
LOWEST = tl.constexpr(1 << 36)  #: address: below it may be an offset in a storage that has no memory, whose base is 0
NOT_TAKEN = tl.constexpr(-2)  #: no bytes of an object were copied that count
UNUSUAL = tl.constexpr(-1)  #: no status: native code leaves a call to Python, and has done nothing

TENSOR = Record(
    "Tensor",
    WORD,
    [
        Field("data", "<i8", "a DLTensor, which torch fills: address of the tensor's storage"),
        Field("device", "<i8", "its kind, and its number"),
        Field("kind", "<i8", "the number of dimensions in the lower half, and the dtype in the upper half"),
        Field("dims", "<i8", "address of its shape"),
        Field("strides", "<i8", "address of its strides, in elements"),
        Field("offset", "<i8", "bytes from the storage to the tensor's first element"),
        Field("type", "<i8", "address of the type of tensors"),
        Field("function", "<i8", "address of torch's function that fills the DLTensor"),
        Field("dtypes", "<i8", "address of a word per dtype of DLPack: see `transfer.dlpack.dtype_words`; 0: another"),
        Field("is_neg", "<i8", "address of torch's function that says whether values are lazily negated"),
        Field("is_conj", "<i8", "and of that which says whether they are lazily conjugated"),
        Field("reference", "<i8", "bytes from the address of a tensor in Python to torch's own, for these functions"),
    ],
)

T_DATA = TENSOR.at("data")
T_DEVICE = TENSOR.at("device")
T_KIND = TENSOR.at("kind")
T_DIMS = TENSOR.at("dims")
T_STRIDES = TENSOR.at("strides")
T_OFFSET = TENSOR.at("offset")
T_TYPE = TENSOR.at("type")
T_FUNCTION = TENSOR.at("function")
T_DTYPES = TENSOR.at("dtypes")
T_IS_NEG = TENSOR.at("is_neg")
T_IS_CONJ = TENSOR.at("is_conj")
T_REFERENCE = TENSOR.at("reference")

# a word of TENSOR.dtypes: the stored code, the bytes of an element, and what may be lazy
DTYPE_BYTES_SHIFT = tl.constexpr(8)
DTYPE_NEGATED = tl.constexpr(1 << 16)  #: tensors of it may be lazily negated
DTYPE_CONJUGATED = tl.constexpr(1 << 17)  #: and conjugated
DTYPE_WORDS = 1024  #: one per code of DLPack (32), and per number of bytes of an element (32)

PREFIX_WORDS = 2
PREFIX_BYTES = tl.constexpr(PREFIX_WORDS * WORD)
LONGEST_HASHED = 240  #: bytes of prefix and key that native code hashes by itself
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
        Field("text", "<i8", "room for a key, behind the prefix", repeat=LONGEST_HASHED // WORD - PREFIX_WORDS),
        Field("size", "<i8", "room for the size of a text"),
        Field("upper", "<i8", "the tag of both, as the upper half of `key_check`"),
        Field("tag", "<i8", "the tag, signed"),
        Field("str_type", "<i8", "address of the type str"),
        Field("bytes_type", "<i8", "address of the type bytes"),
        Field("digest_type", "<i8", "address of the type KeyDigest"),
        Field("function", "<i8", "address of the function object that hashes bytes to 16 bytes"),
    ],
)

H_PREFIX = HASHING.at("prefix")
H_TEXT = HASHING.at("text")
H_TEXT_BYTES = tl.constexpr(LONGEST_HASHED - PREFIX_BYTES.value)
H_SIZE = HASHING.at("size")
H_UPPER = HASHING.at("upper")
H_TAG = HASHING.at("tag")
H_STR_TYPE = HASHING.at("str_type")
H_BYTES_TYPE = HASHING.at("bytes_type")
H_DIGEST_TYPE = HASHING.at("digest_type")
H_FUNCTION = HASHING.at("function")

PEER = Record(
    "Peer",
    WORD,
    [
        Field("closed", "<i8", "address of the rank's HeapCtl.closed, 32 bits"),
        Field("until", "<i8", "ns: it lives until then, unless it closes (`clock.monotonic_ns`)"),
        Field("noted", "<i8", "1 once it has what this cache writes into a segment before its first object there"),
        Field("backed", "<i8", "address of the word that says how far its payload has memory; 0: all of it has"),
        Field("bump", "<i8", "address of its HeapCtl.bump_ptr"),
    ],
)

PEER_BYTES = PEER.size_constant()
PEER_CLOSED = PEER.at("closed")
PEER_UNTIL = PEER.at("until")
PEER_NOTED = PEER.at("noted")
PEER_BACKED = PEER.at("backed")
PEER_BUMP = PEER.at("bump")

NEW = Record(
    "New",
    WORD,
    [
        Field("nbytes", "<i8", "bytes of an object"),
        Field("format", "<i8", "its dtype and number of dimensions, as stored: FORMAT bits"),
        Field("dims", "<i8", "its shape", repeat=MAX_DIMS),
        Field("like", "<i8", "a tensor that a new one is made like; 0: none yet"),
    ],
)

NEW_BYTES = NEW.size_constant()
NEW_NBYTES = NEW.at("nbytes")
NEW_FORMAT = NEW.at("format")
NEW_LIKE = NEW.at("like")
NEW_KINDS = 64  #: a power of two: dtypes and shapes of which native code makes new tensors

CALLS = Record(
    "Calls",
    WORD,
    [
        # what the cache is: set once
        Field("table", "<i8", "address of the world table"),
        Field("hashing", "<i8", "address of a HASHING record"),
        Field("tensor", "<i8", "address of a TENSOR record"),
        Field("peers", "<i8", "address of a PEER record per rank"),
        Field("locks", "<i8", "address of the descriptor, 32 bits, of the locks that tell who lives; 0: nobody dies"),
        Field("trust", "<i8", "ns for which a look at a lock is believed"),
        Field("ranks", "<i8", "ranks of the world"),
        Field("first", "<i8", "address: all segments lie between this one"),
        Field("last", "<i8", "and this one"),
        Field("most", "<i8", "bytes: what is larger, torch copies"),
        Field("holds", "<i8", "bytes: what is larger is copied without the interpreter's lock"),
        Field("ahead", "<i8", "bytes that are to have memory beyond those that a put takes"),
        Field("end", "<i8", "offset at which payloads end"),
        Field("page_bytes", "<i8", "bytes of a page"),
        # objects of Python, by their addresses
        Field("none", "<i8", "None"),
        Field("false", "<i8", "False"),
        Field("true", "<i8", "True"),
        Field("zero", "<i8", "the int 0"),
        Field("no_default", "<i8", "the default of a get: what says that there is none"),
        Field("int_type", "<i8", "the type int"),
        Field("float_type", "<i8", "the type float"),
        Field("preferred_segment", "<i8", "the str of this name, as compilers of Python intern it; as the next ones"),
        Field("exist_ok", "<i8", "the same"),
        Field("hold", "<i8", "the same"),
        Field("timeout", "<i8", "the same"),
        Field("replicas", "<i8", "the same"),
        Field("dst", "<i8", "the same"),
        Field("empty_like", "<i8", "torch.empty_like"),
        Field("wake", "<i8", "what wakes the poller of a rank"),
        Field("put", "<i8", "what does a put that is unusual"),
        Field("put_refused", "<i8", "what does one that a rank has answered FULL, and counted: told which"),
        Field("put_failed", "<i8", "what raises the error of a put"),
        Field("get", "<i8", "what does a get that is unusual"),
        Field("get_failed", "<i8", "what raises the error of a get"),
        Field("exists", "<i8", "what answers whether there is an object"),
        Field("remove", "<i8", "what removes one"),
        Field("remove_failed", "<i8", "what raises the error of a removal"),
        Field("take", "<i8", "what takes the bytes of one"),
        # counted by native code, with the interpreter's lock
        Field("puts", "<i8", "objects that were put"),
        Field("put_errors", "<i8", "puts that were refused"),
        Field("bytes_tx", "<i8", "bytes that were put"),
        Field("put_ns", "<i8", "ns that the timed puts took"),
        Field("put_pages", "<i8", "their pages"),
        Field("gets", "<i8", "objects that were got"),
        Field("misses", "<i8", "gets of objects that are not there"),
        Field("bytes_rx", "<i8", "bytes that were got"),
        Field("get_ns", "<i8", "ns that the timed gets took"),
        Field("get_pages", "<i8", "their pages"),
        # kinds of new tensors: set by Python
        Field("new", "<i8", "NEW records, by `new_kind`", repeat=NEW_KINDS * NEW.size // WORD),
    ],
)

K_TABLE = CALLS.at("table")
K_HASHING = CALLS.at("hashing")
K_TENSOR = CALLS.at("tensor")
K_PEERS = CALLS.at("peers")
K_LOCKS = CALLS.at("locks")
K_TRUST = CALLS.at("trust")
K_RANKS = CALLS.at("ranks")
K_FIRST = CALLS.at("first")
K_LAST = CALLS.at("last")
K_MOST = CALLS.at("most")
K_HOLDS = CALLS.at("holds")
K_AHEAD = CALLS.at("ahead")
K_END = CALLS.at("end")
K_PAGE_BYTES = CALLS.at("page_bytes")
K_NONE = CALLS.at("none")
K_FALSE = CALLS.at("false")
K_TRUE = CALLS.at("true")
K_ZERO = CALLS.at("zero")
K_INT_TYPE = CALLS.at("int_type")
K_FLOAT_TYPE = CALLS.at("float_type")
K_PREFERRED_SEGMENT = CALLS.at("preferred_segment")
K_EXIST_OK = CALLS.at("exist_ok")
K_HOLD = CALLS.at("hold")
K_TIMEOUT = CALLS.at("timeout")
K_REPLICAS = CALLS.at("replicas")
K_DST = CALLS.at("dst")
K_EMPTY_LIKE = CALLS.at("empty_like")
K_WAKE = CALLS.at("wake")
K_PUT = CALLS.at("put")
K_PUT_REFUSED = CALLS.at("put_refused")
K_GET = CALLS.at("get")
K_EXISTS = CALLS.at("exists")
K_REMOVE = CALLS.at("remove")
K_TAKE = CALLS.at("take")
K_PUT_FAILED = CALLS.at("put_failed")
K_GET_FAILED = CALLS.at("get_failed")
K_REMOVE_FAILED = CALLS.at("remove_failed")
K_NO_DEFAULT = CALLS.at("no_default")
K_PUTS = CALLS.at("puts")
K_PUT_ERRORS = CALLS.at("put_errors")
K_BYTES_TX = CALLS.at("bytes_tx")
K_PUT_NS = CALLS.at("put_ns")
K_PUT_PAGES = CALLS.at("put_pages")
K_GETS = CALLS.at("gets")
K_MISSES = CALLS.at("misses")
K_BYTES_RX = CALLS.at("bytes_rx")
K_GET_NS = CALLS.at("get_ns")
K_GET_PAGES = CALLS.at("get_pages")
K_NEW = CALLS.at("new")

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
#: One of so many calls is timed, and not the first. It takes longer, in code that is rarely run: were it one of a
#: hundred or more, it would be the p99 of all.
TIMED = tl.constexpr(256)
TRIES = tl.constexpr(16)  #: how often a reader starts over because the object was replaced while it read
TYPE_OFFSET = 8  #: bytes from an object's address to the address of its type, as CPython's macro Py_TYPE has it
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
R_OUTBOXES = ROUNDS.at("outboxes")
R_OUTBOX_COUNT = ROUNDS.at("outbox_count")

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
