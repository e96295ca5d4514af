"""The output while the demo runs: a bar per prompt on a terminal, a line per prompt elsewhere."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nanokv.demo.prompts import whole_blocks

COUNTS = "{put:>3} put  {reused:>3} reused  {tokens:>3} tokens"


class PromptProgress:
    """Follows the messages of prefill and decode, for one run of all prompts."""

    def __init__(self, console: Console, title: str, prompts: list[list[int]], tokens: int) -> None:
        self._console = console
        self._title = title
        self._totals = [whole_blocks(prompt) + tokens for prompt in prompts]
        self._counts = [{"put": 0, "reused": 0, "tokens": 0} for _ in prompts]
        self._bars: Progress | None = None
        self._tasks: list[TaskID] = []
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[counts]}"))
            self._bars = Progress(*columns, TimeElapsedColumn(), console=console)
            for number, total in enumerate(self._totals):
                self._tasks.append(self._bars.add_task(self._name(number), total=total, counts=self._text(number)))

    def _name(self, number: int) -> str:
        return f"{self._title}  prompt {number}"

    def _text(self, number: int) -> str:
        return COUNTS.format(**self._counts[number])

    def see(self, message: dict[str, Any]) -> None:
        """Count a message of a worker; messages that are no progress are ignored."""
        counted = {"put": "put", "reused": "reused", "token": "tokens"}.get(message["event"])
        if counted is None:
            return
        number = message["prompt"]
        counts = self._counts[number]
        counts[counted] += message.get("blocks", 1)
        if self._bars is not None:
            self._bars.update(self._tasks[number], completed=sum(counts.values()), counts=self._text(number))
        elif sum(counts.values()) == self._totals[number]:  # the last message of two processes has come
            self._console.print(f"{self._name(number)}: {self._text(number)}")

    def __enter__(self) -> "PromptProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()
