"""The bytes of a frame, and what native code and Python tell each other of a connection.

    HEAD | records | payload, filled up to a whole word | MAC, two words

The MAC (`siphash`) is of all that precedes it, under the key of this direction of this connection; of a payload above
COVERED bytes it is not. HEAD.number counts the frames of the direction. So a frame is taken once, in its place, on its
connection, by its addressee, or not at all.

    question   records   payload                        answer     records   payload
    PUT        PULLs     their bytes, side by side      PUT_DONE   PULLEDs
    OFFER      PULLs                                    GO         PULLEDs
      after GO: the bytes of all PULLs that are OK, side by side, outside of any frame; then
    END                                                 PUT_DONE   PULLEDs
    GET        WANTEDs                                  GOT        GOTs      the bytes of those that are OK; and then a
                                                                             status each, which alone counts
    REMOVE     KEYs                                     STATUSES   words
    EXISTS     KEYs                                     STATUSES   words
    CALL                 a body; HEAD.count: its kind   CALLED               a body; HEAD.more: 1 if it is an error

Bytes that follow an OFFER, and those of a GOT above MOST_INLINE (HEAD.more is 0), are in no frame, and not covered. A
body of CALL or CALLED is covered whole.

On a sealed connection all of this, frames and bytes outside of them, is one stream, which goes in parcels (`parcels`):

    PARCEL | up to MOST_PARCEL bytes of the stream, enciphered

A parcel ends anywhere in it. MACs of frames are zero there: each parcel has a tag, of all its bytes.
"""

import triton.language as tl

from nanokv.device.fabric.records import PULL, PULLED
from nanokv.device.native.sockets import MESSAGE_WORDS
from nanokv.device.segment.layout import MAX_DIMS, WORD
from nanokv.device.segment.record import Field, Record
from nanokv.device.wire.siphash import STATE_WORDS

HEAD = Record(
    "Head",
    WORD,
    [
        Field("kind", "<u4", "what the frame is"),
        Field("count", "<u4", "how many records; of CALL and CALLED: the kind of the message"),
        Field("number", "<i8", "of this frame, of its direction, from 1"),
        Field("payload", "<i8", "bytes of the payload"),
        Field("more", "<i8", "of GOT: 1 if the payload is part of the frame; of CALLED: 1 if the body is an error"),
    ],
)
WANTED = Record(
    "Wanted",
    WORD,
    [
        Field("key_hash", "<i8", "low half of the key's digest"),
        Field("key_check", "<i8", "high half of the key's digest"),
        Field("room", "<i8", "bytes that the object must have; with ANY_SIZE: that it may have"),
        Field("what", "<i8", "the descriptor that it must have; a `format` of 0: any", repeat=1 + MAX_DIMS),
        Field("any_size", "<i8", "1: it may have fewer bytes than there is room for"),
    ],
)
GOT = Record(
    "Got",
    WORD,
    [
        Field("status", "<i8", "OK; SIZE: it does not suit; or why there is no object"),
        Field("nbytes", "<i8", "bytes of the object"),
        Field("what", "<i8", "its descriptor", repeat=1 + MAX_DIMS),
        Field("rank", "<i8", "where it lies: rank"),
        Field("slot", "<i8", "header slot"),
        Field("epoch", "<i8", "of the header"),
        Field("payload", "<i8", "offset of the first page"),
    ],
)
KEY = Record("WireKey", WORD, [Field("hash", "<i8", "low half of a digest"), Field("check", "<i8", "high half")])

PARCEL = Record(
    "Parcel",
    WORD,
    [Field("size", "<i8", "bytes behind it"), Field("tag", "<i8", "of AES-256-GCM, over these", repeat=2)],
)
LIBCRYPTO = Record(
    "Libcrypto",
    WORD,
    [
        Field("init", "<i8", "address of EVP_CipherInit_ex"),
        Field("update", "<i8", "EVP_CipherUpdate"),
        Field("final", "<i8", "EVP_CipherFinal_ex"),
        Field("control", "<i8", "EVP_CIPHER_CTX_ctrl"),
    ],
)

# kinds of frames: never renumber them
PUT, OFFER, END, GET, REMOVE, EXISTS, CALL = (tl.constexpr(i) for i in range(1, 8))
PUT_DONE, GO, GOT_THEM, STATUSES, CALLED = (tl.constexpr(i) for i in range(17, 22))

