"""The GPU of a run."""

import subprocess
from typing import Any

import torch

QUERY = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")
TIMEOUT = 20.0  #: seconds


def gpu(device: torch.device) -> dict[str, Any]:
    """The GPU, its driver and its clocks; for a CPU, a note that the figures mean nothing."""
    if device.type == "cpu":
        return {"name": "none: Triton's interpreter on a CPU; the figures mean nothing"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability(device)),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "driver": driver(device.index or 0),
    }


def driver(index: int) -> dict[str, str]:
    """The answers of the driver's own tool: its version, and the clocks at this moment; or why it gave none."""
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": str(error)}
    values = (value.strip() for value in done.stdout.strip().splitlines()[0].split(","))
    return dict(zip(QUERY, values, strict=False))
