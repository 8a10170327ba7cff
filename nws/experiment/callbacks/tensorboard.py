"""TensorBoard: `logger=tensorboard`."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nws.experiment.callbacks.callback import Callback, Row, Trainer


class TensorBoardLogger(Callback):
    """Event files of TensorBoard in RUN/tensorboard: the rows and the images."""

    shows = True

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # another package, which may be absent

        self._open = SummaryWriter

    def start(self, trainer: Trainer) -> None:
        """Start an event file. Rows that a resumed run will write again are hidden."""
        again = trainer.step + 1 if trainer.step else None
        self._writer = self._open(str(trainer.run.path / "tensorboard"), purge_step=again)

    def after_row(self, trainer: Trainer, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def image(self, name: str, path: Path, step: int) -> None:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def finish(self, trainer: Trainer, summary: dict[str, Any], state: str) -> None:
        self._writer.close()
