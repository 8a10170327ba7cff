"""examples/worlds.py: the numbers of each world, its page, its figure, and what the page claims."""

import re

import black_box
import numpy as np
import pandas as pd
import pytest
import torch
from cases import assert_close
from conftest import ROOT, Command
from small_worlds import (
    autoencoder,
    divergences,
    drawing,
    empirical_fisher,
    gaussian_relaxation,
    half_plane,
    online,
    regression,
    relaxation,
    rosenbrock,
    two_bits,
)
from torch import Tensor
from worlds import WORLDS, facts, render, shown

from nws.errors import UserError
from nws.geometry import descent, euclidean, flow, pullback

FLOW = 1e-7  # the solver's local errors of 1e-10, over some hundred steps
LONG = ("gaussian_relaxation", "rosenbrock")  # paths of thousands of steps
EACH = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in WORLDS]


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", EACH)
def test_a_page_has_the_numbers_of_its_world(name: str) -> None:
    page = (ROOT / "docs" / "worlds" / f"{name}.md").read_text()
    rows = re.findall(r"^\| (.+) \| ([-\d.,e]*\d) \|$", page, re.MULTILINE)
    written = {fact.replace("\\|", "|"): number for fact, number in rows}
    assert written == {fact: shown(value) for fact, value in facts(name).items()}
    assert len(written) >= 9 and f"images/worlds/{name}.png" in page


