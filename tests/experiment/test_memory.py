"""A run that surely does not fit into memory is refused before it starts, and no other."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import Command, composed

from nws.errors import UserError
from nws.experiment.process import memory
from nws.experiment.process.memory import check_memory, in_words, parameter_bytes, row_bytes
from nws.experiment.trained.library import load_data
from nws.models import HelmholtzMachine

CPU = torch.device("cpu")


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("adam", 2)])
def test_the_bytes_of_parameters_are_those_of_a_machine(optimizer: str, moments: int) -> None:
    machine = HelmholtzMachine([64, 20, 7])
    count = sum(each.numel() for each in machine.parameters())
    found = parameter_bytes([64, 20, 7], composed(f"optimizer={optimizer}"))
    assert found == pytest.approx(4 * count * (2 + moments), rel=0.1)  # biases of the ends


def test_the_rows_of_a_step() -> None:
    plain, natural = composed("algorithm=rws"), composed("algorithm=nrws")
    assert row_bytes([64, 6], 32, plain) == 4 * 10 * 70
    assert row_bytes([64, 6], 32, natural) == 32 * 4 * 10 * 70
    vimco = composed("algorithm=vimco", "algorithm.samples=1000")
    assert row_bytes([64, 6], 32, vimco) == 4 * 1000 * 70 + 4 * 1000**2


def test_what_does_not_fit_is_refused_and_what_does_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data, config = load_data("digits", "cpu"), composed("algorithm=nrws")
    sizes = [64, *config.model.layers]
    needed = parameter_bytes(sizes, config) + row_bytes(sizes, 32, config)
    monkeypatch.setattr(memory, "memory_of", lambda device: needed)
    check_memory(config, data, CPU)
    monkeypatch.setattr(memory, "memory_of", lambda device: needed - 1)
    with pytest.raises(UserError, match=r"would take .* or more, and this machine has .*; lower"):
        check_memory(config, data, CPU)


def test_this_machine_has_some_memory() -> None:
    assert 2**28 < memory.memory_of(CPU) < math.inf
    assert [in_words(each) for each in (3, 2048, 3.2e10, 1e30)] == [
        "3 bytes", "2 KiB", "29.8 GiB", "8.67e+11 EiB",
    ]  # fmt: skip


def test_more_images_than_fit_are_refused(command: Command) -> None:
    message = command(
        "scripts/sample.py", "pretrained/digits", "--count", "1000000000000"
    ).message()
    assert "there is not enough memory for" in message and "--count" in message
