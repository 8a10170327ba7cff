"""Processes that do not meet, or lose each other: no test of mathematics."""

from pathlib import Path

import pytest
from processes import environment, free_port, together

from nws import distributed
from nws.errors import UserError


def threads_after_the_end() -> list[str]:
    import torch._dynamo  # as optimizers do, after the processes have met

    distributed.sum_([torch.ones(10)])
    distributed.stop()
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def test_no_thread_outlives_the_group() -> None:
    """A thread of gloo that the interpreter's end meets aborts the process, now and then."""
    assert not any("gloo" in name for each in together(2, threads_after_the_end) for name in each)


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_that_do_not_meet_say_so(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for the other, and the other for the first."""
    for name, value in environment(rank, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="2 processes were to meet at 127.0.0.1:"):
        distributed.start(timeout=0.5)
    assert distributed.size() == 1