@pytest.mark.parametrize("name", EACH)
def test_a_figure_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With flows of less accuracy and coarse surfaces, so that it takes little time."""
    monkeypatch.setattr(descent, "ACCURACY", 1e-4)
    monkeypatch.setattr(drawing, "RESOLUTION", 31)
    two_bits.distributions.cache_clear()
    image = render(name)
    two_bits.distributions.cache_clear()
    assert image.startswith(b"\x89PNG") and 20_000 < len(image) < 150_000


def test_the_command_writes_figures_and_refuses_unknown_names(command: Command) -> None:
    outcome = command("examples/worlds.py", "unit_balls", "--output", "here/there")
    assert outcome.code == 0 and outcome.out.splitlines()[-1] == "here/there/unit_balls.png"
    assert outcome.run.read_bytes().startswith(b"\x89PNG")
    assert "condition number, M = I: 30.8" in outcome.out
    message = command("examples/worlds.py", "flatland").message()
    assert "one of two_bits, gaussian_relaxation" in message and "got 'flatland'" in message


# --- two bits -------------------------------------------------------------------------------------


def test_natural_flows_in_both_coordinates_are_the_same_distributions() -> None:
    in_eta, in_theta = (two_bits.distributions(f"natural in {c}") for c in ("eta", "theta"))
    assert_close(in_eta, in_theta, FLOW)
    with pytest.raises(AssertionError):  # negative control
        assert_close(two_bits.distributions("plain in theta"), in_theta, 0.5)
    ends = two_bits.projected(two_bits.grid(4))[-1]
    assert ((ends == 0) | (ends == 1)).all()


def test_the_relaxation_is_the_mean_over_the_four_states() -> None:
    theta = torch.tensor([0.3, -0.8], dtype=torch.float64)
    states = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    p = two_bits.BITS.log_prob(states, theta).exp()
    assert_close(two_bits.mean_in_theta(theta), p @ two_bits.f(2 * states - 1))
    slope = torch.func.grad(two_bits.mean_in_eta)(two_bits.SADDLE)
    assert_close(slope, torch.zeros(2))


# --- Gaussian relaxation --------------------------------------------------------------------------


@pytest.mark.parametrize("name", gaussian_relaxation.POLYNOMIALS)
def test_the_mean_of_a_polynomial_is_its_integral(name: str) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    coefficients = gaussian_relaxation.POLYNOMIALS[name]
    values = np.polynomial.polynomial.polyval(0.4 + 1.3 * nodes, coefficients)
    point = torch.tensor([0.4, 1.3], dtype=torch.float64)
    found = gaussian_relaxation.mean_of(name)(half_plane.to_moments(point))
    assert float(found) == pytest.approx(weights @ values / weights.sum(), rel=1e-12)


def test_the_natural_flow_of_the_parabola_is_a_straight_line_in_theta() -> None:
    start, at = torch.tensor([[-1.0, 0.8]], dtype=torch.float64), times(0, 0.5, 1, 2)
    path = gaussian_relaxation.paths("parabola", "natural", start, at)[:, 0]
    theta = gaussian_relaxation.LINE.from_moments(half_plane.to_moments(path))
    assert_close(theta, theta[0] + at[:, None] * torch.tensor([1.0, -3.0]), 10 * FLOW)
    assert_close(path[:, 1] ** 2, 0.64 / (1 + 6 * 0.64 * at), FLOW)
    wrong = gaussian_relaxation.paths("parabola", "plain in theta", start, at)[:, 0]
    assert (wrong[-1, 1] ** 2 - 0.64 / (1 + 12 * 0.64)).abs() > 0.1  # negative control


@pytest.mark.slow
def test_powers_of_the_variance_are_those_of_the_theory() -> None:
    found = facts("gaussian_relaxation")
    expected = {"p of sigma^2 ~ t^p, plain in theta": -1 / 3, "p of sigma^2 ~ t^p, natural": -1}
    for fact, power in expected.items():
        assert found[f"parabola, {fact}"] == pytest.approx(power, abs=1e-3)
    sigma = found["parabola, sigma at time 2, plain in (mu, sigma)"]
    assert sigma == pytest.approx(np.exp(-12), rel=1e-3)


def test_natural_steps_add_the_curvature_to_the_precision() -> None:
    moments, h = gaussian_relaxation.natural_steps(2.5, 4), gaussian_relaxation.CURVATURE
    for k in range(5):
        precision = torch.eye(2) + 2.5 * k * h
        assert_close(torch.linalg.inv(moments.covariance[k]), precision)
        assert_close(moments.mean[k], torch.linalg.solve(precision, gaussian_relaxation.START))


# --- relaxation from samples ----------------------------------------------------------------------


def test_natural_flows_of_spanned_functions_are_straight() -> None:
    starts, at = relaxation.pair_starts(), times(0, 0.3, 0.6)

    def mean(theta: Tensor) -> Tensor:
        return relaxation.PAIR.expectation(theta) @ relaxation.PAIR_SLOPES

    thetas = flow(mean, relaxation.PAIR.fisher, starts, at)
    assert_close(mean(thetas), relaxation.in_the_span(at), FLOW)
    assert_close(relaxation.in_the_span(at)[0], two_bits.mean_in_eta(two_bits.grid()))
    assert_close(torch.func.grad(relaxation.quadratic)(relaxation.MAXIMUM), torch.zeros(2))
    wrong = flow(mean, euclidean, starts, at)  # negative control
    assert (mean(wrong) - relaxation.in_the_span(at)).abs().max() > 0.1


def test_the_lowest_energy_of_the_glass_and_runs_of_each_kind() -> None:
    j = black_box.couplings(0)
    j[len(black_box.ACROSS) :] = 0  # rows on their own: each is satisfied
    assert black_box.lowest_energy(j) == pytest.approx(-float(j.abs().sum()), rel=1e-12)
    j, x = black_box.couplings(1), torch.ones(2000, 64, dtype=torch.float64)
    x[torch.rand(2000, 64, generator=torch.Generator().manual_seed(0)) < 0.5] = -1
    assert black_box.lowest_energy(j) < black_box.glass(j)(x).min()
    counts = [black_box.continuous("sphere", method, 2, 0) for method in black_box.METHODS]
    assert all(count is not None and count < 2000 for count in counts)
    assert relaxation.error("in θ, f spanned by T", 300) < 1e-12  # the other errors: its page
    found = black_box.spins("interactions, values", 0)
    assert found is not None and found <= 5000 and black_box.spins("bits, ranks", 0) is None


def test_the_page_of_black_boxes_has_the_medians_of_its_runs() -> None:
    pages = ROOT / "docs" / "worlds"
    found = black_box.summary(pd.read_csv(pages / "black_box.csv"))
    for name, of in found[found["size"] == 20].groupby("function"):
        both = zip(of["median"], of["reached"], strict=True)
        cells = [f"{m:,.0f}" + f" ({n})" * (n < 10) if n else "none" for m, n in both]
        page = (pages / "black_box.md").read_text()
        assert f"| {' | '.join([str(name), *cells])} |" in page
        cma, chain = (of.set_index("method")["median"][m] for m in ("CMA-ES", "ranks, chain"))
        assert 2 < chain / cma < 8.5 and "the chain by a factor of 2 to 8" in page
    glass = found[found["function"] == "spin glass"].set_index("method")
    assert glass["reached"].tolist() == [0, 0, 0, 10] and glass["median"].iloc[-1] == 2300


# --- Rosenbrock -----------------------------------------------------------------------------------


def test_the_pullback_flow_is_a_straight_line_in_the_outputs() -> None:
    path = rosenbrock.pullback_flow(4.0, 5)
    start = rosenbrock.outputs(rosenbrock.START)
    expected = start * torch.exp(-torch.linspace(0, 4, 5, dtype=torch.float64))[:, None]
    assert_close(rosenbrock.outputs(path), expected, FLOW)
    assert rosenbrock.bend(path) < FLOW < 0.1 < rosenbrock.bend(rosenbrock.pullback_path(0.05, 20))


@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_the_proximal_step_in_the_outputs_is_exact_at_any_rate(rate: float) -> None:
    path = rosenbrock.proximal_path(rate, 3, rosenbrock.output_distance)
    r = rosenbrock.outputs(rosenbrock.START) / (1 + rate) ** torch.arange(4)[:, None]
    assert_close(rosenbrock.outputs(path), r, FLOW)


def test_only_the_pullback_flow_knows_no_units() -> None:
    assert regression.unit_gap("pullback") < 1e-8
    assert regression.unit_gap("plain") > 2


def test_the_pullback_metric_is_the_second_order_of_the_dissimilarity() -> None:
    hessian = torch.func.hessian(rosenbrock.output_distance)(rosenbrock.START, rosenbrock.START)
    assert_close(hessian, torch.func.hessian(rosenbrock.second_order)(rosenbrock.START))
    assert_close(hessian, pullback(rosenbrock.outputs)(rosenbrock.START))
    natural, proximal, second = rosenbrock.single_steps(times(1e-4, 1e-3, 1.0)).values()
    for each in (natural / second - 1, proximal / second - 1):  # of first order in the rate
        assert each[1] / each[0] == pytest.approx(10, rel=0.05)
        assert each[:2].abs().max() < 0.02 < each[2].abs()


# --- divergences, and learning online -------------------------------------------------------------


def test_bregman_divergences_are_those_of_the_table() -> None:
    x, y = times(0.3, 1.0, 2.5), times(1.4, 0.2, 2.4)
    table = {
        "squared error": ((x - y) ** 2 / 2, y**0),
        "KL": (x * (x / y).log() - x + y, 1 / y),
        "Itakura-Saito": (x / y - (x / y).log() - 1, 1 / y**2),
    }
    assert list(table) == list(divergences.DIVERGENCES)
    for name, (expected, metric) in table.items():
        found = divergences.DIVERGENCES[name]
        assert_close(found(x, y), expected)
        curvature = [torch.func.hessian(lambda z, b=b, f=found: f(z, b))(b) for b in y]
        assert_close(torch.stack(curvature), metric)
        assert_close(found.metric(y), metric)
        assert torch.allclose(found(60 * x, 60 * y), expected) == (name == "Itakura-Saito")


def test_mirror_descent_is_the_natural_gradient_in_eta() -> None:
    mirror = online.mirror_path()
    assert_close(mirror, online.natural_path(), 1e-6)  # of Newton's method
    share = (1 - online.RATE) ** torch.arange(online.COUNT + 1)[:, None]
    assert_close(mirror, online.GOAL + share * (online.START - online.GOAL), 1e-6)
    with pytest.raises(AssertionError):  # negative control: the same flow, other steps
        assert_close(online.natural_path("theta"), mirror, 0.05)


def test_the_natural_gradient_is_fisher_efficient_and_the_plain_one_is_not() -> None:
    """Squares of two coordinates in units of the bound have the mean 2, and the error is made."""
    p, k = online.TRUTH, times(10, 100, 1000, 4000)
    kurtosis = 2 + (1 - 6 * p * (1 - p)) / (p * (1 - p)) / k[:, None]
    error = (kurtosis.sum(-1) / online.RUNS).sqrt()
    gaps = (online.errors()["natural"][k.long() - 1] - 2) / error
    assert gaps.abs().max() < 5
    plain = online.errors()["plain"][:, -1]
    assert ((plain - 2) / error[-1] > 10).all()
    limits = online.limit(torch.tensor(online.FACTORS).double())
    assert limits[0] == torch.inf and plain[2:] == pytest.approx(limits[2:], rel=0.15)


# --- the others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", empirical_fisher.LABELS)
def test_the_true_fisher_matrix_is_the_hessian_and_the_empirical_one_is_not(labels: str) -> None:
    q, fit = empirical_fisher.LABELS[labels], empirical_fisher.fit(labels)
    loss = empirical_fisher.loss(q)
    hessian, found = torch.func.hessian(loss)(fit), empirical_fisher.empirical_fisher(q)(fit)
    assert_close(empirical_fisher.true_fisher(fit), hessian)
    assert_close(torch.func.grad(loss)(fit), torch.zeros(2))
    assert torch.allclose(found, hessian, atol=1e-8) == (labels == "right model")
    with pytest.raises(UserError, match="the metric is singular"):  # true steps of rate 1 diverge
        empirical_fisher.path(labels, "true", 3.0, 1.0, 40)
    assert empirical_fisher.path(labels, "empirical", 3.0, 1.0, 40).abs().max() < 10


def test_the_empirical_fisher_matrix_is_the_second_moment_of_gradients() -> None:
    """Each input has two labels, with their probabilities: gradients by autograd."""
    q, w = empirical_fisher.LABELS["wrong model"], torch.tensor([0.2, -0.7], dtype=torch.float64)

    def losses(w: Tensor) -> Tensor:
        logits = empirical_fisher.INPUTS @ w
        return torch.cat([-logits.sigmoid().log(), -(1 - logits.sigmoid()).log()])

    weights = torch.diag(torch.cat([q, 1 - q]) / len(q))
    expected = pullback(losses, lambda outputs: weights)(w)
    assert_close(empirical_fisher.empirical_fisher(q)(w), expected)


def test_the_autoencoders_metrics_are_what_they_say() -> None:
    """Against autograd, an input at a time, and torch's own divergence."""
    at, x = torch.tensor([0.7, 0.9], dtype=torch.float64), autoencoder.INPUTS
    scaled = autoencoder.outputs(torch.stack([autoencoder.START, at])) * len(x) ** 0.5
    before, after = (torch.distributions.Normal(z, torch.ones_like(z)) for z in scaled)
    divergence = torch.distributions.kl_divergence(before, after).mean()
    assert_close(autoencoder.kl_from_start(at), divergence)
    w, b = at.clone().requires_grad_()
    losses = [(w * torch.tanh(w * each + b) - each).square() / 2 for each in x]
    rows = torch.stack([torch.stack(torch.autograd.grad(each, (w, b))) for each in losses])
    centred = rows - rows.mean(0)
    assert_close(autoencoder.covariance(at), centred.mT @ centred / len(x))
    assert not torch.allclose(autoencoder.covariance(at), rows.mT @ rows / len(x))


