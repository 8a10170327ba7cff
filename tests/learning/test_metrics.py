"""The natural direction of a whole step against dense blocks from the rows of a re-seeded machine, unit by unit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    EXACT,
    RULES,
    STANDARD_ERRORS,
    Case,
    assert_close,
    make_rule,
    random_machine,
    seeded,
    tolerance,
)
from nws.learning.metrics import KINDS, MetricSettings, NaturalMetric
from nws.learning.wake_sleep import WakeSleep, residuals, write_gradients
from torch import Tensor

from nws.errors import UserError
from nws.models.belief_network import Units, encode
from nws.models.helmholtz import HelmholtzMachine, Trace
from nws.natural.damping import Damping
from nws.natural.solvers import make_solver

SEED = 11
ALPHA = 1 / 16
CASE = Case((3, 4, 2, 3), 3, 4, "bipolar")  # B = 4 images, K = 3, so n = 12 rows
BOTH = (0, 1)  # generator, recognition: positions in machine.networks


def natural_metrics(
    machine: HelmholtzMachine,
    alpha: float = ALPHA,
    schedule: Callable[[int], float] | None = None,
    **settings: Any,
) -> list[NaturalMetric]:
    """A metric with exact solves for each network."""
    return [
        NaturalMetric(
            network,
            MetricSettings(**settings),
            lambda: make_solver("cholesky"),
            Damping(alpha, schedule),
        )
        for network in machine.networks
    ]


def learner(case: Case, machine: HelmholtzMachine, rule: str = "rws", **options: Any) -> WakeSleep:
    metrics = natural_metrics(machine, **options)
    return WakeSleep(machine, make_rule(rule, case.samples), case.rng(SEED), metrics)


def directions(machine: HelmholtzMachine) -> list[Tensor]:
    """`.grad` of each network, flat."""
    return [reference.flatten(network.layers, gradients=True) for network in machine.networks]


# --- what the direction should be ---------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The states that a step seeded as above works with, and its importance weights: (n,), summing to 1."""

    wake: reference.Bits
    dream: reference.Bits
    importance: Tensor
    uniform: Tensor

    @staticmethod
    def of(
        machine: HelmholtzMachine,
        x: Tensor,
        samples: int,
        rng: torch.Generator,
        exponent: float = 1.0,
    ) -> Rows:
        wake = machine.wake(x, samples, rng)
        dream = machine.dream(len(wake.bits), rng)
        bits = reference.bits_of(wake)
        weights = reference.importance_weights(machine, bits, samples, exponent).flatten() / len(x)
        return Rows(
            bits, reference.bits_of(dream), weights, torch.full_like(weights, 1 / len(weights))
        )

    def of_network(
        self, which: int, generator_rows: str = "model"
    ) -> tuple[reference.Bits, Tensor]:
        """States and row weights of one network's Fisher matrix."""
        if which == 1:
            return self.wake, self.uniform
        return (
            (self.dream, self.uniform)
            if generator_rows == "model"
            else (self.wake, self.importance)
        )


def network_of(machine: HelmholtzMachine, which: int) -> reference.Network:
    return reference.recogniser(machine) if which else reference.generator(machine)


def dense_blocks(
    network: reference.Network, bits: reference.Bits, row_weights: Tensor, kind: str = "fisher"
) -> list[list[Tensor]]:
    """The block of each unit of each layer, row by row: sum_k w_k s_kj h_k h_k^T."""
    layers = []
    for (_, child), inputs, logits in zip(
        network.connections, network.parents(bits), network.logits(bits), strict=True
    ):
        p = 1 / (1 + torch.exp(-logits))
        slopes = (bits[child] - p) ** 2 if kind == "empirical" else p * (1 - p)
        outer = torch.einsum("nd,ne->nde", inputs, inputs)
        blocks = [torch.einsum("n,n,nde->de", row_weights, slope, outer) for slope in slopes.T]
        if kind == "diagonal":
            blocks = [block.diagonal().diag() for block in blocks]
        if (
            kind == "kronecker"
        ):  # one block for all, whose row weights are the units' mean, scaled by each unit's curvature
            shared = (
                torch.einsum("n,n,nde->de", row_weights, slopes.sum(1), outer)
                / (row_weights @ slopes).sum()
            )
            blocks = [(row_weights @ slope) * shared for slope in slopes.T]
        layers.append(blocks)
    return layers


