"""NIXL: bare writes into the registered memory of another process, and reads from it, over UCX.

Between two processes of a host UCX copies with the kernel's cross-memory attach. The other process need not run for a
transfer, only for the first contact.
"""

import base64
import os
import sys
import time
from typing import Any

import numpy as np
import torch

from nanokv.bench.peers.base import Guarantees, System, SystemFailed
from nanokv.bench.peers.server import Ours, write_note

#: Loopback alone: by default UCX listens on every interface. Its other transports are left to it.
ENVIRONMENT = {"UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error"}
_PROGRESS = 0.01  #: seconds between the other process's looks for a first contact
_HERE = "NIXL_INIT_AGENT"
_WRITE, _READ = "WRITE", "READ"


def agent(name: str) -> Any:
    """An agent without a progress thread: with one on each side, two cores are too few."""
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


class NixlNewHandle(System):
    """A transfer is made, started, awaited and let go: as an engine does whose blocks differ each time."""

    name = "NIXL, new handle"
    module = "nixl"
    packages = ("nixl", "nixl-cu12")
    guarantees = Guarantees(
        keys="none, the place is known",
        allocation="none",
        process="the memory is another process's, which is not asked",
        copies="1 and 1, by the kernel (cross-memory attach), between registered buffers",
        checksum="none",
        promise="the bytes are in the other process, which has not been told",
    )

    def start(self) -> None:
        os.environ.update(ENVIRONMENT)
        other = Ours(__name__, self.folder(), self.stack, [self.ring.nbytes], ENVIRONMENT)
        self._agent = agent("client")
        self._locals: dict[int, Any] = {}
        note = other.note()
        name = self._agent.add_remote_agent(base64.b64decode(note["agent"]))
        first, size = note["address"], self.ring.size
        places = [(first + i * size, size, 0) for i in range(self.ring.slots)]
        self._remote = self._agent.prep_xfer_dlist(name, places, "DRAM")

    def buffer(self) -> torch.Tensor:
        tensor = super().buffer()
        self._agent.register_memory([(tensor.data_ptr(), self.ring.size, 0, "")], "DRAM")
        place = [(tensor.data_ptr(), self.ring.size, 0)]
        self._locals[tensor.data_ptr()] = self._agent.prep_xfer_dlist(_HERE, place, "DRAM")
        return tensor

    def key(self, i: int) -> int:
        return i % self.ring.slots

    def _handle(self, operation: str, place: int, tensor: torch.Tensor) -> Any:
        return self._agent.make_prepped_xfer(operation, self._locals[tensor.data_ptr()], [0], self._remote, [place])

    def _await(self, handle: Any) -> None:
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise SystemFailed(f"the transfer ended with {state}")

    def _transfer(self, operation: str, place: int, tensor: torch.Tensor) -> None:
        handle = self._handle(operation, place, tensor)
        self._await(handle)
        self._agent.release_xfer_handle(handle)

    def put(self, key: int, tensor: torch.Tensor) -> None:
        self._transfer(_WRITE, key, tensor)

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        self._transfer(_READ, key, tensor)


class NixlReusedHandle(NixlNewHandle):
    """A handle for each place and direction, made before: the bare transfer, and nothing else."""

    name = "NIXL, reused handle"

    def buffer(self) -> torch.Tensor:
        tensor = super().buffer()
        for operation in (_WRITE, _READ):
            self._handles[operation, tensor.data_ptr()] = [
                self._handle(operation, place, tensor) for place in range(self.ring.slots)
            ]
        return tensor

    def start(self) -> None:
        super().start()
        self._handles: dict[tuple[str, int], list[Any]] = {}

    def _transfer(self, operation: str, place: int, tensor: torch.Tensor) -> None:
        self._await(self._handles[operation, tensor.data_ptr()][place])


def main(note: str, nbytes: str) -> None:
    """The other process: register memory, and answer first contacts."""
    memory = np.ones(int(nbytes), np.uint8)
    other = agent("owner")
    other.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    contact = base64.b64encode(other.get_agent_metadata()).decode()
    write_note(note, {"agent": contact, "address": memory.ctypes.data})
    parent = os.getppid()
    while os.getppid() == parent:
        other.get_new_notifs()
        time.sleep(_PROGRESS)
    os._exit(0)  # the interpreter's own end would be a fault in NIXL's libraries


if __name__ == "__main__":
    main(*sys.argv[1:])
