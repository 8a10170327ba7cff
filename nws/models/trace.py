"""Traces: what a phase records, in the symbols of nws/models/helmholtz.py."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nws.models.belief_network import BeliefNetwork, Edge
from nws.models.noise import Share
from nws.models.units import Units


@dataclass(frozen=True)
class Trace:
    """The record of a phase: the states of every layer, and what both networks say of them.

    Row b K + k is sample k of data point b. Layers lie next to each other in the columns of each
    tensor, so that elementwise work is one call for all of a kind. `.._blocks` are views of layers.
    """

    sizes: tuple[int, ...]  # n_0 .. n_L
    units: tuple[Units, ...]  # of each layer
    samples: int  # K: that many consecutive rows share their x
    values: Tensor  # (n, N) y, the targets of the layers
    states: Tensor  # (n, N) h, what layers see of each other; `values` itself for binary units
    generator_logits: Tensor  # (n, N)
    recognition_logits: Tensor  # (n, N - n_0)
    generator_means: Tensor  # (n, N) A' of the logits
    recognition_means: Tensor  # (n, N - n_0)
    share: Share | None = None  # which rows of a phase these are; None for all of them
    rounded: Tensor | None = None  # (n, N - n_0) hidden states for products in a lower precision

    @cached_property
    def value_blocks(self) -> tuple[Tensor, ...]:
        """Values y of each layer: L + 1 views (n, n_i)."""
        return self.values.split(self.sizes, dim=1)

    @cached_property
    def state_blocks(self) -> tuple[Tensor, ...]:
        """States h^0 .. h^L: L + 1 views (n, n_i)."""
        return self.states.split(self.sizes, dim=1)

    @property
    def pixels(self) -> Tensor:
        """x, as data in [0, 1]: (n, n_0)."""
        return self.units[0].to_data(self.value_blocks[0])

    @property
    def pixel_means(self) -> Tensor:
        """Expected x under the generator given h^1, as data: (n, n_0)."""
        return self.units[0].to_data(self.generator_means[:, : self.sizes[0]])

    def pieces(self, edge: Edge, columns: slice | None = None) -> list[tuple[Tensor, slice]]:
        """States of a layer's parents, and the columns of its weight that they meet.

        x, which K rows share, is a piece of its own, (B, n_0); other parents are (n, parents). Each
        is in the precision of the layer's products. `columns` are those of the parents that are
        wanted, among h^0 .. h^L; None for all.
        """
        wanted, pixels = columns or edge.columns, self.sizes[0]
        first, last = wanted.start, wanted.stop
        low = None if edge.layer.rounded is None else self.rounded
        found, start = [], edge.columns.start
        if first < pixels and last > first:
            x = self.state_blocks[0][:: self.samples].to(self.states if low is None else low)
            found.append((x, slice(0, pixels)))
            first = pixels
        if last > first or not found:
            of = slice(first, last) if low is None else slice(first - pixels, last - pixels)
            rest = (self.states if low is None else low)[:, of]
            found.append((rest, slice(first - start, last - start)))
        return found

    def inputs(self, edge: Edge) -> Tensor:
        """States of one layer's parents: (B, n_0) where x, which K rows share, is all of them, else
        (n, parents)."""
        pieces = self.pieces(edge)
        return pieces[0][0] if len(pieces) == 1 else self.states[:, edge.columns]

    def logits(self, network: BeliefNetwork) -> Tensor:
        """Logits of the units that one network explains: (n, N or N - n_0)."""
        return self.recognition_logits if network.upward else self.generator_logits

    def means(self, network: BeliefNetwork) -> Tensor:
        """A' of the logits: (n, N or N - n_0)."""
        return self.recognition_means if network.upward else self.generator_means

    def targets(self, network: BeliefNetwork) -> Tensor:
        """Values that one network explains: (n, N) for the generator, (n, N - n_0) for recognition,
        to which x is given."""
        return self.values[:, self.sizes[0] :] if network.upward else self.values

    def errors(self, network: BeliefNetwork) -> Tensor:
        """A'(a) - y, the gradient of -log p(y; a) by the logits: (n, N or N - n_0)."""
        return self.means(network) - self.targets(network)

    def layer_log_probs(self, network: BeliefNetwork) -> Tensor:
        """Log-probability of each layer's values under one network: (layers, n), in nats.

        Summed over the layers it is log p(x, h) or log q(h | x).
        """
        parts = self.targets(network), self.logits(network), self.means(network)
        return torch.cat([
            units.layer_log_probs(*(part[:, columns] for part in parts), widths=widths)
            for units, columns, widths in network.spans
        ])  # fmt: skip