def natural(
    network: reference.Network, blocks: list[list[Tensor]], gradient: Tensor, alpha: float = ALPHA
) -> Tensor:
    """(1 + alpha) (F_j + alpha I)^{-1} g_j of every unit of every layer, flat."""
    result = torch.full_like(gradient, torch.nan)
    for units, layer in zip(network.unit_ranges, blocks, strict=True):
        for unit, block in zip(units, layer, strict=True):
            damped = block + alpha * torch.eye(len(block), dtype=block.dtype)
            result[unit] = (1 + alpha) * torch.linalg.solve(damped, gradient[unit])
    return result


def blocks_of_some(
    network: reference.Network,
    bits: reference.Bits,
    weights: Tensor,
    chosen: Sequence[int],
    kind: str,
) -> list[list[Tensor]]:
    """`dense_blocks` of the chosen rows alone, whose weights sum to 1 again."""
    return dense_blocks(
        network, [y[chosen] for y in bits], weights[chosen] / weights[chosen].sum(), kind
    )


def expected_directions(
    case: Case,
    machine: HelmholtzMachine,
    x: Tensor,
    other: Tensor | None = None,
    rule_name: str = "rws",
    alpha: float = ALPHA,
    kind: str = "fisher",
    generator_rows: str = "model",
    kept: Sequence[int] | None = None,  # rows used; None: all
    images: Sequence[int]
    | None = None,  # whose rows the first recognition layer uses; None: of all
) -> list[Tensor]:
    rule, rng = make_rule(rule_name, case.samples), case.rng(SEED)
    rows = Rows.of(machine, x, case.samples, rng, rule.exponent)
    gradients = reference.rule_gradients(machine, rule, rows.wake, rows.dream)
    if other is not None:
        rows = Rows.of(machine, other, case.samples, rng, rule.exponent)
    result = []
    for which, gradient in enumerate(gradients):
        bits, weights = rows.of_network(which, generator_rows)
        network, every = network_of(machine, which), range(len(weights))
        layers = blocks_of_some(network, bits, weights, every if kept is None else kept, kind)
        if which == 1:
            first = [k for k in every if images is None or k // case.samples in images]
            layers[0] = blocks_of_some(network, bits, weights, first, kind)[0]
        result.append(natural(network, layers, gradient, alpha))
    return result


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


# --- exactly, for every unit of every layer -----------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    f"{kind}, {rows}": {"kind": kind, "generator_rows": rows}
    for kind in KINDS
    for rows in ("model", "posterior")
}
# Cholesky's error against LU's, times a condition number of (d + alpha) / alpha ~ 100 at most.
SOLVED = 100 * EXACT


@pytest.mark.parametrize("case", CASES)
def test_the_direction_is_the_dense_one_for_every_unit(case: Case) -> None:
    machine, x = case.machine(), case.data(soft=True)
    learner(case, machine).step(x)
    for actual, expected in zip(
        directions(machine), expected_directions(case, machine, x), strict=True
    ):
        assert_close(actual, expected, 100 * tolerance(case.dtype))


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_choice_of_matrix_and_rows_with_every_rule(
    settings: dict[str, Any], rule_name: str
) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, rule_name, **settings).step(x)
    expected = expected_directions(CASE, machine, x, rule_name=rule_name, **settings)
    for which in BOTH:
        assert_close(directions(machine)[which], expected[which], SOLVED)


