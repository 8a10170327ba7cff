"""The worlds: their facts, their pages, their figures and their command."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
import torch
from cases import assert_close
from conftest import ROOT, Command
from PIL import Image
from torch import Tensor

from nws.errors import UserError
from nws.worlds import (
    autoencoder,
    descent,
    empirical_fisher,
    gaussian_relaxation,
    pullback,
    rosenbrock,
    two_bits,
    unit_balls,
    univariate_gaussian,
)  # fmt: skip
from nws.worlds.figures import drawing
from nws.worlds.figures.render import WORLDS, compress, facts, render, shown

FLOW = 1e-7  # the solver's local errors of 1e-10, over some hundred steps
worlds = pytest.mark.parametrize("name", WORLDS)


def page(name: str) -> str:
    return (ROOT / "docs" / "worlds" / f"{name}.md").read_text()


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@worlds
def test_a_page_has_the_numbers_of_its_world(name: str) -> None:
    rows = re.findall(r"^\| (.+) \| ([-\d.,e]*\d) \|$", page(name), re.MULTILINE)
    written = {fact.replace("\\|", "|"): number for fact, number in rows}
    assert written == {fact: shown(value) for fact, value in facts(name).items()}
    assert f"python scripts/worlds.py {name}\n" in page(name)
    assert len(facts(name)) >= 9 and f"images/worlds/{name}.png" in page(name)


@worlds
def test_a_figure_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With flows of less accuracy and coarse surfaces, so that it takes little time."""
    monkeypatch.setattr(descent, "ACCURACY", 1e-4)
    monkeypatch.setattr(drawing, "RESOLUTION", 31)
    two_bits.distributions.cache_clear()
    image = render(name)
    two_bits.distributions.cache_clear()
    assert image.startswith(b"\x89PNG") and 20_000 < len(image) < 150_000


def test_the_command_writes_figures_and_refuses_unknown_names(command: Command) -> None:
    outcome = command("scripts/worlds.py", "unit_balls", "--output", "here/there")
    assert outcome.code == 0 and outcome.out.splitlines()[-1] == "here/there/unit_balls.png"
    assert outcome.run.read_bytes().startswith(b"\x89PNG")
    assert "condition number, M = I: 30.8" in outcome.out
    message = command("scripts/worlds.py", "flatland").message()
    assert "one of two_bits, gaussian_relaxation" in message and "got 'flatland'" in message


def test_a_compressed_image_keeps_its_large_areas() -> None:
    pixels = np.zeros((20, 30, 3), dtype=np.uint8)
    pixels[:, :15], pixels[:, 15:] = (213, 94, 0), (250, 250, 251)
    again = np.asarray(Image.open(io.BytesIO(compress(Image.fromarray(pixels)))).convert("RGB"))
    assert (again == pixels).all()


# --- two bits -------------------------------------------------------------------------------------


def test_natural_flows_in_both_coordinates_are_the_same_distributions() -> None:
    in_eta, in_theta = (two_bits.distributions(f"natural in {c}") for c in ("eta", "theta"))
    assert_close(in_eta, in_theta, FLOW)
    with pytest.raises(AssertionError):  # negative control
        assert_close(two_bits.distributions("plain in theta"), in_theta, 0.5)


def test_the_relaxation_is_the_mean_over_the_four_states() -> None:
    theta = torch.tensor([0.3, -0.8], dtype=torch.float64)
    states = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    p = two_bits.BITS.log_prob(states, theta).exp()
    assert_close(two_bits.mean_in_theta(theta), p @ two_bits.f(2 * states - 1))
    slope = torch.func.grad(two_bits.mean_in_eta)(two_bits.SADDLE)
    assert_close(slope, torch.zeros(2))


def test_the_plain_flow_leaves_the_square_and_the_projected_one_does_not() -> None:
    assert facts("two_bits")["plain flows in eta outside of the square after time 1, share"] == 1
    ends = two_bits.projected(two_bits.grid(4), 0.05)[-1]
    assert ((ends == 0) | (ends == 1)).all()


# --- Gaussian relaxation --------------------------------------------------------------------------


def test_the_mean_of_a_polynomial_is_its_integral() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    x = 0.4 + 1.3 * nodes
    for name, coefficients in gaussian_relaxation.POLYNOMIALS.items():
        expected = weights @ np.polynomial.polynomial.polyval(x, coefficients) / weights.sum()
        point = torch.tensor([0.4, 1.3], dtype=torch.float64)
        found = gaussian_relaxation.mean_of(name)(gaussian_relaxation.moments(point))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_the_natural_flow_of_the_parabola_is_a_straight_line_in_theta() -> None:
    start, at = torch.tensor([[-1.0, 0.8]], dtype=torch.float64), times(0, 0.5, 1, 2)
    path = gaussian_relaxation.paths("parabola", "natural", start, at)[:, 0]
    line = gaussian_relaxation.LINE
    theta = line.from_moments(gaussian_relaxation.moments(path))
    assert_close(theta, theta[0] + at[:, None] * torch.tensor([1.0, -3.0]), 10 * FLOW)
    assert_close(path[:, 1] ** 2, 0.64 / (1 + 6 * 0.64 * at), FLOW)
    wrong = gaussian_relaxation.paths("parabola", "plain in theta", start, at)[:, 0]
    assert (wrong[-1, 1] ** 2 - 0.64 / (1 + 12 * 0.64)).abs() > 0.1  # negative control


def test_powers_of_the_variance_are_those_of_the_page() -> None:
    found = facts("gaussian_relaxation")
    assert found["parabola, p of sigma^2 ~ t^p, plain in theta"] == pytest.approx(-1 / 3, abs=1e-3)
    assert found["parabola, p of sigma^2 ~ t^p, natural"] == pytest.approx(-1, abs=1e-3)
    sigma = found["parabola, sigma at time 2, plain in (mu, sigma)"]
    assert sigma == pytest.approx(math.exp(-12), rel=1e-3)


