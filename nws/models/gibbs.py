"""Gibbs sampling from the bidirectional Helmholtz machine (Bornschein et al. 2016)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nws.errors import UserError
from nws.models.belief_network import Layer
from nws.models.helmholtz import HelmholtzMachine
from nws.models.sampling import Chain
from nws.models.units import Units


class GibbsChain(Chain):
    """Chains whose pixels follow p*(x), exactly: Gibbs sampling, one unit after the other.

    p*(x) = (sum_h sqrt(p(x, h) q(h | x)))^2 / Z is the marginal of x under

        p*(x, h, h') = sqrt(p(x, h) q(h | x) p(x, h') q(h' | x)) / Z,

    so each chain carries two hidden states. Given all others, unit j of h^l is on with the logit

        (a_j + b_j + D_j log p(h^{l-1} | h^l) + D_j log q(h^{l+1} | h^l)) / 2.

    a_j and b_j are its logits under p given h^{l+1} and under q given h^{l-1}. D_j is the value
    with the unit on minus the value with it off. A pixel has the sum of such terms over h and h'.
    Units of all chains are drawn together. Units of one layer depend on each other through the
    layers next to it, so they take turns: a step takes sum_l n_l draws.

    Args:
        machine: Of binary or bipolar units, in layers that see one other layer each. The other
            arguments are those of `Chain`.
    """

    def __init__(self, machine: HelmholtzMachine, *arguments: Any, **options: Any) -> None:
        two = all(units.support == (0.0, 1.0) for units in machine.units)
        if not (two and machine.generator.chain and machine.recognition.chain):
            need = "binary or bipolar units, in layers that see one other layer each"
            way = "(no model.skip, nothing lateral); take --chain resampling for this machine"
            raise UserError(f"a Gibbs chain needs {need} {way}")
        super().__init__(machine, *arguments, **options)
        free = (~self._observed).nonzero()[:, 0].tolist()
        self._free_units = [free, *(list(range(size)) for size in machine.sizes[1:])]
        self.x = torch.where(self._observed, self.x, (self.x > 0.5).to(self.x))  # no grey to turn
        # Rows 2 c and 2 c + 1 are h and h' of chain c.
        self._values = [block.clone() for block in machine.wake(self.x, 2, self.rng).value_blocks]
        self._layers: Any = [network.layers for network in machine.networks]

    @torch.no_grad()
    def step(self) -> Tensor:
        """Draw every unit once, then the free pixels; pixels as p expects them, without q."""
        for layer in [*range(1, len(self._values)), 0]:
            self._draw_layer(layer)
        self.x = self._values[0][::2].clone()
        logits = self._layers[0][0](self._states(1))
        return torch.where(self._observed, self.x, torch.sigmoid(_sum_pairs(logits) / 2))

    def _states(self, layer: int) -> Tensor:
        return self.machine.units[layer].encode(self._values[layer])

    def _draw_layer(self, layer: int) -> None:
        p, q = self._layers
        values, top = self._values[layer], len(self._values) - 1
        above = self._states(layer + 1) if layer < top else values[:, :0]
        logits = p[layer](above)
        children = []
        if layer > 0:
            logits = logits + q[layer - 1](self._states(layer - 1))
            children.append(self._child(p[layer - 1], layer, layer - 1))
        if layer < top:
            children.append(self._child(q[layer], layer, layer + 1))
        for child in children:
            logits = logits + child.linear
        uniform = torch.empty_like(values).uniform_(generator=self.rng)
        for unit in self._free_units[layer]:
            self._draw_unit(layer, unit, logits[:, unit], uniform, children)

    def _draw_unit(
        self, layer: int, unit: int, logit: Tensor, uniform: Tensor, children: list["_Child"]
    ) -> None:
        value = self._values[layer][:, unit]
        turn = 1 - 2 * value  # from the unit's present value to the other
        others = [child.switched(unit, turn) for child in children]
        for child, (_, log_partition) in zip(children, others, strict=True):
            logit = logit - turn * (log_partition - child.log_partition)
        if layer == 0:  # both hidden states speak for the one pixel
            drawn = uniform[::2, unit] < torch.sigmoid(_sum_pairs(logit) / 2)
            drawn = drawn.repeat_interleave(2)
        else:
            drawn = uniform[:, unit] < torch.sigmoid(logit / 2)
        turned = drawn != value.bool()
        value.copy_(drawn)
        for child, other in zip(children, others, strict=True):
            child.take(turned, *other)

    def _child(self, layer: Layer, parent: int, child: int) -> "_Child":
        units = self.machine.units[parent]
        off = layer.weight.new_zeros(())
        columns = layer.weight.T * (units.encode(off + 1) - units.encode(off))
        logits, family = layer(self._states(parent)), self.machine.units[child]
        log_partition = family.log_partition(logits).sum(1)
        return _Child(family, logits, log_partition, columns, self._values[child] @ columns.T)


@dataclass
class _Child:
    """A layer whose parents are being drawn, for 2 C rows."""

    units: Units
    logits: Tensor  # (2 C, units) a, kept up to date with the parents
    log_partition: Tensor  # (2 C,) sum over the units of A(a), kept up to date too
    columns: Tensor  # (parents, units) change of the logits when a parent is switched on
    linear: Tensor  # (2 C, parents) D_j sum y a, the part of D_j log p(y; a) that is linear in a

    def switched(self, unit: int, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and log-partition if one parent took its other value."""
        logits = torch.addcmul(self.logits, turn[:, None], self.columns[unit])
        return logits, self.units.log_partition(logits).sum(1)

    def take(self, turned: Tensor, logits: Tensor, log_partition: Tensor) -> None:
        """Take over what `switched` gave in the rows where the parent turned."""
        self.logits = torch.where(turned[:, None], logits, self.logits)
        self.log_partition = torch.where(turned, log_partition, self.log_partition)


def _sum_pairs(values: Tensor) -> Tensor:
    """Sum over the two hidden states of each chain: (2 C, n) to (C, n)."""
    return values.unflatten(0, (-1, 2)).sum(1)
