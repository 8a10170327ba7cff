"""Images from a Helmholtz machine: ancestral samples and reconstructions. Images are (n, n_0) in [0, 1]."""

import torch
from torch import Tensor

from nws.errors import positive_int
from nws.helmholtz import HelmholtzMachine


@torch.no_grad()
def generate(
    machine: HelmholtzMachine, count: int, rng: torch.Generator | None = None, probabilities: bool = True
) -> Tensor:
    """Ancestral samples from p: (count, n_0). The probabilities sigma(a^0) of the pixels given h^1 ~ p, or binary draws."""
    trace = machine.dream(positive_int("count", count), rng)
    return trace.pixel_probabilities.clone() if probabilities else trace.bit_blocks[0].clone()


@torch.no_grad()
def reconstruct(machine: HelmholtzMachine, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Probabilities of the pixels given one h^1 ~ q(h | x) for each row of x (B, n_0): (B, n_0)."""
    return machine.wake(x, 1, rng).pixel_probabilities.clone()
