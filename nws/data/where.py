"""Where the bytes of a data set are held: on the device, or in memory of the host."""

import contextlib
from pathlib import Path

import torch

WHERE = ("device", "host", "auto")
SHARE = 0.5  # of a device's free memory, that the bytes of a data set take at most with `auto`


def fills_memory(size: int, device: torch.device) -> bool:
    """Return whether so many bytes are more than `SHARE` of the memory that a device has free."""
    free = free_memory(device)
    return free is not None and size > SHARE * free


def free_memory(device: torch.device) -> int | None:
    """Return the bytes of memory that are free on a device; None where nothing says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable")]
        return 1024 * int(found[0])
    return None
