"""One seeded list of machines and batches for every test, the rules, the tolerances and why."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from nws.learning import Rule, tempered
from nws.learning.gradients import Term
from nws.models import BeliefNetwork, HelmholtzMachine
from nws.models.units import NAMED
from nws.natural import UnitFisher

Units = Literal["binary", "bipolar"]

# The same sum of at most a few hundred float64 terms of size up to ~10 in another order: a few
# hundred times 2e-16 x 10.
EXACT = 1e-10
# float32 has a rounding unit of 6e-8. Log-probabilities of these machines are sums of ~10 terms of
# size up to ~10, so their error is below 10 x 10 x 6e-8 = 6e-6; importance weights and gradients
# inherit it, relative, times at most ~2.
FLOAT32 = 2e-5
# Monte Carlo: a normal variable leaves 5 standard errors once in 1.7 million; the draws are seeded.
STANDARD_ERRORS = 5


def tolerance(dtype: torch.dtype) -> float:
    return EXACT if dtype == torch.float64 else FLOAT32


def encode_layers(machine: HelmholtzMachine, values: list[Tensor]) -> list[Tensor]:
    """States of every layer from their values, in the machine's dtype and on its device."""
    like = next(machine.parameters()).detach()
    return [units.encode(y.to(like)) for units, y in zip(machine.units, values, strict=True)]


def assert_close(actual: Tensor, expected: Tensor, bound: float = EXACT) -> None:
    """Shapes are the same and every entry is within the bound, absolute and relative."""
    pair = (each.detach().double().cpu() for each in (actual, expected))
    torch.testing.assert_close(*pair, rtol=bound, atol=bound)


def assert_frequencies(counts: Tensor, probabilities: Tensor, rows: int) -> None:
    """Counts among `rows` independent draws are binomial: within k standard errors.

    One count is allowed where hardly any fall.
    """
    assert counts.sum() == rows
    error = (probabilities * (1 - probabilities) / rows).sqrt()
    deviation = (counts / rows - probabilities).abs()
    assert (deviation <= STANDARD_ERRORS * error + 1 / rows).all(), (deviation / error).max()


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def recorded(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, see: Callable[..., Any] | None = None
) -> list[Any]:
    """A list that grows with the arguments of each call of a function, which goes on as before.

    Or with what `see` makes of its result and arguments.
    """
    calls, original = [], getattr(owner, name)

    def recording(*given: Any) -> Any:
        result = original(*given)
        calls.append(given if see is None else see(result, *given))
        return result

    monkeypatch.setattr(owner, name, recording)
    return calls


def row_weights(rows: int, seed: int = 5) -> Tensor:
    """Random w_k (n,) that sum to 1."""
    weights = torch.rand(rows, generator=seeded(seed), dtype=torch.float64)
    return weights / weights.sum()


def by_autograd(network: BeliefNetwork, terms: list[Term]) -> list[Tensor]:
    """The gradient of -sum_k w_k log p(rows_k), through `BeliefNetwork.log_prob`."""
    objective = sum(weights @ network.log_prob(trace.state_blocks) for trace, weights in terms)
    return list(torch.autograd.grad(-objective, list(network.parameters())))


