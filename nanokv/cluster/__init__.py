"""Many hosts as one cache: `NanoKVCluster` (docs/cluster.md). Bytes go over a link, membership over a registry.

cluster     the public class; its calls are in `objects`, `lookups`, `many`, `bringing`; they share `base` and `asking`
options     its options
parts       how a member is put together
membership  who is there: etcd, or a folder
card        what a member tells the others of itself
nodes       the nodes as this process knows them, and the way to each; `at_once`: threads that ask several
homes       which node a key belongs to
links       moving bytes: NIXL, Mooncake's transfer engine
staging     registered memory, and what late transfers may write to; `workspace`: that of one get
reading     gets from other nodes; `transfers`, `rounds`: over a link; `remote_world`: what they need to know of a node;
            `fetched`: what was read, as tensors
putting     puts to other nodes; `offering`: where the bytes come from
pulling     the owner's side of a put; `pull_message`: what both tell each other
serving     what a member does when another one asks
messages    questions, over TCP, and events, over ZeroMQ; `kinds`
events      what becomes of objects; `locations`: where they lie; `catching_up`: what was missed; `changes`: for
            listeners; `uses`: for the owners
departures  members that have left
counts      what was done
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanokv.cluster.changes import Change, ChangeKind
    from nanokv.cluster.cluster import NanoKVCluster

__all__ = ["Change", "ChangeKind", "NanoKVCluster"]
_HOMES = {"Change": "changes", "ChangeKind": "changes", "NanoKVCluster": "cluster"}


def __getattr__(name: str) -> Any:
    """Import a class on its first use: the rounds and the pulls alone need neither torch nor ZeroMQ (`check`)."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"nanokv.cluster.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
