"""Which processes are in a cluster: told by a registry, an etcd or a folder that all of them see.

addresses     the URL of a registry
membership    what callers use, and its thread
base          the contract of a registry; types, limits, errors
pulse         whether the registry answers, and whether what it says is settled
view          who is a member, as this process knows it
etcd          the registry in etcd; it uses
  etcd_gateway, etcd_keys, etcd_watch
files         the registry in a folder; it uses
  member_file, folder_scan
"""

from nanokv.arguments import seconds
from nanokv.cluster.membership.addresses import EtcdAddress, parse
from nanokv.cluster.membership.base import MAX_CARD, ClusterUnavailable, Listener
from nanokv.cluster.membership.etcd import EtcdRegistry
from nanokv.cluster.membership.files import FileRegistry
from nanokv.cluster.membership.membership import Membership
from nanokv.errors import InvalidArgument

__all__ = ["MAX_CARD", "ClusterUnavailable", "Listener", "Membership", "open_membership"]

_SHORTEST, _LONGEST = 0.1, 3600.0  #: seconds of a lease


def open_membership(url: str, *, ttl: float = 3.0, timeout: float = 10.0, looks: bool = False) -> Membership:
    """Reach the registry of a cluster, and begin to follow who is in it. To become a member, `join`.

    Args:
        url: `etcd://host:port[,host:port...]/name`, with `user:password@` before the hosts if etcd wants it, and with
            `etcds` and `?ca=FILE&cert=FILE&key=FILE`, all optional, for TLS; or `file:///absolute/folder`, which is
            made if it is absent. A user or a password with one of `@:/?#` in it has it as `%40` and so on. A URL
            that names a user alone takes the password of the variable NANOKV_REGISTRY_PASSWORD, which is in no list of
            processes.
        ttl: seconds after which a process that died is dropped by the others, 0.1 to 3600; the same in all processes.
            etcd rounds it up to whole seconds, and to at least 2 with its own default settings.
        timeout: seconds for which this, and later calls, try to reach a registry that does not answer.
        looks: this process only looks, and makes nothing there: neither a folder nor a secret.

    Raises:
        InvalidArgument: the URL, or another argument, is wrong.
        ClusterUnavailable: the registry does not answer, or refuses this process.
    """
    address = parse(url)
    ttl, timeout = seconds("ttl", ttl), seconds("timeout", timeout)
    if not _SHORTEST <= ttl <= _LONGEST:
        raise InvalidArgument(f"ttl must be {_SHORTEST:g} to {_LONGEST:g} seconds, not {ttl!r}")
    if isinstance(address, EtcdAddress):
        etcd = address
        return Membership(
            str(etcd), lambda view, pulse: EtcdRegistry(etcd, ttl, view, pulse), ttl, timeout, looks=looks
        )
    folder = address
    return Membership(
        str(folder), lambda view, pulse: FileRegistry(folder, ttl, view, pulse), ttl, timeout, looks=looks
    )
