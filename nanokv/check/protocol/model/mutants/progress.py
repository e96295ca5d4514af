"""Mutants that wait for another task: each must be noticed because no operation ends any more (I6)."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import claim, remove, ring

mutant(
    "turnstile-locks",
    "the turnstile is a lock: a producer that dies or sleeps in it stops every other producer of the bucket",
    ("same-key", "put-dies"),
    (
        claim.claim_at,
        '        add64(turn_at(world, seg, key.hash), 1, "acq_rel")\n',
        '        turn = turn_at(world, seg, key.hash)\n        while cas64(turn, 0, 1, "acquire") != 0:\n'
        "            status = status + 0\n",
    ),
)
mutant(
    "full-ring-waits",
    "a producer that finds its slot of the ring taken waits for the host",
    ("ring-count", "ring"),
    (
        ring.announce,
        'got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
        'got = word(1)\n    while got != 0:\n        got = cas64(ring_slot(world, seg, ticket), 0, said, "release")',
    ),
)
mutant(
    "removal-waits-for-pins",
    "a removal waits until the object has no pins",
    ("pin-dies", "pin"),
    (
        remove.remove_slot,
        "    seen = kill(header, READY, epoch)\n",
        "    seen = kill(header, READY, epoch)\n"
        "    while (seen & PIN_BITS) != 0:\n"
        "        seen = kill(header, READY, epoch)\n",
    ),
)
