"""The modules of these tests are PTX: NVIDIA's assembler, which comes with Triton, takes them."""

import subprocess
from pathlib import Path

import pytest
import triton

from tests.ptx.test_integers import CASES, Case

pytestmark = pytest.mark.proved

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_an_instruction_assembles(case: Case, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(case.ptx)
    command = [str(PTXAS), "-arch=sm_90a", "-O0", "-o", str(tmp_path / "kernel.cubin"), str(tmp_path / "kernel.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