def test_natural_steps_add_the_curvature_to_the_precision() -> None:
    moments, h = gaussian_relaxation.natural_steps(2.5, 4), gaussian_relaxation.CURVATURE
    for k in range(5):
        precision = torch.eye(2) + 2.5 * k * h
        assert_close(torch.linalg.inv(moments.covariance[k]), precision)
        assert_close(moments.mean[k], torch.linalg.solve(precision, gaussian_relaxation.START))


# --- Rosenbrock -----------------------------------------------------------------------------------


def test_the_pullback_flow_is_a_straight_line_in_the_outputs() -> None:
    path = rosenbrock.pullback_flow(4.0, 5)
    start = rosenbrock.outputs(rosenbrock.START)
    expected = start * torch.exp(-torch.linspace(0, 4, 5, dtype=torch.float64))[:, None]
    assert_close(rosenbrock.outputs(path), expected, FLOW)
    assert_close(rosenbrock.point(expected), path, FLOW)
    assert rosenbrock.bend(path) < FLOW < 0.1 < rosenbrock.bend(rosenbrock.pullback_path(0.05, 20))


def test_the_proximal_step_in_the_outputs_is_exact_at_any_rate() -> None:
    for rate in (0.3, 3.0):
        path = rosenbrock.proximal_path(rate, 3, rosenbrock.output_distance)
        r = rosenbrock.outputs(rosenbrock.START) / (1 + rate) ** torch.arange(4)[:, None]
        assert_close(rosenbrock.outputs(path), r, FLOW)


def test_only_the_pullback_flow_knows_no_units() -> None:
    assert rosenbrock.unit_gap("pullback") < 1e-8
    assert facts("rosenbrock")["minutes against seconds, largest gap, plain"] > 2


# --- the others -----------------------------------------------------------------------------------


def test_the_steepest_step_is_the_best_of_its_unit_ball() -> None:
    slope = 2 * unit_balls.A @ unit_balls.START
    for matrix in unit_balls.METRICS.values():
        ball, step = unit_balls.ball(matrix), unit_balls.unit_step(unit_balls.START, matrix)
        values = ball @ slope
        assert values.min() >= step @ slope
        assert float((ball[values.argmin()] - step).norm()) < 0.02  # two neighbours of the ball
    plain = unit_balls.unit_step(unit_balls.START, unit_balls.A)
    assert (unit_balls.ball(torch.eye(2).double()) @ slope).min() != plain @ slope


def test_the_metric_of_the_gaussians_is_its_formula() -> None:
    point = torch.tensor([0.7, -0.4], dtype=torch.float64)
    expected = torch.diag(torch.stack([(-2 * point[1]).exp(), torch.tensor(2.0).double()]))
    assert_close(univariate_gaussian.METRIC(point), expected)


def test_the_geodesic_of_the_equation_is_the_half_circle() -> None:
    p, q = univariate_gaussian.ENDS
    circle = univariate_gaussian.half_circle(p, q, 21)
    assert_close(univariate_gaussian.geodesic_by_equation(p, q, 21), circle, FLOW)
    lengths = univariate_gaussian.distance(circle[:-1], circle[1:])
    assert_close(lengths, univariate_gaussian.distance(p, q).expand(20) / 20)
    found = facts("univariate_gaussian")
    names = [name for name in found if name.startswith("length")]
    assert [found[name] for name in names] == sorted(found[name] for name in names)


def test_kl_is_half_the_squared_distance_nearby() -> None:
    p = torch.tensor([0.3, 1.2], dtype=torch.float64)
    q = p + torch.tensor([1e-3, -2e-3])
    half = univariate_gaussian.distance(p, q) ** 2 / 2
    assert float(univariate_gaussian.kl(p, q) / half) == pytest.approx(1, abs=5e-3)


def test_the_true_fisher_matrix_is_the_hessian_and_the_empirical_one_is_not() -> None:
    for labels, q in empirical_fisher.LABELS.items():
        fit = empirical_fisher.fit(labels)
        loss = empirical_fisher.loss(q)
        hessian = torch.func.hessian(loss)(fit)
        assert_close(empirical_fisher.true_fisher(fit), hessian)
        assert_close(torch.func.grad(loss)(fit), torch.zeros(2))
        same = torch.allclose(empirical_fisher.empirical_fisher(q)(fit), hessian, atol=1e-8)
        assert same == (labels == "right model")


@pytest.mark.parametrize("labels", empirical_fisher.LABELS)
def test_undamped_true_steps_of_rate_1_diverge_where_empirical_ones_do_not(labels: str) -> None:
    with pytest.raises(UserError, match="the metric is singular"):
        empirical_fisher.path(labels, "true", 3.0, 1.0, 40)
    assert empirical_fisher.path(labels, "empirical", 3.0, 1.0, 40).abs().max() < 10


def test_on_the_plateau_b_has_a_small_eigenvalue() -> None:
    plateau = autoencoder.path("plain", 0.1, 0.0)[300]
    values, vectors = torch.linalg.eigh(pullback(autoencoder.outputs)(plateau))
    assert 1e-4 < values[0] < 1e-3 and vectors[1, 0].abs() > 0.99


def test_damping_by_the_identity_takes_the_natural_gradient_away() -> None:
    found = facts("autoencoder")
    for rate in autoencoder.RATES:
        plain = found[f"steps, plain, rate {rate:g}"]
        damped = found[f"steps, natural, rate {rate:g}, damping 1 I"]
        natural = found[f"steps, natural, rate {rate:g}, damping 0.01 I"]
        assert plain < damped < 1.1 * plain and 10 * natural < plain
