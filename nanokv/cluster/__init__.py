"""Many hosts as one cache: `NanoKVCluster` (docs/cluster.md). Objects go over the wire, over a link, or by
memory that is mapped.

cluster     the public class; `paged`: an engine's paged cache across nodes
options     its options; `seals`: how members protect what they send
member      the parts of one member, opened and closed in order; members that have left; all that `stats` shows
membership  who is there: etcd, or a folder
card        what a member tells the others of itself; `place`: the host where it runs
nodes       the nodes as this process knows them, and the way to each
homes       which node a key belongs to; `first_asked`: which one a get asks first
at_once     threads that ask several nodes; `patience`: how long one call waits for them
mapped      memory of other nodes of this host, which is mapped
wire        sockets of NanoKV's own: puts, gets, removals and questions, each one exchange
transfers   what gets from other nodes, and puts to them, over the wire, over a link, or in mapped memory
links       moving bytes: NIXL, Mooncake's transfer engine; `listening`: the ports that they open
staging     registered memory, and what late transfers may write to; `workspace`: that of one get
reading     gets over a link; `rounds`: its transfers; `remote_world`: what they need to know of a node;
            `fetched`: what was read, as tensors
putting     puts over a link; `offering`: where the bytes come from; `kept`: what others may still read
pulling     the owner's side of a put; `pull_message`: what both tell each other; `relative_terms`: times in it
serving     what a member does when another one asks; `removal_message`: its answer about removals; `statuses`: arrays
messages    events, over ZeroMQ; `kinds`: of questions; `resolving`: names of hosts
events      what becomes of objects; `locations`: where they lie; `changes`: for listeners; `uses`: for the owners
generations how all nodes come to one generation of an identity
counts      what was done
observer    a look from outside, for the command line
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
