"""Finding the step and the layer where numbers stopped being finite."""

import torch
from torch import Tensor

from nws.errors import Diverged
from nws.models.helmholtz import HelmholtzMachine


class DivergenceCheck:
    """Notes losses on the device at each step, and looks at them when asked."""

    def __init__(self, machine: HelmholtzMachine) -> None:
        self.machine = machine
        self.layers = [
            f"{network.name} layer {position}"
            for network in machine.networks
            for position in range(len(network.layers))
        ]
        device = next(machine.parameters()).device
        # For each layer the first step of a loss that is not finite.
        self._first_bad = torch.full((len(self.layers),), -1, device=device)

    def note(self, layer_losses: Tensor, step: int) -> None:
        """Take in one step's losses, one a layer. It does not wait for the device."""
        bad = ~layer_losses.isfinite() & (self._first_bad < 0)
        self._first_bad.masked_fill_(bad, step)

    def check(self, step: int, rate: float, kept: str) -> None:
        """Raise `Diverged` where a loss or, at this `step`, a parameter is not finite.

        The message names the first step and layer, the learning `rate`, and the checkpoint `kept`.
        """
        names, parameters = zip(*self.machine.named_parameters(), strict=True)
        finite = torch.stack([parameter.isfinite().all() for parameter in parameters])
        report = torch.cat([self._first_bad, finite.long()]).tolist()  # one synchronisation
        steps, are_finite = report[: len(self.layers)], report[len(self.layers) :]
        losses = [pair for pair in zip(steps, self.layers, strict=True) if pair[0] >= 0]
        if losses:
            first, what = min(losses, key=lambda pair: pair[0])
            what = f"the loss of {what}"
        elif not all(are_finite):
            first, what = step, f"the parameter of {names[are_finite.index(0)]}"
        else:
            return
        raise Diverged(
            f"step {first}: {what} is not finite, with a learning rate of {rate:g};"
            f" lower optimizer.lr, or start from smaller weights (model.weight_scale); {kept}"
        )
