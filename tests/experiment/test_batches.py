"""Which images a step gets: each once an epoch, other orders in other epochs, all by the seed."""

import torch

from nws.data import Dataset, Split
from nws.experiment.batches import Batches

RNG = torch.Generator()


def images(count: int, first: int = 0) -> Split:
    return Split(torch.arange(first, first + count, dtype=torch.uint8)[:, None], 1, redraw=False)


DATA = Dataset("numbers", (1, 1), images(10), images(3), images(3), unlabeled=images(7, 100))


def batch(step: int, size: int = 3, seed: int = 0, source: str = "same") -> list[list[float]]:
    """The numbers of the images in the batches of a step, of a fresh object as after a resume."""
    found = Batches(DATA, size, {source}, seed).at(step, RNG)
    return [each.flatten().tolist() for each in found]


def test_an_epoch_has_each_image_once() -> None:
    epochs = [[batch(step)[0] for step in range(3 * e, 3 * e + 3)] for e in range(3)]
    for epoch in epochs:
        numbers = [number for each in epoch for number in each]
        assert len(numbers) == len(set(numbers)) == 9
    assert epochs[0] != epochs[1] != epochs[2]


def test_step_and_seed_fix_a_batch() -> None:
    running = Batches(DATA, 3, {"same"}, seed=4)
    for step in range(12):
        assert running.at(step, RNG)[0].flatten().tolist() == batch(step, seed=4)[0]
    assert [batch(step, seed=5) for step in range(3)] != [batch(step, seed=4) for step in range(3)]


def test_metrics_may_take_rows_from_elsewhere() -> None:
    assert batch(2, source="other") == [batch(2)[0], batch(3)[0]]
    first, unlabeled = batch(2, source="unlabeled")
    assert first == batch(2)[0] and min(unlabeled) >= 100
    pass_over = [number for step in range(2) for number in batch(step, source="unlabeled")[1]]
    assert len(set(pass_over)) == 6  # an epoch of its own, of 7 // 3 batches