@pytest.mark.parametrize("rows", ["model", "posterior"])
def test_rows_from_another_batch(rows: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    other = Case(CASE.sizes, 1, 6, CASE.units).data(seed=5)  # of another size, too
    learner(CASE, machine, batch="other", generator_rows=rows).step(x, other)
    actual = directions(machine)
    expected = expected_directions(CASE, machine, x, other, generator_rows=rows)
    same = expected_directions(CASE, machine, x, generator_rows=rows)
    for which in BOTH:
        assert_close(actual[which], expected[which], SOLVED)
        assert (
            relative_error(actual[which], same[which]) > 0.01
        )  # the control: the gradient's own batch gives another


def test_the_other_batch_is_sampled_only_where_a_refresh_wants_its_rows() -> None:
    learning = learner(CASE, CASE.machine(), batch="other", refresh_every=3)
    sampled: list[int] = []
    original = learning._phases
    learning._phases = lambda x, slot: (sampled.append(slot), original(x, slot))[1]  # type: ignore[method-assign,func-returns-value]
    for _ in range(5):
        learning.step(CASE.data(), CASE.data(seed=5))
    assert sampled == [0, 2, 0, 0, 0, 2, 0]


@pytest.mark.parametrize("rows", ["model", "posterior"])
@pytest.mark.parametrize(
    ("max_rows", "kept", "images"),
    [
        (11, [0, 2, 4, 6, 8, 10], [0, 1, 2, 3]),
        (6, [0, 2, 4, 6, 8, 10], [0, 1, 2, 3]),
        (5, [0, 3, 6, 9], [0, 1, 2, 3]),
        (3, [0, 4, 8], [0, 2]),
        (1, [0], [0]),
    ],
    ids=str,
)
def test_max_rows_takes_evenly_spaced_rows_whose_weights_sum_to_one(
    max_rows: int, kept: list[int], images: list[int], rows: str
) -> None:
    """In the first recognition layer the K rows of an image are one, so fewer images are left out there, or none."""
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, max_rows=max_rows, generator_rows=rows).step(x)
    actual = directions(machine)
    expected = expected_directions(CASE, machine, x, kept=kept, images=images, generator_rows=rows)
    every = expected_directions(CASE, machine, x, generator_rows=rows)
    for which in BOTH:
        assert_close(actual[which], expected[which], SOLVED)
        assert relative_error(actual[which], every[which]) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_max_rows_with_every_kind_of_matrix(kind: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, max_rows=3, kind=kind).step(x)
    expected = expected_directions(CASE, machine, x, kept=[0, 4, 8], images=[0, 2], kind=kind)
    for which in BOTH:
        assert_close(directions(machine)[which], expected[which], SOLVED)


@pytest.mark.parametrize("max_rows", [12, 100])
def test_a_cap_above_the_rows_there_are_changes_nothing(max_rows: int) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, max_rows=max_rows).step(x)
    capped = directions(machine)
    learner(CASE, machine).step(x)
    assert all(
        torch.equal(one, other) for one, other in zip(capped, directions(machine), strict=True)
    )


WRONG: dict[str, Callable[..., list[Tensor]]] = {
    "without 1 + alpha": lambda *a: [each / (1 + ALPHA) for each in expected_directions(*a)],
    "another alpha": lambda *a: expected_directions(*a, alpha=0.07),
    "the other rows": lambda *a: expected_directions(*a, generator_rows="posterior"),
    "fewer rows": lambda *a: expected_directions(*a, kept=range(11)),
    **{
        kind: lambda *a, kind=kind: expected_directions(*a, kind=kind)
        for kind in KINDS
        if kind != "fisher"
    },  # type: ignore[misc]
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_another_direction_fails_the_same_comparison(wrong: Callable[..., list[Tensor]]) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine).step(x)
    difference = [
        relative_error(*pair)
        for pair in zip(directions(machine), wrong(CASE, machine, x), strict=True)
    ]
    assert (
        difference[0] > 100 * SOLVED
    )  # the rows of recognition are wake rows for all of them but the fewer ones
    assert difference[1] > 100 * SOLVED or wrong is WRONG["the other rows"]


def test_posterior_rows_count_by_their_importance() -> None:
    """The control for `posterior`: all wake rows alike give another direction."""
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, generator_rows="posterior").step(x)
    rng = CASE.rng(SEED)
    rows = Rows.of(machine, x, CASE.samples, rng)
    gradient, _ = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), rows.wake, rows.dream
    )
    network = network_of(machine, 0)
    alike = natural(network, dense_blocks(network, rows.wake, rows.uniform), gradient)
    assert relative_error(directions(machine)[0], alike) > 0.01


def test_rows_that_share_x_are_one_row_in_the_first_recognition_layer() -> None:
    machine, x = CASE.machine(), CASE.data()
    learning = learner(CASE, machine)
    learning.step(x)
    rows = [fisher.shape[0] for fisher in learning.metrics[1].fishers]
    assert rows == [CASE.batch, CASE.batch * CASE.samples, CASE.batch * CASE.samples]
    every = Rows.of(machine, x, CASE.samples, CASE.rng(SEED))
    expected = dense_blocks(network_of(machine, 1), every.wake, every.uniform)  # from all n rows
    for fisher, blocks in zip(learning.metrics[1].fishers, expected, strict=True):
        assert_close(fisher.blocks(), torch.stack(blocks))


