"""Which images each training step gets."""

from collections.abc import Collection
from functools import lru_cache

import torch
from torch import Tensor

from nws.data import Dataset, Split
from nws.errors import UserError
from nws.experiment.seeds import derive_seed


class Batches:
    """The batches of a run, a function of seed and step: there is no state to save.

    Each epoch has a shuffle of its own, and leaves out other images that fill no batch.

    Args:
        data: The data set.
        size: Images in a batch, B.
        sources: Where metrics take their rows from: `same`, `other` or `unlabeled`.
        seed: The run's seed.
    """

    def __init__(self, data: Dataset, size: int, sources: Collection[str], seed: int) -> None:
        self.data, self.size, self.sources, self.seed = data, size, sources, seed
        self._places: list[Tensor] = []  # of the batches: each step writes to the same memory
        steps_per_epoch(size, len(data.train), "training")
        if "unlabeled" in sources:
            if data.unlabeled is None:
                raise UserError(
                    "metric.batch=unlabeled needs a data set with unlabelled images,"
                    f" {data.name} has none; use data=tfd, or metric.batch=other for another batch"
                    " of the training images"
                )
            steps_per_epoch(size, len(data.unlabeled), "unlabelled")

    def at(self, step: int, rng: torch.Generator) -> list[Tensor]:
        """Return the batch of a step, (B, D), and the one that metrics take rows from, if another.

        `rng` makes fresh draws of grey images. The next call writes over what is returned: a step
        that is recorded finds its batch in the same place.
        """
        wanted: list[tuple[Split, int, int]] = [(self.data.train, 2, step)]
        if "other" in self.sources:
            wanted.append((self.data.train, 2, step + 1))
        elif "unlabeled" in self.sources and self.data.unlabeled is not None:
            wanted.append((self.data.unlabeled, 3, step))
        if not self._places:
            images = self.data.train.bytes
            shape = (len(wanted), self.size, images.shape[1])
            self._places = [*images.new_empty(shape, dtype=torch.float32)]
        pairs = zip(wanted, self._places, strict=True)
        return [self._batch(*which, rng, place) for which, place in pairs]

    def _batch(
        self, split: Split, stream: int, step: int, rng: torch.Generator, out: Tensor
    ) -> Tensor:
        """Write a batch of a part, whose shuffles come from a stream of random numbers."""
        epoch, place = divmod(step, len(split) // self.size)
        order = _shuffle(len(split), split.bytes.device, self.seed, stream, epoch)
        return split.batch(order[place * self.size : (place + 1) * self.size], rng, out)


@lru_cache(maxsize=2)  # a step needs two at most: of two epochs, or of two parts
def _shuffle(count: int, device: torch.device, *seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(derive_seed(*seed))
    order = torch.randperm(count, generator=rng)
    if device.type != "cuda":
        return order.to(device)
    return order.pin_memory().to(device, non_blocking=True)  # which does not wait


def steps_per_epoch(size: int, images: int, kind: str) -> int:
    """Return the whole batches in a pass over some images; `UserError` where there is none."""
    if size > images:
        limit = f"at most the {images} {kind} images"
        raise UserError(f"trainer.batch_size must be {limit}, got {size}; lower it")
    return images // size
