"""What the simulation of clusters is built on. Each value can be changed: `--set name=value`."""

from dataclasses import dataclass

from nanokv.bench.simulate.assumptions import assumed

_MEASURED = "measured on two virtual cores, two processes of one host"
_ALONE = "python -m bench.simulate.cluster.costs"
_CHOSEN = "assumed, not measured"


@dataclass(frozen=True, slots=True)
class ClusterAssumptions:
    """The constants of the model. The sources stand beside the values."""

    # --- rounds ---
    sm_round_us: float = assumed(3.7, "µs", 0, f"a bare read of 64 B over shared memory: {_MEASURED}")
    sm_get_us: float = assumed(25.0, "µs", 0, f"a get of 1 KiB over shared memory, four rounds: {_MEASURED}")
    tcp_round_us: float = assumed(44.0, "µs", 0, f"a bare read of 64 B over TCP: {_MEASURED}")
    wire_us: float = assumed(
        10.0, "µs", 0, f"NICs and switches between two hosts, there and back, which loopback does not have; {_CHOSEN}"
    )
    rdma_round_us: float = assumed(
        2.5, "µs", 0, "a one-sided read of 64 B by RDMA, 2 to 3 in publications; not measured"
    )
    spread: float = assumed(0.2, "", 0, f"share of a round's way that is random, with an exponential tail; {_CHOSEN}")
    # --- who serves ---
    tcp_answer_us: float = assumed(
        10.0, "µs", 0, f"of a round over TCP: time of the owner's thread that answers; {_CHOSEN}"
    )
    tcp_row_us: float = assumed(1.0, "µs", 0, f"the same for each further row of a round; {_CHOSEN}")
    rdma_answer_us: float = assumed(0.02, "µs", 0, f"of a round by RDMA: time of the owner's NIC; {_CHOSEN}")
    rdma_row_us: float = assumed(0.02, "µs", 0, f"the same for each further row; {_CHOSEN}")
    tcp_gbps: float = assumed(3.1, "GB/s", 1e-3, f"line rate of a node over TCP: 25 Gb/s Ethernet; {_CHOSEN}")
    rdma_gbps: float = assumed(25.0, "GB/s", 1e-3, "line rate of a node by RDMA: 200 Gb/s; data sheets, not measured")
    # --- work of the caller's process ---
    pass_us: float = assumed(
        100.0,
        "µs",
        0,
        "get_many: work for each node; a guess: 240 with both nodes in one process, where a get takes 64",
    )
    key_us: float = assumed(1.5, "µs", 0, "get_many: work for each key; both nodes in one process over shared memory")
    local_us: float = assumed(1.7, "µs", 0, "a get of 1 KiB from the own node: README")
    local_gbps: float = assumed(14.0, "GB/s", 1e-3, "a get of 8 MiB from the own node: README")
    hash_ns: float = assumed(
        1.5, "ns", 0, "rendezvous hashing of one key, for each node: Homes.of_each timed here with 1,024 nodes"
    )
    # --- puts ---
    put_us: float = assumed(440.0, "µs", 0, f"a put of 1 KiB to another node: {_MEASURED}")
    put_own_us: float = assumed(160.0, "µs", 0, f"of it, processor time of the producer; {_CHOSEN}")
    put_serve_us: float = assumed(160.0, "µs", 0, f"of it, processor time of the owner; {_CHOSEN}")
    # --- events and membership ---
    members: int = assumed(1, "members", 1, "processes of a node; each publishes, and follows all of other nodes")
    pause_ms: float = assumed(
        0.5, "ms", 1e-3, "between two batches of events: WOKEN.pause in nanokv/host_poller/poller.py"
    )
    publish_us: float = assumed(4.0, "µs", 0, f"processor time of a message of events, once: {_ALONE}")
    follow_us: float = assumed(15.0, "µs", 0, f"the same for each follower, both ends together, 11 to 25: {_ALONE}")
    learn_us: float = assumed(0.1, "µs", 0, f"a location into the table: {_ALONE}")
    card_us: float = assumed(105.0, "µs", 0, f"to open a member's card: {_ALONE}")
    card_bytes: int = assumed(1300, "bytes", 1, "a sealed card of a world of one rank, over NIXL: looked at here")
    ttl: float = assumed(3.0, "s", 0.1, "of a lease, renewed every third of it: ClusterOptions.ttl")
    objects: int = assumed(100_000, "objects", 1, f"of each node; {_CHOSEN}")
    locations: int = assumed(1 << 17, "objects", 1, "of which a process remembers the place: ClusterOptions.locations")
    # --- loads ---
    use: float = assumed(0.5, "", 0.01, "a loaded cluster: share of its time that the busiest part works")
    hot_bytes: int = assumed(2 << 20, "bytes", 1, "of the hot object: a block of KV")
    event_us: float = assumed(200.0, "µs", 0, f"from a batch of events to those who follow; {_CHOSEN}")
    window_ms: float = assumed(100.0, "ms", 0, f"within which all nodes bring the hot object; {_CHOSEN}")
