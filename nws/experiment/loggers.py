"""Where a run's numbers go: metrics.csv, and Weights & Biases."""

import csv
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from nws.errors import UserError
from nws.files import write_atomically

log = logging.getLogger(__name__)

Row = dict[str, float]


class MetricsFile:
    """metrics.csv: one row an evaluation. It is rewritten whole, so it is never torn, and a new column is no trouble."""

    def __init__(self, path: Path, last_step: int = 0) -> None:
        """Go on with the rows up to `last_step`: what a broken run wrote after its last checkpoint will be written again."""
        self.path = path
        self.rows: list[Mapping[str, Any]] = []
        if last_step and path.is_file():
            try:
                with open(path, newline="") as file:
                    self.rows = [
                        row for row in csv.DictReader(file) if int(row["step"]) <= last_step
                    ]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path} cannot be read: expected a column step of whole numbers ({error!r}); move it away to go on"
                ) from error

    def write(self, row: Row) -> None:
        self.rows.append(row)
        columns = list(dict.fromkeys(name for each in self.rows for name in each))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.path, text.getvalue().encode())


WandbMode = Literal["online", "offline", "disabled"]


def check_mode(mode: object) -> None:
    """Raise `UserError` for what is no mode of `WandbLogger`."""
    if mode not in get_args(WandbMode):
        raise UserError(
            f"logger.mode must be one of {', '.join(get_args(WandbMode))}, got {mode!r}"
        )


class WandbLogger:
    """A Weights & Biases run beside a run directory. Whatever fails in W&B is a warning; training goes on without it.

    mode: "offline", "online" or "disabled". `run_id` continues an earlier W&B run; `id` is what to give a later one.
    """

    def __init__(
        self,
        directory: Path,
        mode: WandbMode,
        config: dict[str, Any],
        run_id: str | None,
        group: str | None,
        **options: Any,
    ) -> None:
        check_mode(mode)
        self.id = run_id
        self._run: Any = None
        if mode != "disabled":
            try:
                self._start(directory, mode, config, group, options)
            except Exception as error:
                self._give_up(error)

    def _start(
        self,
        directory: Path,
        mode: WandbMode,
        config: dict[str, Any],
        group: str | None,
        options: Any,
    ) -> None:
        import wandb

        self._wandb = wandb
        settings = wandb.Settings(silent=True, console="off", init_timeout=60)
        self._run = wandb.init(
            dir=directory, mode=mode, config=config, id=self.id, group=group, resume="allow",
            name=f"{directory.parent.name}/{directory.name}", settings=settings, **options,
        )  # fmt: skip
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def write(self, row: Row) -> None:
        self._try(lambda run: run.log(dict(row), step=int(row["step"])))

    def images(self, name: str, path: Path, step: int) -> None:
        self._try(
            lambda run: run.log(
                {name: self._wandb.Image(str(path), caption=f"step {step}"), "step": step},
                step=step,
            )
        )

    def finish(self, summary: Row, exit_code: int) -> None:
        self._try(lambda run: run.summary.update(summary))
        self._try(lambda run: run.finish(exit_code=exit_code))
        # W&B returns from finish() before its service has written the run; teardown() waits for that. W&B would do it
        # itself when the process exits, but not in the processes of a parallel sweep.
        self._try(lambda _: self._wandb.teardown())

    def _try(self, call: Callable[[Any], object]) -> None:
        if self._run is None:
            return
        try:
            call(self._run)
        except (Exception, SystemExit) as error:  # teardown() exits where W&B's service failed
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        log.warning(
            "Weights & Biases failed (%s: %s); going on without it", type(error).__name__, error
        )
        self._run = None