@pytest.mark.parametrize("kind", ["fisher", "diagonal", "kronecker"])
@pytest.mark.parametrize("rows", ["model", "posterior"])
def test_the_deepest_generator_layer_is_exact_whatever_the_rows(rows: str, kind: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, kind=kind, generator_rows=rows, max_rows=1).step(x)
    top = machine.generator.layers[-1]
    rng = CASE.rng(SEED)
    every = Rows.of(machine, x, CASE.samples, rng)
    gradient, _ = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), every.wake, every.dream
    )
    p = torch.sigmoid(top.bias.detach())
    assert_close(top.bias.grad, (1 + ALPHA) * gradient[-len(p) :] / (p * (1 - p) + ALPHA))


def test_a_huge_alpha_gives_the_plain_gradient() -> None:
    """(1 + alpha) (F + alpha I)^{-1} - I = (I - F) (F + alpha I)^{-1}, and |F| <= d / 4: at most d / alpha off."""
    machine, x = CASE.machine(), CASE.data()
    WakeSleep(machine, make_rule("rws", CASE.samples), CASE.rng(SEED)).step(x)
    plain = directions(machine)
    parents = 1 + max(CASE.sizes)
    for alpha, near in [(1e6, True), (1e3, True), (ALPHA, False)]:
        learner(CASE, machine, alpha=alpha).step(x)
        for which in BOTH:
            error = relative_error(directions(machine)[which], plain[which])
            assert (error < parents / alpha) == near or error > 0.5, (alpha, error)
            assert (error < 0.01) == near


# --- layers that are solved together ------------------------------------------------------------


