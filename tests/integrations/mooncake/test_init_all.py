"""`init_all`: a client without an address."""

from typing import Any, cast

import pytest

from nanokv.integrations.mooncake import (
    BufferPool,
    MooncakeDistributedStore,
)
from tests.integrations.mooncake.conftest import Start
from tests.integrations.mooncake.pools import MIB
from tests.integrations.mooncake.test_values import NAME, surface


@surface(NAME, "init_all", differs="it sets a client up; the real one faults, and answers only a client that is set up")
def test_a_client_is_set_up_with_the_addresses_of_its_host(start: Start) -> None:
    del start  # for its folder
    store = MooncakeDistributedStore()
    assert store.init_all("pigeon", "", MIB) == -1 and store.health_check() == 1
    for given in (("tcp", ""), ("tcp", "", -1), ("tcp", 5, MIB), (5, "", MIB), ("tcp", "", "x")):
        with pytest.raises(TypeError):
            store.init_all(*cast(Any, given))
    assert store.init_all("tcp", "", 8 * MIB) == 0
    assert store.get_hostname().startswith("localhost:") and store.health_check() == 0
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    assert store.init_all("tcp", "", 8 * MIB) == -600 and store.get("k") == b"v"
    with BufferPool(store).acquire(16 * MIB) as lease:
        assert lease.ptr  # its local buffer has 16 MiB
    store.close()
