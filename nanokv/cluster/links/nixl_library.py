"""NIXL's C interface, as ctypes: agents, memory and peers. Transfers are native code (`nanokv.device.fabric.nixl`).

Source: src/bindings/rust/wrapper.h of ai-dynamo/nixl 1.5.1. The library lies in NIXL's wheel, beside that of its Python
interface, which takes twice as long for a read of one line and cannot choose the delay of the progress thread.
"""

import ctypes
import importlib.util
import pkgutil
import sys
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint, c_uint16, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from nanokv.cluster.links.base import LinkLost, LinkUnavailable


# --- the end of a process that has loaded NIXL or UCX ------------------------------------------
# It ends without the destructors of its libraries, of which one crashes: NIXL's wheel (1.5.1) has a libnl-route whose
# destructor uses memory of another library that is gone by then: every process ended with SIGSEGV, after Python had. So
# C's `exit` ends such a process when everything else is done: Python is finalised, functions of `atexit` have run, and
# C's streams are flushed. Exit codes stay as they are.
@cache
def end_without_destructors() -> None:
    """Let the C library skip destructors of shared libraries at the end of this process. Once is enough."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    # the last one registered runs first: streams are flushed, then the process ends with its code
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    atexit = getattr(libc, "__cxa_atexit")
    atexit(ctypes.cast(libc.fcloseall, ctypes.c_void_p), None, None)


# --- the nixl library -------------------------------------------------------------------------
DRAM, VRAM = 0, 1  # nixl_capi_mem_type_t
STRICT = 1  #: nixl_capi_thread_sync_t: one call at a time. RW, with no progress thread, lets calls of UCX race: SIGSEGV
_BACKEND = b"UCX"
_PARAMETERS = {
    "nixl_capi_create_configured_agent": [c_char_p, c_void_p, POINTER(c_void_p)],
    "nixl_capi_destroy_agent": [c_void_p],
    "nixl_capi_get_plugin_params": [c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_void_p)],
    "nixl_capi_params_add": [c_void_p, c_char_p, c_char_p],
    "nixl_capi_create_backend": [c_void_p, c_char_p, c_void_p, POINTER(c_void_p)],
    "nixl_capi_create_opt_args": [POINTER(c_void_p)],
    "nixl_capi_opt_args_add_backend": [c_void_p, c_void_p],
    "nixl_capi_create_reg_dlist": [c_int, POINTER(c_void_p), c_bool],
    "nixl_capi_reg_dlist_add_desc": [c_void_p, c_size_t, c_size_t, c_uint64, c_char_p, c_size_t],
    "nixl_capi_destroy_reg_dlist": [c_void_p],
    "nixl_capi_register_mem": [c_void_p, c_void_p, c_void_p],
    "nixl_capi_deregister_mem": [c_void_p, c_void_p, c_void_p],
    "nixl_capi_get_local_md": [c_void_p, POINTER(c_void_p), POINTER(c_size_t)],
    "nixl_capi_load_remote_md": [c_void_p, c_char_p, c_size_t, POINTER(c_void_p)],
    "nixl_capi_invalidate_remote_md": [c_void_p, c_char_p],
    "nixl_capi_create_xfer_dlist": [c_int, POINTER(c_void_p), c_bool],
    "nixl_capi_destroy_xfer_dlist": [c_void_p],
}
#: what native code calls, by the field of the NIXL record
TRANSFER_FUNCTIONS = {
    "create": "nixl_capi_create_xfer_req",
    "post": "nixl_capi_post_xfer_req",
    "status": "nixl_capi_get_xfer_status",
    "release": "nixl_capi_release_xfer_req",
    "destroy": "nixl_capi_destroy_xfer_req",
    "add": "nixl_capi_xfer_dlist_add_desc",
    "clear": "nixl_capi_xfer_dlist_clear",
}


class _AgentConfig(ctypes.Structure):
    """nixl_capi_agent_config_t."""

    _fields_ = (
        ("progress_thread", c_bool),
        ("listen_thread", c_bool),
        ("listen_port", c_uint16),
        ("thread_sync", c_int),
        ("workers", c_uint),
        ("progress_delay_us", c_uint64),
        ("listen_delay_us", c_uint64),
        ("telemetry", c_bool),
    )


class NixlError(Exception):
    """A call of NIXL has failed."""


@cache
def library() -> Any:
    """The library, loaded once per process.

    Raises:
        LinkUnavailable: NIXL is not installed, or has no C interface that this build knows.
    """
    loaded = _load()
    try:
        for name, parameters in _PARAMETERS.items():
            getattr(loaded, name).argtypes = parameters
        for name in TRANSFER_FUNCTIONS.values():
            getattr(loaded, name)
    except AttributeError as error:
        raise LinkUnavailable(f"this version of NIXL has another C interface: {error}; 1.5.1 is tested") from None
    end_without_destructors()
    return loaded


def _load() -> ctypes.CDLL:
    why = "pip install --no-deps nixl-cu12"
    for path in (*_in_wheels(), Path("libnixl_capi.so")):
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            why = str(error) if path.parent.name else why
    raise LinkUnavailable(f"NIXL is not installed, or does not load: {why}")


def _in_wheels() -> list[Path]:
    """NIXL's wheels are named for what they were built for: nixl_cu12, nixl_cu13, ..."""
    found = []
    for module in pkgutil.iter_modules():
        spec = importlib.util.find_spec(module.name) if module.name.startswith("nixl_cu") else None
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).parent
            found.append(package.parent / f".{package.name}.mesonpy.libs" / "libnixl_capi.so")
    return [path for path in found if path.exists()]


