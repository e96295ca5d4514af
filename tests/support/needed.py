"""What a machine may lack, and what it must have: CI names that, so that a test there cannot be left out unseen."""

import os

import pytest

from nanokv.cluster.links import LinkUnavailable, open_link

VARIABLE = "NANOKV_TESTS_NEED"  #: names of what must be there, with commas between them: nixl, mooncake, etcd


def is_needed(name: str) -> bool:
    """Whether tests of something must run."""
    return name in os.environ.get(VARIABLE, "").split(",")


def leave_out(name: str, why: object) -> None:
    """Skip a test of something that is not there; fail it where that must be there."""
    if is_needed(name):
        pytest.fail(f"{VARIABLE} names {name}, and it does not work: {why}")
    pytest.skip(str(why))


def need_nixl() -> None:
    """Skip where NIXL is not installed, and need not be. Here UCX may use TCP: a machine of tests has no RDMA."""
    os.environ.setdefault("UCX_TLS", "all")
    try:
        open_link("nixl", "probe").close()
    except LinkUnavailable as error:
        leave_out("nixl", error)
