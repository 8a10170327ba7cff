"""Log-likelihoods: exact against brute force, importance-sampled against exact, in bounded memory; divergences."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import reference
import torch
from cases import (
    CASES,
    EACH_UNITS,
    EXACT,
    STANDARD_ERRORS,
    Case,
    assert_close,
    random_machine,
    seeded,
)
from torch import Tensor

from nws.errors import UserError
from nws.models.helmholtz import HelmholtzMachine, Trace
from nws.models.likelihood import (
    Z_INNER,
    all_states,
    dreams_at_once,
    exact_log_likelihood,
    kl_divergence,
    log_likelihood,
    log_p_star,
    log_sums,
    log_z_sums,
    resolves,
    summarise_p_star,
)

# --- exact ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("soft", [False, True], ids=["bits", "intensities"])
@pytest.mark.parametrize("case", CASES)
def test_exact_log_likelihood_is_brute_force_enumeration(case: Case, soft: bool) -> None:
    machine, x = case.machine(), case.data(soft)
    assert_close(
        exact_log_likelihood(machine, x), reference.exact_log_prob(machine, x), case.tolerance
    )


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(4, 3), (3, 1, 4), (5, 2, 3, 2)])
def test_exact_probabilities_of_all_images_sum_to_one(sizes: tuple[int, ...], units: str) -> None:
    machine = random_machine(sizes, units)
    x = all_states(sizes[0]).double()
    assert_close(exact_log_likelihood(machine, x).exp().sum(), torch.tensor(1.0))


@pytest.mark.parametrize("units", [0, 1, 3, 10])
def test_all_states_are_all_of_them_once(units: int) -> None:
    states = all_states(units)
    assert states.shape == (2**units, units)
    assert len({tuple(state) for state in states.tolist()}) == 2**units
    assert set(states.flatten().tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((4, 30), "2^30"), ((4, 3, 20, 15), "2^35"), ((4, 2000), "2^2000"), ((4, 23), "4 x 2^23")],
)
def test_exact_log_likelihood_refuses_large_machines_and_names_the_count(
    sizes: tuple[int, ...], count: str
) -> None:
    with pytest.raises(UserError, match="use the importance-sampled") as refusal:
        exact_log_likelihood(HelmholtzMachine(sizes), torch.zeros(4, 4))
    assert f"a table of {count} states" in str(refusal.value) and str(list(sizes)) in str(
        refusal.value
    )


def test_the_limit_on_states_is_inclusive() -> None:
    machine = random_machine((3, 2, 4))
    x = torch.zeros(2, 3).double()
    assert exact_log_likelihood(machine, x, max_states=2**6).isfinite().all()
    with pytest.raises(UserError, match=r"2\^6"):
        exact_log_likelihood(machine, x, max_states=2**6 - 1)


# --- importance-sampled -----------------------------------------------------------------------------------------------------


def with_exact_recognition(machine: HelmholtzMachine) -> HelmholtzMachine:
    """One hidden unit's posterior is a sigmoid unit: its log odds are affine in x. Read off at x = 0 and the unit vectors."""

    def log_odds(x: Tensor) -> float:
        return reference.exact_posterior(machine, x)[1].logit().item()

    pixels = machine.sizes[0]
    zero, units = torch.zeros(pixels), torch.eye(pixels)
    slopes = torch.tensor([log_odds(unit) - log_odds(zero) for unit in units], dtype=torch.float64)
    layer = machine.recognition.layers[0]
    with torch.no_grad():
        if machine.units == "binary":
            layer.weight[0], layer.bias[0] = slopes, log_odds(zero)
        else:
            layer.weight[0], layer.bias[0] = slopes / 2, log_odds(zero) + slopes.sum().item() / 2
    return machine


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("samples", [1, 7])
def test_with_exact_recognition_every_estimate_is_exact(units: str, samples: int) -> None:
    """All weights are p(x) then: no variance over samples, ESS = K, and the standard error is only the data's."""
    machine = with_exact_recognition(random_machine((5, 1), units))
    x = torch.rand(9, 5, generator=seeded(3)).round().double()
    exact = reference.exact_log_prob(machine, x)
    estimate = log_likelihood(machine, x, samples, seeded(0))
    assert estimate.mean == pytest.approx(exact.mean().item(), abs=EXACT)
    assert estimate.standard_error == pytest.approx(exact.std().item() / 3, abs=EXACT)
    assert estimate.ess == pytest.approx(samples, abs=EXACT)
    assert (estimate.samples, estimate.data_points) == (samples, 9)


