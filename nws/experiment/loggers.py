"""What a run leaves behind: rows, images and checkpoints, in its directory and in W&B."""

import csv
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from omegaconf import DictConfig

from nws.errors import UserError
from nws.experiment.checks import Row
from nws.experiment.configuration import construct, to_dict
from nws.experiment.directory import RunDirectory, save_checkpoint
from nws.experiment.images import Picture, save_png
from nws.files import write_atomically

log = logging.getLogger(__name__)

WandbMode = Literal["online", "offline", "disabled"]


class MetricsFile:
    """metrics.csv: a row for each evaluation. It is written again as a whole, so it is never torn.

    A run that goes on keeps the rows up to `last_step`; it will write the later ones again.
    """

    def __init__(self, path: Path, last_step: int = 0) -> None:
        self.path = path
        self.rows: list[Mapping[str, Any]] = []
        if last_step and path.is_file():
            try:
                with open(path, newline="") as file:
                    rows = list(csv.DictReader(file))
                self.rows = [row for row in rows if int(row["step"]) <= last_step]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path} cannot be read: expected a column step of whole numbers ({error!r});"
                    " move it away to go on"
                ) from error

    def write(self, row: Row) -> None:
        """Add a row."""
        self.rows.append(row)
        columns = list(dict.fromkeys(name for each in self.rows for name in each))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.path, text.getvalue().encode())


def check_mode(mode: object) -> None:
    """Raise `UserError` for what is no mode of `WandbLogger`."""
    modes = get_args(WandbMode)
    if mode not in modes:
        raise UserError(f"logger.mode must be one of {', '.join(modes)}, got {mode!r}")


class WandbLogger:
    """A Weights & Biases run beside a run directory. A failure is a warning; training goes on.

    Args:
        directory: The run directory.
        mode: `offline`, `online` or `disabled`.
        config: The configuration that W&B shows.
        run_id: The W&B run to go on with, None for a new one. Its own id is then in `id`.
        group: The name that the jobs of a sweep share.
        **options: Other arguments of `wandb.init`.
    """

    def __init__(
        self, directory: Path, mode: WandbMode, config: dict[str, Any], run_id: str | None,
        group: str | None, **options: Any,
    ) -> None:  # fmt: skip
        check_mode(mode)
        self.id = run_id
        self._run: Any = None
        if mode == "disabled":
            return
        try:
            import wandb

            self._wandb = wandb
            settings = wandb.Settings(silent=True, console="off", init_timeout=60)
            name = f"{directory.parent.name}/{directory.name}"
            self._run = wandb.init(
                dir=directory, mode=mode, config=config, id=run_id, group=group, resume="allow",
                name=name, settings=settings, **options,
            )  # fmt: skip
            self.id = self._run.id
            self._run.define_metric("*", step_metric="step")
        except Exception as error:
            self._give_up(error)

    def write(self, row: Row) -> None:
        """Log a row."""
        self._try(lambda run: run.log(dict(row), step=int(row["step"])))

    def images(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""

        def log_image(run: Any) -> None:
            image = self._wandb.Image(str(path), caption=f"step {step}")
            run.log({name: image, "step": step}, step=step)

        self._try(log_image)

    def finish(self, summary: Row, exit_code: int) -> None:
        """End the W&B run, and wait until it is written."""
        self._try(lambda run: run.summary.update(summary))
        self._try(lambda run: run.finish(exit_code=exit_code))
        # W&B returns from finish() before its service has written the run; teardown() waits for
        # that. At the end of a process W&B does this itself, but not in those of a parallel sweep.
        self._try(lambda _: self._wandb.teardown())

    def _try(self, call: Callable[[Any], object]) -> None:
        try:
            if self._run is not None:
                call(self._run)
        except (Exception, SystemExit) as error:  # teardown() exits where W&B's service failed
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._run, kind = None, type(error).__name__
        log.warning(f"Weights & Biases failed ({kind}: {error}); going on without it")


class Outputs:
    """The files of one run, and its W&B run once `start_wandb` was called.

    The configuration, and the `choices` of groups that it came from, are written with each
    checkpoint: config.yaml is always that of last.pt, also after a resume that failed.
    """

    def __init__(self, run: RunDirectory, config: DictConfig, choices: dict[str, str]) -> None:
        self.run, self.config, self.choices = run, config, choices
        self.metrics = MetricsFile(run.metrics)
        self.wandb = WandbLogger(run.path, "disabled", {}, None, None)

    def start_wandb(self, run_id: str | None, group: str | None) -> WandbLogger:
        """Start a run of Weights & Biases, or go on with `run_id`."""
        given = {"config": to_dict(self.config), "run_id": run_id, "group": group}
        options = given | to_dict(self.config.logger)
        self.wandb = construct(WandbLogger, "logger", self.run.path, **options)
        return self.wandb

    def row(self, row: Row) -> str:
        """Write one row of metrics.csv. Return it as a line for people."""
        self.metrics.write(row)
        self.wandb.write(row)
        exact = f"  KL {row['exact/kl']:.3f}" if "exact/kl" in row else ""
        if "average/log_likelihood" in row:
            exact += f"  average {row['average/log_likelihood']:9.3f}"
        line = (
            f"epoch {row['epoch']:7.2f}  step {row['step']:7d}"
            f"  valid {row['valid/log_likelihood']:9.3f} ± {row['valid/standard_error']:.3f} nats"
            f" ({row['valid/samples']} samples)  train bound {row['train/log_likelihood']:9.3f}"
            f"  ess {row['train/ess']:5.2f}{exact}  {row['seconds']:7.1f} s"
        )
        log.info(line)
        return line

    def images(self, pictures: dict[str, Picture], step: int) -> None:
        """Write pictures by their names, with captions."""
        for name, picture in pictures.items():
            path = self.run.images / f"{name}_step_{step:07d}.png"
            where = f"{self.run.path.parent.name}/{self.run.path.name}"
            save_png(picture.grid, path, f"{name}, {where}, step {step:,}\n{picture.rows}")
            self.wandb.images(f"images/{name}", path, step)

    def checkpoint(self, state: dict[str, Any], best: bool) -> None:
        """Write last.pt, and best.pt too where the state is the best so far."""
        state["wandb_id"] = self.wandb.id
        for path in [self.run.best] * best + [self.run.last]:
            save_checkpoint(path, state)
        self.run.save_config(self.config, self.choices)
