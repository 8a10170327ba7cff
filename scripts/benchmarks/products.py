"""The matrix products of a step alone: what a plain step cannot do without."""

from collections.abc import Callable

import torch

from nws.learning import Rule
from nws.models import HelmholtzMachine


def step_products(machine: HelmholtzMachine, rule: Rule, batch: int) -> Callable[[], None]:
    """The matrix products of one plain step, on tensors of the shapes that the step gives them.

    Wake: logits of q and p, gradients of p (and of q). Dream, where the rule has one: logits of p
    and q, gradients of q.
    The first recognition layer sees each data point once in the wake phase, not once a sample.
    """
    like = next(machine.parameters())
    products = []
    for network in machine.networks:
        for edge in network.edges:
            units, parents = edge.layer.weight.shape
            for phase in ("wake", "dream") if rule.recognition_dream else ("wake",):
                rows = batch if edge.parent == 0 and phase == "wake" else batch * rule.samples
                inputs, targets = (torch.rand(rows, width).to(like) for width in (parents, units))
                weight = edge.layer.weight.detach()
                products.append((inputs, weight.T, torch.empty_like(targets)))
                if getattr(rule, f"{network.name}_{phase}", 0):
                    products.append((targets.T, inputs, torch.empty_like(weight)))

    def run() -> None:
        for left, right, out in products:
            torch.mm(left, right, out=out)

    return run
