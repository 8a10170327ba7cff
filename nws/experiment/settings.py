"""The options of the `trainer` group."""

import math
from dataclasses import dataclass

from nws import distributed
from nws.errors import UserError, positive_int
from nws.experiment.batches import steps_per_epoch


@dataclass(frozen=True)
class TrainerSettings:
    """The `trainer` group; conf/config.yaml says what each option means."""

    epochs: float
    batch_size: int
    evaluate_every: float
    images_every: float
    check_every: int
    evaluation_samples: int
    evaluation_points: int | None
    # Runs of earlier versions lack what has a default.
    patience: int | None = None
    noise_batches: int | None = None
    streams: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every", "images_every"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise UserError(f"trainer.{name} must be a number of epochs above 0, got {value!r}")
        optional = ("evaluation_points", "patience", "noise_batches")
        whole = ("batch_size", "check_every", "evaluation_samples", "streams")
        for name in (*whole, *optional):
            value = getattr(self, name)
            if value is not None or name not in optional:  # 32.0 becomes 32
                least = 2 if name == "noise_batches" else 1
                object.__setattr__(self, name, positive_int(f"trainer.{name}", value, least))

        if self.batch_size < distributed.size():
            raise UserError(
                f"trainer.batch_size must be at least the number of processes, got"
                f" {self.batch_size} for {distributed.size()}; take a larger batch, or fewer"
            )

    def steps_per_epoch(self, images: int) -> int:
        """Return the whole batches in a pass over the training images."""
        return steps_per_epoch(self.batch_size, images, "training")

    def total_steps(self, images: int) -> int:
        """Return the number of steps of a run on so many training images."""
        return max(1, round(self.epochs * self.steps_per_epoch(images)))
