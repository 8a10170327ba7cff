"""What a policy around the training loop is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nws.learning import StepResult

if TYPE_CHECKING:  # it imports the callbacks
    from nws.experiment.trainer import Trainer as Trainer
else:
    Trainer = Any

Row = dict[str, Any]  # of metrics.csv


class Callback:
    """A policy around the training loop. Each method does nothing here.

    The section `callbacks` of the configuration names them by `_target_`; `average` and `logger`
    are callbacks too. The constructor takes the options of the section, and raises `UserError`
    for wrong ones before work is spent. What it keeps comes into checkpoints by `state_dict`.

    Attributes:
        every: Epochs between two calls of `due`; None for none.
        shows: Whether it only shows the run. Of several processes the first one alone has it then,
            and its failure is a warning, after which the run goes on without it.
        ends: Why the run is to end before its last step; empty while it is not.

    Examples:
        >>> class Chatty(Callback):
        ...     def after_row(self, trainer, row):
        ...         print(row["valid/log_likelihood"])
    """

    every: float | None = None
    shows = False
    ends = ""

    def start(self, trainer: Trainer) -> None:
        """Before the first step of this process; a resumed run has its state by then."""

    def before_step(self, trainer: Trainer) -> None:
        """Before each step: `trainer.step` steps were taken."""

    def after_loss(self, trainer: Trainer, result: StepResult) -> None:
        """After the gradients of a step were written. It must not wait for the device."""

    def after_step(self, trainer: Trainer) -> None:
        """After each step. It should not wait for the device often."""

    def due(self, trainer: Trainer) -> None:
        """Every so many epochs, and after the last of all steps; its time is no training."""

    def row(self, trainer: Trainer) -> Row:
        """Columns for the row of metrics.csv that is about to be written."""
        return {}

    def after_row(self, trainer: Trainer, row: Row) -> None:
        """After a row was made, before the checkpoint that has it."""

    def before_stop(self, trainer: Trainer) -> None:
        """Before the checkpoint of a run that a signal stops between two rows."""

    def saved(self, trainer: Trainer) -> None:
        """After the checkpoints and metrics.csv were written."""

    def image(self, name: str, path: Path, step: int) -> None:
        """After an image file was written, under a name such as `images/generated`."""

    def finish(self, trainer: Trainer, summary: dict[str, Any], state: str) -> None:
        """At the end, finished, stopped, failed or diverged; `summary` has the reason."""

    def state_dict(self) -> dict[str, Any]:
        """What the run needs to go on bit for bit, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
