"""What a run leaves behind: rows, images and checkpoints, in its directory, in W&B, on screen."""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from nws.experiment.checkpoints import save_checkpoint
from nws.experiment.configuration import construct, to_dict
from nws.experiment.directory import RunDirectory
from nws.experiment.images import save_png
from nws.experiment.loggers import MetricsFile, Row, WandbLogger
from nws.experiment.validation import describe

log = logging.getLogger(__name__)


class Outputs:
    """The files of one run, and its W&B run once `start_wandb` was called.

    The configuration, and the `choices` of groups that it came from, are written with each
    checkpoint: config.yaml is always that of last.pt, also after a resume that failed.
    """

    def __init__(self, run: RunDirectory, config: DictConfig, choices: dict[str, str]) -> None:
        self.run, self.config, self.choices = run, config, choices
        self.metrics = MetricsFile(run.metrics)
        self.wandb: WandbLogger | None = None

    def claim(self) -> None:
        """Take the directory for a new run, and write the configuration."""
        if not self.run.config.is_file():
            self.run.claim()
        self.run.save_config(self.config, self.choices)

    def go_on(self, step: int) -> None:
        """Keep the rows of metrics.csv up to a step."""
        self.metrics = MetricsFile(self.run.metrics, step)

    def start_wandb(self, run_id: str | None, group: str | None) -> WandbLogger:
        """Start a run of Weights & Biases, or go on with `run_id`."""
        self.wandb = wandb = construct(
            WandbLogger, "logger", self.run.path, config=to_dict(self.config), run_id=run_id,
            group=group, **to_dict(self.config.logger),
        )  # fmt: skip
        return wandb

    def row(self, row: Row) -> str:
        """Write one row of metrics.csv. Returns it as a line for people."""
        self.metrics.write(row)
        if self.wandb is not None:
            self.wandb.write(row)
        line = describe(row)
        log.info(line)
        return line

    def images(self, grids: dict[str, Tensor], step: int) -> None:
        """Write image grids (3, height, width) by their names."""
        for name, grid in grids.items():
            path: Path = self.run.images / f"{name}_step_{step:07d}.png"
            save_png(grid, path)
            if self.wandb is not None:
                self.wandb.images(f"images/{name}", path, step)

    def checkpoint(self, state: dict[str, Any], best: bool) -> None:
        """Write last.pt, and best.pt too where the state is the best so far."""
        state["wandb_id"] = self.wandb.id if self.wandb is not None else None
        for path in [self.run.best] * best + [self.run.last]:
            save_checkpoint(path, state)
        self.run.save_config(self.config, self.choices)
