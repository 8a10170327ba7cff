"""The Helmholtz machine: a generator p and a recogniser q over the same layers, and the traces that both phases produce.

Symbols: B data points, K samples of each, n = B K rows; N = n_0 + .. + n_L units in all, layers in columns, visible first.
Sources: Hinton et al. 1995 (wake-sleep); Dayan et al. 1995 (Helmholtz machine).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from nws.errors import UserError
from nws.models.belief_network import Edge, SigmoidBeliefNetwork, Units, check_sizes, decode, encode


@dataclass(frozen=True)
class Trace:
    """The states of every layer, sampled by one network, and the logits that both networks give them.

    Row b K + k is sample k of data point b. Layers lie side by side in the columns of each tensor, so an elementwise
    operation is one call for the whole network; the `.._blocks` are views of single layers. A trace can be filled anew
    (`out=` of `HelmholtzMachine.wake` and `dream`, used where its shape fits): fresh pages from the system would cost as
    much as the arithmetic on them.
    """

    sizes: tuple[int, ...]  # n_0 .. n_L
    samples: int  # K: that many consecutive rows share their x
    bits: Tensor  # (n, N) states as 0/1 targets (x may be an intensity between)
    states: Tensor  # (n, N) states in the units' encoding, as parents; the same tensor as `bits` for binary units
    generator_logits: Tensor  # (n, N)
    recognition_logits: Tensor  # (n, N - n_0)
    generator_probabilities: Tensor  # (n, N) sigma of the logits
    recognition_probabilities: Tensor  # (n, N - n_0)

    def fits(
        self, sizes: tuple[int, ...], units: Units, rows: int, samples: int, like: Tensor
    ) -> bool:
        """Whether a machine of these sizes and units, with parameters as `like`, can fill this trace anew."""
        same = (self.sizes, self.samples, len(self.bits)) == (sizes, samples, rows)
        bits = self.bits
        return (
            same
            and (self.states is bits) == (units == "binary")
            and (bits.dtype, bits.device) == (like.dtype, like.device)
        )

    @cached_property
    def bit_blocks(self) -> tuple[Tensor, ...]:
        """Bits of each layer: L + 1 views (n, n_i)."""
        return self.bits.split(self.sizes, dim=1)

    @cached_property
    def state_blocks(self) -> tuple[Tensor, ...]:
        """States h^0 .. h^L in the units' encoding: L + 1 views (n, n_i)."""
        return self.states.split(self.sizes, dim=1)

    @cached_property
    def generator_blocks(self) -> tuple[Tensor, ...]:
        """Logits of h^0 .. h^L under the generator: L + 1 views (n, n_i)."""
        return self.generator_logits.split(self.sizes, dim=1)

    @cached_property
    def recognition_blocks(self) -> tuple[Tensor, ...]:
        """Logits of h^1 .. h^L under the recogniser: L views (n, n_i)."""
        return self.recognition_logits.split(self.sizes[1:], dim=1)

    @cached_property
    def visible(self) -> Tensor:
        """x in the units' encoding, once for each data point: (B, n_0)."""
        return self.state_blocks[0][:: self.samples]

    @property
    def pixel_probabilities(self) -> Tensor:
        """Probabilities that the generator gives to the visible units: (n, n_0)."""
        return self.generator_probabilities[:, : self.sizes[0]]

    def inputs(self, edge: Edge) -> Tensor:
        """States of one layer's parents: (B, n_0) where the parent is x, which K rows share; else (n, parents)."""
        if edge.parent == 0:
            return self.visible
        return self.states[:, :0] if edge.parent is None else self.state_blocks[edge.parent]

    def logits(self, network: SigmoidBeliefNetwork) -> Tensor:
        """Logits that one network gives the states it explains: (n, units of the network)."""
        return self.recognition_logits if network.upward else self.generator_logits

    def probabilities(self, network: SigmoidBeliefNetwork) -> Tensor:
        """sigma of the logits: (n, units of the network)."""
        return self.recognition_probabilities if network.upward else self.generator_probabilities

    def targets(self, network: SigmoidBeliefNetwork) -> Tensor:
        """Bits that one network explains: all (n, N) for the generator, (n, N - n_0) for the recogniser, to which x is given."""
        return self.bits[:, self.sizes[0] :] if network.upward else self.bits

    def layer_log_probs(self, network: SigmoidBeliefNetwork) -> Tensor:
        """Log-probability of each layer's states under one network: (layers, n), in nats; summed over layers log p or log q.

        y a - max(a, 0) + log max(sigma(a), 1 - sigma(a)) is log Bern(y; sigma(a)): the last logarithm is of a number between
        1/2 and 1, so it loses nothing where sigma saturates, and costs half of log(1 + e^a).
        """
        logits, probabilities = self.logits(network), self.probabilities(network)
        log_probs = torch.maximum(probabilities, 1 - probabilities).log_()
        log_probs.sub_(torch.relu(logits)).addcmul_(self.targets(network), logits)
        return torch.stack([block.sum(-1) for block in log_probs.split(network.units, dim=1)])


