"""A lane: one frame, its stream, and the launches between writing the arguments and reading the answers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from nanokv.device.kernels.frame import FIRST_ANSWER, FRAME_WORDS, call_kernel
from nanokv.device.machines.entries import ENTRIES
from nanokv.device.machines.gpu_threads import let_others_capture

FIRST_TRITON_ON_AMD = (3, 7)  # before triton#9042 each compare-and-swap was compiled at agent scope
STAGING_BYTES = 1 << 20  #: at first; pinning more memory later makes the device wait
# The interpreter keeps the grid in a global and patches the language while it runs: one launch per process at a time
INTERPRETER = threading.Lock()


class Launch(NamedTuple):
    """A kernel over the frame, its number of CTAs, and its constexpr arguments."""

    kernel: Any
    ctas: int = 1
    constants: Mapping[str, Any] = {}


@cache
def calling(entry: str) -> Launch:
    """The launch of one CTA that runs one of `ENTRIES`."""
    called = ENTRIES[entry]
    constants = {"function": called.function, "n_arguments": called.arguments, "n_answers": called.answers}
    return Launch(call_kernel, 1, constants)


class Lane:
    """Launches kernels for one machine, one operation at a time: `run` returns once the answers have arrived.

    Args:
        world: the address of the world table.
        device: where kernels run. A CPU needs Triton's interpreter.
        own_stream: True: a stream of its own, of high priority, which does not wait for the caller's kernels and is
            served before them; False: the caller's current stream.
    """

    @torch.inference_mode(False)
    def __init__(self, world: int, device: torch.device, *, own_stream: bool) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._stream: Any = None
        if self._on_gpu and own_stream:
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock() if self._on_gpu else INTERPRETER
        self._host = torch.zeros(FRAME_WORDS, dtype=torch.int64, device="cpu", pin_memory=self._on_gpu)
        self._frame = torch.zeros(FRAME_WORDS, dtype=torch.int64, device=device)
        self._staging = self._new_staging(STAGING_BYTES if own_stream else 0)
        self._world = world

    def entered(self) -> AbstractContextManager[Any]:
        """The context for this lane's copies and launches: its stream, or its device."""
        if not self._on_gpu:
            return nullcontext()
        let_others_capture()
        return torch.cuda.stream(self._stream) if self._stream is not None else torch.cuda.device(self._device)

    def enter_thread(self) -> None:
        """Let this lane's stream be the current one of this thread, so that its copies follow the lane's kernels."""
        if self._stream is not None:
            let_others_capture()
            torch.cuda.set_stream(self._stream)

    def load(self, *launches: Launch) -> None:
        """Compile and load kernels, without launching them."""
        with self._lock, self.entered():
            for kernel, ctas, constants in launches:
                if isinstance(kernel, JITFunction):  # an interpreted one is neither
                    grid = (ctas,)
                    kernel.warmup(self._frame.data_ptr(), grid=grid, **constants, num_warps=1)[grid]

    def run(self, words: Sequence[int], *launches: Launch) -> list[int]:
        """Launch kernels one after the other on the same frame, whose words from 1 on are `words`.

        Returns:
            all answer words of the frame.
        """
        with self._lock, self.entered():
            return self._run(words, launches)

    def run_and_fetch(
        self, fetched: torch.Tensor, words: Sequence[int], *launches: Launch
    ) -> tuple[list[int], npt.NDArray[Any]]:
        """`run`, and copy a tensor that the kernels filled from the device; the host waits once."""
        with self._lock, self.entered():
            pinned = self._pinned(fetched)
            answers = self._run(words, launches, lambda: pinned.copy_(fetched, non_blocking=True))
            return answers, np.array(pinned.numpy())

    def fetch(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """A copy of a tensor on the device, as it is at this moment."""
        with self._lock, self.entered():
            pinned = self._pinned(tensor)
            pinned.copy_(tensor, non_blocking=True)
            self._synchronize()
            return np.array(pinned.numpy())

    @torch.inference_mode(False)
    def zeros(self, words: int) -> torch.Tensor:
        """int64 [words], on the device."""
        with self.entered():
            return torch.zeros(words, dtype=torch.int64, device=self._device)

    @torch.inference_mode(False)
    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        """Pinned host memory like a tensor, so that a copy to it is asynchronous; valid until the next call."""
        if len(self._staging) < like.nbytes:
            self._staging = self._new_staging(2 * like.nbytes)
        return self._staging[: like.nbytes].view(like.dtype).view(like.shape)

    def _new_staging(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=self._on_gpu)

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.current_stream(self._device).synchronize()

    def _run(
        self, words: Sequence[int], launches: Sequence[Launch], last: Callable[[], Any] = lambda: None
    ) -> list[int]:
        self._host.zero_()
        self._host[: len(words) + 1] = torch.tensor([self._world, *words], dtype=torch.int64, device="cpu")
        self._frame.copy_(self._host, non_blocking=True)
        for kernel, ctas, constants in launches:
            kernel[(ctas,)](self._frame.data_ptr(), **constants, num_warps=1)
        self._host.copy_(self._frame, non_blocking=True)
        last()
        self._synchronize()
        return self._host[FIRST_ANSWER:].tolist()


def launches_on(device: torch.device) -> bool:
    """Whether Triton's active driver launches kernels on `device`. On a CPU only the PTX machine's does."""
    try:
        return bool(driver.active.get_active_torch_device().type == device.type)
    except RuntimeError:  # there is no driver
        return False


def check_compiler(device: torch.device, hip: str | None, version: str, *, interpreted: bool) -> None:
    """Refuse a device on which the kernels cannot run, or are known to be miscompiled.

    Args:
        device: where kernels are to run.
        hip: `torch.version.hip`.
        version: of Triton.
        interpreted: whether the kernels were decorated under TRITON_INTERPRET=1.

    Raises:
        RuntimeError: naming the device and the remedy.
    """
    if device.type == "cpu" and not interpreted and not launches_on(device):
        raise RuntimeError(f"kernels cannot run on device={device}: set TRITON_INTERPRET=1 before Python starts")
    if device.type != "cpu" and interpreted:
        raise RuntimeError(f"TRITON_INTERPRET=1 is set: interpreted kernels cannot reach memory of device={device}")
    if hip is not None and device.type != "cpu" and _release(version) < FIRST_TRITON_ON_AMD:
        first = ".".join(map(str, FIRST_TRITON_ON_AMD))
        raise RuntimeError(f"Triton {version} ignores the scope of a compare-and-swap on AMD: {first} is needed")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
