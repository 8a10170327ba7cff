"""TensorBoard: `logger=tensorboard`."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nws.errors import UserError
from nws.experiment.callbacks.callback import Callback
from nws.experiment.config import flatten

if TYPE_CHECKING:
    from nws.experiment.run import Row
    from nws.experiment.trainer import Trainer


class TensorBoardLogger(Callback):
    """Event files of TensorBoard in RUN/tensorboard: the rows, the images, the configuration.

    The configuration and the summary are hyperparameters and their metrics (the tab HPARAMS), so
    that runs of a sweep can be compared.

    Raises:
        UserError: The package tensorboard is not installed.
    """

    shows = True

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError(
                "logger=tensorboard needs the package tensorboard, which is not installed:"
                " pip install -c constraints.txt '.[tensorboard]'"
            )

    def start(self, trainer: "Trainer") -> None:
        """Start an event file. Rows that a resumed run will write again are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        again = trainer.step + 1 if trainer.step else None
        self._writer = SummaryWriter(str(trainer.run.path / "tensorboard"), purge_step=again)

    def after_row(self, trainer: "Trainer", row: "Row") -> None:
        """Log the numbers of a row."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def image(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def finish(self, trainer: "Trainer", summary: dict[str, Any], state: str) -> None:
        """Log configuration and summary, and end the event file."""
        numbers = {key: each for key, each in summary.items() if isinstance(each, int | float)}
        options = flatten(trainer.config | {"run": trainer.name, "state": state})
        for key, each in options.items():
            options[key] = each if isinstance(each, int | float) else str(each)
        self._writer.add_hparams(options, numbers, run_name=".")
        self._writer.close()
