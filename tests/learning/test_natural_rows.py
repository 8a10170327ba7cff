"""Which rows a metric takes in: another batch's, unlabelled ones, some of them, by importance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from cases import Case, apart, assert_close, make_rule
from directions import (
    BOTH,
    CASE,
    KINDS,
    SEED,
    SOLVED,
    StepRows,
    dense_blocks,
    directions,
    expected_directions,
    learner,
    natural,
    natural_metrics,
    network_of,
    relative_error,
)

from nws.errors import UserError
from nws.learning import RowOptions, Rule, WakeSleep
from nws.models import HelmholtzMachine


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
        # the control: the gradient's own batch gives another
        assert relative_error(actual[which], same[which]) > 0.01


@pytest.mark.parametrize(("batch", "phases"), [("other", 2), ("unlabeled", 1)])
def test_the_other_batch_is_sampled_only_where_a_refresh_wants_its_rows(
    batch: str, phases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = learner(CASE, CASE.machine(), batch=batch, refresh_every=3)
    drawn: list[int] = []  # rows of each phase
    for name in ("wake", "dream"):
        original = getattr(HelmholtzMachine, name)

        def recording(*arguments: Any, original: Callable[..., Any] = original) -> Any:
            trace = original(*arguments)
            drawn.append(len(trace.values))
            return trace

        monkeypatch.setattr(HelmholtzMachine, name, recording)
    other = Case(CASE.sizes, 1, 6, CASE.units).data(seed=5)
    for _ in range(5):
        learning.step(CASE.data(), other)
    own, others = [12, 12], [18] * phases
    assert drawn == own + others + own + own + own + others + own


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
    """In recognition's first layer the K rows of an image are one: fewer are left out there."""
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


@pytest.mark.parametrize("rows", ["model", "posterior"])
@pytest.mark.parametrize("batch", ["same", "other"])
def test_posterior_rows_have_the_weights_of_the_generator(batch: str, rows: str) -> None:
    """A weighting with other weights for q: its gradient has them, and no row of a metric."""
    machine, x = CASE.machine(), CASE.data()
    other = Case(CASE.sizes, 1, 6, CASE.units).data(seed=5) if batch == "other" else None
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
        wrong = natural(network, blocks, gradients[which] * 1.01)
        assert relative_error(found, wrong) > 1e-3  # the control


# --- unlabelled images, for recognition -----------------------------------------------------------


# of another size than the gradient's batch, too
UNLABELED = Case(CASE.sizes, 1, 6, CASE.units).data(seed=5)

# --- the direction --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["model", "posterior"])
def test_recognition_alone_takes_its_rows_from_the_unlabelled_images(rows: str) -> None:
    machine, x = CASE.machine(), CASE.data()
    learner(CASE, machine, batch="unlabeled", generator_rows=rows).step(x, UNLABELED)
    generator, recognition = directions(machine)

    # by hand, from the same draws: the step's two phases, then the unlabelled images' states
    rng = CASE.rng(SEED)
    own = StepRows.draw(machine, x, CASE.samples, rng)
    gradients = reference.rule_gradients(
        machine, make_rule("rws", CASE.samples), own.wake, own.dream
    )
    states = reference.bits_of(machine.wake(UNLABELED, CASE.samples, rng))
    network, count = network_of(machine, 1), len(UNLABELED) * CASE.samples
    uniform = torch.full((count,), 1 / count, dtype=torch.float64)
    assert_close(
        recognition, natural(network, dense_blocks(network, states, uniform), gradients[1]), SOLVED
    )

    expected = expected_directions(CASE, machine, x, generator_rows=rows)
    assert_close(generator, expected[0], SOLVED)
    assert relative_error(recognition, expected[1]) > 0.01  # the control: recognition's own rows
    learner(CASE, machine, generator_rows=rows).step(x)
    assert torch.equal(generator, directions(machine)[0])  # bit for bit that of metric.batch=same
    learner(CASE, machine, batch="other", generator_rows=rows).step(x, UNLABELED)
    # the control: `other` does change the generator's
    assert relative_error(directions(machine)[0], generator) > 0.01


@pytest.mark.parametrize("max_rows", [4, 6])
def test_other_unlabelled_images_give_another_direction_of_recognition(max_rows: int) -> None:
    machine, x, found = CASE.machine(), CASE.data(), []
    for batch in (UNLABELED, UNLABELED, 1 - UNLABELED):
        learner(CASE, machine, batch="unlabeled", max_rows=max_rows).step(x, batch)
        found.append(directions(machine))
    assert all(torch.equal(one, two) for one, two in zip(found[0], found[1], strict=True))
    assert torch.equal(found[0][0], found[2][0]) and relative_error(found[0][1], found[2][1]) > 0.01


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
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
        ("max_kl", float("inf"), "metric.max_kl must be"),
    ],
)
def test_bad_options_are_errors_that_name_them(option: str, value: Any, part: str) -> None:
    with pytest.raises(UserError, match=part.replace(".", r"\.")):
        RowOptions(**{option: value})
