"""NanoKV's own threads beside a process that uses a GPU: in what order their work runs, and what it disturbs.

Guarantees
- What a thread of NanoKV's does for a caller follows all that the caller had queued on its current stream (`follows`),
  and waits for nothing that is queued later, there or elsewhere.
- A graph that another thread captures stays valid, whatever these threads do meanwhile (`let_others_capture`).

Sources: the CUDA Programming Guide on streams: one that was made with cudaStreamNonBlocking, as all of torch's are,
waits for no other stream, nor for the default one, unless it is told to wait for an event. The CUDA Driver API on
cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode: while a thread captures in the mode "global", which is
torch's default, calls that may be unsafe (an allocation, a wait for an event) of every thread whose own mode is not
"relaxed" are refused, and end the capture. HIP has the same calls.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from nanokv.errors import InvalidArgument

T = TypeVar("T")

OWN = "nanokv-"  #: begins the names of NanoKV's threads
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed
_here = threading.local()


def follows(work: Callable[[], T], devices: Iterable[torch.device]) -> Callable[[], T]:
    """`work` for a thread of NanoKV's, after what the caller has queued until now on its current streams of `devices`.

    The thread has streams of its own there. A tensor that `work` returns may be used on the caller's stream: its
    memory is not given to others before what is queued there when the tensor is dropped has run.

    Raises:
        InvalidArgument: the caller's stream captures a graph, which cannot hold what another thread does.
    """
    for device in {each for each in devices if each.type == "cuda"}:
        work = _follows(work, device)
    return work


def _follows(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    stream = torch.cuda.current_stream(device)
    queued = torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        if torch.cuda.is_current_stream_capturing():
            raise InvalidArgument("an asynchronous operation cannot be captured in a graph: another thread does it")
        queued.record(stream)

    def after() -> T:
        with aside(device):
            torch.cuda.current_stream(device).wait_event(queued)
            made = work()
        if isinstance(made, torch.Tensor) and made.device == device:
            made.record_stream(stream)
        return made

    return after


def aside(device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a thread of NanoKV's works on a device: a stream of its own. For other threads no change."""
    if device.type != "cuda" or not _is_own():
        return nullcontext()
    let_others_capture()
    streams: dict[torch.device, torch.cuda.Stream] = _here.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(streams[device])


def let_others_capture() -> None:
    """Let this thread's calls leave the captures of other threads alone, if it is one of NanoKV's. Once is enough.

    To be called before the first call of the driver, after torch has initialized it. A thread of the user's keeps its
    mode, which is there to find the user's mistakes.
    """
    if getattr(_here, "relaxed", False):
        return
    _here.relaxed = True
    if _is_own():
        exchange_capture_mode(_RELAXED)


def _is_own() -> bool:
    return threading.current_thread().name.startswith(OWN)


def exchange_capture_mode(mode: int) -> int:
    """Change the capture mode of this thread (0: global, 1: of the thread, 2: relaxed); returns the one before.

    Raises:
        RuntimeError: the driver did not do it.
    """
    amd = torch.version.hip is not None
    name = "hipThreadExchangeStreamCaptureMode" if amd else "cuThreadExchangeStreamCaptureMode"
    word = ctypes.c_int(mode)
    answer = getattr(gpu_library("libamdhip64.so" if amd else "libcuda.so.1"), name)(ctypes.byref(word))
    if answer != 0:
        raise RuntimeError(f"{name} gave error {answer}")
    return word.value


def driver_function(cuda: str, hip: str) -> int:
    """The address of a function of the GPU's driver, by its name in CUDA and in HIP.

    Raises:
        RuntimeError: there is no driver, or it lacks it.
    """
    name, library = (hip, "libamdhip64.so") if torch.version.hip is not None else (cuda, "libcuda.so.1")
    try:
        return ctypes.cast(getattr(gpu_library(library), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise RuntimeError(f"{library} has no {name}") from None


@cache
def gpu_library(name: str) -> Any:
    """A driver's library: the one that torch has loaded, whatever its version, else the system's.

    Raises:
        RuntimeError: there is none.
    """
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        mapped = ""
    loaded = {line.split(maxsplit=5)[5] for line in mapped.splitlines() if f"/{name}" in line}
    try:
        return ctypes.CDLL(min(loaded, default=name))
    except OSError as error:
        raise RuntimeError(f"{name}: {error}") from None
