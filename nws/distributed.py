"""Several processes that train one machine. With one process nothing here does anything.

Each process holds all parameters and works on its share of what is counted. What it finds is summed
or gathered, so that afterwards all processes hold the same numbers, bit for bit.

Symbols: W processes, of which this one has the number r from 0.
"""

import atexit
import logging
import os
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.nn.functional  # later its defaults would keep the group and its threads
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from nws.errors import UserError

MEETING = 300.0  # seconds to meet the others at most; torch tries for up to twice as long
TIMEOUT = 600.0  # seconds that a process waits for another one
LOST = (
    "another process of this run has ended, or cannot be reached, so this one ends too; the run"
    " goes on from its last checkpoint by resume=RUN or resume=auto, with any number of processes"
)

_store: Any = None  # torch's store of keys, which all processes reach


def start(timeout: float = TIMEOUT) -> None:
    """Meet the other processes, where the environment says that there are some.

    From then on the first process alone prints and logs; errors are those of `speaks_first`.
    `torchrun` sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Tensors on a CPU go
    by gloo, those on CUDA by nccl.

    Args:
        timeout: Seconds to wait for the others later; and to meet them, there `MEETING` at most.

    Raises:
        UserError: Where the others cannot be met.
    """
    global _store
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1" or distributed.is_initialized():
        return
    cuda = torch.cuda.is_available() and distributed.is_nccl_available()
    # On one host torchrun's store has the keys of earlier starts; on several it is new each time.
    several = os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
    attempt = "0" if several else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        wait = timedelta(seconds=min(timeout, MEETING))
        store, number, total = next(rendezvous("env://", timeout=wait))
        _store = distributed.PrefixStore(f"nws/{attempt}", store)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", store=_store, rank=number,
            world_size=total, timeout=timedelta(seconds=timeout),
        )  # fmt: skip
    except (RuntimeError, ValueError, OSError) as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        why = f"which failed on {socket.gethostname()}: {_first_line(error)}"
        way = "start them by torchrun (docs/distributed.md), or unset WORLD_SIZE for one process"
        what = f"WORLD_SIZE={count} processes were to meet at {place}"
        raise UserError(f"{what}, {why}; {way}") from error
    if rank() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        logging.disable()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank())) % torch.cuda.device_count())
    else:  # gloo's threads would end the interpreter with SIGABRT; nccl waits for one that has gone
        atexit.register(stop)


def stop() -> None:
    """Leave the others. What follows is of one process alone."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def size() -> int:
    """W, how many processes work together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def speaks_first() -> bool:
    """Whether this process, which ends, says why: only the first that asks does."""
    try:
        return size() == 1 or int(_store.add("spoken", 1)) == 1
    except RuntimeError:  # the first process has taken the store with it, and has spoken
        return False


def share(count: int) -> slice:
    """Which of `count` things are this process's; all of them where there is one process."""
    return slice(count * rank() // size(), count * (rank() + 1) // size())


def sum_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors, all of one dtype, by their sums over the processes: one all-reduce."""
    if size() == 1 or not tensors:
        return
    buffer = torch.cat([each.flatten() for each in tensors])
    _try(distributed.all_reduce, buffer)
    parts = buffer.split([each.numel() for each in tensors])
    for each, part in zip(tensors, parts, strict=True):
        each.copy_(part.view_as(each))


def gather(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor with the rows of all processes, in their order: one all-gather of one buffer.

    They are (rows, ..) here, all of one dtype. Another process may have more rows or fewer.
    """
    if size() == 1 or not tensors:
        return list(tensors)
    rows = torch.tensor([len(each) for each in tensors])
    every = rows.new_empty(size(), len(rows))
    _try(distributed.all_gather_into_tensor, every.view(-1), rows)
    widths = torch.tensor([each.shape[1:].numel() for each in tensors])
    sizes: list[list[int]] = (every * widths).tolist()
    own = torch.cat([each.flatten() for each in tensors])
    buffer = own.new_zeros(size(), max(map(sum, sizes)))
    buffer[rank(), : len(own)] = own
    _try(distributed.all_gather_into_tensor, buffer.view(-1), buffer[rank()].clone())
    pieces = [row[: sum(each)].split(each) for row, each in zip(buffer, sizes, strict=True)]
    return [
        torch.cat(parts).view(int(count), *like.shape[1:])
        for parts, count, like in zip(zip(*pieces, strict=True), every.sum(0), tensors, strict=True)
    ]


def exchange(value: Any) -> list[Any]:
    """What each process gives here, for all of them; plain values and tensors."""
    found = [value] * size()
    if size() > 1:
        _try(distributed.all_gather_object, found, value)
    return found


def send(value: Any) -> Any:
    """What the first process gives here, for all; plain values."""
    box = [value]
    if size() > 1:
        _try(distributed.broadcast_object_list, box, 0)
    return box[0]


def any_(flag: bool) -> bool:
    """Whether the flag is set in any process: the same answer in all of them."""
    return any(exchange(flag))


def _try(operation: Any, *arguments: Any) -> None:
    """Call a collective operation; `UserError` where another process takes no part."""
    try:
        operation(*arguments)
    except RuntimeError as error:
        raise UserError(f"{LOST} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
