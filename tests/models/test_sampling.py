"""Images: shapes, range, seeds, means; chains against enumeration, with pixels held too; walks."""

import pytest
import reference
import torch
from cases import EACH_UNITS, STANDARD_ERRORS, assert_close, random_machine, seeded
from families import Gauss
from torch import Tensor

from nws.errors import UserError
from nws.models import HelmholtzMachine
from nws.models.gibbs import GibbsChain
from nws.models.sampling import Chain, ResamplingChain, generate, half_mask, reconstruct, walk


def assert_mean(values: Tensor, expected: Tensor) -> None:
    error = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - expected).abs() <= STANDARD_ERRORS * error).all()


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)])
def test_reconstructions_average_over_recognition(sizes: tuple[int, ...], units: str) -> None:
    machine, x = random_machine(sizes, units), torch.tensor([1.0, 0, 1]).double()
    bits = reference.every_hidden_state(machine, x)
    pixels = 1 / (1 + torch.exp(-reference.generator(machine).logits(bits)[0]))
    # E_q(h|x)[p(x_i = 1 | h)].
    expected = reference.recognition(machine).log_prob(bits).exp() @ pixels
    found = reconstruct(machine, x.expand(20_000, -1), seeded(1))
    assert_mean(found, expected)
    with pytest.raises(AssertionError):  # the control: each h alike
        assert_mean(found, pixels.mean(0))


CHAINS = 6_000
SIZES = (4, 3, 2)


def distance(images: Tensor, probabilities: Tensor) -> float:
    """Pearson's chi-squared of images (C, 4) against the probabilities (16,) of all.

    Draws from them have mean 15, deviation 5.5. Images without probability must not occur.
    """
    counts = torch.bincount((images @ torch.tensor([8.0, 4, 2, 1]).double()).long(), minlength=16)
    possible = probabilities > 0
    assert (counts[~possible] == 0).all()
    expected = probabilities[possible] * len(images)
    return float(((counts[possible] - expected).square() / expected).sum())


def run(chain: Chain, steps: int = 20) -> Tensor:
    for _ in range(steps):
        chain.step()
    return chain.x


def far_machine(units: str) -> HelmholtzMachine:
    """A machine whose p* is far from its p: its recognition was never trained."""
    machine = random_machine(SIZES, units)
    for parameter in machine.parameters():
        parameter.data.mul_(1.5)
    return machine


@pytest.mark.parametrize("observed", [None, torch.tensor([True, False, True, False])])
@pytest.mark.parametrize("units", EACH_UNITS)
def test_gibbs_chains_follow_p_star_exactly(units: str, observed: Tensor | None) -> None:
    """With pixels held they follow the conditional: Pearson's has a degree of freedom for each
    further image.
    """
    machine, x = far_machine(units), torch.tensor([1.0, 0, 0, 1]).double()
    (images,) = reference.every_state((4,))
    agree = (images == x)[:, observed].all(1) if observed is not None else torch.ones(16).bool()
    p_star = reference.exact_log_p_tilde(machine, images).exp() * agree
    p = reference.exact_log_prob(machine, images).exp() * agree
    freedom = int(agree.sum()) - 1
    drawn = run(GibbsChain(machine, x.expand(CHAINS, -1).clone(), seeded(1), observed))
    assert distance(drawn, p_star / p_star.sum()) < freedom + STANDARD_ERRORS * (2 * freedom) ** 0.5
    assert distance(drawn, p / p.sum()) > 200  # it would have shown


def test_a_gibbs_chain_starts_from_pixels_that_are_on_or_off() -> None:
    """A grey one would have no value to turn to, and draw all others from wrong logits."""
    machine, observed = far_machine("binary"), torch.tensor([True, False, False, True])
    x = torch.tensor([[0.3, 0.3, 0.8, 0.6]]).double().repeat(50, 1)
    turned = torch.tensor([[0.3, 0.0, 1.0, 0.6]]).double().repeat(50, 1)
    chains = [GibbsChain(machine, each, seeded(1), observed) for each in (x, turned)]
    assert torch.equal(chains[0].step(), chains[1].step())


@pytest.mark.parametrize("units", EACH_UNITS)
def test_resampling_chains_approach_p_as_samples_rise(units: str) -> None:
    machine = far_machine(units)
    p = reference.exact_log_prob(machine, *reference.every_state((4,))).exp()
    start = torch.zeros(CHAINS, 4).double()
    chains = (ResamplingChain(machine, start, seeded(1), samples=k) for k in (1, 4, 40))
    one, few, many = (distance(run(chain, 10), p) for chain in chains)
    assert many < few / 2 < one / 4 and one > 200


