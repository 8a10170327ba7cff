"""The natural direction of a whole step against dense blocks, unit by unit."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import reference
import torch
from cases import CASES, EXACT, RULES, Case, apart, assert_close, make_rule, seeded, tolerance

from directions import (  # isort: skip
    ALL, ALPHA, BOTH, CASE, KINDS, METRICS, SEED, SOLVED, StepRows, dense_blocks, directions,
    expected_directions, learner, natural, natural_metrics, network_of, relative_error,
)  # fmt: skip
from torch import Tensor

from nws.learning import NaturalMetric, Rule, WakeSleep
from nws.models import HelmholtzMachine
from nws.natural import Damping, LevenbergMarquardt
from nws.natural.metrics import Adaptive, Kronecker

OTHER = Case(CASE.sizes, 1, 6, CASE.units).data(seed=5)  # of another size than the batch, too
both_rows = pytest.mark.parametrize("rows", ["model", "posterior"])


@pytest.mark.parametrize("case", CASES)
def test_the_direction_is_the_dense_one_for_every_unit(case: Case) -> None:
    machine, x = case.machine(), case.data(soft=True)
    learner(case, machine).step(x)
    expected = expected_directions(case, machine, x)
    for actual, dense in zip(directions(machine), expected, strict=True):
        assert_close(actual, dense, 100 * tolerance(case.dtype))


@both_rows
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("rule_name", RULES)
def test_every_matrix_and_rows_with_every_rule(rule_name: str, kind: str, rows: str) -> None:
    machine, x, options = CASE.machine(), CASE.data(), {"kind": kind, "generator_rows": rows}
    learner(CASE, machine, rule_name, **options).step(x)
    expected = expected_directions(CASE, machine, x, rule_name=rule_name, **options)
    for which in BOTH:
        assert_close(directions(machine)[which], expected[which], SOLVED)


#: `max_rows`, the rows that are kept, and the images in recognition's first layer, where K are one.
CAPS: list[tuple[int, Sequence[int], Sequence[int]]] = [
    (11, [0, 2, 4, 6, 8, 10], range(4)), (6, [0, 2, 4, 6, 8, 10], range(4)),
    (5, [0, 3, 6, 9], range(4)), (1, [0], [0]),
]  # fmt: skip
CHOSEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # options; what the reference is told
    "another batch": ({"batch": "other"}, {"other": OTHER}),
    **{f"{cap} rows": ({"max_rows": cap}, {"kept": k, "images": i}) for cap, k, i in CAPS},
    **{f"3 rows, {kind}": ({"max_rows": 3.0, "kind": kind},  # a whole float will do
                           {"kept": [0, 4, 8], "images": [0, 2], "kind": kind}) for kind in KINDS},
}  # fmt: skip


@both_rows
@pytest.mark.parametrize(("options", "told"), CHOSEN.values(), ids=CHOSEN)
def test_rows_that_are_chosen_make_the_matrix(options: Any, told: Any, rows: str) -> None:
    """Evenly spaced rows have weights that sum to 1 again."""
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, **options, generator_rows=rows).step(x, told.get("other"))
    actual = directions(machine)
    expected = expected_directions(CASE, machine, x, **told, generator_rows=rows)
    kind = options.get("kind", "fisher")
    every = expected_directions(CASE, machine, x, kind=kind, generator_rows=rows)
    for which in BOTH:
        assert_close(actual[which], expected[which], SOLVED)
        assert relative_error(actual[which], every[which]) > 0.005  # the control: all rows


@both_rows
@pytest.mark.parametrize("batch", ["same", "other"])
def test_posterior_rows_have_the_weights_of_the_generator(batch: str, rows: str) -> None:
    """A weighting with other weights for q: its gradient has them, and no row of a metric."""
    machine, x, other = CASE.machine(), CASE.data(), OTHER if batch == "other" else None
    metrics = natural_metrics(machine, generator_rows=rows, batch=batch)
    rule, rng = Rule("apart", CASE.samples, apart), CASE.rng(SEED)
    WakeSleep(machine, rule, CASE.rng(SEED), metrics).step(x, other)
    own = StepRows.draw(machine, x, CASE.samples, rng)
    p, q = reference.generator(machine), reference.recognition(machine)
    ratio = (p.log_prob(own.wake) - q.log_prob(own.wake)).view(-1, CASE.samples)
    weights = own.importance.view_as(ratio) * len(x), ratio.sin() + 0.3
    gradients = reference.rule_gradients(machine, rule, own.wake, own.dream, weights)
    if other is not None:
        own = StepRows.draw(machine, other, CASE.samples, rng)
    for which in BOTH:
        network, found = network_of(machine, which), directions(machine)[which]
        blocks = dense_blocks(network, *own.of_network(which, rows))
        assert_close(found, natural(network, blocks, gradients[which]), SOLVED)
        wrong = natural(network, blocks, gradients[which] * 1.01)  # the controls
        assert relative_error(found, wrong) > 1e-3
        alike = dense_blocks(network, own.wake, own.uniform)
        changed = relative_error(found, natural(network, alike, gradients[which])) > 0.01
        assert changed == (which == 0)


@both_rows
def test_recognition_alone_takes_its_rows_from_the_unlabelled_images(rows: str) -> None:
    machine, x, found = CASE.machine(), CASE.data(), {}
    for batch in ("unlabeled", "same", "other"):
        other = None if batch == "same" else OTHER
        learner(CASE, machine, batch=batch, generator_rows=rows).step(x, other)
        found[batch] = directions(machine)
    # by hand, from the same draws: the step's two phases, then the unlabelled images' states
    rng, rule = CASE.rng(SEED), make_rule("rws", CASE.samples)
    own = StepRows.draw(machine, x, CASE.samples, rng)
    gradient = reference.rule_gradients(machine, rule, own.wake, own.dream)[1]
    states = reference.bits_of(machine.wake(OTHER, CASE.samples, rng))
    uniform = torch.full((len(states[0]),), 1 / len(states[0]), dtype=torch.float64)
    network, (generator, recognition) = network_of(machine, 1), found["unlabeled"]
    dense = natural(network, dense_blocks(network, states, uniform), gradient)
    assert_close(recognition, dense, SOLVED)
    assert torch.equal(generator, found["same"][0])
    for changed, before in ((recognition, found["same"][1]), (generator, found["other"][0])):
        assert relative_error(changed, before) > 0.01  # the control
    learner(CASE, machine, batch="unlabeled", generator_rows=rows).step(x, 1 - OTHER)
    assert torch.equal(directions(machine)[0], generator)
    assert relative_error(directions(machine)[1], recognition) > 0.01


WRONG: dict[str, Callable[..., list[Tensor]]] = {
    "without 1 + alpha": lambda *a: [each / (1 + ALPHA) for each in expected_directions(*a)],
    "another alpha": lambda *a: expected_directions(*a, alpha=0.07),
    "the other rows": lambda *a: expected_directions(*a, generator_rows="posterior"),
    "fewer rows": lambda *a: expected_directions(*a, kept=range(11)),
    **{kind: partial(expected_directions, kind=kind) for kind in METRICS if kind != "fisher"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_another_direction_fails_the_same_comparison(wrong: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine).step(x)
    pairs = zip(directions(machine), WRONG[wrong](CASE, machine, x), strict=True)
    difference = [relative_error(*pair) for pair in pairs]
    assert difference[0] > 100 * SOLVED
    # the rows of recognition are wake rows for all of them but the fewer ones
    assert difference[1] > 100 * SOLVED or wrong == "the other rows"


@pytest.mark.parametrize("kind", KINDS)
@both_rows
def test_a_step_in_parts_has_the_direction_of_all_of_its_rows(
    rows: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part has its phases, in this order of draws."""
    machine, x, rng = CASE.machine(), CASE.data(), CASE.rng(SEED)
    monkeypatch.setattr("nws.learning.step.parts_of", lambda states, weights: 2)
    learner(CASE, machine, kind=kind, generator_rows=rows).step(x)
    rule, part = make_rule("rws", CASE.samples), StepRows.draw(machine, x[:2], CASE.samples, rng)
    every = StepRows.draw(machine, x, CASE.samples, CASE.rng(SEED), parts=2)
    gradients = reference.rule_gradients(machine, rule, every.wake, every.dream)
    for which, actual, gradient in zip(BOTH, directions(machine), gradients, strict=True):
        network = network_of(machine, which)
        expected, first = (
            natural(network, dense_blocks(network, *of.of_network(which, rows), kind), gradient)
            for of in (every, part)
        )
        assert_close(actual, expected, SOLVED)
        assert relative_error(actual, first) > 0.01  # the control: the first part alone


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_the_matrix_and_alpha_of_the_last_refresh_serve_until_the_next(refresh_every: int) -> None:
    """Parameters and alpha move at every step: a matrix of another step gives another direction."""
    machine, schedule = CASE.machine(), lambda step: 0.9**step
    learning = learner(CASE, machine, refresh_every=refresh_every, schedule=schedule)
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    rule, rng = make_rule("rws", CASE.samples), seeded()
    for step in range(2 * refresh_every + 1):
        x = CASE.data(seed=step)
        rng.set_state(learning.rng.get_state())
        rows = StepRows.draw(machine, x, CASE.samples, rng)
        gradients = reference.rule_gradients(machine, rule, rows.wake, rows.dream)
        networks = [network_of(machine, which) for which in BOTH]
        fresh = [dense_blocks(networks[which], *rows.of_network(which)) for which in BOTH]
        if step % refresh_every == 0:
            blocks, alpha = fresh, ALPHA * schedule(step)
        learning.step(x)
        for which, actual in enumerate(directions(machine)):
            expected = natural(networks[which], blocks[which], gradients[which], alpha)
            assert_close(actual, expected, SOLVED)
            if step % refresh_every:  # the control
                other = natural(networks[which], fresh[which], gradients[which], alpha)
                assert relative_error(actual, other) > 1e-3
        optimizer.step()


