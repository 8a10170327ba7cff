"""The natural direction of a whole step against dense blocks, unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import reference
import torch
from cases import CASES, RULES, Case, assert_close, make_rule, random_machine, seeded, tolerance
from directions import (
    ALPHA,
    BOTH,
    CASE,
    KINDS,
    SEED,
    SOLVED,
    StepRows,
    dense_blocks,
    directions,
    expected_directions,
    joined,
    learner,
    natural,
    natural_metrics,
    network_of,
    relative_error,
)
from torch import Tensor

from nws.errors import UserError
from nws.learning import NaturalMetric, WakeSleep
from nws.natural import Damping, Metric, natural_direction
from nws.natural.metrics import Fisher
from nws.natural.metrics.mean import Mean
from nws.natural.solvers import Cholesky, ConjugateGradient

SETTINGS: dict[str, dict[str, Any]] = {
    f"{kind}, {rows}": {"kind": kind, "generator_rows": rows}
    for kind in KINDS
    for rows in ("model", "posterior")
}


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
    assert difference[0] > 100 * SOLVED
    # the rows of recognition are wake rows for all of them but the fewer ones
    assert difference[1] > 100 * SOLVED or wrong is WRONG["the other rows"]


def test_posterior_rows_count_by_their_importance() -> None:
    """The control for `posterior`: all wake rows alike give another direction."""
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, generator_rows="posterior").step(x)
    rng = CASE.rng(SEED)
    rows = StepRows.draw(machine, x, CASE.samples, rng)
    gradient, _ = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), rows.wake, rows.dream
    )
    network = network_of(machine, 0)
    alike = natural(network, dense_blocks(network, rows.wake, rows.uniform), gradient)
    assert relative_error(directions(machine)[0], alike) > 0.01


def mean_blocks(
    network: reference.Network, bits: reference.Bits, row_weights: Tensor
) -> list[list[Tensor]]:
    """s_j c c^T of each unit: c is the weighted mean row, s_j the weighted mean curvature."""
    layers = []
    for inputs, logits in zip(network.parents(bits), network.logits(bits), strict=True):
        p, mean = 1 / (1 + torch.exp(-logits)), row_weights @ inputs
        layers.append([slope * mean.outer(mean) for slope in row_weights @ (p * (1 - p))])
    return layers


@pytest.mark.parametrize("rows", ["model", "posterior"])
def test_the_mean_metric_takes_the_step_of_its_dense_blocks(rows: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, make=Mean, generator_rows=rows).step(x)
    every = StepRows.draw(machine, x, CASE.samples, CASE.rng(SEED))
    gradients = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), every.wake, every.dream
    )
    for which, actual, gradient in zip(BOTH, directions(machine), gradients, strict=True):
        network, (bits, weights) = network_of(machine, which), every.of_network(which, rows)
        assert_close(
            actual, natural(network, mean_blocks(network, bits, weights), gradient), SOLVED
        )
        first = torch.zeros_like(weights)  # the control: the first row alone
        first[0] = 1
        other = natural(network, mean_blocks(network, bits, first), gradient)
        assert relative_error(actual, other) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ["model", "posterior"])
def test_a_step_in_parts_has_the_direction_of_all_of_its_rows(
    rows: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part has its phases, in this order of draws."""
    machine, x, rng = CASE.machine(), CASE.data(), CASE.rng(SEED)
    monkeypatch.setattr("nws.learning.step.parts_of", lambda states, weights: 2)
    learner(CASE, machine, kind=kind, generator_rows=rows).step(x)
    parts = [StepRows.draw(machine, part, CASE.samples, rng) for part in x.chunk(2)]
    every = StepRows.join(parts)
    gradients = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), every.wake, every.dream
    )
    for which, actual, gradient in zip(BOTH, directions(machine), gradients, strict=True):
        network = network_of(machine, which)
        expected = [
            natural(network, dense_blocks(network, *of.of_network(which, rows), kind), gradient)
            for of in (every, parts[0])
        ]
        assert_close(actual, expected[0], SOLVED)
        assert relative_error(actual, expected[1]) > 0.01  # the control: the first part alone