@pytest.mark.parametrize("units", EACH_UNITS)
def test_resampling_chains_keep_a_state_as_often_as_its_weight_says(units: str) -> None:
    """Of 5 draws from q given the pixels of the step before, which are made here again."""
    machine, x = far_machine(units), torch.zeros(CHAINS, 4).double()
    chain = ResamplingChain(machine, x, seeded(1), samples=5)
    chain.step()
    trace, chain.rng = machine.wake(chain.x, 5, seeded(2)), seeded(2)
    found, means = chain.step(), trace.pixel_means.view(CHAINS, 5, 4)
    for exponent in (1, 0.5, 0):  # the others are the controls
        weights = reference.importance_weights(machine, reference.bits_of(trace), 5, exponent)
        gaps = found - (weights[:, :, None] * means).sum(1)
        within = gaps.mean(0).abs() < STANDARD_ERRORS * gaps.std(0) / CHAINS**0.5
        assert bool(within.all()) == (exponent == 1)
        size = float((1 / weights.square().sum(1)).mean())
        assert (chain.ess == pytest.approx(size)) == (exponent == 1)
    assert_mean(chain.x - found, torch.zeros(4))
    assert ((chain.x == 0) | (chain.x == 1)).all()


@pytest.mark.parametrize("make", [GibbsChain, ResamplingChain])
def test_a_chain_keeps_the_observed_and_says_probabilities_of_the_rest(make: type[Chain]) -> None:
    machine, observed = random_machine(SIZES), torch.tensor([True, False, False, True])
    x = (torch.rand(50, 4, generator=seeded(2)) < 0.5).double()
    kept = x.clone()
    chain = make(machine, x, seeded(1), observed)  # type: ignore[call-arg]
    for _ in range(3):
        before, probabilities = chain.x, chain.step()
        assert torch.equal(probabilities[:, observed], kept[:, observed])
        assert torch.equal(chain.x[:, observed], kept[:, observed])
        free = probabilities[:, ~observed]
        assert ((free > 0) & (free < 1)).all()
    assert torch.equal(x, kept) and not torch.equal(chain.x, kept)
    assert not torch.equal(before, chain.x)  # a step leaves what was given out
    for wrong in (torch.ones(3, dtype=torch.bool), torch.ones(4)):
        with pytest.raises(UserError, match="observed must be"):
            make(machine, x, seeded(1), wrong)  # type: ignore[call-arg]


@pytest.mark.parametrize("units", EACH_UNITS)
def test_a_walk_changes_one_deepest_unit_a_step(units: str) -> None:
    machine = random_machine((6, 3), units)
    images = walk(machine, 40, 5, seeded(1))
    every = machine.units[1].encode(reference.every_state((3,))[0])
    # (8, 6), where state i has the bits of i.
    possible = torch.sigmoid(machine.generator.layers[0](every)).detach()
    gaps = (images.flatten(0, 1)[:, None] - possible).abs().amax(2)
    assert (gaps.min(1).values < 1e-12).all()
    states = gaps.argmin(1).view(40, 5)
    flips = states[:, 1:] ^ states[:, :-1]
    assert ((flips == 1) | (flips == 2) | (flips == 4)).all() and flips.unique().numel() == 3
    first = generate(machine, 20_000, seeded(1)).mean(0)
    # The walk starts from the generator's own draws.
    assert_mean(walk(machine, 20_000, 1, seeded(2))[:, 0], first)


def test_the_layers_below_have_the_same_noise_along_a_walk_alone() -> None:
    """The one deepest unit is on and off in turns, and so every other image is the same."""
    images = walk(random_machine((6, 3, 1)), 40, 6, seeded(1))
    assert_close(images[:, 2:], images[:, :-2])
    assert len(images[:, 0].unique(dim=0)) > 2  # another noise for each walk


def test_chains_and_walks_that_flip_units_need_two_values() -> None:
    x = torch.zeros(2, 4).double()
    for units in ((Gauss(), None), ("binary", Gauss())):
        machine = random_machine(SIZES, units[0], visible=units[1])
        with pytest.raises(UserError, match="binary or bipolar units, .* take --chain"):
            GibbsChain(machine, x)
        assert run(ResamplingChain(machine, x, seeded(1)), 2).shape == (2, 4)
    assert walk(machine, 2, 3, seeded(1)).shape == (2, 3, 4)  # the deepest layer is binary here
    with pytest.raises(UserError, match="deepest layer, which must be binary or bipolar"):
        walk(random_machine(SIZES, Gauss()), 2, 3)


def test_half_masks() -> None:
    sides = ("left", "right", "top", "bottom")
    missing = {side: half_mask((3, 4), side).view(3, 4).int().tolist() for side in sides}
    assert missing["left"] == [[1, 1, 0, 0]] * 3 and missing["right"] == [[0, 0, 1, 1]] * 3
    assert missing["top"] == [[1] * 4, [0] * 4, [0] * 4]
    assert missing["bottom"] == missing["top"][::-1]
    with pytest.raises(UserError, match="the bottom half of an image of 1x4 pixels is empty"):
        half_mask((1, 4), "bottom")