def function_address(name: str) -> int:
    """The address of a function of the library."""
    return int(ctypes.cast(getattr(library(), name), c_void_p).value or 0)


class Agent:
    """An agent with the UCX backend.

    Args:
        progress_delay_us: of its progress thread: how long that sleeps if nothing comes. None: it has none, and makes
            progress only in its calls.
        parameters: of the backend, beside its defaults.

    Raises:
        LinkUnavailable: UCX does not work here.
    """

    def __init__(self, name: str, progress_delay_us: int | None, parameters: dict[str, str]) -> None:
        self._library = library()
        config = _AgentConfig(
            progress_thread=progress_delay_us is not None,
            thread_sync=STRICT,
            progress_delay_us=progress_delay_us or 0,
        )
        self.handle, self.options = c_void_p(), c_void_p()
        backend, memories, known = c_void_p(), c_void_p(), c_void_p()
        try:
            self._call("create_configured_agent", name.encode(), byref(config), byref(self.handle))
            self._call("get_plugin_params", self.handle, _BACKEND, byref(memories), byref(known))
            for key, value in parameters.items():
                self._call("params_add", known, key.encode(), value.encode())
            self._call("create_backend", self.handle, _BACKEND, known, byref(backend))
            self._call("create_opt_args", byref(self.options))
            self._call("opt_args_add_backend", self.options, backend)
        except NixlError as error:
            raise LinkUnavailable(f"NIXL's backend UCX does not work here: {error}; see the log of UCX") from None

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"nixl_capi_{name}")(*arguments)
        if status:
            raise NixlError(f"{name} answered {status}")

    def register(self, address: int, nbytes: int, device: int | None) -> c_void_p:
        """Register memory: the list of it, for `deregister`.

        Raises:
            NixlError: NIXL does not take it.
        """
        memory = c_void_p()
        self._call("create_reg_dlist", DRAM if device is None else VRAM, byref(memory), False)
        self._call("reg_dlist_add_desc", memory, address, nbytes, device or 0, b"", 0)
        self._call("register_mem", self.handle, memory, self.options)
        return memory

    def deregister(self, memory: c_void_p) -> None:
        """Take back `register`."""
        self._call("deregister_mem", self.handle, memory, self.options)
        self._call("destroy_reg_dlist", memory)

    def metadata(self) -> bytes:
        """What another agent needs to reach this one."""
        data, size = c_void_p(), c_size_t()
        self._call("get_local_md", self.handle, byref(data), byref(size))
        return ctypes.string_at(data, size.value)

    def add_peer(self, metadata: bytes) -> bytes:
        """The name of the agent that has this metadata.

        Raises:
            LinkLost: it is no metadata, or of an agent that cannot be reached.
        """
        name = c_void_p()
        try:
            self._call("load_remote_md", self.handle, metadata, len(metadata), byref(name))
        except NixlError as error:
            raise LinkLost(str(error)) from None
        return ctypes.string_at(name)

    def remove_peer(self, name: bytes) -> None:
        """Forget a peer."""
        self._call("invalidate_remote_md", self.handle, name)

    def descriptors(self, device: int | None) -> c_void_p:
        """A new list of descriptors for transfers."""
        made = c_void_p()
        self._call("create_xfer_dlist", DRAM if device is None else VRAM, byref(made), False)
        return made

    def close(self) -> None:
        """End its threads and forget its memory. Idempotent."""
        if self.handle:
            self._call("destroy_agent", self.handle)
            self.handle = c_void_p()