@pytest.mark.parametrize("small", [(2048, 8192), (12, 40), (0, 0)], ids=["all", "by size", "none"])
def test_layers_solved_together_have_their_own_directions(
    small: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conjugate gradient on stacks against Cholesky layer by layer, over batches of changing size."""
    monkeypatch.setattr("nws.learning.metrics.SMALL", small)
    machine, rule = random_machine((9, 7, 5, 2, 3)), make_rule("rws", CASE.samples)
    solvers = {
        "pcg": lambda: make_solver("pcg", iterations=1000, tolerance=1e-13),
        "cholesky": lambda: make_solver("cholesky"),
    }
    learning = {
        name: WakeSleep(
            machine,
            rule,
            seeded(SEED),
            [
                NaturalMetric(network, MetricSettings(), make, Damping(ALPHA))
                for network in machine.networks
            ],
        )
        for name, make in solvers.items()
    }
    together = [len(metric.solvers) for metric in learning["pcg"].metrics]
    assert together == {(2048, 8192): [1, 1], (12, 40): [3, 3], (0, 0): [5, 4]}[small]
    assert [len(metric.solvers) for metric in learning["cholesky"].metrics] == [5, 4]
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    for step, batch in enumerate((4, 3, 4)):
        x = (torch.rand(batch, 9, generator=seeded(step), dtype=torch.float64) < 0.4).double()
        found = {}
        for name, each in learning.items():
            each.step(x)
            found[name] = directions(machine)
        for one, other in zip(found["pcg"], found["cholesky"], strict=True):
            assert_close(one, other, SOLVED)
        optimizer.step()


# --- refreshed every K steps --------------------------------------------------------------------


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_the_matrix_and_alpha_of_the_last_refresh_serve_until_the_next(refresh_every: int) -> None:
    """Parameters and alpha move at every step, so a matrix from any other step gives another direction."""
    machine = CASE.machine()
    schedule = lambda step: 0.9**step  # noqa: E731
    learning = learner(CASE, machine, refresh_every=refresh_every, schedule=schedule)
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    rule, rng = make_rule("rws", CASE.samples), seeded()
    for step in range(2 * refresh_every + 1):
        x = CASE.data(seed=step)
        rng.set_state(learning.rng.get_state())
        rows = Rows.of(machine, x, CASE.samples, rng)
        gradients = reference.rule_gradients(machine, rule, rows.wake, rows.dream)
        fresh = [
            dense_blocks(network_of(machine, which), *rows.of_network(which), kind="fisher")
            for which in BOTH
        ]
        if step % refresh_every == 0:
            blocks, alpha = fresh, ALPHA * schedule(step)
        learning.step(x)
        for which in BOTH:
            network, actual = network_of(machine, which), directions(machine)[which]
            assert_close(actual, natural(network, blocks[which], gradients[which], alpha), SOLVED)
            if step % refresh_every:  # the control
                assert (
                    relative_error(actual, natural(network, fresh[which], gradients[which], alpha))
                    > 1e-3
                )
        optimizer.step()


@pytest.mark.parametrize(
    "settings", [{}, {"refresh_every": 3}, {"refresh_every": 3, "kind": "kronecker"}], ids=str
)
def test_a_metric_goes_on_bit_for_bit_from_its_state(settings: dict[str, Any]) -> None:
    def run(machine: HelmholtzMachine, learning: WakeSleep, steps: range) -> list[Tensor]:
        optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
        for step in steps:
            learning.step(CASE.data(seed=step))
            optimizer.step()
        return directions(machine)

    def make() -> tuple[HelmholtzMachine, WakeSleep]:
        machine = CASE.machine()
        return machine, learner(CASE, machine, schedule=lambda step: 0.9**step, **settings)

    whole = run(*make(), range(5))
    machine, learning = make()
    run(machine, learning, range(4))
    again, rest = make()
    again.load_state_dict(machine.state_dict())
    rest.rng.set_state(learning.rng.get_state())
    for metric, saved in zip(rest.metrics, learning.metrics, strict=True):
        metric.load_state_dict(saved.state_dict())
    assert all(
        torch.equal(one, other)
        for one, other in zip(whole, run(again, rest, range(4, 5)), strict=True)
    )
    unloaded = learner(
        CASE, again, schedule=lambda step: 0.9**step, **settings
    )  # the control: without the state
    assert not torch.equal(whole[0], run(again, unloaded, range(4, 5))[0])


# --- trust region -------------------------------------------------------------------------------

RATE = 0.7


def step_lengths(machine: HelmholtzMachine, x: Tensor, moves: list[Tensor]) -> list[float]:
    """Half the squared Fisher length of RATE times each network's direction, from dense blocks."""
    rows, lengths = Rows.of(machine, x, CASE.samples, CASE.rng(SEED)), []
    for which, move in enumerate(moves):
        network = network_of(machine, which)
        blocks = dense_blocks(network, *rows.of_network(which))
        pairs = zip(itertools.chain(*network.unit_ranges), itertools.chain(*blocks), strict=True)
        lengths.append(
            sum(float(move[unit] @ block @ move[unit]) for unit, block in pairs) * RATE**2 / 2
        )
    return lengths


def bounded(machine: HelmholtzMachine, x: Tensor, **settings: Any) -> list[Tensor]:
    learning = learner(CASE, machine, **settings)
    for metric in learning.metrics:
        metric.learning_rate.fill_(RATE)
    learning.step(x)
    return directions(machine)


@pytest.mark.parametrize("kind", ["fisher", "diagonal"])
def test_max_kl_bounds_the_fisher_length_of_the_step(kind: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    free = bounded(machine, x, kind=kind)
    lengths = step_lengths(machine, x, free)
    for factor in (0.01, 0.999, 1.001, 100.0):
        for which in BOTH:
            moves = bounded(machine, x, kind=kind, max_kl=factor * lengths[which])
            length = step_lengths(machine, x, moves)[which]
            if factor > 1:
                assert torch.equal(moves[which], free[which])
            else:
                assert length == pytest.approx(factor * lengths[which], rel=EXACT)
                assert_close(moves[which], factor**0.5 * free[which])


def test_max_kl_of_a_step_that_goes_nowhere() -> None:
    machine = CASE.machine()
    rule = make_rule("recognition only", CASE.samples)  # the generator's gradient is 0
    WakeSleep(machine, rule, CASE.rng(), natural_metrics(machine, max_kl=0.1)).step(CASE.data())
    assert [bool(each.any()) for each in directions(machine)] == [False, True]
    assert all(each.isfinite().all() for each in directions(machine))


# --- what it means ------------------------------------------------------------------------------

SMALL = (3, 2, 2)
DATA = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
ROWS = 40_000
Source = Literal["own", "other"]


def images() -> Tensor:
    return torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.float64)


def deviations(units: Units, which: int, source: Source) -> Tensor:
    """How far the direction from ROWS sampled rows is from the one by enumeration, in standard errors of its entries."""
    machine = random_machine(SMALL, units, seed=3)
    rng = seeded(7)
    x = images().repeat_interleave((DATA * ROWS / 4).long(), dim=0)
    wake, dream = machine.wake(x, 4, rng), machine.dream(ROWS, rng)
    network, metric = network_of(machine, which), natural_metrics(machine)[which]
    exact = (
        reference.recognition_fisher(machine, images(), DATA)
        if which
        else reference.generator_fisher(machine)
    )
    blocks = [[exact.matrix[unit, unit] for unit in layer] for layer in exact.units]
    gradient = torch.randn(len(network.theta), generator=rng, dtype=torch.float64)
    write(metric, gradient)
    trace = wake if (which == 1) == (source == "own") else dream
    with torch.no_grad():
        metric.precondition(trace, torch.full((ROWS,), 1 / ROWS, dtype=torch.float64), [])
    expected = natural(network, blocks, gradient)

    # To first order the error is minus the mean over the rows of (F + alpha I)^{-1} (s h h^T - F) v; its next order is 1 / n.
    errors, bits = torch.full_like(expected, torch.nan), reference.bits_of(trace)
    for units_, layer, inputs, logits in zip(
        network.unit_ranges, blocks, network.parents(bits), network.logits(bits), strict=True
    ):
        p = 1 / (1 + torch.exp(-logits))
        for j, (unit, block) in enumerate(zip(units_, layer, strict=True)):
            rows = (p * (1 - p))[:, j, None] * inputs * (inputs @ expected[unit])[:, None]
            inverse = torch.linalg.inv(block + ALPHA * torch.eye(len(block), dtype=block.dtype))
            errors[unit] = (rows @ inverse).std(0) / ROWS**0.5
    deviation = reference.flatten(metric.network.layers, gradients=True) - expected
    assert (
        source == "other" or deviation.norm() < 0.05 * expected.norm()
    )  # so that first order is enough
    return deviation.abs() / (errors + EXACT)  # what is exact, the deepest layer, has no error


def write(metric: NaturalMetric, gradient: Tensor) -> None:
    """Set `.grad` of a network from a flat vector."""
    start = 0
    for layer in metric.network.layers:
        units, parents = layer.weight.shape
        part = gradient[start : start + units * (parents + 1)].view(units, parents + 1)
        layer.weight.grad, layer.bias.grad = part[:, :-1].clone(), part[:, -1].clone()
        start += part.numel()


@pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])
@pytest.mark.parametrize("units", EACH_UNITS)
def test_many_rows_give_the_direction_of_the_enumerated_fisher_matrix(
    units: Units, which: int
) -> None:
    assert deviations(units, which, "own").max() < STANDARD_ERRORS
    assert (
        deviations(units, which, "other").max() > 2 * STANDARD_ERRORS
    )  # the control: the other phase's rows


