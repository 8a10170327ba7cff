"""Images from a Helmholtz machine: ancestral samples, reconstructions, Markov chains, walks.

Images are data in [0, 1], (C, n_0), C of them. Sources: Bornschein & Bengio 2015 (importance
resampling); Bornschein et al. 2016 (bidirectional Helmholtz machines, p*).
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.models.belief_network import Edge
from nws.models.helmholtz import HelmholtzMachine
from nws.models.lateral import draw_layer
from nws.models.units import Units


@torch.no_grad()
def generate(
    machine: HelmholtzMachine, count: int, rng: torch.Generator | None = None,
    probabilities: bool = True,
) -> Tensor:  # fmt: skip
    """Ancestral samples from p: (count, n_0).

    Args:
        machine: The machine.
        count: Number of images.
        rng: Generator of the draws.
        probabilities: Whether to return the expected pixels given h^1 ~ p, or draws of them. Of a
            lateral layer they are expected given the pixels that were drawn before, too.
    """
    trace = machine.dream(positive_int("count", count), rng, evaluate=False)
    return (trace.pixel_means if probabilities else trace.pixels).clone()


@torch.no_grad()
def reconstruct(machine: HelmholtzMachine, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Expected pixels given one h^1 ~ q(h | x) for each row of x (B, n_0): (B, n_0)."""
    trace, edge = machine.wake(x, 1, rng), machine.generator.edges[-1]
    if not edge.lateral:
        return trace.pixel_means.clone()
    noise = _noise(machine.units[0], trace.value_blocks[0], rng)
    return machine.units[0].to_data(_draw_layer(machine, edge, trace.states, noise))


class Chain(ABC):
    """C Markov chains next to each other.

    Args:
        machine: The machine.
        x: First pixels, (C, n_0).
        rng: Generator of the draws.
        observed: Which pixels are held, (n_0,) booleans; none where left out.

    Attributes:
        x: The pixels, (C, n_0); those that are observed stay as they were given.
    """

    def __init__(
        self, machine: HelmholtzMachine, x: Tensor, rng: torch.Generator | None = None,
        observed: Tensor | None = None,
    ) -> None:  # fmt: skip
        pixels = machine.sizes[0]
        if observed is None:
            observed = torch.zeros(pixels, dtype=torch.bool)
        if observed.shape != (pixels,) or observed.dtype != torch.bool:
            got = f"{tuple(observed.shape)} {observed.dtype}"
            raise UserError(f"observed must be ({pixels},) booleans, one a pixel, got {got}")
        self.machine, self.rng, self.x = machine, rng, x.clone()
        self._observed = observed.to(x.device)

    @abstractmethod
    def step(self) -> Tensor:
        """Draw every layer and the free pixels again.

        Returns:
            The expected pixels given h^1, observed ones as given, (C, n_0).
        """


