"""Which images each training step gets."""

from collections.abc import Collection
from functools import lru_cache

import torch
from torch import Tensor

from nws.data import Dataset, Split
from nws.errors import UserError
from nws.experiment.training.ahead import Key, RowsAhead
from nws.experiment.training.seeds import derive_seed

TRAIN, UNLABELED = 2, 3  # the streams of random numbers that shuffle these parts


class Batches:
    """The batches of a run, a function of seed and step: there is no state to save.

    Each epoch is shuffled anew and drops its incomplete last batch.

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
        host = data.train.onto is not None
        self._ahead = RowsAhead(data.train.device, self._rows) if host else None

    def at(self, step: int, rng: torch.Generator) -> list[Tensor]:
        """Return the batch of a step, (B, D), and the one that metrics take rows from, if another.

        `rng` makes fresh draws of grey images. The next call writes over what is returned: a step
        that is recorded finds its batch in the same place.
        """
        wanted = self._wanted(step)
        if self._ahead is not None:
            rows = self._ahead.take(wanted, self._wanted(step + 1))
        else:
            rows = [self._rows(key) for key in wanted]
        if not self._places:
            shape = (len(wanted), *rows[0].shape)
            self._places = [*rows[0].new_empty(shape, dtype=torch.float32)]
        return [
            self._split(stream).images(each, rng, place)
            for (stream, _), each, place in zip(wanted, rows, self._places, strict=True)
        ]

    def _wanted(self, step: int) -> list[Key]:
        """Return which batches a step takes: that of the gradient first."""
        if "other" in self.sources:
            return [(TRAIN, step), (TRAIN, step + 1)]
        if "unlabeled" in self.sources:
            return [(TRAIN, step), (UNLABELED, step)]
        return [(TRAIN, step)]

    def _split(self, stream: int) -> Split:
        """Return the part whose shuffles come from a stream of random numbers."""
        if stream == UNLABELED and self.data.unlabeled is not None:
            return self.data.unlabeled
        return self.data.train

    def _rows(self, key: Key) -> Tensor:
        """Return the bytes of a batch, (B, D), where they are held."""
        stream, step = key
        split = self._split(stream)
        epoch, place = divmod(step, len(split) // self.size)
        order = _shuffle(len(split), split.bytes.device, self.seed, stream, epoch)
        return split.rows(order[place * self.size : (place + 1) * self.size])


@lru_cache(maxsize=4)  # a step and the next need two epochs at most, of two parts
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
