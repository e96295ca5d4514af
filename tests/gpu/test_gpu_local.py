"""The launching machine on a real GPU, two virtual ranks on one device.

Without a GPU the same bodies run interpreted: tests/machines/test_launch_machine.py.
"""

from collections.abc import Callable

import pytest
import torch

from tests.gpu.every_body import BODIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; test_launch_machine runs the same bodies"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_the_gpu(body: Callable[[torch.device], None]) -> None:
    body(torch.device("cuda"))
