"""Freed memory stays with a process: taking it again costs no page faults."""

import ctypes
import subprocess
import sys

import pytest
from conftest import ROOT

ROUNDS = """
import resource
{before}
for round in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(2**24) for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 8 * 2**24 // 2**21  # of the largest size that a system has by itself, 2 MiB


def faults(before: str) -> int:
    """Page faults of the last of four rounds, in each of which 128 MiB are taken and freed."""
    command = [sys.executable, "-c", ROUNDS.format(before=before)]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_memory_that_is_freed_costs_no_faults_again() -> None:
    assert faults("from nws.allocator import keep_freed_memory; keep_freed_memory()") < PAGES / 2
    assert faults("") >= PAGES  # the control: the system takes it back
