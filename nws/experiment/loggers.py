"""What a run leaves behind: rows, images and checkpoints, in its directory and in W&B."""

import csv
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from omegaconf import DictConfig
from torch import Tensor

from nws.errors import UserError
from nws.experiment.checks import Row
from nws.experiment.configuration import construct, to_dict
from nws.experiment.directory import RunDirectory, save_checkpoint
from nws.experiment.images import save_png
from nws.experiment.provenance import Provenance
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
        newest_first = reversed(self.rows)  # the row of step 0 has no columns of training
        columns = list(dict.fromkeys(name for each in newest_first for name in each))
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


def row_parts(row: Row) -> list[str]:
    """Return a row of metrics.csv for people, in parts, what matters most first."""
    valid, error = row["valid/log_likelihood"], row["valid/standard_error"]
    parts = [f"epoch {row['epoch']:6.2f}", f"step {row['step']:7d}"]
    parts.append(f"valid {valid:8.3f} ± {error:.3f} nats")
    if "train/log_likelihood" in row:
        parts.append(f"bound {row['train/log_likelihood']:8.3f}")
    if "exact/kl" in row:
        parts.append(f"KL {row['exact/kl']:.3f}")
    if "average/log_likelihood" in row:
        parts.append(f"average {row['average/log_likelihood']:8.3f}")
    parts.append(f"{row['seconds']:.1f} s")
    if "train/ess" in row:
        parts.append(f"ess {row['train/ess']:.2f}")
    return [*parts, f"{row['valid/samples']} samples"]


class Outputs:
    """The files of one run, and its W&B run once `start_wandb` was called.

    The configuration, and the `choices` of groups that it came from, are written with each
    checkpoint: config.yaml is always that of last.pt, also after a resume that failed.
    """

    def __init__(self, run: RunDirectory, config: DictConfig, choices: dict[str, str]) -> None:
        self.run, self.config, self.choices = run, config, choices
        self.metrics = MetricsFile(run.metrics)
        self.wandb = WandbLogger(run.path, "disabled", {}, None, None)
        self.provenance: Provenance | None = None

    def note(self, facts: dict[str, Any]) -> None:
        """Take facts into provenance.json, once the run has one."""
        if self.provenance is not None:
            self.provenance.update(**facts)

    def start_wandb(self, run_id: str | None, group: str | None) -> WandbLogger:
        """Start a run of Weights & Biases, or go on with `run_id`."""
        given = {"config": to_dict(self.config), "run_id": run_id, "group": group}
        options = given | to_dict(self.config.logger)
        self.wandb = construct(WandbLogger, "logger", self.run.path, **options)
        return self.wandb

    def row(self, row: Row) -> list[str]:
        """Write one row of metrics.csv. Return it for people, in parts, what matters most first."""
        self.metrics.write(row)
        self.wandb.write(row)
        parts = row_parts(row)
        log.info("  ".join(parts))
        return parts

    def images(self, grids: dict[str, Tensor], step: int) -> None:
        """Write image grids (3, height, width) by their names."""
        for name, grid in grids.items():
            path = self.run.images / f"{name}_step_{step:07d}.png"
            save_png(grid, path)
            self.wandb.images(f"images/{name}", path, step)

    def checkpoint(self, state: dict[str, Any], best: bool) -> None:
        """Write last.pt, and best.pt too where the state is the best so far."""
        state["wandb_id"] = self.wandb.id
        for path in [self.run.best] * best + [self.run.last]:
            save_checkpoint(path, state)
        self.run.save_config(self.config, self.choices)
