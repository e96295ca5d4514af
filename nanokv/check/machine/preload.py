"""Imported once, by the fork server of `rank_process`: otherwise every process would import and load it again.

python -m nanokv.check.machine.preload           compiles what the checks run, in two processes, before any waits for it
python -m nanokv.check.machine.preload product   only what NanoKV itself runs
"""

import subprocess
import sys

import nanokv.check.machine.corruption.run
import nanokv.check.machine.histories.recordings
import nanokv.check.machine.kills.roles
import nanokv.check.machine.soak.work  # noqa: F401
from nanokv.check.machine.hammer import compiled_hammers, slow_hammers
from nanokv.check.machine.histories.recorder import compiled_record, lingering_record, yielding_record
from nanokv.check.machine.rank_process import warm
from nanokv.device.machines.native_code import compiled, fabric_code, gpu_code, wire_code

PRODUCT = "product"
PAUSED = "paused"  #: functions that pause after each load share nothing with the others


def main(what: str = "") -> int:
    """Compile what NanoKV runs, or the functions that pause, or everything. Returns an exit code."""
    if what == PRODUCT:
        compiled(rare=True)
        fabric_code().require_all()
        wire_code().require_all()
        gpu_code().require_all()
        return 0
    if what == PAUSED:
        slow_hammers()
        lingering_record()
        yielding_record()
        return 0
    other = subprocess.Popen([sys.executable, "-m", "nanokv.check.machine.preload", PAUSED])
    compiled(rare=True)
    compiled_hammers()
    compiled_record()
    fabric_code().require_all()
    wire_code().require_all()
    gpu_code().require_all()
    return other.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
warm()