RATE = 0.7


def step_lengths(
    machine: HelmholtzMachine, x: Tensor, moves: list[Tensor], kind: str
) -> list[float]:
    """Half the squared length of RATE times each network's direction, from dense blocks."""
    rows, lengths = StepRows.draw(machine, x, CASE.samples, CASE.rng(SEED)), []
    for which, move in enumerate(moves):
        network = network_of(machine, which)
        blocks = dense_blocks(network, *rows.of_network(which), kind)
        pairs = zip(itertools.chain(*network.unit_ranges), itertools.chain(*blocks), strict=True)
        squares = [float(move[unit] @ block @ move[unit]) for unit, block in pairs]
        lengths.append(sum(squares) * RATE**2 / 2)
    return lengths


@pytest.mark.parametrize("damping", [Damping, LevenbergMarquardt])
@pytest.mark.parametrize("kind", ALL)
def test_max_kl_bounds_the_length_of_the_step(kind: str, damping: type[Damping]) -> None:
    """The length is the exact Fisher one; that of kronecker is by its own matrix."""
    machine, x = CASE.machine(), CASE.data()

    def bounded(max_kl: float | None) -> list[Tensor]:
        learning = learner(CASE, machine, kind=kind, max_kl=max_kl)
        for metric in learning.metrics:
            metric.learning_rate.fill_(RATE)
            metric.damping = damping(ALPHA).to(metric.damping.alpha)
        learning.step(x)
        return directions(machine)

    own, free = "kronecker" if kind == "kronecker" else "fisher", bounded(None)
    lengths = step_lengths(machine, x, free, own)
    for factor, which in itertools.product((0.01, 0.999, 1.001, 100.0), BOTH):
        moves = bounded(factor * lengths[which])
        if factor > 1:
            assert_close(moves[which], free[which])
        else:
            length = step_lengths(machine, x, moves, own)[which]
            assert length == pytest.approx(factor * lengths[which], rel=EXACT)
            assert_close(moves[which], factor**0.5 * free[which])