@pytest.mark.parametrize("units", EACH_UNITS)
def test_the_empirical_matrix_is_the_true_one_only_under_the_models_own_rows(units: Units) -> None:
    machine = random_machine(SMALL, units, seed=3)
    bits = reference.every_state(SMALL)
    trace = machine.trace([encode(y, units) for y in bits])
    model = reference.generator(machine).log_prob(bits).exp()
    recognised = reference.recogniser(machine).log_prob(bits).exp()
    data = sum(p * (bits[0] == x).all(1) for p, x in zip(DATA, images(), strict=True)) * recognised
    gradient = torch.randn(
        len(reference.generator(machine).theta), generator=seeded(7), dtype=torch.float64
    )

    def direction(kind: str, row_weights: Tensor) -> Tensor:
        assert_close(row_weights.sum(), torch.tensor(1.0))
        metric = natural_metrics(machine, kind=kind)[0]
        write(metric, gradient)
        with torch.no_grad():
            metric.precondition(trace, row_weights, [])
        return reference.flatten(machine.generator.layers, gradients=True)

    assert_close(direction("empirical", model), direction("fisher", model), SOLVED)
    assert relative_error(direction("empirical", data), direction("fisher", data)) > 0.05


# --- invariance ---------------------------------------------------------------------------------

# The damping is all that depends on the encoding: its share is alpha over the smallest eigenvalue of a block, ~1e-2 here.
TINY, INVARIANT = 1e-10, 1e-6


def as_binary(machine: HelmholtzMachine) -> HelmholtzMachine:
    """The machine of binary units that is the same model as one of bipolar units: W' = 2 W, b' = b - sum of W."""
    binary = HelmholtzMachine(machine.sizes, "binary").double()
    for networks in zip(machine.networks, binary.networks, strict=True):
        for old, new in zip(*(network.layers for network in networks), strict=True):
            new.weight.data, new.bias.data = (
                2 * old.weight.data,
                old.bias.data - old.weight.data.sum(1),
            )
    return binary


