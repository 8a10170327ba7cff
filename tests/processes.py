"""Several processes on this machine, if it can be forked from the test: no import is paid twice."""

import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from nws import distributed


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def together(
    size: int, function: Callable[..., Any], *given: Any, may_die: bool = False, way: str = "fork"
) -> list[Any]:
    """What a function returns in each of several processes that have met.

    Where a process `may_die`, its signal stands for that. A fork after CUDA cannot differentiate.
    """
    port, context, started = free_port(), multiprocessing.get_context(way), []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        target = (environment(rank, size, port), there, function, given)
        process = context.Process(target=_run, args=target, daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    results = []
    for process, here in started:
        assert here.poll(600), "no answer"
        try:
            good, result = pickle.loads(here.recv_bytes())
        except EOFError:
            process.join(10)
            good, result = may_die, process.exitcode
        assert good, result
        results.append(result)
    return results


def _run(values: dict[str, str], pipe: Connection, call: Callable[..., Any], given: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(values)
    torch.cuda.is_available = lambda: False  # CUDA is of the process that forked
    try:
        distributed.start(timeout=60)
        answer = pickle.dumps((True, call(*given)))  # copies of tensors
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    pipe.send_bytes(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing of the test's own is to be torn down here
