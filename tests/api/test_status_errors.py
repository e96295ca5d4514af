"""Every status of the protocol has an exception of its own kind."""

import pytest

from nanokv import errors
from nanokv.allocation.status_errors import error_for
from nanokv.device.protocol.status import Status
from nanokv.device.segment.geometry import Geometry

GEOMETRY = Geometry.plan(1 << 16, 4096, 1)


@pytest.mark.parametrize("status", [status for status in Status if status != Status.OK], ids=lambda status: status.name)
def test_every_status_has_an_error(status: Status) -> None:
    error = error_for(status, "a key", GEOMETRY, nbytes=5)
    assert type(error) is not errors.NanoKVError, error
    assert "unexpected" not in str(error)


def test_an_invalid_argument_is_said_to_be_one() -> None:
    with pytest.raises(errors.InvalidArgument, match="the request for key 'a key' is refused: its owner"):
        raise error_for(Status.INVALID, "a key", GEOMETRY)
