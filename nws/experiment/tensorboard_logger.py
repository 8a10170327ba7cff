"""TensorBoard: `logger=tensorboard`."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from nws.errors import UserError
from nws.experiment.options.configuration import flatten_config
from nws.experiment.training.loggers import RunInfo, State
from nws.experiment.training.measures import Row


class TensorBoardLogger:
    """Event files of TensorBoard in RUN/tensorboard: the rows, the images, the configuration.

    The configuration and the summary are hyperparameters and their metrics (the tab HPARAMS), so
    that runs of a sweep can be compared.

    Raises:
        UserError: The package tensorboard is not installed.
    """

    title = "TensorBoard"

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError(
                "logger=tensorboard needs the package tensorboard, which is not installed:"
                " pip install -c constraints.txt '.[tensorboard]'"
            )

    def start(self, info: RunInfo) -> None:
        """Start an event file. Rows that a resumed run will write again are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        again = info.step + 1 if info.step else None
        self.config = info.config | {"run": info.name}
        self._writer = SummaryWriter(str(info.directory / "tensorboard"), purge_step=again)

    def write(self, row: Row) -> None:
        """Log the numbers of a row."""
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def images(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def finish(self, summary: dict[str, Any], state: State) -> None:
        """Log configuration and summary, and end the event file."""
        from torch.utils.tensorboard.summary import hparams

        flat = flatten_config({key: each for key, each in summary.items() if each is not None})
        plain = (bool, int, float, str)
        numbers = {key: each for key, each in flat.items() if isinstance(each, int | float)}
        options = flatten_config(self.config) | {"state": state}
        options |= {key: each for key, each in flat.items() if key not in numbers}
        options = {k: v if isinstance(v, plain) else str(v) for k, v in options.items()}
        for each in hparams(options, numbers):
            self._writer._get_file_writer().add_summary(each)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value)
        self._writer.close()
