"""Which images each training step gets."""

from collections.abc import Collection

import torch
from torch import Tensor

from nws.data import Dataset, Split
from nws.errors import UserError
from nws.experiment.seeds import derive_seed

STREAMS = {"train": 2, "unlabeled": 3}  # the stream of random numbers that shuffles each part


class Batches:
    """The batches of a run, a function of seed and step: there is no state to save.

    Each epoch has a shuffle of its own. The few images left over by whole batches are other ones
    in each epoch.

    Args:
        data: The data set.
        size: Images in a batch, B.
        sources: Where metrics take their rows from: `same`, `other` or `unlabeled`.
        seed: The run's seed.
    """

    def __init__(self, data: Dataset, size: int, sources: Collection[str], seed: int) -> None:
        self.train, self.size, self.sources, self.seed = data.train, size, sources, seed
        self.unlabeled = data.unlabeled
        steps_per_epoch(size, len(data.train), "training")
        if "unlabeled" in sources:
            if data.unlabeled is None:
                raise UserError(
                    "metric.batch=unlabeled needs a data set with unlabelled images,"
                    f" {data.name} has none; use data=tfd, or metric.batch=other for another batch"
                    " of the training images"
                )
            steps_per_epoch(size, len(data.unlabeled), "unlabelled")
        # Of each part, the shuffle of this epoch and of the one before or after.
        self._orders: dict[tuple[str, int], Tensor] = {}

    def at(self, step: int, rng: torch.Generator) -> list[Tensor]:
        """Return the batch of a step, (B, D), and the one that metrics take rows from, if another.

        `rng` makes fresh draws of grey images.
        """
        batches = [self._batch(self.train, step, "train", rng)]
        if "other" in self.sources:
            batches.append(self._batch(self.train, step + 1, "train", rng))
        elif "unlabeled" in self.sources and self.unlabeled is not None:
            batches.append(self._batch(self.unlabeled, step, "unlabeled", rng))
        return batches

    def _batch(self, split: Split, step: int, part: str, rng: torch.Generator) -> Tensor:
        epoch, place = divmod(step, len(split) // self.size)
        order = self._order(split, part, epoch)
        return split.batch(order[place * self.size : (place + 1) * self.size], rng)

    def _order(self, split: Split, part: str, epoch: int) -> Tensor:
        """Return the shuffle of a part in an epoch, which is a pass over this part."""
        if (part, epoch) not in self._orders:
            rng = torch.Generator().manual_seed(derive_seed(self.seed, STREAMS[part], epoch))
            order = torch.randperm(len(split), generator=rng).to(split.bytes.device)
            kept = {
                key: old
                for key, old in self._orders.items()
                if key[0] != part or key[1] == epoch - 1
            }
            self._orders = {**kept, (part, epoch): order}
        return self._orders[part, epoch]


def steps_per_epoch(size: int, images: int, kind: str) -> int:
    """Return the whole batches in a pass over some images; `UserError` where there is none."""
    if size > images:
        raise UserError(
            f"trainer.batch_size must be at most the {images} {kind} images, got {size}; lower it"
        )
    return images // size
