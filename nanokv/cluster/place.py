"""Where a process runs, so that a member of another host which listens at its loopback interface is known for it.

Such a member can be reached by nobody: its addresses, which are those of everybody's own loopback, lead elsewhere. It
is what the defaults of `bind` and `devices` make, and those are right on one host only.
"""

import functools
import ipaddress
from pathlib import Path

from nanokv.cluster.card import Card
from nanokv.cluster.messages import unix
from nanokv.cluster.messages.tcp import host_and_port
from nanokv.errors import InvalidArgument

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
LOOPBACK_DEVICE = "lo"


@functools.cache
def here() -> str:
    """The place of this process: its kernel, and its network namespace; "": it is not known."""
    try:
        return f"{_BOOT.read_text().strip()} {_NETWORK.stat().st_ino}"
    except OSError:
        return ""


def is_near(card: Card, place: str) -> bool:
    """Whether a process at a place reaches the UNIX socket of a member."""
    if not card.local or not card.place or not place:
        return False
    if unix.is_in_folder(card.local):
        return card.place.split(" ", 1)[0] == place.split(" ", 1)[0] and unix.is_seen(card.local)
    return card.place == place


def why_unreachable(card: Card, place: str, *, by_link: bool) -> str:
    """Why a process at a place cannot reach a member, and what to set there; "": it may reach it.

    by_link: it reads the member's memory over a link too.
    """
    if card.place == place or not card.place or not place:
        return ""
    wrong = [
        *(["bind"] if is_loopback(card.wire) else []),
        *(["devices"] if by_link and card.devices == LOOPBACK_DEVICE else []),
    ]
    if not wrong:
        return ""
    more = f", devices={card.devices!r}" if by_link else ""
    device = ", and with devices= its network device, or 'all'" if by_link else ""
    return (
        f"it runs on another host (or in another network namespace), and listens at loopback, {card.wire}{more}: "
        f"start it with bind= an address of its host, or bind='0.0.0.0' and advertise= its name{device}"
    )


def is_loopback(address: str) -> bool:
    """Whether an address, "tcp://host:port", is one of the loopback interface."""
    try:
        host, _ = host_and_port(address)
    except InvalidArgument:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
