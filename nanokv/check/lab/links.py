"""Faults of the network between the hosts of a layout of namespaces. `ip` is all that they need.

All raise LayoutError if `ip` fails.
"""

from nanokv.check.lab.layout import Host, LabLayout, ip, namespace

_NOBODY = "02:00:00:00:00:01"  #: a hardware address that no host has


def link_down(layout: LabLayout, host: Host) -> None:
    """Take a host's only link down: it reaches nobody, not even the registry."""
    ip("-n", namespace(layout.name, host.name), "link", "set", host.device, "down")


def link_up(layout: LabLayout, host: Host) -> None:
    """The end of `link_down`."""
    ip("-n", namespace(layout.name, host.name), "link", "set", host.device, "up")


def lose_packets(layout: LabLayout, one: Host, two: Host) -> None:
    """Let all packets between two hosts be lost, in both directions, and tell nobody.

    They go to a hardware address that no host has.
    """
    for here, there in ((one, two), (two, one)):
        ip(*_neighbour(layout, here, "replace", there), "lladdr", _NOBODY, "nud", "permanent")


def stop_losing_packets(layout: LabLayout, one: Host, two: Host) -> None:
    """The end of `lose_packets`."""
    for here, there in ((one, two), (two, one)):
        ip(*_neighbour(layout, here, "del", there))


def refuse_packets(layout: LabLayout, one: Host, two: Host) -> None:
    """Have no route between two hosts: who sends is told at once."""
    for here, there in ((one, two), (two, one)):
        ip("-n", namespace(layout.name, here.name), "route", "add", "unreachable", there.address)


def stop_refusing_packets(layout: LabLayout, one: Host, two: Host) -> None:
    """The end of `refuse_packets`."""
    for here, there in ((one, two), (two, one)):
        ip("-n", namespace(layout.name, here.name), "route", "del", "unreachable", there.address)


def _neighbour(layout: LabLayout, here: Host, what: str, there: Host) -> tuple[str, ...]:
    return "-n", namespace(layout.name, here.name), "neigh", what, there.address, "dev", here.device
