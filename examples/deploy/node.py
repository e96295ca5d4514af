"""A node that lends its memory to a cluster, and tells Kubernetes whether it is ready. Ends with SIGTERM.

    python -m examples.deploy.node etcd://127.0.0.1:2379/lab --node node1 --bind 127.0.0.1 --heap 64Mi

It joins, serves until SIGTERM or SIGINT, and leaves: the others see that at once. Exit code 0 then; 1 if it could not
join, or could not go on; 2 for wrong arguments. `examples/deploy/probes.py` answers the probes.
"""

import argparse
import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator

import nanokv
from examples.deploy.probes import Probes, serve
from nanokv import NanoKVCluster
from nanokv.cluster.options import ClusterOptions
from nanokv.errors import NanoKVError

UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}  #: as Kubernetes writes them
LOOK = 1.0  #: seconds between two looks at whether the cache was closed from elsewhere


def size(text: str) -> int:
    """Bytes, as "8Gi" or "4096"."""
    found = re.fullmatch(r"([0-9]+)([KMGT]i)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is like 8Gi or 4096, not {text!r}")
    return int(found[1]) * UNITS[found[2] or ""]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    usual = ClusterOptions(node="x")
    parser = argparse.ArgumentParser(prog="python -m examples.deploy.node", description=__doc__.split("\n")[0])
    parser.add_argument("registry", help="etcd://host:port/name, or file:///folder")
    parser.add_argument("--node", required=True, help="the name of this node, which no other one has")
    parser.add_argument("--heap", type=size, required=True, help="bytes to lend: 8Gi")
    parser.add_argument("--page", type=size, default=256 << 10, help="bytes of a page: 256Ki")
    parser.add_argument("--world", default="nanokv", help="the name of this host's world, in /dev/shm")
    parser.add_argument("--bind", default=usual.bind, help="this host's address, which the others reach")
    parser.add_argument("--sockets", default=usual.sockets, help="a folder that containers of this host share")
    parser.add_argument("--link", default=usual.link, help="what moves objects: auto, wire, nixl")
    parser.add_argument("--devices", default=usual.devices, help="the network device of NIXL: eth0, mlx5_0:1")
    parser.add_argument("--ports", default=usual.ports, help="the range of ports to listen at: 40000-44999")
    parser.add_argument("--ttl", type=float, default=usual.ttl, help="seconds of the lease, alike on all nodes")
    parser.add_argument("--status", type=int, help="the port for probes and metrics; none without it")
    return parser.parse_args()


@contextlib.contextmanager
def until_told() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. In the end they are ignored: nothing interrupts the leaving."""
    told = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        signal.signal(number, lambda *_: told.set())
    try:
        yield told
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def run(given: argparse.Namespace) -> None:
    """Join, serve, leave. Raises NanoKVError or OSError if that is not possible."""
    with until_told() as told, contextlib.ExitStack() as stack:
        probes = Probes(given.node)
        if given.status is not None:
            stack.enter_context(serve(probes, given.bind, given.status))
        # the only rank of its world; a world of this name that died with a container before it is taken over
        world = stack.enter_context(
            nanokv.NanoKVCache(
                given.heap, page_bytes=given.page, name=given.world, rank=0, world_size=1, on_stale="recover"
            )
        )
        options = {
            name: getattr(given, name) for name in ("node", "bind", "sockets", "link", "devices", "ports", "ttl")
        }
        cluster = stack.enter_context(NanoKVCluster(world, given.registry, **options))
        stack.enter_context(probes.of(cluster, given.registry))
        print(f"node {given.node} lends {given.heap} bytes to {', '.join(cluster.nodes)}", flush=True)
        while not told.wait(LOOK):
            cluster.nodes  # noqa: B018 - raises CacheClosed if the cache was closed from elsewhere
        probes.leave()
        began = time.monotonic()
        cluster.close()
        print(f"node {given.node} has left in {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    """The process."""
    given = arguments()
    try:
        run(given)
    except nanokv.errors.InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    except (NanoKVError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
