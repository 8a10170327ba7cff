"""The options of the `trainer` group, and the steps that they come to."""

from nws import distributed
from nws.errors import UserError
from nws.experiment.options.schemas.run import TrainerOptions
from nws.experiment.training.batches import steps_per_epoch


class TrainerSettings(TrainerOptions):
    """The `trainer` group; its schema says what each option means."""

    def check_processes(self) -> None:
        """Raise `UserError` where there are more processes than data points in a batch."""
        if self.batch_size < distributed.size():
            raise UserError(
                "trainer.batch_size must be at least the number of processes, got"
                f" {self.batch_size} for {distributed.size()}; take a larger batch, or fewer"
            )

    def steps_per_epoch(self, images: int) -> int:
        """Return the whole batches in a pass over the training images."""
        self.check_processes()
        return steps_per_epoch(self.batch_size, images, "training")

    def total_steps(self, images: int) -> int:
        """Return the number of steps of a run on so many training images."""
        return max(1, round(self.epochs * self.steps_per_epoch(images)))
