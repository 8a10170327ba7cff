"""The Fisher matrix of a module from random perturbations of its outputs, by random signs e:

    a = J^T R^T e / sqrt(n),    E[a a^T] = J^T R^T E[e e^T] R J / n = C

Source: Martens, Sutskever & Swersky 2012 (curvature propagation).
"""

import torch

from nws.errors import positive_int
from nws.natural.averages import share_of_newest
from nws.natural.modules.curvature import Linearized
from nws.natural.modules.families import OutputFamily
from nws.natural.operators import UnitFisher


class Sampled:
    """An unbiased estimate of the Fisher matrix; torch's own generator draws the signs.

    Args:
        samples: S, backward passes in each step, however many outputs there are. Their rows are
            a_s, and C ~ sum_s a_s a_s^T / S.
        memory: Steps. The rows of so many are kept, or a running mean of the diagonal.
        diagonal: Whether the diagonal of C is enough: d numbers in place of S memory d.
    """

    def __init__(self, samples: int = 32, memory: int = 1, diagonal: bool = False) -> None:
        self.samples = positive_int("samples", samples)
        self.memory = positive_int("memory", memory)
        self.diagonal = diagonal
        self.state: dict[str, torch.Tensor] = {}  # what later steps depend on

    def update(self, linear: Linearized, family: OutputFamily) -> UnitFisher:
        """C at a batch: one unit of d parents; a diagonal is d units of one parent each."""
        z, count = linear.outputs, self.samples
        signs = (torch.randint_like(family.root(z, z), 2) * 2 - 1 for _ in range(count))
        rows = torch.stack([linear.pull(family.transposed(z, e)) for e in signs])
        rows /= (len(z) * count) ** 0.5
        if not self.diagonal:
            kept = torch.cat([self.state.get("rows", rows[:0]), rows])[-count * self.memory :]
            self.state = {"rows": kept}
            return UnitFisher(kept, kept.new_full((len(kept), 1), count / len(kept)), "model")
        steps, new = self.state.get("steps", torch.tensor(0)) + 1, rows.square().sum(0)
        share = share_of_newest(self.memory, int(steps))
        mean = torch.lerp(self.state.get("diagonal", new), new, share)
        self.state = {"steps": steps, "diagonal": mean}
        return UnitFisher(rows.new_ones(1, 1), mean[None], "model")
