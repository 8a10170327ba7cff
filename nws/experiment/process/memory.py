"""The memory that a run needs at least, before anything of it is made."""

import math
import resource
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from omegaconf import DictConfig

from nws.data import Dataset
from nws.errors import UserError

FLOAT = 4  # bytes


def check_memory(config: DictConfig, data: Dataset, device: torch.device) -> None:
    """Raise `UserError` where a run surely does not fit into the memory of the device.

    Args:
        config: Of the run, checked.
        data: Its data set.
        device: Where it is to train.
    """
    sizes = [math.prod(data.shape), *map(int, config.model.layers)]
    batch = min(int(config.trainer.batch_size), len(data.train))
    parts = {
        "model.layers": parameter_bytes(sizes, config),
        "algorithm.samples": row_bytes(sizes, batch, config),
    }
    check_fits(
        sum(parts.values()), device, "this run", f"lower {max(parts, key=parts.__getitem__)}"
    )


def parameter_bytes(sizes: Sequence[int], config: DictConfig) -> float:
    """Return the bytes of all parameters, their gradients, the optimizer's state and an average."""
    weights = 2.0 * sum(float(a) * b for a, b in pairwise(sizes))
    biases = 2.0 * sum(sizes)
    moments = 2 if "Adam" in str(config.optimizer.get("_target_")) else 0
    averaged = (config.get("average") or {}).get("_target_") is not None
    return FLOAT * (weights + biases) * (2 + moments + averaged)


def row_bytes(sizes: Sequence[int], batch: int, config: DictConfig) -> float:
    """Return the bytes of the states of a step.

    On a CPU the rows of a batch come in parts, but those of a data point together.
    """
    samples = max(
        float(config.algorithm.get("samples", 1)), float(config.algorithm.get("dreams") or 0)
    )
    natural = config.metric.get("_target_") is not None
    points = batch if natural else 1
    rows = FLOAT * points * samples * sum(sizes)
    leave_one_out = "vimco" in str((config.algorithm.get("weighting") or {}).get("_target_"))
    return rows + FLOAT * samples**2 * leave_one_out


def check_fits(needed: float, device: torch.device, what: str, advice: str) -> None:
    """Raise `UserError` where more bytes are needed than a device has.

    Args:
        needed: Bytes, at least.
        device: A CPU, or a CUDA device.
        what: What needs them, in a message.
        advice: What to do.
    """
    there, where = memory_of(device), "the GPU" if device.type == "cuda" else "this machine"
    if needed > there:
        raise UserError(
            f"{what} would take {in_words(needed)} of memory or more, and {where} has"
            f" {in_words(there)}; {advice}"
        )


def memory_of(device: torch.device) -> float:
    """Return the bytes of memory that a process may have on a device; inf where nothing says."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    limits = [_number(Path(path)) for path in CGROUPS]
    limits += [float(each) for each in resource.getrlimit(resource.RLIMIT_AS) if each > 0]
    return min([_physical(), *limits])


CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _number(path: Path) -> float:
    """Return the number in a file; inf where there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return math.inf


def _physical() -> float:
    """Return the bytes of the machine's memory with its swap space; inf where nothing says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = [line.split()[1] for line in lines if line.startswith(("MemTotal", "SwapTotal"))]
        return 1024.0 * sum(map(int, sizes))
    except (OSError, ValueError, IndexError):
        return math.inf


def in_words(count: float) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> in_words(3.2e10)
        '29.8 GiB'
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(len(units) - 1, int(math.log2(max(count, 1)) // 10))
    return f"{count / 1024**power:,.3g} {units[power]}"