def relative_variance(machine: HelmholtzMachine, x: Tensor) -> float:
    """Var[w] / p(x)^2 of one sample's weight w = p(x, h) / q(h | x), over every h."""
    bits = reference.every_hidden_state(machine, x)
    p, q = (
        reference.generator(machine).log_prob(bits).exp(),
        reference.recogniser(machine).log_prob(bits).exp(),
    )
    return (((p**2 / q).sum()) / p.sum() ** 2 - 1).item()


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(4, 3), (3, 3, 2)])
def test_importance_sampled_log_likelihood_converges_to_the_exact_one(
    sizes: tuple[int, ...], units: str
) -> None:
    machine, samples = random_machine(sizes, units), 10_000
    x = torch.rand(4, sizes[0], generator=seeded(3)).round().double()
    estimate = log_likelihood(machine, x, samples, seeded(0))
    # log of a mean: its error is the mean's relative error to first order, independent over the four data points
    error = sum(relative_variance(machine, row) / samples for row in x) ** 0.5 / len(x)
    assert 0 < error < 0.05  # nats: tight enough to mean something
    assert (
        abs(estimate.mean - reference.exact_log_prob(machine, x).mean().item())
        < STANDARD_ERRORS * error
    )


def test_more_samples_give_a_higher_bound_below_the_exact_log_likelihood() -> None:
    """K = 1 has the mean E_q[log p - log q], each larger K more (Burda et al. 2016), all below log p(x)."""
    machine, x = random_machine((4, 3)), torch.tensor([[1.0, 0, 1, 1]]).double()
    bits = reference.every_hidden_state(machine, x[0])
    log_p, log_q = (
        reference.generator(machine).log_prob(bits),
        reference.recogniser(machine).log_prob(bits),
    )
    elbo = (log_q.exp() * (log_p - log_q)).sum().item()
    exact = reference.exact_log_prob(machine, x).item()
    estimates = [
        log_likelihood(machine, x.expand(20_000, -1), samples, seeded(0)) for samples in (1, 3, 10)
    ]
    assert abs(estimates[0].mean - elbo) < STANDARD_ERRORS * estimates[0].standard_error
    for lower, higher in pairwise(estimates):
        assert lower.mean + STANDARD_ERRORS * lower.standard_error < higher.mean
    assert estimates[-1].mean < exact < estimates[-1].mean + 0.2


def test_standard_error_is_the_standard_deviation_over_root_n() -> None:
    """Of single data points' estimates, here with one sample each from the same stream of random numbers."""
    machine, x = random_machine((4, 3)), torch.rand(50, 4, generator=seeded(3)).round().double()
    values = machine.log_weights(machine.wake(x, 1, seeded(0)))[:, 0]
    estimate = log_likelihood(machine, x, 1, seeded(0))
    assert estimate.mean == pytest.approx(values.mean().item(), abs=EXACT)
    assert estimate.standard_error == pytest.approx(values.std().item() / math.sqrt(50), abs=EXACT)
    assert estimate.ess == pytest.approx(1)
    assert math.isnan(
        log_likelihood(machine, x[:1], 3, seeded(0)).standard_error
    )  # one point has no spread


