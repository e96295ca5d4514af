"""All questions by name: the modules in `bench/questions`. Each is imported when it is asked for."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from nanokv.bench import questions

if TYPE_CHECKING:  # a question imports torch, and names are all that --help needs
    from nanokv.bench.suite.question import Question

#: as they are asked and reported; a question that is not named here comes after these
ORDER = (
    *(
        "latency",
        "load",
        "burst",
        "throughput",
        "many",
        "scaling",
        "overlap",
        "pages",
        "peers",
        "cluster",
        "connections",
    ),
    *("steps", "alloc", "plan", "announce", "ingest", "wait", "imports", "memory"),
    *("full", "crowd", "replicas", "space", "pieces", "sweep"),
)


def names() -> list[str]:
    """The names of all questions, in order."""
    found = {module.name for module in iter_modules(questions.__path__)}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def question(name: str) -> "Question":
    """The question with this name.

    Raises:
        KeyError: there is none.
    """
    if name not in names():
        raise KeyError(name)
    found: Question = import_module(f"{questions.__name__}.{name}").QUESTION
    return found
