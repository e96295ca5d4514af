"""Mutants of labels, quotas and generations."""

from nanokv.check.protocol.model.mutants.mutant import mutant
from nanokv.device.protocol import generations, label, quotas
from nanokv.host_poller import labels

mutant(
    "label-unflagged",
    "a label is written, and nothing says that it is there",
    ("expired",),
    (label.label, '    store64(header + H_FLAGS, flags | FLAG_LABEL, "relaxed")\n', ""),
)
mutant(
    "label-of-another",
    "the sweeper believes the label of a slot, whichever object wrote it",
    ("expired-replaced",),
    (labels.labelled, "np.flatnonzero(words & FLAG_LABEL.value)", "np.flatnonzero(words | FLAG_LABEL.value)"),
)
mutant(
    "label-of-any-epoch",
    "the sweeper removes the object that is in the slot now, not the one whose label it read",
    ("expired-replaced",),
    (
        labels.Labels.look,
        "*part.life(at)",
        'at, int(self._machine.headers(self._rank, at, 1)["epoch"][0])',
    ),
)
mutant(
    "quota-over-another",
    "a host that finds a row taken does not look on",
    ("quotas",),
    (
        quotas.set_quota,
        'if cas64(at, seen, quota, "relaxed") == seen:',
        'if cas64(at, seen, quota, "relaxed") != quota:',
    ),
)
mutant(
    "quota-in-any-row",
    "a host that finds a row taken takes the next one, also for the same identity",
    ("quotas",),
    (
        quotas.set_quota,
        "            # else the row",
        "            else:\n                at += WORD_BYTES\n            # else the row",
    ),
)
mutant(
    "generation-believed",
    "a host takes the number that it wanted, also if another one was there first",
    ("generations",),
    (generations.raise_generation, "raised = select(found == seen, wanted, -1)", "raised = wanted"),
)
mutant(
    "generation-goes-back",
    "a host that hears of a generation stores it, also over a later one",
    ("generations",),
    (generations.raise_generation, "select(seen < at_least, at_least, seen)", "select(more == 0, at_least, seen)"),
)