def test_rows_that_share_x_are_one_row_in_the_first_recognition_layer() -> None:
    machine, x = CASE.machine(), CASE.data()
    learning = learner(CASE, machine, refresh_every=2)  # which keeps the rows
    learning.step(x)
    rows = [len(fisher.inputs) for fisher in learning.metrics[1].fishers]
    assert rows == [CASE.batch, CASE.batch * CASE.samples, CASE.batch * CASE.samples]
    every = StepRows.draw(machine, x, CASE.samples, CASE.rng(SEED))
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
    every = StepRows.draw(machine, x, CASE.samples, rng)
    gradient, _ = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), every.wake, every.dream
    )
    p = torch.sigmoid(top.bias.detach())
    assert_close(top.bias.grad, (1 + ALPHA) * gradient[-len(p) :] / (p * (1 - p) + ALPHA))


def test_a_huge_alpha_gives_the_plain_gradient() -> None:
    """(1 + alpha) (F + alpha I)^{-1} - I = (I - F) (F + alpha I)^{-1} and |F| <= d / 4.

    So the two are at most d / alpha apart.
    """
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


def test_conjugate_gradient_goes_as_cholesky_over_batches_of_changing_size() -> None:
    machine, rule = random_machine((9, 7, 5, 2, 3)), make_rule("rws", CASE.samples)
    tight = partial(ConjugateGradient, 1000, tolerance=1e-13)
    learning = {
        name: WakeSleep(
            machine, rule, seeded(SEED), natural_metrics(machine, make=partial(Fisher, solver))
        )
        for name, solver in [("cg", tight), ("cholesky", Cholesky)]
    }
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    for step, batch in enumerate((4, 3, 4)):
        x = (torch.rand(batch, 9, generator=seeded(step), dtype=torch.float64) < 0.4).double()
        found = {}
        for name, each in learning.items():
            each.step(x)
            found[name] = directions(machine)
        for one, other in zip(found["cg"], found["cholesky"], strict=True):
            assert_close(one, other, SOLVED)
        optimizer.step()
    report = learning["cg"].report()
    assert report["generator/iterations"] > 1 and report["recognition/residual"] < 1e-12


@pytest.mark.parametrize("which", BOTH, ids=["generator", "recognition"])
def test_the_plain_version_of_the_package_gives_the_same(which: int) -> None:
    """`nws.natural.natural_direction` on the rows that the metric took in."""
    machine, x = CASE.machine(), CASE.data(soft=True)
    WakeSleep(machine, make_rule("rws", CASE.samples), CASE.rng(SEED)).step(x)
    plain = joined(machine.networks[which])
    learning = learner(CASE, machine, refresh_every=2)  # which keeps the rows
    learning.step(x)
    rows = learning.metrics[which].rows
    for found, each, gradient in zip(joined(machine.networks[which]), rows, plain, strict=True):
        expected = natural_direction(each.inputs, each.curvature, gradient, ALPHA)
        assert_close(found, expected.detach(), SOLVED)


# --- refreshed every K steps ----------------------------------------------------------------------


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_the_matrix_and_alpha_of_the_last_refresh_serve_until_the_next(refresh_every: int) -> None:
    """Parameters and alpha move at every step: a matrix of another step gives another direction."""
    machine = CASE.machine()
    schedule = lambda step: 0.9**step  # noqa: E731
    learning = learner(CASE, machine, refresh_every=refresh_every, schedule=schedule)
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    rule, rng = make_rule("rws", CASE.samples), seeded()
    for step in range(2 * refresh_every + 1):
        x = CASE.data(seed=step)
        rng.set_state(learning.rng.get_state())
        rows = StepRows.draw(machine, x, CASE.samples, rng)
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


# --- errors ---------------------------------------------------------------------------------------


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


class Misshapen(Metric):
    """A metric of a user's own that returns something else than one (m, d) a layer."""

    def __init__(self, spoil: Callable[[list[Tensor]], Any]) -> None:
        self.spoil = spoil

    def update(self, rows: Any, alpha: Tensor) -> None:
        pass

    def direction(self, gradients: list[Tensor]) -> Any:
        return self.spoil(list(gradients))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda parts: parts[:-1],
        lambda parts: [part[:, :-1] for part in parts],
        lambda parts: [part.T for part in parts],
        lambda parts: [part[:1] for part in parts],
    ],
)
def test_directions_of_another_shape_get_one_message(spoil: Callable[[list[Tensor]], Any]) -> None:
    machine = random_machine((5, 4, 3)).float()
    metrics = [NaturalMetric(net, Misshapen(spoil), Damping(0.2)) for net in machine.networks]
    learner = WakeSleep(machine, make_rule("rws", 4), seeded(), metrics)
    with pytest.raises(UserError, match=r"Misshapen.direction must return a tensor \(m, d\) for"):
        learner.step(torch.zeros(3, 5))
