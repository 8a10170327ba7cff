"""The slow, obvious references: plain Bernoulli formulas, autograd and enumeration of every state.

All of it in float64 on the CPU. Of a machine under test they read its sizes, which layers are
bipolar, and `weight` and `bias` of its layers, nothing else. States are lists of bits (or
intensities) h^0 .. h^L in [0, 1], each (n, n_i), whatever the units' encoding is.

Parameters of a network lie in one flat vector theta (P,): layer by layer as in `layers`, in a layer
unit by unit, of a unit its weights and then its bias.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from cases import exponent_of
from torch import Tensor, nn

from nws.learning import Rule
from nws.models import Bipolar, HelmholtzMachine, Trace
from nws.models.likelihood import Z_INNER

Bits = list[Tensor]
Form = Literal["outer", "hessian"]


@dataclass(frozen=True)
class Network:
    """One direction of a Helmholtz machine as a function of its flat parameters."""

    sizes: tuple[int, ...]
    bipolar: tuple[bool, ...]  # whether a layer's states are 2 y - 1
    upward: bool  # h^{i+1} given h^i; otherwise h^i given h^{i+1}, and h^L without parents
    theta: Tensor  # (P,)

    @property
    def connections(self) -> list[tuple[int | None, int]]:
        """(parent, child) of every layer."""
        top = len(self.sizes) - 1
        if self.upward:
            return [(i, i + 1) for i in range(top)]
        return [(i + 1, i) for i in range(top)] + [(None, top)]

    @property
    def unit_ranges(self) -> list[list[slice]]:
        """Where the parameters of unit j of layer i are in theta: [i][j]."""
        ranges, start = [], 0
        for parent, child in self.connections:
            length = 1 + (0 if parent is None else self.sizes[parent])
            starts = [start + j * length for j in range(self.sizes[child])]
            ranges.append([slice(first, first + length) for first in starts])
            start += self.sizes[child] * length
        return ranges

    def parents(self, bits: Bits) -> Bits:
        """Inputs of every layer, encoded, with the ones that the bias multiplies: (n, d) each."""
        ones = torch.ones(len(bits[0]), 1, dtype=torch.float64)
        states = [2 * y - 1 if b else y for y, b in zip(bits, self.bipolar, strict=True)]
        seen = [[] if i is None else [states[i]] for i, _ in self.connections]
        return [torch.cat([*each, ones], dim=1) for each in seen]

    def logits(self, bits: Bits, theta: Tensor | None = None) -> list[Tensor]:
        theta = self.theta if theta is None else theta
        pairs = zip(self.parents(bits), self.unit_ranges, strict=True)
        return [torch.stack([h @ theta[unit] for unit in units], dim=1) for h, units in pairs]

    def layer_log_probs(self, bits: Bits, theta: Tensor | None = None) -> Tensor:
        """(layers, n): sum over the units of y log p(y = 1) + (1 - y) log p(y = 0)."""
        layers = []
        for (_, child), logits in zip(self.connections, self.logits(bits, theta), strict=True):
            one, zero = 1 / (1 + torch.exp(-logits)), 1 / (1 + torch.exp(logits))
            y = bits[child]
            layers.append((y * torch.log(one) + (1 - y) * torch.log(zero)).sum(1))
        return torch.stack(layers)

    def log_prob(self, bits: Bits, theta: Tensor | None = None) -> Tensor:
        """log p(x, h), or log q(h | x) upward: (n,)."""
        return self.layer_log_probs(bits, theta).sum(0)

    def gradient(self, bits: Bits, row_weights: Tensor) -> Tensor:
        """Gradient of sum_k w_k log p(bits_k) by theta, by autograd: (P,)."""
        theta = self.theta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.log_prob(bits, theta) @ row_weights, theta)
        return gradient


def generator(machine: HelmholtzMachine) -> Network:
    return Network(machine.sizes, _bipolar(machine), False, flatten(machine.generator.layers))


def recognition(machine: HelmholtzMachine) -> Network:
    return Network(machine.sizes, _bipolar(machine), True, flatten(machine.recognition.layers))


def _bipolar(machine: HelmholtzMachine) -> tuple[bool, ...]:
    return tuple(isinstance(units, Bipolar) for units in machine.units)


def flatten(layers: nn.ModuleList, gradients: bool = False) -> Tensor:
    """The flat parameters of a network's layers, or their `.grad` in the same order: (P,)."""
    tables = []
    for layer in layers:
        weight, bias = (p.grad if gradients else p for p in (layer.weight, layer.bias))
        tables.append(torch.cat([weight.detach(), bias.detach()[:, None]], dim=1).flatten())
    return torch.cat(tables).double().cpu()


def bits_of(trace: Trace) -> Bits:
    return [block.double().cpu() for block in trace.value_blocks]


# --- enumeration ----------------------------------------------------------------------------------


def every_state(sizes: tuple[int, ...]) -> Bits:
    """Every joint state of layers of these sizes: (2^(sum of sizes), n_i) each."""
    rows = list(itertools.product([0.0, 1.0], repeat=sum(sizes)))
    return list(torch.tensor(rows, dtype=torch.float64).split(list(sizes), dim=1))


