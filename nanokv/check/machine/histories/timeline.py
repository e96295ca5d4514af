"""A history that is not linearizable, for people: the last operations of its shortest prefix, one per line.

    thread 1  put(7)           |-------|            OK
    thread 0  get()                |-------|        MISS
    thread 2  get()                          |---|  9        <- fits no order

Columns are calls and returns in their order, not times.
"""

from collections.abc import Sequence

from nanokv.check.machine.histories.linearizability import NEVER, Operation, State, Step, check, shortest_prefix

LINES = 14  #: operations shown at most
COLUMN = 2  #: characters from one call or return to the next


def explain(history: Sequence[Operation], step: Step, initial: State, most: int) -> str:
    """Why a history is not linearizable: its shortest prefix that is not, how far an order got, and a timeline."""
    prefix = shortest_prefix(history, step, initial, most)
    furthest = check(prefix, step, initial, most)
    offender = max((op for op in prefix if op.returned != NEVER), key=lambda op: op.returned)
    shown = sorted(prefix, key=lambda op: (op not in furthest.left, -op.returned, -op.called))[:LINES]
    return (
        f"{furthest.done} of {len(prefix)} operations fit an order, to the state {furthest.state}; then none fits\n"
        + draw(sorted(shown, key=lambda op: op.called), offender)
    )


def draw(operations: Sequence[Operation], offender: Operation | None = None) -> str:
    """Operations as lines of a timeline."""
    moments = sorted({time for op in operations for time in (op.called, op.returned)})
    column = {time: COLUMN * at for at, time in enumerate(moments)}
    names = [f"{op.caller}  {op.call}({op.value if op.call == 'put' else ''})" for op in operations]
    width = max(map(len, names), default=0)
    lines = []
    for name, op in zip(names, operations, strict=True):
        start, end = column[op.called], column[op.returned]
        bar = " " * start + "|" + "-" * (end - start - 1) + ("…" if op.returned == NEVER else "|")
        answer = "killed, or not over" if op.returned == NEVER else op.answer
        answer = str(op.value) if op.call == "get" and op.value and op.answer == "OK" else answer
        mark = "  <- fits no order" if op is offender else ""
        lines.append(f"    {name:<{width}}  {bar:<{COLUMN * len(moments)}}  {answer}{mark}")
    return "\n".join(lines)
