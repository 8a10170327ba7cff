"""The simulated device refuses and notes what a real one does; what it lets pass, it computes."""

import copy
from collections.abc import Callable

import pytest
import torch
from simulated_cuda import SimulatedTensor, simulated_cuda
from torch import Tensor

X = torch.arange(6.0).reshape(2, 3)

WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(), "float": lambda x: float(x[0, 0]),
    "if": lambda x: bool((x > 0).any()), "tolist": lambda x: x.tolist(), "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"), "equal": lambda x: torch.equal(x, x), "mask": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(), "eigh": lambda x: torch.linalg.eigh(x @ x.T),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T),
    "upload": lambda x: torch.ones(3).to("cuda"),
    "numbers": lambda x: torch.tensor([1.0], device="cuda"),
    "copy": lambda x: torch.ones(2, 3).copy_(x), "index": lambda x: x[:, torch.tensor([0, 2])],
}  # fmt: skip
FREE: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (2 * x + x.sum()).div_(3),
    "cpu scalar": lambda x: x * torch.tensor(2.0),
    "index": lambda x: x.index_select(1, torch.arange(2, device="cuda")),
    "fill": lambda x: x.new_full((2,), 1.0).fill_(3.0),
    "where": lambda x: torch.where(x > 1, 0.0, x),
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x @ x.T),
    "pinned": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "shape": lambda x: (x.shape, len(x), x.dtype, x.is_contiguous()),
}
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "at least two devices": lambda x: x + torch.ones(2, 3),
    "at least two devices, cuda:0 and cpu": lambda x: x @ torch.ones(3, 2),
    "cannot write to the cpu": lambda x: torch.zeros(()).add_(x.sum()),
    "'cuda' device type for generator": lambda x: x.uniform_(generator=torch.Generator()),
    "'cpu' device type for generator": lambda x: torch.rand(2, generator=torch.Generator("cuda")),
}


@pytest.mark.parametrize("action", [*WAITS.values(), *FREE.values()], ids=[*WAITS, *FREE])
def test_what_waits_is_noted_and_nothing_else(action: Callable[[Tensor], object]) -> None:
    with simulated_cuda() as device:
        x = X.to("cuda")
        device.waits.clear()
        action(x)
        assert bool(device.waits) == (action in WAITS.values())


@pytest.mark.parametrize("words", REFUSED)
def test_devices_do_not_mix(words: str) -> None:
    with simulated_cuda(), pytest.raises((RuntimeError, TypeError), match=words):
        REFUSED[words](X.to("cuda"))


def test_numbers_are_those_of_the_cpu() -> None:
    with simulated_cuda():
        x = X.to("cuda")
        view = x.split(2, dim=1)[0]
        view.mul_(10)  # a view shares its numbers
        weight = torch.nn.Linear(3, 2).to("cuda").weight
        (x @ weight.T).sum().backward()
        assert isinstance(weight, torch.nn.Parameter) and weight.grad is not None
        assert torch.equal(weight.grad.cpu()[0], x.sum(0).cpu())
        assert x.device == torch.device("cuda", 0) and isinstance(view, SimulatedTensor)
        copied = copy.deepcopy(x).add_(1)
        assert torch.equal(x.cpu(), torch.tensor([[0.0, 10.0, 2.0], [30.0, 40.0, 5.0]]))
        assert torch.equal(copied.cpu(), x.cpu() + 1)
