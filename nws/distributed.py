"""Sums, gathers and broadcasts of several processes. With one process they do nothing.

Each process holds all parameters. It works on its part of what is counted: data points of a batch,
units of a layer, chunks of an evaluation. What it finds is summed, or joined, so that afterwards
all processes hold the same numbers, bit for bit.

Symbols: W processes, of which this one has the number r from 0.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from nws.errors import UserError

TIMEOUT = 600.0  # seconds that a process waits for another one that lives
PATIENCE = 5.0  # seconds that the first process, when it ends, waits for the others to ask
LOST = (
    "another process of this run has ended, or cannot be reached, so this one ends too; the run"
    " goes on from its last checkpoint by resume=RUN or resume=auto, with any number of processes"
)


class Processes(NamedTuple):
    """What this process knows of those that it works with."""

    rank: int = 0  # r
    size: int = 1  # W
    local_rank: int = 0  # among those of this host
    store: Any = None  # torch's store of keys, which all of them reach


_here = Processes()
_watched: Callable[[], float] | None = None  # makes this process's part of the flag of every sum
_seen: Tensor | None = None  # the flag of the last sum


class Lost(UserError):
    """Another process of the run has gone."""


def start(environment: dict[str, str] | None = None, timeout: float = TIMEOUT) -> Processes:
    """Meet the other processes, where the environment says that there are some.

    `torchrun` sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Tensors on a CPU go
    by gloo, those on CUDA by nccl.

    Args:
        environment: In place of `os.environ`.
        timeout: Seconds to wait for others, here and later.

    Raises:
        UserError: Where the others cannot be met.
    """
    global _here
    values = os.environ if environment is None else environment
    size = _number("WORLD_SIZE", values, 1, least=1)
    if size == 1 or _here.size > 1:
        return _here
    if environment is not None:
        os.environ.update(environment)
    local_rank = _number("LOCAL_RANK", values, _number("RANK", values, 0))
    cuda = torch.cuda.is_available() and distributed.is_nccl_available()
    wait = timedelta(seconds=timeout)
    try:
        store, rank, size = next(rendezvous("env://", timeout=wait))
        store = distributed.PrefixStore(f"nws/{_attempt(values)}", store)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store, rank=rank, world_size=size, timeout=wait,
        )  # fmt: skip
    except (RuntimeError, ValueError, OSError) as error:
        place = f"{values.get('MASTER_ADDR')}:{values.get('MASTER_PORT')}"
        raise UserError(
            f"{size} processes were to meet at {place}, which failed on {socket.gethostname()}:"
            f" {_first_line(error)}; start them by torchrun, see docs/distributed.md"
        ) from error
    _here = Processes(rank, size, local_rank, store)
    if cuda:
        torch.cuda.set_device(_here.local_rank)
    return _here


def _number(name: str, values: Mapping[str, str], default: int, least: int = 0) -> int:
    """The number in a variable of the environment; `UserError` for another value."""
    try:
        number = int(values.get(name, default))
    except ValueError:
        number = least - 1
    if number < least:
        raise UserError(
            f"the environment variable {name} must be a whole number of at least {least}, as"
            f" torchrun sets it, got {values.get(name)!r}; unset it for one process"
        )
    return number


def _attempt(values: Mapping[str, str]) -> str:
    """The number of this start by torchrun, whose store has the keys of earlier ones on one host.

    On several hosts it need not be the same everywhere, and torchrun's rendezvous (c10d) makes a
    new store each time.
    """
    several = values.get("GROUP_WORLD_SIZE", "1") != "1"
    return "0" if several else values.get("TORCHELASTIC_RESTART_COUNT", "0")


def stop() -> None:
    """Leave the others. What follows is of one process alone."""
    global _here, _watched, _seen
    if _here.size > 1:
        distributed.destroy_process_group()
    _here, _watched, _seen = Processes(), None, None


def rank() -> int:
    """The number of this process, from 0."""
    return _here.rank


def size() -> int:
    """W, how many processes work together."""
    return _here.size


def is_first() -> bool:
    """Whether this is the process that writes files and speaks."""
    return _here.rank == 0


def speaks_first() -> bool:
    """True for the first process that asks, so that one error is printed."""
    if _here.size == 1:
        return True
    try:
        ended = int(_here.store.add("ended", 1))
        if is_first() and _holds_store():
            _leave(ended)
    except RuntimeError:  # the store went with the first process, which was killed
        return True
    return ended == 1


def _holds_store() -> bool:
    """Whether the store goes when this process does; torchrun's own stays."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _leave(ended: int) -> None:
    """Let the others notice that this process ends, and keep the store until they have asked."""
    if "nccl" not in distributed.get_backend_config():  # that would wait for them
        distributed.destroy_process_group()
    until = time.monotonic() + PATIENCE
    while ended < _here.size and time.monotonic() < until:
        time.sleep(0.02)
        ended = int(_here.store.add("ended", 0))