def test_max_kl_of_a_step_that_goes_nowhere() -> None:
    machine = CASE.machine()
    rule = make_rule("recognition only", CASE.samples)  # the generator's gradient is 0
    WakeSleep(machine, rule, CASE.rng(), natural_metrics(machine, max_kl=0.1)).step(CASE.data())
    assert [bool(each.any()) for each in directions(machine)] == [False, True]
    assert all(each.isfinite().all() for each in directions(machine))


@pytest.mark.parametrize("kind", [Kronecker, Adaptive])
def test_a_direction_of_ones_own_is_taken_with_and_without_a_trust_region(kind: Any) -> None:
    """Not the inherited way to do it in place."""
    half = type("Half", (kind,), {
        "direction": lambda self, gradients: [d / 2 for d in kind.direction(self, gradients)]
    })  # fmt: skip
    machine, found = CASE.machine(), {}
    for made, max_kl in itertools.product((kind, half), (None, 1e9)):
        learner(CASE, machine, make=made, max_kl=max_kl).step(CASE.data())
        found[made, max_kl] = torch.cat(directions(machine))
    assert_close(found[half, None], found[kind, None] / 2)
    assert_close(found[half, 1e9], found[kind, 1e9] / 2)


def test_images_that_are_all_alike_leave_the_directions_finite() -> None:
    """Their centred rows are rounding errors, whose squares float32 hardly has."""
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([12, 8], rng=rng)
    metrics = [NaturalMetric(each, Kronecker(), Damping(0.2)) for each in machine.networks]
    learning = WakeSleep(machine, make_rule("rws", 3), rng, metrics)
    learning.step((torch.arange(96) % 3 == 0).float().view(8, 12))
    assert all(each.isfinite().all() for each in directions(machine))
