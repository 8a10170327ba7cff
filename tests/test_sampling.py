"""Images: shapes, range, seeds and means of ancestral samples and reconstructions; the core needs torch alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import reference
import torch
from cases import CASES, EACH_UNITS, STANDARD_ERRORS, Case, assert_frequencies, random_machine, seeded
from torch import Tensor

from nws.errors import UserError
from nws.sampling import generate, reconstruct


@pytest.mark.parametrize("case", CASES)
def test_images_have_the_pixels_shape_and_lie_in_the_unit_interval(case: Case) -> None:
    machine, x = case.machine(), case.data(soft=True)
    means, draws = generate(machine, 6, case.rng()), generate(machine, 6, case.rng(), probabilities=False)
    for images, count in ((means, 6), (draws, 6), (reconstruct(machine, x, case.rng()), case.batch)):
        assert images.shape == (count, case.sizes[0])
        assert images.dtype == case.dtype and images.device.type == case.device and not images.requires_grad
        assert (images >= 0).all() and (images <= 1).all()
    assert ((draws == 0) | (draws == 1)).all()


@pytest.mark.parametrize("units", EACH_UNITS)
def test_the_seed_decides(units: str) -> None:
    machine, x = random_machine((9, 8), units), torch.zeros(5, 9).double()
    for draw in (lambda seed: generate(machine, 5, seeded(seed)), lambda seed: reconstruct(machine, x, seeded(seed))):
        assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


def assert_mean(values: Tensor, expected: Tensor) -> None:
    error = values.std(0) / len(values) ** 0.5
    assert ((values.mean(0) - expected).abs() <= STANDARD_ERRORS * error).all()


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)])
def test_pixels_of_generated_images_have_the_machines_means(sizes: tuple[int, ...], units: str) -> None:
    machine, count = random_machine(sizes, units), 20_000
    bits = reference.every_state(sizes)
    marginals = reference.generator(machine).log_prob(bits).exp() @ bits[0]  # p(x_i = 1)
    assert_mean(generate(machine, count, seeded(1)), marginals)
    for on, p in zip(generate(machine, count, seeded(1), probabilities=False).sum(0), marginals, strict=True):
        assert_frequencies(torch.stack([on, count - on]), torch.stack([p, 1 - p]), count)


@pytest.mark.parametrize("units", EACH_UNITS)
@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)])
def test_reconstructions_average_the_pixels_over_recognition(sizes: tuple[int, ...], units: str) -> None:
    machine, x = random_machine(sizes, units), torch.tensor([1.0, 0, 1]).double()
    bits = reference.every_hidden_state(machine, x)
    pixels = 1 / (1 + torch.exp(-reference.generator(machine).logits(bits)[0]))
    expected = reference.recogniser(machine).log_prob(bits).exp() @ pixels  # E_q(h|x)[p(x_i = 1 | h)]
    assert_mean(reconstruct(machine, x.expand(20_000, -1), seeded(1)), expected)


def test_generated_images_are_the_callers_to_keep() -> None:
    machine = random_machine((4, 3))
    rng = seeded(1)
    for probabilities in (True, False):
        first = generate(machine, 5, rng, probabilities)
        kept = first.clone()
        generate(machine, 5, rng, probabilities)
        assert torch.equal(first, kept)


@pytest.mark.parametrize("count", [0, -2, 1.5])
def test_bad_counts_are_refused(count: int) -> None:
    with pytest.raises(UserError, match="count must be a whole number of at least 1"):
        generate(random_machine((3, 2)), count)


def test_the_core_imports_without_configuration_logging_or_data_packages() -> None:
    program = """
import sys
import nws, nws.sampling, nws.schedules
unwanted = {"hydra", "omegaconf", "wandb", "torchvision", "sklearn", "matplotlib"}
print(sorted(unwanted & {name.partition(".")[0] for name in sys.modules}))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