MOST_CONNECTIONS = 4096  #: of an owner
MOST_RECORDS = 256  #: PULLs or WANTEDs of a frame
MOST_KEYS = 4096  #: of a REMOVE or EXISTS
MOST_INLINE = 64 * 1024  #: bytes of a payload that is part of its frame
MOST_CALLED = 1 << 26  #: bytes of the body of a CALLED
MAC = 16
PAGE = 4096
FRAME_ROOM = HEAD.size + max(MOST_RECORDS * PULL.size + MOST_INLINE, MOST_KEYS * KEY.size) + WORD + MAC
MOST_CALL = FRAME_ROOM - HEAD.size - WORD - MAC  #: bytes of the body of a CALL
#: the rooms of a connection, one behind the other, each of whole pages: input, output, pulls
INPUT_ROOM = OUTPUT_ROOM = -(-FRAME_ROOM // PAGE) * PAGE
PULLS_ROOM = -(-MOST_RECORDS * PULL.size // PAGE) * PAGE
ROOMS = INPUT_ROOM + OUTPUT_ROOM + PULLS_ROOM
#: the room of a sealed connection for one parcel, of either direction: behind the others
PARCEL_ROOM = 17 * PAGE
MOST_PARCEL = PARCEL_ROOM - PARCEL.size  #: bytes in it: a frame with an object of 64 KiB
SEALED_ROOMS = ROOMS + PARCEL_ROOM
VECTORS_A_CALL = 16  #: struct iovec of one `sendmsg`
CIPHER_KEY, NONCE = 32, 12  #: bytes
assert HEAD.size + MOST_RECORDS * (GOT.size + WORD) + MOST_INLINE + WORD + MAC <= FRAME_ROOM

CONNECTION = Record(
    "Connection",
    WORD,
    [
        Field("fd", "<i8", "the socket; -1: none"),
        Field("state", "<i8", "of the owner's end: READING and the like"),
        Field("seen", "<i8", "frames that have come"),
        Field("sent", "<i8", "frames that went"),
        Field("key_in", "<i8", "key of what comes", repeat=2),
        Field("key_out", "<i8", "key of what goes", repeat=2),
        Field("input", "<i8", "address of room for a frame"),
        Field("have", "<i8", "bytes of it that have come"),
        Field("need", "<i8", "bytes that it has; 0: not known yet"),
        Field("output", "<i8", "address of room for a frame"),
        Field("first", "<i8", "address of the first piece that goes: `output`, or a body of the host's"),
        Field("pulls", "<i8", "address of room for the PULLs that are open"),
        Field("open", "<i8", "how many"),
        Field("count", "<i8", "of the objects that go behind the first piece, as a stream"),
        Field("piece", "<i8", "of what moves: 0 the first, then each object, then the end"),
        Field("at", "<i8", "bytes of the piece that have moved"),
        Field("last", "<i8", "bytes of the end; 0: it is not made yet"),
        Field("head", "<i8", "bytes of the first piece"),
        Field("waits", "<i8", "1: the loop waits until more can go"),
        Field("hosted", "<i8", "1: it is the host's, and the loop does not look at it"),
        Field("grown", "<i8", "1: more than the first pages of its rooms were used since they were last given back"),
        Field("since", "<i8", "ns: the last time that a byte moved"),
        Field("mac", "<i8", "state of a MAC", repeat=STATE_WORDS),
        Field("asked", "<i8", "the asker's: address of a word; not 0: stop waiting"),
        Field("timeout", "<i8", "the asker's: ns that an exchange may take beside its bytes"),
        Field("spin", "<i8", "the asker's: ns that it looks for an answer before it sleeps"),
        Field("libcrypto", "<i8", "address of a LIBCRYPTO; 0: it is not sealed, and nothing of the next is used"),
        Field("opens", "<i8", "address of the EVP_CIPHER_CTX of what comes"),
        Field("seals", "<i8", "of what goes"),
        Field("opened", "<i8", "parcels that have come, under all keys"),
        Field("sealed", "<i8", "parcels that were made"),
        Field("each", "<i8", "parcels of one direction, after which it has another key"),
        Field("parcel", "<i8", "address of room for a parcel"),
        Field("come", "<i8", "bytes that have come of a parcel which is not whole"),
        Field("left", "<i8", "bytes of the parcel that are opened, and not taken yet: its last ones"),
        Field("left_at", "<i8", "where they are in it"),
        Field("going", "<i8", "bytes of the parcel that goes; 0: none does"),
        Field("gone", "<i8", "how many of them have gone"),
        Field("nonce", "<i8", "room for a nonce", repeat=2),
        Field("key", "<i8", "room for the next key", repeat=CIPHER_KEY // WORD),
        Field("moved", "<i8", "room for an int"),
        Field("message", "<i8", "room for a struct msghdr", repeat=MESSAGE_WORDS),
        Field("vectors", "<i8", "room for struct iovec", repeat=2 * VECTORS_A_CALL),
    ],
)

SERVE = Record(
    "Serve",
    WORD,
    [
        # set by the host
        Field("epoll", "<i8", "file descriptor"),
        Field("events", "<i8", "address of room for MOST_EVENTS events"),
        Field("connections", "<i8", "address of CONNECTIONs"),
        Field(
            "serves", "<i8", "0: there are no objects to ask for, as native code cannot reach their memory: CALL alone"
        ),
        Field("most", "<i8", "bytes that an object may have"),
        Field("sizes", "<i8", "address of words: bytes of an element by dtype code; 0: no such code"),
        Field("calls", "<i8", "address of a CALLS record: which rank gets an object, and whether it has memory for it"),
        Field("patience", "<i8", "ns without a byte after which what has begun is given up"),
        Field("spin", "<i8", "ns that the loop looks for more before it sleeps"),
        Field("futex", "<i8", "number of the system call"),
        Field("bell", "<i8", "address of the world's `waiting` word"),
        Field("queue", "<i8", "address of words, as many as connections: numbers of those that the host must see"),
        Field("host", "<i8", "descriptor of an eventfd, to which a 1 is added for each"),
        Field("stop", "<i8", "not 0: the loop ends at its next tick"),
        Field("used", "<i8", "CONNECTIONs from the first one that may have a socket"),
        # the loop's own
        Field("one", "<i8", "the word 1"),
        Field("ranks", "<i8", "as bits: whose pollers must be woken"),
        Field("event", "<i8", "room for an event", repeat=2),
        Field("queued", "<i8", "connections that were put into the queue, ever"),
        # counts
        Field("puts", "<i8", "objects put"),
        Field("gets", "<i8", "objects looked for"),
        Field("removals", "<i8", "objects removed"),
        Field("bad", "<i8", "frames that were none, each of which ended its connection"),
        Field("silent", "<i8", "connections that ended because no byte came, or went, for `patience`"),
        Field("given_up", "<i8", "objects given up because their bytes did not come"),
    ],
)
MOST_EVENTS = tl.constexpr(64)
BELL = tl.constexpr(-1)  #: what an event is about that is of no connection: the host has something to say

# states of the owner's end of a connection
READING, STREAMING, SENDING, HOSTED, GONE = (tl.constexpr(i) for i in range(5))
# how an exchange ended, for the asker
DONE, BROKEN, LATE, WRONG = (tl.constexpr(i) for i in (0, -1, -2, -3))
FORGED = tl.constexpr(-4)  #: what `take` answers for a parcel that the other end has not made, or not as the next one

COVERED = tl.constexpr(4096)  #: bytes of a payload that the MAC covers; of a larger one it covers nothing
HEAD_BYTES, WANTED_BYTES, GOT_BYTES, KEY_BYTES = (
    HEAD.size_constant(),
    WANTED.size_constant(),
    GOT.size_constant(),
    KEY.size_constant(),
)
CONNECTION_BYTES, PULLED_SIZE = CONNECTION.size_constant(), PULLED.size_constant()
MAC_BYTES, INLINE, RECORDS, KEYS = (tl.constexpr(n) for n in (MAC, MOST_INLINE, MOST_RECORDS, MOST_KEYS))
MOST, ALL_ROOMS = tl.constexpr(MOST_CONNECTIONS), tl.constexpr(ROOMS)
ALL_SEALED_ROOMS = tl.constexpr(SEALED_ROOMS)
PARCEL_HEAD, IN_PARCEL, KEY_SIZE = PARCEL.size_constant(), tl.constexpr(MOST_PARCEL), tl.constexpr(CIPHER_KEY)
BODY, CALL_BODY = tl.constexpr(MOST_CALLED), tl.constexpr(MOST_CALL)
ROOM, VECTORS = tl.constexpr(FRAME_ROOM), tl.constexpr(VECTORS_A_CALL)
MESSAGE_BYTES = tl.constexpr(MESSAGE_WORDS * WORD)

NUMBER, PAYLOAD, MORE = HEAD.at("number"), HEAD.at("payload"), HEAD.at("more")
W_HASH, W_CHECK, W_ROOM, W_WHAT, W_ANY_SIZE = (
    WANTED.at("key_hash"),
    WANTED.at("key_check"),
    WANTED.at("room"),
    WANTED.at("what"),
    WANTED.at("any_size"),
)
G_STATUS, G_NBYTES, G_WHAT = GOT.at("status"), GOT.at("nbytes"), GOT.at("what")
G_RANK, G_SLOT, G_EPOCH, G_PAYLOAD = GOT.at("rank"), GOT.at("slot"), GOT.at("epoch"), GOT.at("payload")

C_FD, C_STATE, C_SEEN, C_SENT = (
    CONNECTION.at("fd"),
    CONNECTION.at("state"),
    CONNECTION.at("seen"),
    CONNECTION.at("sent"),
)
C_KEY_IN, C_KEY_OUT = CONNECTION.at("key_in"), CONNECTION.at("key_out")
C_INPUT, C_HAVE, C_NEED = CONNECTION.at("input"), CONNECTION.at("have"), CONNECTION.at("need")
C_OUTPUT, C_FIRST = CONNECTION.at("output"), CONNECTION.at("first")
C_PULLS, C_OPEN, C_COUNT = CONNECTION.at("pulls"), CONNECTION.at("open"), CONNECTION.at("count")
C_PIECE, C_AT, C_LAST, C_HEAD = (
    CONNECTION.at("piece"),
    CONNECTION.at("at"),
    CONNECTION.at("last"),
    CONNECTION.at("head"),
)
C_HOSTED, C_GROWN = CONNECTION.at("hosted"), CONNECTION.at("grown")
C_WAITS, C_SINCE, C_MAC = CONNECTION.at("waits"), CONNECTION.at("since"), CONNECTION.at("mac")
C_ASKED, C_TIMEOUT, C_SPIN = CONNECTION.at("asked"), CONNECTION.at("timeout"), CONNECTION.at("spin")
C_LIBCRYPTO, C_OPENS, C_SEALS = CONNECTION.at("libcrypto"), CONNECTION.at("opens"), CONNECTION.at("seals")
C_OPENED, C_SEALED, C_EACH = CONNECTION.at("opened"), CONNECTION.at("sealed"), CONNECTION.at("each")
C_PARCEL, C_COME, C_LEFT, C_LEFT_AT = (
    CONNECTION.at("parcel"),
    CONNECTION.at("come"),
    CONNECTION.at("left"),
    CONNECTION.at("left_at"),
)
C_GOING, C_GONE = CONNECTION.at("going"), CONNECTION.at("gone")
C_NONCE, C_KEY, C_MOVED = CONNECTION.at("nonce"), CONNECTION.at("key"), CONNECTION.at("moved")
L_INIT, L_UPDATE, L_FINAL, L_CONTROL = (
    LIBCRYPTO.at("init"),
    LIBCRYPTO.at("update"),
    LIBCRYPTO.at("final"),
    LIBCRYPTO.at("control"),
)
SIZE_OF_PARCEL, TAG = PARCEL.at("size"), PARCEL.at("tag")
C_MESSAGE, C_VECTORS = CONNECTION.at("message"), CONNECTION.at("vectors")

S_EPOLL, S_EVENTS, S_CONNECTIONS = SERVE.at("epoll"), SERVE.at("events"), SERVE.at("connections")
S_SERVES, S_MOST, S_SIZES, S_CALLS = SERVE.at("serves"), SERVE.at("most"), SERVE.at("sizes"), SERVE.at("calls")
S_PATIENCE, S_SPIN, S_FUTEX, S_BELL = SERVE.at("patience"), SERVE.at("spin"), SERVE.at("futex"), SERVE.at("bell")
S_QUEUE, S_QUEUED, S_HOST, S_ONE = SERVE.at("queue"), SERVE.at("queued"), SERVE.at("host"), SERVE.at("one")
S_STOP, S_USED, S_RANKS, S_EVENT = SERVE.at("stop"), SERVE.at("used"), SERVE.at("ranks"), SERVE.at("event")
S_PUTS, S_GETS, S_REMOVALS = SERVE.at("puts"), SERVE.at("gets"), SERVE.at("removals")
S_BAD, S_SILENT, S_GIVEN_UP = SERVE.at("bad"), SERVE.at("silent"), SERVE.at("given_up")