def test_one_chunk_is_the_plain_formula() -> None:
    machine, x = (
        random_machine((4, 3, 2), "bipolar"),
        torch.rand(6, 4, generator=seeded(3)).round().double(),
    )
    weights = machine.log_weights(machine.wake(x, 8, seeded(0))).exp()
    estimate = log_likelihood(machine, x, 8, seeded(0))
    assert estimate.mean == pytest.approx(weights.mean(1).log().mean().item(), abs=EXACT)
    assert estimate.ess == pytest.approx(
        (weights.sum(1) ** 2 / (weights**2).sum(1)).mean().item(), abs=EXACT
    )


@pytest.mark.parametrize("max_rows", [1, 3, 17, 1000])
def test_chunks_are_bounded_and_do_not_change_the_estimate(
    max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, samples = random_machine((4, 3)), 200
    x = torch.rand(5, 4, generator=seeded(3)).round().double()
    rows: list[int] = []
    wake = HelmholtzMachine.wake

    def recording_wake(
        self: HelmholtzMachine, x: Tensor, samples: int = 1, *args: object, **kwargs: object
    ) -> Trace:
        rows.append(len(x) * samples)
        return wake(self, x, samples, *args, **kwargs)

    monkeypatch.setattr(HelmholtzMachine, "wake", recording_wake)
    estimate = log_likelihood(
        machine, x, samples, seeded(0), max_elements=max_rows * sum(machine.sizes)
    )
    assert max(rows) <= max_rows and sum(rows) == len(x) * samples  # none lost, none twice
    error = sum(relative_variance(machine, row) / samples for row in x) ** 0.5 / len(x)
    assert (
        abs(estimate.mean - reference.exact_log_prob(machine, x).mean().item())
        < STANDARD_ERRORS * error
    )
    assert 1 <= estimate.ess <= samples


def test_streaming_over_chunks_is_exact() -> None:
    """With exact recognition there is no Monte Carlo error, so chunks of any size must agree to rounding."""
    machine = with_exact_recognition(random_machine((4, 1)))
    x = torch.rand(5, 4, generator=seeded(3)).round().double()
    whole = log_likelihood(machine, x, 50, seeded(0))
    for max_rows in (1, 7, 60):
        chunked = log_likelihood(
            machine, x, 50, seeded(0), max_elements=max_rows * sum(machine.sizes)
        )
        assert chunked.mean == pytest.approx(whole.mean, abs=EXACT)
        assert chunked.standard_error == pytest.approx(whole.standard_error, abs=EXACT)
        assert chunked.ess == pytest.approx(50, abs=EXACT)


def test_the_same_seed_gives_the_same_estimate() -> None:
    machine, x = random_machine((4, 3)), torch.ones(3, 4).double()
    assert log_likelihood(machine, x, 20, seeded(1)) == log_likelihood(machine, x, 20, seeded(1))
    assert (
        log_likelihood(machine, x, 20, seeded(1)).mean
        != log_likelihood(machine, x, 20, seeded(2)).mean
    )


def test_extreme_log_weights_neither_overflow_nor_vanish() -> None:
    machine = random_machine((3, 2)).float()
    for network, sign in zip(
        machine.networks, (-1, 1), strict=True
    ):  # log p = -2e4 for the hidden states that q is sure of
        for layer in network.layers:
            torch.nn.init.constant_(layer.weight, 0.0)
            torch.nn.init.constant_(layer.bias, sign * 1e4)
    estimate = log_likelihood(machine, torch.zeros(2, 3), 10, seeded(0), max_elements=15)
    assert (estimate.mean, estimate.standard_error) == (pytest.approx(-2e4), 0)
    assert estimate.ess == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("samples", [0, -1, 1.5])
def test_bad_sample_counts_are_refused(samples: int) -> None:
    with pytest.raises(UserError, match=r"evaluation\.samples must be a whole number"):
        log_likelihood(random_machine((3, 2)), torch.zeros(1, 3).double(), samples)


def test_no_data_is_refused() -> None:
    with pytest.raises(UserError, match="at least one data point"):
        log_likelihood(random_machine((3, 2)), torch.zeros(0, 3).double(), 3)


# --- the bidirectional machine ----------------------------------------------------------------------------------------------


def z_error(machine: HelmholtzMachine, dreams: int) -> float:
    """Exact standard error of log Z to first order: Var[t] = (1 - Z) (Z + 1/J), see `log_z_sums`."""
    z = reference.exact_z(machine)
    return ((1 - z) * (z + 1 / Z_INNER) / dreams) ** 0.5 / z


def root_error(machine: HelmholtzMachine, x: Tensor, samples: int) -> float:
    """Exact standard error of the mean over x of 2 log (1/K) sum_k sqrt(w_k), to first order: Var sqrt(w) = p(x) - p~*(x)."""
    p_tilde, p = (
        reference.exact_log_p_tilde(machine, x).exp(),
        reference.exact_log_prob(machine, x).exp(),
    )
    return (4 * (p - p_tilde) / p_tilde / samples).sum().sqrt().item() / len(x)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(4, 3), (3, 3, 2)])
