"""Images from a Helmholtz machine: ancestral samples, reconstructions, Markov chains (also with pixels held) and walks.

Images are (C, n_0) in [0, 1], C of them. Sources: Bornschein & Bengio 2015 (importance resampling); Bornschein et al. 2016
(bidirectional Helmholtz machines, p*).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nws.errors import UserError, positive_int
from nws.models.belief_network import SigmoidLayer, encode
from nws.models.helmholtz import HelmholtzMachine


@torch.no_grad()
def generate(
    machine: HelmholtzMachine,
    count: int,
    rng: torch.Generator | None = None,
    probabilities: bool = True,
) -> Tensor:
    """Ancestral samples from p: (count, n_0). The probabilities sigma(a^0) of the pixels given h^1 ~ p, or binary draws."""
    trace = machine.dream(positive_int("count", count), rng)
    return trace.pixel_probabilities.clone() if probabilities else trace.bit_blocks[0].clone()


@torch.no_grad()
def reconstruct(machine: HelmholtzMachine, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
    """Probabilities of the pixels given one h^1 ~ q(h | x) for each row of x (B, n_0): (B, n_0)."""
    return machine.wake(x, 1, rng).pixel_probabilities.clone()


class Chain(Protocol):
    """C Markov chains side by side; `x` (C, n_0) holds the pixels as bits, those that are observed as they were given."""

    x: Tensor

    def step(self) -> Tensor:
        """Draw every layer and the free pixels anew; the pixels' probabilities given h^1 (C, n_0), observed ones as given."""


