"""Which TCP ports this process listens at: a library may open some that nobody has asked for."""

import contextlib
import ipaddress
from pathlib import Path

_LISTEN = "0A"  # of the state in /proc/net/tcp
_TABLES = ("tcp", "tcp6")


def listening() -> dict[str, str]:
    """The addresses of this process's TCP sockets that listen, "127.0.0.1:4711", by inode; none where /proc is not."""
    mine = set()
    with contextlib.suppress(OSError):
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                mine.add(str(each.readlink()))
    found = {}
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in (Path("/proc/self/net") / table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                inode = rest[5]
                if state == _LISTEN and f"socket:[{inode}]" in mine:
                    found[inode] = _shown(local)
    return found


def _shown(local: str) -> str:
    """An address of the table: the words of an IP address in the processor's order of bytes, and a port."""
    address, _, port = local.partition(":")
    raw = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
    host = str(ipaddress.ip_address(raw))
    return f"[{host}]:{int(port, 16)}" if ":" in host else f"{host}:{int(port, 16)}"
