"""The device that a run computes on, and the processor that a time was measured on."""

import platform
from pathlib import Path

import torch

from nws.errors import UserError


def pick_device(name: str) -> torch.device:
    """Return the device for `auto` (CUDA where there is one), `cpu` or `cuda`."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no CUDA device; use device=cpu or device=auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def processor() -> str:
    """Return the CPU's name as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
