"""Mutants of puts from another host: the owner's production code, and its device functions."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.cluster import pulling
from nanokv.device.fabric import pulls

AWAITED = "return self._end(well=number == self._question.number)"
THEN_ASK = "self._step = self._look_at_ticket"

# --- the ticket ---
mutant(
    "pull-unasked",
    "a pull commits without reading the producer's ticket",
    ("pull",),
    (pulling.Pull._await_bytes, THEN_ASK, "return self._end(well=True)"),
)
mutant(
    "pull-asks-first",
    "a pull reads the producer's ticket before the bytes",
    ("pull",),
    (pulling.Pull._make_room, "self._step = self._begin", THEN_ASK),
    (
        pulling.Pull._await_ticket,
        AWAITED,
        "self._awaited, self._step = number == self._question.number, self._begin\n    return None",
    ),
    (pulling.Pull._await_bytes, THEN_ASK, "return self._end(well=self._awaited)"),
)

# --- transfers that end late, or badly ---
mutant(
    "pull-frees-early",
    "a pull frees the pages of an object while its transfer may still write to them",
    ("pull", "pull-swept"),
    (
        pulling.Pull.abandon,
        "self._puller.keep(self._lot, transfer, self._sender, self._question.number)",
        "self._puller.end(self._lot, well=False)",
    ),
)
mutant(
    "pull-commits-late",
    "a pull that was given up commits what has come in the end",
    ("pull",),
    (pulling.Puller.look_at_late, "self.end(pulls, well=False)", "self.end(pulls, well=True)"),
)
mutant(
    "pull-commits-failed",
    "a pull commits the bytes of a transfer that has failed",
    ("pull", "pull-swept"),
    (pulling.Pull._await_bytes, "if state == State.DONE:", "if state != State.MOVING:"),
)
mutant(
    "pull-no-plan",
    "no flag says that the owner's transfer may write after any grace period",
    ("pull-swept",),
    (pulls.begin_each, "FLAG_PLAN, now_ns()", "0, now_ns()"),
)

# --- what is claimed, moved and sealed ---
mutant(
    "pull-moves-duplicates",
    "bytes are moved for a key that is taken",
    ("pull-same-key", "pull-many"),
    (pulls.rows_of_pulls, "(field(pull, P_STATUS) == OK) & ", ""),
)
mutant(
    "pull-stays-counted",
    "an object that is begun stays counted as an operation of the owner",
    ("pull", "pull-swept"),
    (pulls.begin_each, "            leave(world, segment(world, owner), begun.phase)\n", ""),
)
mutant(
    "pull-unsealed",
    "a pull commits objects without the checksum that readers insist on",
    ("pull-many",),
    (pulls.end_each, "if world.checksum != 0:", "if world.checksum != world.checksum:"),
)