def test_only_the_natural_path_comes_to_the_minimum_at_every_rate() -> None:
    for rate in autoencoder.RATES:
        newton = autoencoder.path("Newton", rate)[-1]
        assert torch.func.grad(autoencoder.error)(newton).abs().max() < 1e-9
        low, high = torch.linalg.eigvalsh(torch.func.hessian(autoencoder.error)(newton))
        assert low < -0.1 < 0.1 < high  # a saddle
        ends = [autoencoder.path(kind, rate)[-20:] for kind in ("natural", "covariance")]
        natural, covariance = (autoencoder.error(end).max() - autoencoder.least() for end in ends)
        assert natural < 1e-9 < 1e-3 < covariance
    assert autoencoder.error(autoencoder.path("covariance", 1.0)[:40]).max() > 1_000


def test_damping_by_the_identity_takes_the_natural_gradient_away() -> None:
    plateau = autoencoder.path("plain", 0.1, 0.0)[300]  # there b has a small eigenvalue
    values, vectors = torch.linalg.eigh(pullback(autoencoder.outputs)(plateau))
    assert 1e-4 < values[0] < 1e-3 and vectors[1, 0].abs() > 0.99
    found = facts("autoencoder")
    for rate in autoencoder.RATES:
        plain = found[f"steps, plain, rate {rate:g}"]
        damped = found[f"steps, natural, rate {rate:g}, damping 1 I"]
        natural = found[f"steps, natural, rate {rate:g}"]
        assert plain < damped < 1.1 * plain and 10 * natural < plain
