"""How members protect what they send each other: `ClusterOptions.seal`."""

HEADS = "heads"  #: a MAC over questions, answers and small objects; nothing is enciphered
ALL = "all"  #: all bytes are enciphered, and covered
SEALS = (HEADS, ALL)


def other_seal(its: str, mine: str) -> str:
    """What is said of a member with another seal."""
    return f"its seal is {its!r}, this member's {mine!r}: give all members of a cluster the same `seal`"