def every_hidden_state(machine: HelmholtzMachine, x: Tensor) -> Bits:
    """x (n_0,) with every hidden state h: (2^(n_1 + .. + n_L), n_i) each."""
    hidden = every_state(machine.sizes[1:])
    return [x.double().cpu().expand(len(hidden[0]), -1), *hidden]


def exact_log_prob(machine: HelmholtzMachine, x: Tensor) -> Tensor:
    """log p(x) of each row of x, the sum of p(x, h) over every h: (B,)."""
    joint = [generator(machine).log_prob(every_hidden_state(machine, row)) for row in x]
    return torch.stack([log_p.exp().sum().log() for log_p in joint])


def exact_log_p_tilde(machine: HelmholtzMachine, x: Tensor) -> Tensor:
    """log p~*(x) = 2 log sum_h sqrt(p(x, h) q(h | x)) of each row of x, not normalised: (B,)."""
    p, q = generator(machine), recognition(machine)
    states = [every_hidden_state(machine, row) for row in x]
    products = [p.log_prob(bits).exp() * q.log_prob(bits).exp() for bits in states]
    return torch.stack([2 * each.sqrt().sum().log() for each in products])


def exact_z(machine: HelmholtzMachine) -> float:
    """Z = sum of p~*(x) over every x."""
    (x,) = every_state(machine.sizes[:1])
    return exact_log_p_tilde(machine, x).exp().sum().item()


def z_error(machine: HelmholtzMachine, dreams: int) -> float:
    """Standard error of an estimate of log Z, to first order: Var[t] = (1 - Z)(Z + 1/J)."""
    z = exact_z(machine)
    return ((1 - z) * (z + 1 / Z_INNER) / dreams) ** 0.5 / z


def root_error(machine: HelmholtzMachine, x: Tensor, samples: int) -> float:
    """Standard error of the mean over x of 2 log (1/K) sum_k sqrt(w_k), to first order.

    Var sqrt(w) = p(x) - p~*(x).
    """
    ratio = (exact_log_prob(machine, x) - exact_log_p_tilde(machine, x)).exp()
    return (4 * (ratio - 1) / samples).sum().sqrt().item() / len(x)


# --- the Fisher matrix, and learning rules --------------------------------------------------------


def fisher_matrix(network: Network, bits: Bits, weights: Tensor, form: Form = "outer") -> Tensor:
    """Weighted sum over rows of the gradient's outer product, or of minus the Hessian: (P, P).

    Over every state with its probability it is the Fisher matrix of the whole network.
    """
    if form == "hessian":
        objective = torch.func.hessian(lambda theta: network.log_prob(bits, theta) @ weights)
        return -objective(network.theta)

    def log_prob_of_row(theta: Tensor, *row: Tensor) -> Tensor:
        return network.log_prob([y[None] for y in row], theta)[0]

    rows = torch.func.vmap(torch.func.grad(log_prob_of_row), in_dims=(None, *(0 for _ in bits)))
    gradients = rows(network.theta, *bits)  # (n, P)
    return torch.einsum("n,np,nr->pr", weights, gradients, gradients)


def importance_weights(
    machine: HelmholtzMachine, bits: Bits, samples: int, exponent: float
) -> Tensor:
    """(p(x, h_k) / q(h_k | x))^exponent over its sum over the K samples: (B, K)."""
    ratios = (generator(machine).log_prob(bits) - recognition(machine).log_prob(bits)).exp()
    powers = (ratios**exponent).view(-1, samples)
    return powers / powers.sum(1, keepdim=True)


def p_tilde_gradients(machine: HelmholtzMachine, samples: int, wake: Bits) -> tuple[Tensor, Tensor]:
    """Gradients of the estimate of log p~*(x) from fixed h_k, by both networks' theta, by autograd.

    The estimate is the mean over x of 2 log (1/K) sum_k sqrt(p(x, h_k) q(h_k | x)) / r_k, h_k drawn
    with the fixed density r_k = q(h_k | x) of now.
    """
    p, q = generator(machine), recognition(machine)
    thetas = [network.theta.clone().requires_grad_() for network in (p, q)]
    log_roots = (p.log_prob(wake, thetas[0]) + q.log_prob(wake, thetas[1])) / 2 - q.log_prob(wake)
    estimate = 2 * log_roots.view(-1, samples).exp().mean(1).log().mean()
    return torch.autograd.grad(estimate, thetas)


def rule_gradients(
    machine: HelmholtzMachine, rule: Rule, wake: Bits, dream: Bits,
    weights: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What a rule should leave in `.grad` of both networks: minus its ascent, by autograd.

    `weights` are those of p and of q, (B, K) each. By default the rule's exponent gives them.
    """
    if weights is None:
        weights = (importance_weights(machine, wake, rule.samples, exponent_of(rule)),) * 2
    of_p, of_q = weights
    centred = of_q - 1 / rule.samples if rule.baseline else of_q
    uniform = torch.full((len(dream[0]),), 1 / len(dream[0]), dtype=torch.float64)
    p, q = generator(machine), recognition(machine)
    p_wake = p.gradient(wake, of_p.flatten() / len(of_p))
    q_wake = q.gradient(wake, centred.flatten() / len(of_q))
    q_dream = q.gradient(dream, uniform)
    q_ascent = rule.recognition_wake * q_wake + rule.recognition_dream * q_dream
    return -rule.generator_wake * p_wake, -q_ascent
