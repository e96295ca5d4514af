"""Mutants of the table of layouts."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import layouts

mutant(
    "row-stored",
    "a host that finds a row of the table of layouts empty stores its word instead of exchanging it",
    ("layouts",),
    (
        layouts.write_layout,
        'seen = cas64(at, 0, mine, "relaxed")',
        'seen = load64(at, "relaxed")\n        if seen == 0:\n            store64(at, mine, "relaxed")',
    ),
)
mutant(
    "row-left",
    "a host leaves a row of the table of layouts to the one that has taken it",
    ("layouts-die",),
    (layouts.write_layout, "while i < LAYOUT_BYTES:", "while (i < LAYOUT_BYTES) & (seen == 0):"),
)
