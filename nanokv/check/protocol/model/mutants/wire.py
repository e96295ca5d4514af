"""Mutants of the wire: the owner's loop, and what it believes of a frame."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.wire import frames, owner

_COPIES = "        copy_pulls(world, pulls, count, pulls + count * PULL_BYTES)\n"
_JUDGES = "if piece > 0:\n            judge(world, connection, piece - 1,"
_END = "        end_all(world, box, pulls, count, word(1))\n"
_TELLS = "        answer_pulls(connection, word(PUT_DONE), pulls, count)\n"

# --- frames -----------------------------------------------------------------------------------
mutant(
    "wire-takes-again",
    "a frame that is authentic is taken again, whatever its number",
    ("wire-replay",),
    (frames.is_authentic, "(differs == 0) & (of(frame, NUMBER) == number)", "differs == 0"),
)
mutant(
    "wire-takes-half",
    "a frame is acted on when its head is there",
    ("wire-put",),
    (owner.take_in, "(need > 0) & (have == need)", "have >= HEAD_BYTES"),
)

# --- puts -------------------------------------------------------------------------------------
mutant(
    "wire-commits-half",
    "what a connection had begun is committed when it ends",
    ("wire-offer",),
    (owner.give_up, "end_all(world, box, pulls, count, word(0))", "end_all(world, box, pulls, count, word(1))"),
)
mutant(
    "wire-gives-up-nothing",
    "what a connection had begun stays when it ends",
    ("wire-offer",),
    (owner.give_up, "        end_all(world, box, pulls, count, word(0))\n", ""),
)
mutant(
    "wire-commits-early",
    "objects whose bytes are in their question are committed before these are in their pages",
    ("wire-put",),
    (
        owner.take_claimed,
        f"{_COPIES}        kind = word(PUT_DONE)\n    else:",
        f"{_END}{_COPIES}        answer_pulls(connection, word(PUT_DONE), pulls, count)\n        return\n    else:",
    ),
)
mutant(
    "wire-answers-first",
    "a put is answered before it is known whether its objects could be committed",
    ("wire-swept",),
    (owner.take_question, _END + _TELLS, _TELLS + _END),
)
mutant(
    "wire-reads-on",
    "after some bytes of objects the next ones are taken for a frame",
    ("wire-same-key",),
    (
        owner.stream_in,
        "(piece == count) & (of(connection, C_STATE) == STREAMING)",
        "of(connection, C_STATE) == STREAMING",
    ),
)
mutant(
    "wire-fills-refused",
    "bytes are received for an object that was refused",
    ("wire-same-key",),
    (owner.stream_in, "select(of(pull, P_STATUS) == OK, of(pull, P_NBYTES), word(0))", "of(pull, P_NBYTES)"),
)

# --- gets -------------------------------------------------------------------------------------
mutant(
    "wire-not-validated",
    "an object that was found counts, whatever has become of it",
    ("wire-get", "wire-get-stream"),
    (
        owner.judge,
        "verify(world, Found(owner, slot, epoch, payload, of(got, G_NBYTES)), key_at(one), there)",
        "word(OK)",
    ),
)
mutant(
    "wire-judges-first",
    "an object is validated before its bytes are sent",
    ("wire-get-stream",),
    (owner.advance, _JUDGES, _JUDGES.replace("piece > 0", "piece < count").replace("piece - 1", "piece")),
)