def test_log_p_star_converges_to_enumeration(sizes: tuple[int, ...], units: str) -> None:
    machine, samples, dreams = random_machine(sizes, units), 10_000, 20_000
    x = torch.rand(4, sizes[0], generator=seeded(3)).round().double()
    log_p_tilde, log_z = (
        reference.exact_log_p_tilde(machine, x).mean().item(),
        math.log(reference.exact_z(machine)),
    )
    estimate = log_p_star(machine, x, samples, seeded(0), z_samples=dreams)
    of_z, of_x = z_error(machine, dreams), root_error(machine, x, samples)
    assert 0 < of_z < 0.02 and 0 < of_x < 0.02
    assert abs(estimate.log_z - log_z) < STANDARD_ERRORS * of_z
    assert abs(estimate.mean + estimate.log_z - log_p_tilde) < STANDARD_ERRORS * of_x
    assert estimate.log_z_standard_error == pytest.approx(
        of_z, rel=0.1
    )  # and what it says of itself is so
    spread = reference.exact_log_p_tilde(machine, x).std().item() / 2
    assert estimate.standard_error == pytest.approx(math.hypot(spread, of_z), rel=0.1)
    assert (estimate.samples, estimate.z_samples, estimate.data_points) == (samples, dreams, 4)
    # negative controls: log p is not log p~*, and Z is not 1
    assert (
        reference.exact_log_prob(machine, x).mean().item() - log_p_tilde
        > 2 * STANDARD_ERRORS * of_x
    )
    assert log_z < -2 * STANDARD_ERRORS * of_z


@pytest.mark.parametrize("units", EACH_UNITS)
def test_p_star_sums_to_one_over_every_image(units: str) -> None:
    machine = random_machine((4, 3, 2), units)
    x = all_states(4).double()
    assert reference.exact_z(machine) < 0.99  # p~* alone does not
    assert (reference.exact_log_p_tilde(machine, x) <= reference.exact_log_prob(machine, x)).all()
    samples, dreams = 4_000, 20_000
    log_p_tilde = 2 * (
        log_sums(machine, x, samples, seeded(0), (0.5,), 10**6)[0] - math.log(samples)
    )
    log_z = log_z_sums(machine, dreams, seeded(1), 10**6)[0] - math.log(dreams)
    p, p_tilde = (
        reference.exact_log_prob(machine, x).exp(),
        reference.exact_log_p_tilde(machine, x).exp(),
    )
    # Var p~*(x) = 4 p~*(x) (p(x) - p~*(x)) / K to first order, independent over x and of Z
    error = math.hypot(
        (4 * p_tilde * (p - p_tilde) / samples).sum().sqrt().item() / p_tilde.sum().item(),
        z_error(machine, dreams),
    )
    assert error < 0.02
    assert (log_p_tilde - log_z).exp().sum().item() == pytest.approx(1, abs=STANDARD_ERRORS * error)


