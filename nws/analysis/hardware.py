"""The name of the machine that a time was measured on. Needs torch alone."""

import platform
from pathlib import Path

import torch


def device_name(device: str) -> str:
    """The name of the GPU, or of the CPU as far as the system tells it.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`, as a run's option `device` has it.
    """
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(device: str) -> str:
    """The device's name, the CPU threads that torch takes where it is no GPU, torch's version."""
    count = torch.get_num_threads()
    gpu = device != "cpu" and torch.cuda.is_available()
    threads = [] if gpu else [f"{count} thread{'s' * (count > 1)}"]
    return ", ".join([device_name(device), *threads, f"torch {torch.__version__}"])