def flat_gradient(value: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """By the parameters, as one vector; zeros for those that it does not depend on."""
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    found = torch.autograd.grad(value, [*parameters], **options)
    return torch.cat([each.flatten() for each in found])


def apart(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Other weights for p than for q; those of q are signed, and sum to other numbers than 1."""
    return tempered(log_p, log_q)[0], (log_p - log_q).sin() + 0.3


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, ...]
    samples: int  # K
    batch: int  # B
    units: Units  # of the hidden layers, and of the visible one unless `visible` says another
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    visible: Units | None = None

    def __str__(self) -> str:
        sizes = "-".join(map(str, self.sizes))
        dtype = str(self.dtype).removeprefix("torch.")
        units = f"{self.visible}_{self.units}" if self.visible else self.units
        return f"{sizes}_K{self.samples}_B{self.batch}_{units}_{dtype}_{self.device}"

    def rng(self, seed: int = 1) -> torch.Generator:
        return seeded(seed, self.device)

    def machine(self, seed: int = 0) -> HelmholtzMachine:
        machine = random_machine(self.sizes, self.units, seed, self.visible)
        return machine.to(self.device, self.dtype)

    def data(self, soft: bool = False, seed: int = 2) -> Tensor:
        """x (B, n_0): bits, or intensities between 0 and 1."""
        draws = torch.rand(self.batch, self.sizes[0], generator=seeded(seed), dtype=torch.float64)
        return (draws if soft else draws.round()).to(self.device, self.dtype)

    @property
    def tolerance(self) -> float:
        return tolerance(self.dtype)


def random_machine(
    sizes: tuple[int, ...], units: Any = "binary", seed: int = 0, visible: Any = None
) -> HelmholtzMachine:
    """A float64 machine with random weights and, other than a fresh one, random biases.

    A lost bias must not go unseen.
    """
    rng = seeded(seed)
    machine = HelmholtzMachine(sizes, units, visible, rng=rng)
    for network in machine.networks:
        for layer in network.layers:
            torch.nn.init.normal_(layer.bias, std=0.5, generator=rng)
    return machine.double()


_needs_cuda = pytest.mark.cuda  # the simulated one where there is none
_shapes = [
    ((4, 3), 1, 3), ((4, 3), 4, 3), ((1, 1), 3, 2), ((5, 3, 2), 4, 1), ((3, 4, 2, 3), 3, 4),
    ((2, 1, 3, 1, 2), 5, 3),
]  # fmt: skip
_cases = [Case(*shape, units) for shape in _shapes for units in ("binary", "bipolar")]
_cases += [Case((3, 4, 2, 3), 3, 4, units, torch.float32) for units in ("binary", "bipolar")]
_cases += [Case((3, 4, 2, 3), 3, 4, each, torch.float64, "cuda") for each in ("binary", "bipolar")]
_cases += [Case((3, 4, 2, 3), 3, 4, "binary", torch.float32, "cuda")]
_cases += [Case((3, 4, 2), 3, 4, "bipolar", visible="binary")]
_cases += [Case((3, 4, 2), 3, 4, "binary", visible="bipolar")]
CASES = [
    pytest.param(case, id=str(case), marks=_needs_cuda if case.device == "cuda" else ())
    for case in _cases
]
EACH_UNITS = ["binary", "bipolar"]

# exponent of the importance weights, shares of generator_wake, recognition_wake and
# recognition_dream, baseline
_rules: dict[str, tuple[float, float, float, float, bool]] = {
    "ws": (0.0, 1.0, 0.0, 1.0, False),
    "rws": (1.0, 1.0, 0.5, 0.5, True),
    "rws without baseline": (1.0, 1.0, 0.5, 0.5, False),
    "bihm": (0.5, 1.0, 1.0, 0.0, True),
    # factors that no rule has, all different: terms cannot be taken for one another
    "factors": (0.7, 1.3, 0.4, 2.1, False),
    "recognition only": (1.0, 0.0, 1.0, 0.0, False),
}
RULES = list(_rules)


def make_rule(name: str, samples: int, **changes: Any) -> Rule:
    """A rule of the list; `exponent` in the changes picks the weighting that has it."""
    exponent, p_wake, q_wake, q_dream, baseline = _rules[name]
    options: dict[str, Any] = {
        "weighting": partial(tempered, exponent=changes.pop("exponent", exponent)),
        "generator_wake": p_wake, "recognition_wake": q_wake, "recognition_dream": q_dream,
        "baseline": baseline and (samples > 1 or q_dream > 0),  # else nothing would train q
        "bidirectional": name == "bihm",
    }  # fmt: skip
    return Rule(name, samples, **options | changes)


def exponent_of(rule: Rule) -> float:
    """Of the weighting of a rule of the list."""
    return float(rule.weighting.keywords["exponent"])  # type: ignore[attr-defined]


# --- damped solves --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolverCase:
    """The Fisher blocks of one layer, from n rows of d parents (bias included).

    The curvature of its m units spreads over decades.
    """

    n: int
    d: int
    m: int
    alpha: float
    units: Units = "binary"
    kind: Literal["plain", "saturated", "degenerate"] = "plain"
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"n{self.n}_d{self.d}_m{self.m}_alpha{self.alpha:g}"
        return f"{sizes}_{self.units}_{self.kind}_{dtype}_{self.device}"

    def fisher(self, seed: int = 0, name: str = "layer") -> UnitFisher:
        """The parents are correlated, some rare and some frequent.

        saturated: all row weights are near 1e-12.
        degenerate: some parents are equal, and one is constant (0, or -1 for bipolar units).
        """
        rng = seeded(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        parents = self.d - 1
        logits = normal(self.n, 3) @ normal(3, parents) + 1.5 * normal(parents)
        draws = torch.rand(self.n, parents, generator=rng, dtype=torch.float64)
        bits = (draws < torch.sigmoid(logits)).double()
        if self.kind == "degenerate":
            bits[:, 1], bits[:, 2], bits[:, 3] = bits[:, 0], bits[:, 0], 0.0
        states = NAMED[self.units].encode(bits)
        inputs = torch.cat([states, states.new_ones(self.n, 1)], dim=1)  # the bias is the last one
        bias = torch.linspace(0, 7, self.m, dtype=torch.float64)  # sigma'(7) = 9e-4
        if self.kind == "saturated":
            bias = torch.full((self.m,), 27.6, dtype=torch.float64)  # sigma'(27.6) = 1e-12
        activations = inputs @ normal(self.d, self.m) / self.d**0.5 + bias
        weights = torch.exp(-activations) / (1 + torch.exp(-activations)) ** 2 / self.n
        return UnitFisher(*(each.to(self.device, self.dtype) for each in (inputs, weights)), name)

    def gradient(self, seed: int = 1) -> Tensor:
        """(m, d), units of very different lengths."""
        rows = torch.randn(self.m, self.d, generator=seeded(seed), dtype=torch.float64)
        lengths = torch.logspace(0, -3, self.m, dtype=torch.float64)
        return (rows * lengths[:, None]).to(self.device, self.dtype)

    @property
    def damping(self) -> Tensor:
        return torch.tensor(self.alpha, dtype=self.dtype, device=self.device)


_solver_cases = [
    SolverCase(n, d, m, alpha, units)
    for n, d, m in [
        (60, 9, 5), (12, 12, 4), (20, 33, 6), (48, 70, 3), (90, 40, 7), (33, 6, 1), (1, 5, 2),
        (7, 1, 3),
    ]
    for alpha, units in [(1e-4, "binary"), (0.2, "bipolar"), (10.0, "binary")]
]  # fmt: skip
_solver_cases += [
    SolverCase(n, d, 4, alpha, units, kind, dtype)
    for n, d in [(60, 9), (20, 33), (48, 70), (20, 90)]  # the last is solved in the rows' space
    for kind in ("plain", "saturated", "degenerate")
    for alpha, units in [(1e-4, "bipolar"), (1e-2, "binary"), (0.2, "binary")]
    for dtype in (torch.float64, torch.float32)
    if (kind, dtype) != ("plain", torch.float64)
]
_solver_cases += [
    SolverCase(n, d, m, alpha, "binary", "plain", torch.float32)
    for n, d, m, alpha in [(12, 12, 4, 0.2), (33, 6, 1, 1e-2), (60, 9, 5, 10.0), (20, 90, 5, 10.0)]
]
_solver_cases += [SolverCase(30, 121, 6, 0.2, "bipolar")]
_solver_cases += [
    SolverCase(n, d, 6, 0.2, "bipolar", "plain", dtype, "cuda")
    for n, d in [(60, 9), (20, 33), (48, 70), (20, 90)]
    for dtype in (torch.float64, torch.float32)
]
SOLVER_CASES = [
    pytest.param(case, id=str(case), marks=_needs_cuda if case.device == "cuda" else ())
    for case in _solver_cases
]
# A layer as it comes up in training: many more rows than the rank kept, the published damping.
REALISTIC = SolverCase(320, 101, 60, 0.2)
FEW_ROWS = SolverCase(20, 90, 6, 0.2)  # solved in the space of its rows