@pytest.mark.parametrize("units", EACH_UNITS)
def test_with_exact_recognition_p_star_is_p_and_z_is_one(units: str) -> None:
    machine = with_exact_recognition(random_machine((5, 1), units))
    x = torch.rand(9, 5, generator=seeded(3)).round().double()
    estimate = log_p_star(machine, x, 3, seeded(0), z_samples=50)
    assert estimate.mean == pytest.approx(
        reference.exact_log_prob(machine, x).mean().item(), abs=EXACT
    )
    assert estimate.log_z == pytest.approx(0, abs=EXACT)
    assert estimate.log_z_standard_error == pytest.approx(
        0, abs=1e-6
    )  # the root of a rounding error


def test_the_error_of_z_falls_as_one_over_root_of_the_dreams_and_z_is_unbiased() -> None:
    machine, repeats, rng = random_machine((4, 3)), 200, seeded(0)
    exact = reference.exact_z(machine)
    for dreams in (50, 800):
        draws = torch.stack(
            [log_z_sums(machine, dreams, rng, 10**6)[0].exp() / dreams for _ in range(repeats)]
        )
        error = z_error(machine, dreams) * exact
        assert abs(draws.mean().item() - exact) < STANDARD_ERRORS * error / repeats**0.5
        # a standard deviation from 200 nearly normal draws has a relative standard error of 1 / sqrt(2 x 199) = 5 %
        assert draws.std().item() == pytest.approx(error, rel=4 * 0.05)


@pytest.mark.parametrize("max_rows", [1, 7, 1000])
def test_chunks_of_log_p_star_are_bounded_and_exact(
    max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = with_exact_recognition(
        random_machine((4, 1))
    )  # no Monte Carlo error: chunks must agree to rounding
    x = torch.rand(5, 4, generator=seeded(3)).round().double()
    rows, dreams, wake, dream = [], [], HelmholtzMachine.wake, HelmholtzMachine.dream

    def recording_wake(self: HelmholtzMachine, x: Tensor, samples: int = 1, *args: object) -> Trace:
        rows.append(len(x) * samples)
        return wake(self, x, samples, *args)

    def recording_dream(self: HelmholtzMachine, count: int, *args: object) -> Trace:
        dreams.append(count)
        return dream(self, count, *args)

    monkeypatch.setattr(HelmholtzMachine, "wake", recording_wake)
    monkeypatch.setattr(HelmholtzMachine, "dream", recording_dream)
    estimate = log_p_star(machine, x, 30, seeded(0), 40, max_elements=max_rows * sum(machine.sizes))
    assert (
        max(rows + dreams) <= max_rows and sum(dreams) == 40 and sum(rows) == 5 * 30 + 40 * Z_INNER
    )
    assert dreams_at_once(max_rows) == max(1, max_rows // Z_INNER)
    assert estimate.mean == pytest.approx(
        reference.exact_log_prob(machine, x).mean().item(), abs=EXACT
    )
    assert estimate.log_z == pytest.approx(0, abs=EXACT)


def test_a_z_far_below_what_the_dreams_resolve_is_found_out() -> None:
    """A recogniser that knows nothing of a sharp generator: Z = 2^-40 or so, which 1,000 dreams cannot tell."""
    assert resolves(math.log(0.02), 1000) and not resolves(
        math.log(0.005), 1000
    )  # 1 / sqrt(J M) = 0.01
    machine = HelmholtzMachine((40, 40), rng=seeded(0))
    for network, scale in zip(machine.networks, (20.0, 0.0), strict=True):
        torch.nn.init.eye_(network.layers[0].weight)
        with torch.no_grad():
            network.layers[0].weight.mul_(scale)
            network.layers[0].bias.fill_(-scale / 2)
    assert not resolves(log_p_star(machine, torch.zeros(1, 40), 2, seeded(0), 1000).log_z, 1000)


def test_one_data_point_or_dream_has_no_standard_error() -> None:
    machine, x = random_machine((3, 2)), torch.zeros(2, 3).double()
    assert math.isnan(log_p_star(machine, x[:1], 5, seeded(0), 10).standard_error)
    estimate = log_p_star(machine, x, 5, seeded(0), 1)
    assert math.isnan(estimate.log_z_standard_error) and math.isnan(estimate.standard_error)
    assert math.isfinite(estimate.mean)


def test_extreme_terms_of_z_neither_overflow_nor_vanish() -> None:
    sums = torch.tensor(
        [-2e4, 1e4]
    ).double()  # sums of roots of two data points; Z's sums of t and t^2 are e^-5000, e^-10000
    estimate = summarise_p_star(sums, 1, torch.tensor([-5e3, -1e4]).double(), 1)
    assert (estimate.mean, estimate.log_z) == (pytest.approx(-1e4 + 5e3), pytest.approx(-5e3))


@pytest.mark.parametrize(
    ("samples", "dreams", "name"), [(0, 5, "samples"), (5, 0, "z_samples"), (5, 1.5, "z_samples")]
)
def test_bad_counts_of_log_p_star_are_refused(samples: int, dreams: int, name: str) -> None:
    with pytest.raises(UserError, match=rf"evaluation\.{name} must be a whole number"):
        log_p_star(random_machine((3, 2)), torch.zeros(1, 3).double(), samples, None, dreams)
    with pytest.raises(UserError, match="at least one data point"):
        log_p_star(random_machine((3, 2)), torch.zeros(0, 3).double(), 3)


# --- Kullback-Leibler divergence ----------------------------------------------------------------------------------------------


def independent_pixels(machine: HelmholtzMachine) -> Tensor:
    """Cut the pixels from the hidden layer; log p(x) of every image is then a sum over the pixels: (2^n_0,)."""
    torch.nn.init.zeros_(machine.generator.layers[0].weight)
    on = torch.sigmoid(machine.generator.layers[0].bias.detach())
    x = all_states(machine.sizes[0])
    return torch.where(x == 1, on, 1 - on).log().sum(1)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(4, 1), (3, 2, 2)])
