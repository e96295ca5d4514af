"""How bytes move between processes that share no memory: one module per library, one contract (`base.Link`).

- `nixl`: NVIDIA's NIXL, over UCX
- `mooncake`: Mooncake's Transfer Engine, over TCP
- `none`: none of these: objects go over sockets alone (`nanokv.cluster.wire`)

nixl_lane     what the link over NIXL knows of a peer, and what a thread needs to read from one
nixl_library  NIXL's C interface, as ctypes: agents, memory and peers
"""

from importlib import import_module
from typing import Any, Literal, get_args

from nanokv.cluster.links.base import Link, LinkLost, LinkUnavailable, State, Transfer
from nanokv.errors import InvalidArgument

__all__ = ["KINDS", "Link", "LinkKind", "LinkLost", "LinkUnavailable", "State", "Transfer", "open_link"]

LinkKind = Literal["nixl", "mooncake"]
KINDS: tuple[LinkKind, ...] = get_args(LinkKind)
_CLASSES = {"nixl": "NixlLink", "mooncake": "MooncakeLink"}


def open_link(kind: str, member: str, **options: Any) -> Link:
    """One process's end of links of a kind. Its library is loaded here.

    Args:
        kind: one of KINDS.
        member: the process's name in the cluster.
        options: of the link's class.

    Raises:
        InvalidArgument: no such kind, or an option has an impossible value.
        LinkUnavailable: the library is not installed, or does not work on this machine.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"kind must be one of {KINDS}, not {kind!r}")
    link: Link = getattr(import_module(f"nanokv.cluster.links.{kind}"), _CLASSES[kind])(member, **options)
    return link
