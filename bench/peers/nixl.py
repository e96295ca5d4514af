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
_WHOLE = [0]  #: of the places of a tensor, which has one


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
        note = other.note()
        name = self._agent.add_remote_agent(base64.b64decode(note["agent"]))
        first, size = note["address"], self.ring.size
        places = [(first + i * size, size, 0) for i in range(self.ring.slots)]
        self._remote = self._agent.prep_xfer_dlist(name, places, "DRAM")

    def source(self) -> torch.Tensor:
        tensor, self._from = self._registered()
        return tensor

    def target(self) -> torch.Tensor:
        tensor, self._into = self._registered()
        return tensor

    def _registered(self) -> tuple[torch.Tensor, Any]:
        """A tensor, and what transfers call it."""
        tensor = self.buffer()
        place = (tensor.data_ptr(), self.ring.size, 0)
        self._agent.register_memory([(*place, "")], "DRAM")
        return tensor, self._agent.prep_xfer_dlist(_HERE, [place], "DRAM")

    def key(self, i: int) -> int:
        return i % self.ring.slots

    def put(self, key: int, tensor: torch.Tensor) -> None:
        handle = self._agent.make_prepped_xfer("WRITE", self._from, _WHOLE, self._remote, [key])
        _transfer(self._agent, handle)
        self._agent.release_xfer_handle(handle)

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        handle = self._agent.make_prepped_xfer("READ", self._into, _WHOLE, self._remote, [key])
        _transfer(self._agent, handle)
        self._agent.release_xfer_handle(handle)


class NixlReusedHandle(NixlNewHandle):
    """A handle for each place and direction, made before: the bare transfer, and nothing else."""

    name = "NIXL, reused handle"

    def source(self) -> torch.Tensor:
        tensor = super().source()
        self._writes = self._handles("WRITE", self._from)
        return tensor

    def target(self) -> torch.Tensor:
        tensor = super().target()
        self._reads = self._handles("READ", self._into)
        return tensor

    def _handles(self, operation: str, here: Any) -> list[Any]:
        make, remote = self._agent.make_prepped_xfer, self._remote
        return [make(operation, here, _WHOLE, remote, [place]) for place in range(self.ring.slots)]

    def put(self, key: int, tensor: torch.Tensor) -> None:
        _transfer(self._agent, self._writes[key])

    def get_into(self, key: int, tensor: torch.Tensor) -> None:
        _transfer(self._agent, self._reads[key])


def _transfer(client: Any, handle: Any) -> None:
    """Start a transfer, and poll until it is done."""
    state = client.transfer(handle)
    while state == "PROC":
        state = client.check_xfer_state(handle)
    if state != "DONE":
        raise SystemFailed(f"the transfer ended with {state}")


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