class ResamplingChain:
    """Chains whose states follow p, the further K rises: h ~ p(h | x) by importance resampling, then x ~ p(x | h).

    One of `samples` (K) draws h_k ~ q(h | x) is kept with probability w_k / sum w, w_k = p(x, h_k) / q(h_k | x).
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        x: Tensor,
        rng: torch.Generator | None = None,
        observed: Tensor | None = None,
        samples: int = 10,
    ) -> None:
        self.machine, self.rng, self.samples = machine, rng, positive_int("samples", samples)
        self.x = x.clone()
        self._observed = _observed(machine, observed, x.device)

    @torch.no_grad()
    def step(self) -> Tensor:
        trace = self.machine.wake(self.x, self.samples, self.rng)
        weights = torch.softmax(self.machine.log_weights(trace), dim=1)
        kept = torch.multinomial(weights, 1, generator=self.rng)[:, 0]
        rows = torch.arange(len(kept), device=kept.device) * self.samples + kept
        probabilities = torch.where(self._observed, self.x, trace.pixel_probabilities[rows])
        self.x = torch.where(self._observed, self.x, _bernoulli(probabilities, self.rng))
        return probabilities


class GibbsChain:
    """Chains whose pixels follow p*(x), exactly: Gibbs sampling, one unit after the other, from conditionals of p and q.

    p*(x) = (sum_h sqrt(p(x, h) q(h | x)))^2 / Z is the marginal of x under

        p*(x, h, h') = sqrt(p(x, h) q(h | x) p(x, h') q(h' | x)) / Z,

    so each chain carries two hidden states. Given all others, unit j of h^l is on with the logit

        (a_j + b_j + D_j log p(h^{l-1} | h^l) + D_j log q(h^{l+1} | h^l)) / 2

    where a_j, b_j are its logits under p given h^{l+1} and under q given h^{l-1}, and D_j is the value with the unit on less
    the value with it off. A pixel has the sum of such terms over h and h'. Units of all chains are drawn together; within a
    layer they depend on each other through the layers beside it, so they take turns: sum_l n_l draws a step.
    """

    def __init__(
        self,
        machine: HelmholtzMachine,
        x: Tensor,
        rng: torch.Generator | None = None,
        observed: Tensor | None = None,
    ) -> None:
        self.machine, self.rng = machine, rng
        self._observed = _observed(machine, observed, x.device)
        free = (~self._observed).nonzero()[:, 0].tolist()
        self._units = [free, *(list(range(size)) for size in machine.sizes[1:])]
        # Rows 2 c and 2 c + 1 are h and h' of chain c.
        self._bits = [block.clone() for block in machine.wake(x, 2, rng).bit_blocks]
        self._layers = [
            {edge.position: edge.layer for edge in network.edges} for network in machine.networks
        ]

    @property
    def x(self) -> Tensor:
        return self._bits[0][::2]

    @torch.no_grad()
    def step(self) -> Tensor:
        for layer in [*range(1, len(self._bits)), 0]:
            self._draw(layer)
        logits = self._layers[0][0](self._states(1))
        return torch.where(self._observed, self.x, torch.sigmoid(_both(logits) / 2))

    def _states(self, layer: int) -> Tensor:
        return encode(self._bits[layer], self.machine.units)

    def _draw(self, layer: int) -> None:
        p, q = self._layers
        bits, top = self._bits[layer], len(self._bits) - 1
        above = self._states(layer + 1) if layer < top else bits[:, :0]
        logits = p[layer](above)
        children = []
        if layer > 0:
            logits = logits + q[layer - 1](self._states(layer - 1))
            children.append(self._child(p[layer - 1], layer, layer - 1))
        if layer < top:
            children.append(self._child(q[layer], layer, layer + 1))
        for child in children:
            logits = logits + child.linear
        uniform = torch.rand(bits.shape, generator=self.rng, device=bits.device, dtype=bits.dtype)
        for unit in self._units[layer]:
            bit = bits[:, unit]
            turn = 1 - 2 * bit  # from the unit's present state to the other
            logit = logits[:, unit]
            others = []
            for child in children:
                other = torch.addcmul(child.logits, turn[:, None], child.columns[unit])
                softplus = F.softplus(other).sum(1)
                logit = logit - turn * (softplus - child.softplus)
                others.append((other, softplus))
            if layer == 0:  # both hidden states have a say in the one pixel
                drawn = (uniform[::2, unit] < torch.sigmoid(_both(logit) / 2)).repeat_interleave(2)
            else:
                drawn = uniform[:, unit] < torch.sigmoid(logit / 2)
            turned = drawn != bit.bool()
            bits[:, unit] = drawn.to(bits.dtype)
            for child, (other, softplus) in zip(children, others, strict=True):
                child.logits.copy_(torch.where(turned[:, None], other, child.logits))
                child.softplus.copy_(torch.where(turned, softplus, child.softplus))

    def _child(self, layer: SigmoidLayer, parent: int, child: int) -> "_Child":
        columns = layer.weight.T * (
            2 if self.machine.units == "bipolar" else 1
        )  # what switching a parent on adds
        logits = layer(self._states(parent))
        return _Child(logits, F.softplus(logits).sum(1), columns, self._bits[child] @ columns.T)


class _Child(NamedTuple):
    """A layer whose parents are being drawn."""

    logits: Tensor  # (2 C, units) a, kept up to date with the parents
    softplus: Tensor  # (2 C,) sum over the units of log(1 + e^a), kept up to date too
    columns: Tensor  # (parents, units) change of the logits from a parent off to on
    linear: Tensor  # (2 C, parents) D_j sum y a, the part of D_j log Bern(y; sigma(a)) that is linear in a


@torch.no_grad()
def walk(
    machine: HelmholtzMachine, walks: int, steps: int, rng: torch.Generator | None = None
) -> Tensor:
    """Walks in the deepest layer: h^L ~ p, then one unit after the other flips; (walks, steps, n_0) pixel probabilities.

    The layers below are drawn with the same noise along a walk, so what changes in the image is what the flip changed.
    """
    like = next(machine.parameters())
    size = (positive_int("walks", walks), positive_int("steps", steps), machine.sizes[-1])
    top = torch.sigmoid(machine.generator.edges[0].layer.bias).expand(walks, -1)
    flips = torch.randint(size[2], (walks, steps), generator=rng, device=like.device)
    flips[:, 0] = 0
    turned = F.one_hot(flips, size[2])
    turned[:, 0] = 0  # the first image is the draw itself
    bits = (_bernoulli(top, rng)[:, None] + turned.cumsum(1)) % 2
    for edge in machine.generator.edges[1:]:
        probabilities = torch.sigmoid(
            edge.layer(encode(bits, machine.units).flatten(0, 1).to(like))
        ).unflatten(0, size[:2])
        noise = torch.rand(
            walks, 1, probabilities.shape[2], generator=rng, device=like.device, dtype=like.dtype
        )
        bits = (noise < probabilities).to(like.dtype)
    return probabilities


def half_mask(shape: tuple[int, int], side: str) -> Tensor:
    """Which pixels of an (H, W) image are missing: its left, right, top or bottom half, (H W,) booleans."""
    height, width = shape
    missing = torch.zeros(shape, dtype=torch.bool)
    halves: dict[str, Callable[[], Tensor]] = {
        "left": lambda: missing[:, : width // 2],
        "right": lambda: missing[:, (width + 1) // 2 :],
        "top": lambda: missing[: height // 2],
        "bottom": lambda: missing[(height + 1) // 2 :],
    }
    if side not in halves:
        raise UserError(f"a mask is {', '.join(halves)} or a PNG file, got {side!r}")
    halves[side]().fill_(True)
    return missing.flatten()


def _observed(machine: HelmholtzMachine, observed: Tensor | None, device: torch.device) -> Tensor:
    pixels = machine.sizes[0]
    if observed is None:
        return torch.zeros(pixels, dtype=torch.bool, device=device)
    if observed.shape != (pixels,) or observed.dtype != torch.bool:
        raise UserError(
            f"observed must be ({pixels},) booleans, one a pixel, got {tuple(observed.shape)} {observed.dtype}"
        )
    return observed.to(device)


def _both(values: Tensor) -> Tensor:
    """Sum over the two hidden states of each chain: (2 C, n) to (C, n)."""
    return values.unflatten(0, (-1, 2)).sum(1)


def _bernoulli(probabilities: Tensor, rng: torch.Generator | None) -> Tensor:
    uniform = torch.rand(
        probabilities.shape, generator=rng, device=probabilities.device, dtype=probabilities.dtype
    )
    return (uniform < probabilities).to(probabilities.dtype)