def change_of_logits(
    machine: HelmholtzMachine, bits: reference.Bits, which: int, alpha: float | None
) -> Tensor:
    """What a step along the natural direction, or the plain gradient (alpha None), does to the logits of fixed states."""

    def trace() -> Trace:
        return machine.trace([encode(y, machine.units) for y in bits])

    network, before = machine.networks[which], trace()
    weights = torch.rand(len(bits[0]), generator=seeded(9), dtype=torch.float64)
    weights /= weights.sum()
    with torch.no_grad():
        write_gradients(network, [(before, residuals(network, before, weights))])
    if alpha is not None:
        with torch.no_grad():
            natural_metrics(machine, alpha)[which].precondition(before, weights, [])
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    return trace().logits(network) - before.logits(network)


@pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])
def test_the_natural_step_does_not_depend_on_the_encoding_of_the_units(which: int) -> None:
    sizes = (5, 4, 3, 2)
    bits = list(
        (torch.rand(300, sum(sizes), generator=seeded(8), dtype=torch.float64) < 0.4)
        .double()
        .split(sizes, 1)
    )

    def difference(alpha: float | None) -> Tensor:
        bipolar = random_machine(sizes, "bipolar", seed=4)
        binary = as_binary(bipolar)
        pair = [
            machine.trace([encode(y, machine.units) for y in bits]) for machine in (bipolar, binary)
        ]
        for i in BOTH:
            assert_close(
                pair[0].logits(bipolar.networks[i]), pair[1].logits(binary.networks[i])
            )  # one model
        one, other = (
            change_of_logits(machine, bits, which, alpha) for machine in (bipolar, binary)
        )
        layers = zip(
            one.split(bipolar.networks[which].units, 1),
            other.split(binary.networks[which].units, 1),
            strict=True,
        )
        return torch.tensor([relative_error(*layer) for layer in layers])

    assert difference(TINY).max() < INVARIANT
    with_parents = (
        3  # layers; the deepest of the generator has none, and is the same in both encodings
    )
    assert difference(None)[:with_parents].min() > 0.1  # the plain gradient
    assert (
        difference(0.2)[:with_parents].min() > 1e3 * INVARIANT
    )  # damping is where the encoding comes in


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        (
            "kind",
            "riemann",
            "metric.kind must be one of fisher, empirical, diagonal, kronecker, got 'riemann'",
        ),
        ("kind", None, "metric.kind must be one of"),
        (
            "generator_rows",
            "dreams",
            "metric.generator_rows must be one of model, posterior, got 'dreams'",
        ),
        ("batch", "next", "metric.batch must be one of same, other, unlabeled, got 'next'"),
        ("max_rows", 0, "metric.max_rows must be a whole number of at least 1, got 0"),
        ("max_rows", 2.5, "metric.max_rows must be a whole number"),
        ("refresh_every", 0, "metric.refresh_every must be a whole number of at least 1, got 0"),
        ("refresh_every", None, "metric.refresh_every must be a whole number"),
        ("max_kl", 0, "metric.max_kl must be a number of nats above 0 or null, got 0"),
        ("max_kl", -0.1, "metric.max_kl must be"),
        ("max_kl", float("nan"), "metric.max_kl must be"),
        ("max_kl", "small", "metric.max_kl must be"),
    ],
)
def test_bad_settings_are_errors_that_name_them(option: str, value: Any, part: str) -> None:
    with pytest.raises(UserError, match=part.replace(".", r"\.")):
        MetricSettings(**{option: value})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("which", "layer", "n"),
    [(0, 0, 12), (0, 2, 12), (1, 0, 4), (1, 1, 12)],
    ids=lambda number: str(number),
)
def test_rows_that_are_not_finite_name_the_layer(which: int, layer: int, n: int, kind: str) -> None:
    machine = CASE.machine()
    learning = learner(CASE, machine, kind=kind)
    with torch.no_grad():
        machine.networks[which].layers[layer].bias[0] = torch.nan
    with pytest.raises(UserError) as error:
        learning.step(CASE.data())
    name, parents = (
        machine.networks[which].name,
        machine.networks[which].layers[layer].weight.shape[1] + 1,
    )
    assert (
        f"{name} layer {layer}: cannot factor a Fisher block from n={n} rows of d={parents} parents"
        in str(error.value)
    )
    assert "damping 0.0625: its rows are not finite; lower optimizer.lr" in str(error.value)
