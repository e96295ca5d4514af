"""The benchmark that takes a put step by step does the same steps as a put, in the same order."""

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

from nanokv.bench.gpu import steps
from nanokv.device.protocol import put

#: conditions of a put that are true only when something has failed
FAILURES = (
    "page < 0",
    "slot < 0",
    "not publish(",
    "not undo(",
    "status == FULL",
    "status != OK",
    "(status != OK) & (status != LOST)",
)
PURE = {"class_of", "extent_for", "home_of", "state_word"}  #: functions of the protocol that touch no shared word
WHOLE = {"allocate", "finish_in", "commit_in"}  #: functions of `put` whose own steps are compared


def test_steps_of_the_benchmark_are_those_of_a_put() -> None:
    assert steps_of_the_benchmark() == steps_of_a_put(inspect.getsource(put))


def test_another_order_is_noticed() -> None:
    source = inspect.getsource(put)
    claim = "            status = claim_at(world, home, start, owner, slot, epoch, key)\n"
    reserve = "            reserve(world, seg, slot, epoch, key, flags)\n"
    assert reserve + claim in source
    assert steps_of_the_benchmark() != steps_of_a_put(source.replace(reserve + claim, claim + reserve))
    assert steps_of_the_benchmark() != steps_of_a_put(source.replace(claim, ""))
    assert steps_of_the_benchmark() != steps_of_a_put(source.replace(claim, claim + claim))


def steps_of_the_benchmark() -> list[str]:
    """The steps that it times, without the removal behind them; there is a name for each clock between two of them."""
    function = functions(inspect.getsource(steps))["put_in_steps"]
    *found, removal = usual_steps(function, {}, protocol_names(steps))
    assert removal == "remove_slot"
    clocks = [call for call in usual_calls(function.body) if ast.unparse(call) == "cycles()"]
    assert len(clocks) == len(steps.NAMES) + 1
    return found


def steps_of_a_put(source: str) -> list[str]:
    known = functions(source)
    return [step for name in ("begin", "finish") for step in usual_steps(known[name], known, protocol_names(put))]


def functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def protocol_names(module: ModuleType) -> set[str]:
    """The functions of the protocol that a module names."""
    return {
        name
        for name, value in vars(module).items()
        if hasattr(value, "fn") and value.fn.__module__.startswith("nanokv.device.protocol.") and name not in PURE
    }


def usual_steps(function: ast.FunctionDef, known: dict[str, ast.FunctionDef], names: set[str]) -> Iterator[str]:
    """The calls of the protocol that a function makes when nothing fails."""
    for call in usual_calls(function.body):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in WHOLE and name in known:
            yield from usual_steps(known[name], known, names)
        elif name in names:
            yield name


def usual_calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Every call, in the order of the source, that is made when nothing fails."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from calls(statement.test)
            failed = ast.unparse(statement.test).startswith(FAILURES)
            yield from usual_calls(statement.orelse if failed else statement.body)
        else:
            yield from calls(statement)


def calls(node: ast.AST) -> list[ast.Call]:
    found = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))
