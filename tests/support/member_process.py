"""A member of a cluster in a process of its own: it takes commands, and can be killed and stopped."""

from functools import partial
from typing import Any

from nanokv.check.command_process import Commands, Program
from nanokv.cluster.membership import open_membership


class MemberCommands(Commands):
    """The methods of a membership, which is opened at once."""

    def __init__(self, url: str, ttl: float) -> None:
        self._membership = open_membership(url, ttl=ttl, timeout=60.0)

    def members(self) -> dict[str, bytes]:
        """A copy, which can be sent."""
        return dict(self._membership.members())

    def __getattr__(self, command: str) -> Any:
        return getattr(self._membership, command)


class MemberProcess(Program):
    """That process."""

    def __init__(self, url: str, ttl: float) -> None:
        super().__init__("the member", partial(MemberCommands, url, ttl))
