"""CortexStream's picture of the blocks."""

from collections.abc import Iterable

WIDTH = 64  #: blocks a line


def block_map(total: int, used: Iterable[tuple[int, int]], fragmentation: float) -> str:
    """The map of `total` blocks, of which the runs `used`, (start, blocks) each, are taken."""
    marks = bytearray(b"." * total)
    for start, blocks in used:
        marks[start : start + blocks] = b"X" * blocks
    taken = marks.count(b"X")
    lines = [marks[at : at + WIDTH].decode() for at in range(0, total, WIDTH)]
    return "\n".join(
        [
            "KVBlockAllocator State:",
            f"  Total blocks: {total}",
            f"  Used: {taken} Free: {total - taken}",
            f"  Fragmentation: {fragmentation:.2f}",
            "  Block map (. = free, X = used):",
            *(f"    {line}" for line in lines),
            "",
        ]
    )
