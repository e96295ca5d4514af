"""What a round costs over a network, and who serves it."""

from typing import NamedTuple

from nanokv.bench.simulate.cluster.assumptions import ClusterAssumptions

NETWORKS = ("TCP", "RDMA")


class Network(NamedTuple):
    """Between two nodes; times in us.

    Attributes:
        way: of a round, without the owner's part.
        answer: the owner's part: its thread that answers (TCP), or its NIC; `row`: for each row after the first ones.
        per_byte: of a payload, at each of the two ports.
        own: what a get does in its own process.
    """

    name: str
    way: float
    answer: float
    row: float
    per_byte: float
    own: float

    @property
    def round(self) -> float:
        """A round that waits for nobody."""
        return self.way + self.answer


def network(given: ClusterAssumptions, name: str) -> Network:
    """One of NETWORKS; "shared memory" is what was measured, to check the model by.

    Raises:
        ValueError: the owner's part of a round takes longer than the round.
    """
    own = max(given.sm_get_us - 4 * given.sm_round_us, 0.0)
    rounds = {
        "shared memory": (given.sm_round_us, 0.0, 0.0, given.local_gbps),
        "TCP": (given.tcp_round_us + given.wire_us, given.tcp_answer_us, given.tcp_row_us, given.tcp_gbps),
        "RDMA": (given.rdma_round_us, given.rdma_answer_us, given.rdma_row_us, given.rdma_gbps),
    }
    takes, answer, row, gbps = rounds[name]
    if answer > takes:
        raise ValueError(f"over {name} a round takes {takes:g} µs, and the owner's part of it more: {answer:g}")
    return Network(name, takes - answer, answer, row, 1e-3 / gbps, own)
