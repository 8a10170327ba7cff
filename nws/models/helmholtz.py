"""The Helmholtz machine: a generator p and a recognition network q over the same layers.

Symbols: B data points, K samples of each, n = B K rows; N = n_0 + .. + n_L units in all, layers
next to each other in columns, the visible one first.
Sources: Hinton et al. 1995 (wake-sleep); Dayan et al. 1995 (Helmholtz machine).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nws.allocator import keep_freed_memory
from nws.errors import UserError, number, one_of, positive_int
from nws.models.belief_network import BeliefNetwork, Edge
from nws.models.lateral import draw_layer
from nws.models.masks import Mask, Order
from nws.models.noise import Rng, Share
from nws.models.trace import Trace
from nws.models.units import NAMED, Units, check_units, find_units

LARGE = 4096  # weights of a layer from which products in a lower precision save time


class HelmholtzMachine(nn.Module):
    """A generator p(x, h) and a recognition network q(h | x) over layers of the given sizes.

    Weights start as Glorot-normal draws.

    Args:
        sizes: n_0 (visible), n_1 .. n_L.
        units: The family of all layers: "binary" (states 0, 1), "bipolar" (-1, +1), or an object.
        visible: The family of the visible layer, where it is another one.
        weight_scale: Factor on the weights' draws, 0 to 1e6.
        truncated: Whether draws stay within two standard deviations (with the same variance).
        hidden_bias: First value of the hidden biases, 1e6 at most.
        visible_bias: First value of the visible ones, a number or one for each unit (n_0,).
        generator: Options of the generator alone, as `BeliefNetwork` takes them: `lateral`, and
            others in place of those of both networks.
        recognition: The same of the recognition network.
        skip: Of both networks, whether layers see all layers before them, in place of the one.
        mask: Which parents units see; see `nws.models.masks`.
        order: In which order units of a lateral layer see each other.
        shape: Of an image of the visible layer, for `mask` and `order`.
        rng: Generator of the draws.

    Examples:
        >>> machine = HelmholtzMachine([4, 3, 2], rng=torch.Generator().manual_seed(0))
        >>> machine.wake(torch.ones(5, 4), samples=2).values.shape
        torch.Size([10, 9])
    """

    def __init__(
        self, sizes: Sequence[int], units: str | Units = "binary",
        visible: str | Units | None = None, weight_scale: float = 1.0, hidden_bias: float = 0.0,
        visible_bias: float | Tensor = 0.0, generator: Mapping[str, Any] | None = None,
        recognition: Mapping[str, Any] | None = None, skip: bool = False, mask: Mask | None = None,
        order: Order | None = None, shape: Sequence[int] = (), rng: torch.Generator | None = None,
        truncated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        keep_freed_memory()  # of traces
        self._dtype: torch.dtype | None = None  # of large products; None for the parameters'
        if len(sizes) < 2:
            raise UserError("a machine has hidden layers: set model.layers=[200,100], say")
        self.sizes = tuple(positive_int("model.layers", size) for size in sizes)
        hidden = find_units(units)
        bottom = hidden if visible is None else find_units(visible, "model.visible")
        self.units = (bottom, *[hidden] * (len(self.sizes) - 1))
        for family in [each for each in (bottom, hidden) if each not in NAMED.values()]:
            check_units(family)
        both: dict[str, Any] = {"skip": skip, "mask": mask, "order": order, "shape": shape}
        for option in {**(generator or {}), **(recognition or {})}:
            one_of("an option of model.generator or model.recognition", option, ("lateral", *both))
        networks = [
            BeliefNetwork(self.sizes, upward, self.units, **both | dict(own or {}))
            for upward, own in ((False, generator), (True, recognition))
        ]
        self.generator, self.recognition = networks
        weight_scale = number("model.weight_scale", weight_scale, least=0, most=1e6)
        one_of("model.truncated", truncated, (True, False))
        biases = [_bias("visible", visible_bias, self.sizes[0]), _bias("hidden", hidden_bias)]
        for edge in self.generator.edges + self.recognition.edges:
            edge.layer.draw_weights_(weight_scale, rng, truncated)
            edge.layer.bias.data.copy_(torch.as_tensor(biases[edge.child > 0]))

    @property
    def networks(self) -> tuple[BeliefNetwork, BeliefNetwork]:
        """Generator and recognition network, in this order."""
        return self.generator, self.recognition

    @torch.no_grad()
    def hide_(self) -> None:
        """Make the weights 0 that a mask hides, whatever an optimizer has made of them."""
        for edge in self.generator.edges + self.recognition.edges:
            if edge.layer.mask is not None:
                edge.layer.weight.mul_(edge.layer.mask)

    @contextmanager
    def products_in(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Have the products with states in another precision for some lines.

        The weights are rounded once, here; they must not change meanwhile. Everything else stays in
        the precision of the parameters: small products too, and those of values without a support.
        """
        every = self.generator.edges + self.recognition.edges
        large = [edge for edge in every if edge.layer.weight.numel() >= LARGE]
        edges = [edge for edge in large if all(self.units[at].support for at in edge.parents)]
        if edges and dtype not in (None, edges[0].layer.weight.dtype):
            self._dtype = dtype
            for edge in edges:
                edge.layer.rounded = edge.layer.weight.detach().to(dtype)
        try:
            yield
        finally:
            self._dtype = None
            for edge in edges:
                edge.layer.rounded = None

    @torch.no_grad()
    def wake(self, x: Tensor, samples: int = 1, rng: Rng = None) -> Trace:
        """Wake phase: x is clamped, and h is sampled upward from q.

        Args:
            x: Data in [0, 1], (B, n_0).
            samples: K, the number of draws of h for each row of x.
            rng: Generator of the draws; or the `Share` of a batch that x is.

        Returns:
            The trace of n = B K rows.
        """
        empty = len(x) == 0 and not isinstance(rng, Share)
        if x.ndim != 2 or x.shape[1] != self.sizes[0] or empty:
            expected = f"(B, {self.sizes[0]}), one row a data point and at least one"
            raise UserError(f"x must be {expected}, got {tuple(x.shape)}")
        samples = positive_int("samples", samples)
        if isinstance(rng, Share):
            rng = rng.times(samples)
        trace = self._allocate(len(x) * samples, samples, rng)
        visible = self.units[0]
        values = visible.from_data(x.to(trace.values))[:, None]
        trace.value_blocks[0].unflatten(0, (-1, samples)).copy_(values)
        if trace.states is not trace.values:
            trace.state_blocks[0].unflatten(0, (-1, samples)).copy_(visible.encode(values))
        self._sample(trace, self.recognition, rng)
        self._evaluate(trace, self.generator)
        return trace

    @torch.no_grad()
    def dream(self, rows: int, rng: Rng = None, evaluate: bool = True) -> Trace:
        """Sleep phase: independent draws of (x, h) downward from p.

        Args:
            rows: How many draws.
            rng: Generator of the draws; or the `Share` of a phase that these draws are.
            evaluate: Whether recognition is evaluated on them. Without it, the logits and means of
                recognition have no rows.

        Returns:
            The trace of n = rows rows, with K = 1.
        """
        trace = self._allocate(rows, 1, rng)
        if not evaluate:
            none = trace.recognition_logits[:0]
            trace = replace(trace, recognition_logits=none, recognition_means=none)
        self._sample(trace, self.generator, rng)
        if evaluate:
            self._evaluate(trace, self.recognition)
        return trace

    @torch.no_grad()
    def evaluate(self, states: Sequence[Tensor], samples: int = 1) -> Trace:
        """The trace of given states h^0 .. h^L, each (n, n_i): both networks evaluated on them."""
        trace = self._allocate(len(states[0]), samples)
        trace.states.copy_(torch.cat(list(states), dim=1))
        parts = zip(self.units, trace.value_blocks, trace.state_blocks, strict=True)
        for units, values, block in parts:
            values.copy_(units.decode(block))
        if trace.rounded is not None:
            trace.rounded.copy_(trace.states[:, self.sizes[0] :])
        for network in self.networks:
            self._evaluate(trace, network)
        return trace

    def log_weights(self, trace: Trace) -> Tensor:
        """Log importance weights log p(x, h_k) - log q(h_k | x) of a wake trace: (B, K) nats."""
        log_p, log_q = (trace.layer_log_probs(network).sum(0) for network in self.networks)
        return (log_p - log_q).unflatten(0, (-1, trace.samples))

    def _allocate(self, rows: int, samples: int, rng: Rng = None) -> Trace:
        like = next(self.parameters())
        values = like.new_empty(rows, sum(self.sizes))
        encoded = any(units.encode(values) is not values for units in self.units[:2])
        states = torch.empty_like(values) if encoded else values
        hidden = sum(self.sizes[1:])
        rounded = like.new_empty(rows, hidden, dtype=self._dtype) if self._dtype else None
        widths = (values.shape[1], hidden) * 2
        p_logits, q_logits, p_means, q_means = (like.new_empty(rows, width) for width in widths)
        share = rng if isinstance(rng, Share) else None
        return Trace(
            self.sizes, self.units, samples, values, states,
            p_logits, q_logits, p_means, q_means, share, rounded,
        )  # fmt: skip

    def _sample(self, trace: Trace, network: BeliefNetwork, rng: Rng) -> None:
        """Draw the units that a network explains, parents first."""
        noise, means = trace.targets(network), trace.means(network)
        if isinstance(rng, Share):
            rng.fill(network.fill_noise, noise)
        else:
            network.fill_noise(noise, rng)
        mean_blocks = means.split(network.widths, dim=1)
        for edge, logits in self._logits(trace, network, draws=True):
            units, mean = self.units[edge.child], mean_blocks[edge.position]
            values = trace.value_blocks[edge.child]
            draw_layer(edge, units, values, logits, mean)
            if trace.states is not trace.values:
                trace.state_blocks[edge.child].copy_(units.encode(values))
            if edge.child and trace.rounded is not None:
                rounded = trace.rounded.split((0, *self.sizes[1:]), dim=1)[edge.child]
                rounded.copy_(trace.state_blocks[edge.child])

    def _evaluate(self, trace: Trace, network: BeliefNetwork) -> None:
        for _ in self._logits(trace, network):
            pass
        logits, means = trace.logits(network), trace.means(network)
        for units, columns, _ in network.spans:
            units.mean(logits[:, columns], out=means[:, columns])

    def _logits(
        self, trace: Trace, network: BeliefNetwork, draws: bool = False
    ) -> Iterator[tuple[Edge, Tensor]]:
        """Write the logits layer by layer, in sampling order, as the caller fills in the states.

        Of a layer that is drawn they are without what its own units bring.
        """
        blocks = trace.logits(network).split(network.widths, dim=1)
        for edge in network.edges:
            logits = blocks[edge.position]
            pieces = trace.pieces(edge, edge.outer if draws else None)
            inputs, columns = pieces.pop()
            if len(inputs) < len(logits):  # K rows share x: one product for all of them
                shared = edge.layer(inputs, columns)[:, None]
                logits.unflatten(0, (-1, trace.samples)).copy_(shared)
            else:
                edge.layer(inputs, columns, out=logits)
            for inputs, columns in pieces:  # x beside others
                shared = edge.layer.weighted(inputs, columns)[:, None]
                logits.unflatten(0, (-1, trace.samples)).add_(shared)
            yield edge, logits


def _bias(layers: str, value: object, units: int = 0) -> float | Tensor:
    """First value of biases; `UserError` unless it is a number, or one for each of the units."""
    if isinstance(value, Tensor) and value.shape == (units,):
        return value
    return number(f"model.{layers}_bias", value, least=-1e6, most=1e6)
