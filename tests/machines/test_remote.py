"""`remote` has Iris' signatures, so that a kernel runs with either. tests/gpu/bodies.py calls the functions."""

import pytest

from nanokv.device import remote

# as in ROCm Iris; it has more optional parameters after these
IRIS = {
    "load": ["pointer", "to_rank", "from_rank", "heap_bases", "mask"],
    "store": ["pointer", "value", "from_rank", "to_rank", "heap_bases", "mask"],
    "atomic_add": ["pointer", "val", "from_rank", "to_rank", "heap_bases", "mask", "sem", "scope"],
    "atomic_xchg": ["pointer", "val", "from_rank", "to_rank", "heap_bases", "mask", "sem", "scope"],
    "atomic_cas": ["pointer", "cmp", "val", "from_rank", "to_rank", "heap_bases", "sem", "scope"],
}


@pytest.mark.parametrize("name", IRIS)
def test_the_signature_is_that_of_iris(name: str) -> None:
    code = getattr(remote, name).fn.__code__
    assert list(code.co_varnames[: code.co_argcount]) == IRIS[name]
