"""Mutants of tickets, and of objects that are put or read in parts."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import cooperative, ticket

mutant(
    "first-part-finishes",
    "the first CTA that has done its part commits the object",
    ("put-parts-read", "put-parts"),
    (ticket.is_last, "== parts - 1", "== 0"),
)
mutant(
    "everybody-begins",
    "each CTA begins the object by itself",
    ("put-parts",),
    (ticket.is_first, "== 0", "!= -1"),
)
mutant(
    "ticket-stays",
    "a ticket is left as it is after the launch",
    ("put-parts",),
    (ticket.clear, '        store64(ticket + T_STAGE, word(0), "relaxed")\n', ""),
)
mutant(
    "spoiled-put-commits",
    "an object is committed, of which one part was not stored",
    ("put-parts",),
    (cooperative.finish_put_part, "if is_spoiled(ticket, parts):", "if status != status:"),
)
mutant(
    "spoiled-get-is-ok",
    "a read is answered OK, of which one part was not copied",
    ("get-parts",),
    (cooperative.finish_get_part, "if is_spoiled(ticket, parts):", "if status != status:"),
)
mutant(
    "size-unchecked",
    "an object of another size is copied into the destination",
    ("get-parts-size",),
    (cooperative.is_wanted, "nbytes == table64(request + Q_BYTES)", "nbytes == nbytes"),
)
