"""Weights & Biases: `logger=wandb_offline` and `logger=wandb`."""

import os
from pathlib import Path
from typing import Any, Literal, get_args

from nws.errors import UserError
from nws.experiment.training.loggers import RunInfo, State
from nws.experiment.training.measures import Row

WandbMode = Literal["online", "offline", "disabled"]


class WandbLogger:
    """A run of Weights & Biases beside a run directory.

    W&B knows two ends, finished and failed. A run that was stopped or diverged has its state as a
    tag and as `state` in the summary; only one that failed or diverged shows as failed. The jobs
    of a sweep share a group, and SWEEP/wandb links to the runs of all of them.

    Args:
        mode: `offline`, `online` or `disabled`.
        **options: Other arguments of `wandb.init`, such as `project`.
    """

    title = "Weights & Biases"

    def __init__(self, mode: WandbMode = "offline", **options: Any) -> None:
        modes = get_args(WandbMode)
        if mode not in modes:
            raise UserError(f"logger.mode must be one of {', '.join(modes)}, got {mode!r}")
        self.mode, self.options = mode, options
        self.id: str | None = None  # of the W&B run, to go on with it
        self._run: Any = None

    def start(self, info: RunInfo) -> None:
        """Start a run of W&B, or go on with the one that `info` names."""
        self.id = info.run_id
        if self.mode == "disabled":
            return
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=60)
        self._run = wandb.init(
            dir=info.directory, mode=self.mode, config=info.config, id=info.run_id,
            group=info.group, resume="allow", name=info.name, settings=settings, **self.options,
        )  # fmt: skip
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")
        self._tag(())  # the state of an earlier part of the run
        if info.sweep is not None:
            link(Path(self._run.dir).parent, info.sweep / "wandb")

    def write(self, row: Row) -> None:
        """Log a row."""
        if self._run is not None:
            self._run.log(dict(row), step=int(row["step"]))

    def images(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""
        if self._run is not None:
            import wandb

            image = wandb.Image(str(path), caption=f"step {step}")
            self._run.log({name: image, "step": step}, step=step)

    def finish(self, summary: dict[str, Any], state: State) -> None:
        """End the W&B run, and wait until it is written."""
        if self._run is None:
            return
        import wandb

        self._run.summary.update(summary | {"state": state})
        self._tag(() if state == "finished" else (state,))
        self._run.finish(exit_code=int(state in ("failed", "diverged")))
        # W&B returns from finish() before its service has written the run; teardown() waits for
        # that. At the end of a process W&B does this itself, but not in those of a parallel sweep.
        wandb.teardown()

    def _tag(self, states: tuple[str, ...]) -> None:
        """Give the W&B run these tags in place of those of earlier states."""
        before = tuple(self._run.tags or ())
        after = tuple(tag for tag in before if tag not in get_args(State)) + states
        if after != before:
            self._run.tags = after


def link(folder: Path, parent: Path) -> None:
    """Link to a folder from another one, so that `wandb leet` shows all that lie there."""
    place = parent / folder.name
    parent.mkdir(exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(os.path.relpath(folder, parent), target_is_directory=True)