def bounds(count: int) -> list[int]:
    """Where the parts of `count` things begin, and the end of the last: W + 1 numbers.

    Parts differ by one at most.

    Example:
        >>> bounds(5)
        [0, 5]
    """
    return [count * each // _here.size for each in range(_here.size + 1)]


def share(count: int) -> slice:
    """Which of `count` things are this process's; all of them where there is one process."""
    places = bounds(count)
    return slice(places[_here.rank], places[_here.rank + 1])


def sum_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their sums over the processes: one all-reduce of one buffer.

    One number goes with them, the flag (see `watch`).
    """
    global _seen
    if _here.size == 1:
        return
    like = tensors[0] if tensors else torch.zeros(1)
    flag = like.new_full((1,), 0.0 if _watched is None else _watched())
    buffer = torch.cat([*(each.flatten() for each in tensors), flag])
    _try(distributed.all_reduce, buffer)
    parts = buffer.split([*(each.numel() for each in tensors), 1])
    _seen = parts[-1]
    for each, part in zip(tensors, parts, strict=False):
        each.copy_(part.view_as(each))


def total(tensor: Tensor) -> Tensor:
    """The sum of a tensor over the processes; the tensor itself where there is one process."""
    if _here.size > 1:
        tensor = tensor.clone()
        sum_([tensor])
    return tensor


def largest(tensor: Tensor) -> Tensor:
    """The largest of each number over the processes."""
    if _here.size > 1:
        tensor = tensor.clone()
        _try(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)
    return tensor


def gather(parts: Sequence[Tensor], places: Sequence[Sequence[int]]) -> list[Tensor]:
    """Join the rows that the processes have of each tensor, in their order: one all-gather.

    Args:
        parts: This process's rows of each, (rows, ..), all of one dtype.
        places: For each the row at which each process's part begins, and the end: W + 1 numbers.

    Returns:
        Each tensor with the rows of all processes. Those that came, where there is one process.
    """
    if _here.size == 1 or not parts:
        return list(parts)
    widths = [each.shape[1:].numel() for each in parts]
    sizes = [
        [(at[r + 1] - at[r]) * width for at, width in zip(places, widths, strict=True)]
        for r in range(_here.size)
    ]
    length = max(map(sum, sizes))
    if length == 0:
        return list(parts)
    own = parts[0].new_zeros(length)
    torch.cat([each.flatten() for each in parts], out=own[: sum(sizes[_here.rank])])
    buffer = own.new_empty(_here.size * length)
    _try(distributed.all_gather_into_tensor, buffer, own)
    pieces = [
        row[: sum(each)].split(each) for row, each in zip(buffer.split(length), sizes, strict=True)
    ]
    return [
        torch.cat([piece[number] for piece in pieces]).view(-1, *part.shape[1:])
        for number, part in enumerate(parts)
    ]


def send(value: Any) -> Any:
    """What the first process gives here, for all; plain values."""
    if _here.size > 1:
        box = [value]
        _try(distributed.broadcast_object_list, box, 0)
        value = box[0]
    return value


def wait() -> None:
    """Wait until all processes are here."""
    sum_([])


def watch(number: Callable[[], float]) -> None:
    """Let every sum from now on carry such numbers of all processes: their sum is the flag."""
    global _watched
    _watched = number


def flag() -> float:
    """The flag of the last sum: the same number in every process (waits for the device)."""
    return 0.0 if _seen is None else float(_seen)


def flag_is_free() -> bool:
    """Whether the flag can be read without waiting for a device."""
    return _seen is not None and _seen.device.type == "cpu"


def _try(operation: Any, *arguments: Any) -> None:
    """Call a collective operation; `Lost` where another process does not take part."""
    try:
        operation(*arguments)
    except RuntimeError as error:
        raise Lost(f"{LOST} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
