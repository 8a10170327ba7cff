"""Which images each training step gets."""

from collections.abc import Collection
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nws.data import Dataset
from nws.errors import UserError, positive_int

TRAIN, UNLABELED = 2, 3  # the streams of random numbers that shuffle these parts
EVALUATION_SEED = 0  # of validation and images: the same draws for every run, none of training's


def derive_seed(seed: int, *stream: int) -> int:
    """Return the seed of one stream: 0 parameters, 1 draws, 2 and 3 shuffles, each by epoch."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])


def check_seed(name: str, seed: object) -> int:
    """Return a seed; `UserError` unless it is a whole number of 0 to 2^63 - 1."""
    return positive_int(name, seed, minimum=0, maximum=2**63 - 1)


class Batches:
    """The batches of a run, a function of seed and step: there is no state to save.

    Each epoch is shuffled anew and drops its incomplete last batch of `size` images. `sources` say
    where metrics take their rows from: `same`, `other` or `unlabeled`.
    """

    def __init__(self, data: Dataset, size: int, sources: Collection[str], seed: int) -> None:
        self.data, self.size, self.sources, self.seed = data, size, sources, seed
        self._parts = {TRAIN: data.train, UNLABELED: data.unlabeled or data.train}
        if "unlabeled" in sources:
            if data.unlabeled is None:
                way = "take data=tfd data.split=train, or metric.batch=other for training images"
                raise UserError(f"metric.batch=unlabeled: {data.name} has no such images; {way}")
            steps_per_epoch(size, len(data.unlabeled), "unlabelled")

    def at(self, step: int, rng: torch.Generator) -> list[Tensor]:
        """Return the batch of a step, (B, D), and that which metrics take rows from, if another."""
        wanted = [(TRAIN, step)]
        if "other" in self.sources:
            wanted.append((TRAIN, step + 1))
        elif "unlabeled" in self.sources:
            wanted.append((UNLABELED, step))
        return [self._batch(*each, rng) for each in wanted]

    def _batch(self, stream: int, step: int, rng: torch.Generator) -> Tensor:
        split = self._parts[stream]
        epoch, place = divmod(step, len(split) // self.size)
        order = _shuffle(len(split), split.bytes.device, self.seed, stream, epoch)
        rows = split.rows(order[place * self.size : (place + 1) * self.size])
        return split.images(_copy(rows, split.device), rng)


@lru_cache(maxsize=4)  # a step and the next need two epochs at most, of two parts
def _shuffle(count: int, device: torch.device, *seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(derive_seed(*seed))
    return _copy(torch.randperm(count, generator=rng), device)


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. On the way to CUDA nobody waits."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def steps_per_epoch(size: int, images: int, kind: str) -> int:
    """Return the whole batches in a pass over some images; `UserError` where there is none."""
    if size > images:
        limit = f"at most the {images} {kind} images"
        raise UserError(f"trainer.batch_size must be {limit}, got {size}; lower it")
    return images // size