def fill_uniform(out: Tensor, rng: torch.Generator | None = None) -> None:
    """Fill `out` (n, units) with uniform noise in [0, 1).

    On the CPU, float32: the generator runs on one thread and is a large part of a step, so one 64-bit word serves four units.
    Each gets 16 bits of its own; what lies below them is one more draw that the units of a row share. Each number is uniform
    to float32's own 2^-24, and two of a row are correlated by 2^-32 at the most.
    """
    if out.device.type != "cpu" or out.dtype != torch.float32:
        out.uniform_(generator=rng)
        return
    n, units = out.shape
    words = torch.empty((n * units + 3) // 4, dtype=torch.int64).random_(
        -(2**63), None, generator=rng
    )
    below = torch.empty(n, 1).uniform_(
        0, 1 - 2**-8, generator=rng
    )  # ends before 1, or rounding could bring the sum there
    high = words.view(torch.int16)[: n * units].view(n, units)
    torch.add(high, below + 2**15, out=out).mul_(2**-16)


class HelmholtzMachine(nn.Module):
    """A pair of sigmoid belief networks over layers of the given sizes: `generator` p(x, h) and `recognition` q(h | x).

    sizes: n_0 (visible), n_1 .. n_L. units: "binary" states {0, 1} or "bipolar" {-1, +1}.
    Weights start as Glorot-normal draws times `weight_scale`, hidden biases at `hidden_bias`, visible ones at `visible_bias`,
    one number or one for each visible unit (n_0,).
    Raises `UserError` for sizes that are not positive, no hidden layer, or unknown units.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        units: Units = "binary",
        weight_scale: float = 1.0,
        hidden_bias: float = 0.0,
        visible_bias: float | Tensor = 0.0,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_sizes(sizes)
        if units not in ("binary", "bipolar"):
            raise UserError(f"model.units must be binary or bipolar, got {units!r}")
        self.units: Units = units
        self.generator = SigmoidBeliefNetwork(self.sizes, upward=False)
        self.recognition = SigmoidBeliefNetwork(self.sizes, upward=True)
        for network in self.networks:
            for edge in network.edges:
                fan_out, fan_in = edge.layer.weight.shape
                nn.init.normal_(
                    edge.layer.weight,
                    std=weight_scale * (2 / (fan_in + fan_out)) ** 0.5,
                    generator=rng,
                )
                with torch.no_grad():
                    edge.layer.bias.copy_(
                        torch.as_tensor(hidden_bias if edge.child > 0 else visible_bias)
                    )

    @property
    def networks(self) -> tuple[SigmoidBeliefNetwork, SigmoidBeliefNetwork]:
        """Generator and recogniser, in this order."""
        return self.generator, self.recognition

    @torch.no_grad()
    def wake(
        self,
        x: Tensor,
        samples: int = 1,
        rng: torch.Generator | None = None,
        out: Trace | None = None,
    ) -> Trace:
        """Wake phase: x (B, n_0) in [0, 1] is clamped, h is sampled upward from q, `samples` (K) times for each row of x.

        Raises `UserError` where x has not the machine's visible units, or no row.
        """
        if x.ndim != 2 or x.shape[1] != self.sizes[0] or len(x) == 0:
            raise UserError(
                f"x must be (B, {self.sizes[0]}), one row a data point and at least one, got {tuple(x.shape)}"
            )
        trace = self._allocate(len(x) * samples, samples, out)
        trace.bit_blocks[0].unflatten(0, (-1, samples)).copy_(x[:, None])
        if self.units == "bipolar":
            trace.state_blocks[0].copy_(encode(trace.bit_blocks[0], self.units))
        fill_uniform(trace.targets(self.recognition), rng)
        self._sample(trace, self.recognition)
        self._evaluate(trace, self.generator)
        return trace

    @torch.no_grad()
    def dream(
        self, rows: int, rng: torch.Generator | None = None, out: Trace | None = None
    ) -> Trace:
        """Sleep phase: `rows` independent draws of (x, h) downward from p."""
        trace = self._allocate(rows, 1, out)
        fill_uniform(trace.bits, rng)
        self._sample(trace, self.generator)
        self._evaluate(trace, self.recognition)
        return trace

    @torch.no_grad()
    def trace(self, states: Sequence[Tensor], samples: int = 1) -> Trace:
        """The trace of given states h^0 .. h^L, each (n, n_i) in the units' encoding: both networks evaluated on them."""
        trace = self._allocate(len(states[0]), samples)
        trace.states.copy_(torch.cat(list(states), dim=1))
        trace.bits.copy_(decode(trace.states, self.units))
        for network in self.networks:
            self._evaluate(trace, network)
        return trace

    def log_weights(self, trace: Trace) -> Tensor:
        """Log importance weights log p(x, h_k) - log q(h_k | x) of a wake trace: (B, K), in nats."""
        log_p, log_q = (trace.layer_log_probs(network).sum(0) for network in self.networks)
        return (log_p - log_q).unflatten(0, (-1, trace.samples))

    def _allocate(self, rows: int, samples: int, out: Trace | None = None) -> Trace:
        like = next(self.parameters())
        if out is not None and out.fits(self.sizes, self.units, rows, samples, like):
            return out
        bits, *generator = (like.new_empty(rows, sum(self.sizes)) for _ in range(3))
        recognition = [like.new_empty(rows, sum(self.sizes[1:])) for _ in range(2)]
        states = bits if self.units == "binary" else torch.empty_like(bits)
        logits, probabilities = zip(generator, recognition, strict=True)
        return Trace(self.sizes, samples, bits, states, *logits, *probabilities)

    def _sample(self, trace: Trace, network: SigmoidBeliefNetwork) -> None:
        """Draw the network's units, parents first; their columns of `bits` come in as uniform noise."""
        probabilities = trace.probabilities(network).split(network.units, dim=1)
        for edge, logits in self._logits(trace, network):
            torch.sigmoid(logits, out=probabilities[edge.position])
            bits = trace.bit_blocks[edge.child].lt_(
                probabilities[edge.position]
            )  # noise < probability, in place
            if self.units == "bipolar":
                trace.state_blocks[edge.child].copy_(encode(bits, self.units))

    def _evaluate(self, trace: Trace, network: SigmoidBeliefNetwork) -> None:
        for _ in self._logits(trace, network):
            pass
        torch.sigmoid(trace.logits(network), out=trace.probabilities(network))

    def _logits(self, trace: Trace, network: SigmoidBeliefNetwork) -> Iterator[tuple[Edge, Tensor]]:
        """Write the logits of one layer after the other, in sampling order, as the caller fills in the states."""
        blocks = trace.recognition_blocks if network.upward else trace.generator_blocks
        for edge in network.edges:
            inputs, logits = trace.inputs(edge), blocks[edge.position]
            if len(inputs) == len(logits):
                edge.layer(inputs, out=logits)
            else:  # K rows share x: one product for all of them
                logits.unflatten(0, (-1, trace.samples)).copy_(edge.layer(inputs)[:, None])
            yield edge, logits