class ResamplingChain(Chain):
    """Chains whose states follow p: h ~ p(h | x) by importance resampling, then x ~ p(x | h).

    Of `samples` (K) draws h_k ~ q(h | x), h_k is kept with probability w_k / sum w,
    w_k = p(x, h_k) / q(h_k | x). The larger K, the closer the states follow p.

    Args:
        samples: K. The other arguments are those of `Chain`.

    Attributes:
        ess: Effective sample size 1 / sum_k (w_k / sum w)^2 of the last step, from 1 to K, a mean
            over the chains; nan before the first. Near 1, h hardly follows p(h | x).
    """

    def __init__(self, *arguments: Any, samples: int = 10, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self._observed.any() and self.machine.generator.edges[-1].lateral:
            what = "pixels that depend on each other (model.generator.lateral) cannot be drawn"
            way = "take no mask, or a machine without lateral pixels"
            raise UserError(f"{what} given some of them; {way}")
        self.ess, self.samples = math.nan, positive_int("samples", samples)

    @torch.no_grad()
    def step(self) -> Tensor:
        """Draw h by importance resampling, then the free pixels; expected pixels (C, n_0)."""
        trace = self.machine.wake(self.x, self.samples, self.rng)
        weights = torch.softmax(self.machine.log_weights(trace), dim=1)
        self.ess = float(weights.square().sum(1).reciprocal().mean())
        kept = torch.multinomial(weights, 1, generator=self.rng)[:, 0]
        rows = torch.arange(len(kept), device=kept.device) * self.samples + kept
        visible = self.machine.units[0]
        values = _noise(visible, trace.value_blocks[0][rows], self.rng)
        edge = self.machine.generator.edges[-1]
        means = _draw_layer(self.machine, edge, trace.states[rows], values)
        self.x = torch.where(self._observed, self.x, visible.to_data(values))
        return torch.where(self._observed, self.x, visible.to_data(means))


@torch.no_grad()
def walk(
    machine: HelmholtzMachine, walks: int, steps: int, rng: torch.Generator | None = None
) -> Tensor:
    """Walks in the deepest layer: h^L ~ p, then a unit flips for each image, at random.

    The layers below have the same noise along a walk: the image changes by the flip alone.

    Args:
        machine: A machine whose deepest layer is binary or bipolar.
        walks: Their number, each from a draw of its own.
        steps: Images of each walk, the first of them before any flip.
        rng: Generator of the draws.

    Returns:
        Expected pixels, (walks, steps, n_0).
    """
    top, units = machine.generator.edges[0], machine.units[-1]
    if units.support != (0.0, 1.0):
        raise UserError("a walk flips units of the deepest layer, which must be binary or bipolar")
    steps, walks = positive_int("steps", steps), positive_int("walks", walks)
    width, like = machine.sizes[-1], top.layer.bias
    flips = torch.randint(width, (walks, steps), generator=rng, device=like.device)
    flips[:, 0] = 0
    turned = F.one_hot(flips, width)
    turned[:, 0] = 0  # the first image is the draw itself
    states = like.new_zeros(walks, steps, sum(machine.sizes))
    first = _noise(units, states[:, 0, -width:], rng)
    _draw_layer(machine, top, states[:, 0], first)
    states[:, :, -width:] = units.encode((first[:, None] + turned.cumsum(1)) % 2)
    for edge in machine.generator.edges[1:]:
        units = machine.units[edge.child]
        noise = _noise(units, like.new_empty(walks, 1, machine.sizes[edge.child]), rng)
        every = noise.repeat(1, steps, 1).flatten(0, 1)
        means = _draw_layer(machine, edge, states.view(walks * steps, -1), every)
    return units.to_data(means).unflatten(0, (walks, steps))


def half_mask(shape: tuple[int, int], side: str) -> Tensor:
    """Which pixels of an (H, W) image are missing: its left, right, top or bottom half, (H W,)
    booleans; `UserError` for another side."""
    height, width = shape
    halves = {
        "left": (slice(None), slice(width // 2)),
        "right": (slice(None), slice((width + 1) // 2, None)),
        "top": (slice(height // 2), slice(None)),
        "bottom": (slice((height + 1) // 2, None), slice(None)),
    }
    if side not in halves:
        raise UserError(f"a mask is {', '.join(halves)} or a PNG file, got {side!r}")
    missing = torch.zeros(shape, dtype=torch.bool)
    missing[halves[side]] = True
    if not missing.any():
        raise UserError(f"the {side} half of an image of {height}x{width} pixels is empty")
    return missing.flatten()


def _noise(units: Units, like: Tensor, rng: torch.Generator | None) -> Tensor:
    """Noise for values of a layer, shaped as others of it."""
    noise = torch.empty_like(like)
    units.fill_noise(noise, rng)
    return noise


def _draw_layer(machine: HelmholtzMachine, edge: Edge, states: Tensor, values: Tensor) -> Tensor:
    """Draw a layer of the generator given the states (rows, N) of the others, into these.

    Noise becomes its values, and their means are returned.
    """
    units, first, others = machine.units[edge.child], edge.columns.start, edge.outer
    columns = slice(others.start - first, others.stop - first)
    logits = edge.layer(states[:, others], columns)
    means = draw_layer(edge, units, values, logits)
    states.split(machine.sizes, dim=1)[edge.child].copy_(units.encode(values))
    return means
