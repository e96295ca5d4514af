"""Makes docs/layout.md from the tables of `layout`: `python -m nanokv.device.segment.layout_table`."""

import numpy as np

from nanokv.device.segment.layout import BITS, RECORDS, VERSION
from nanokv.device.segment.world_table import WORLD


def table() -> str:
    """The whole of docs/layout.md."""
    lines = [
        "# The bytes of a segment",
        "",
        f"Layout version {VERSION}. Made by `python -m nanokv.device.segment.layout_table`; a test compares.",
        "Offsets and sizes in bytes, words little-endian.",
    ]
    for record in (*RECORDS, WORLD):
        lines += [
            "",
            f"## {record.name}, {record.size} bytes",
            "",
            "| offset | bytes | field | what |",
            "|---|---|---|---|",
        ]
        for field in record.fields:
            size = np.dtype(field.kind).itemsize * field.repeat
            lines.append(f"| {record.offsets[field.name]} | {size} | `{field.name}` | {field.doc} |")
    lines += ["", "## Packed words", "", "| word | bits | field | what |", "|---|---|---|---|"]
    lines += [f"| {b.word} | {b.shift}..{b.shift + b.width - 1} | {b.name} | {b.doc} |" for b in BITS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
