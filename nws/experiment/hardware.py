"""The device that a run computes on, and what else its times depend on."""

import logging
import platform
import socket
from pathlib import Path
from typing import Any

import torch

from nws import __version__, distributed
from nws.errors import UserError, one_of

log = logging.getLogger(__name__)

PRECISIONS = ("float32", "tf32", "bfloat16", "auto")  # of products


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device for `auto` (CUDA where there is one), `cpu` or `cuda`."""
    if isinstance(name, torch.device):
        return name
    one_of("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no CUDA device; use device=cpu or device=auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def product_type(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of products with states for one of `PRECISIONS`; warn where it is slow.

    "auto" is bfloat16 on a fast CPU alone: at batch 512 an H200 saves nothing by it.
    """
    if precision in ("float32", "tf32"):
        return torch.float32
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bfloat16" and not fast:
        name = device_name(device.type)
        log.warning(f"{name} has no fast products in bfloat16; trainer.precision=float32 is faster")
    takes = precision == "bfloat16" or (fast and device.type == "cpu")
    return torch.bfloat16 if takes else torch.float32


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the CPU, that a run with this option `device` takes."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def surroundings(device: torch.device) -> dict[str, Any]:
    """Return what a run runs on: versions, host and processor."""
    return {
        "version": __version__, "python": platform.python_version(), "torch": torch.__version__,
        "platform": platform.platform(), "host": socket.gethostname(),
        "device": device.type, "processor": device_name(device.type),
        "threads": torch.get_num_threads(), "processes": distributed.size(),
    }  # fmt: skip