def test_divergence_of_a_machine_from_its_own_distribution_is_zero(
    sizes: tuple[int, ...], units: str
) -> None:
    machine, images = random_machine(sizes, units), all_states(sizes[0]).double()
    own = reference.exact_log_prob(machine, images).exp()
    assert kl_divergence(machine, images, own) == pytest.approx(0, abs=EXACT)
    independent = independent_pixels(machine).exp()
    assert kl_divergence(machine, images, independent) == pytest.approx(0, abs=EXACT)
    assert kl_divergence(machine, images, own) > 1e-3  # and the two are not the same


@pytest.mark.parametrize("seed", range(5))
def test_divergence_is_its_formula_and_not_negative(seed: int) -> None:
    machine, images = random_machine((3, 2), seed=seed), all_states(3).double()[1:]
    p_data = torch.rand(7, generator=seeded(seed), dtype=torch.float64)
    p_data /= p_data.sum()
    log_p = reference.exact_log_prob(machine, images)
    expected = sum(p.item() * (math.log(p) - q.item()) for p, q in zip(p_data, log_p, strict=True))
    assert kl_divergence(machine, images, p_data) == pytest.approx(expected, abs=EXACT)
    assert expected > 0


@pytest.mark.parametrize("value", [255.0, -1.0, float("nan")])
def test_data_that_are_no_intensities_are_an_error(value: float) -> None:
    machine = HelmholtzMachine([4, 3], rng=torch.Generator().manual_seed(0))
    x = torch.full((2, 4), 0.5)
    x[1, 2] = value
    with pytest.raises(UserError, match=r"bits or intensities in \[0, 1\].*divide bytes by 255"):
        log_likelihood(machine, x, 3)
