"""Weights & Biases: `logger=wandb_offline` and `logger=wandb`."""

import logging
from pathlib import Path
from typing import Any

from nws.errors import one_of
from nws.experiment.callbacks.callback import Callback, Row, Trainer

log = logging.getLogger(__name__)


class WandbLogger(Callback):
    """A run of Weights & Biases beside a run directory. The jobs of a sweep share a group.

    W&B knows two ends. The summary has `state` as well: finished, stopped, failed or diverged.

    Args:
        mode: `offline`, `online` or `disabled`.
        **options: Other arguments of `wandb.init`, such as `project`.
    """

    shows = True

    def __init__(self, mode: Any = "offline", **options: Any) -> None:
        one_of("logger.mode", mode, ("online", "offline", "disabled"))
        self.mode, self.options = mode, options
        self.id: str | None = None  # by which W&B goes on with the run
        self._run: Any = None

    def start(self, trainer: Trainer) -> None:
        import wandb

        self._wandb = wandb
        own = {"dir": trainer.run.path, "mode": self.mode, "config": trainer.config, "id": self.id}
        own |= {"group": trainer.group, "resume": "allow", "name": trainer.name}
        own["settings"] = wandb.Settings(silent=True, console="off", init_timeout=60)
        try:
            self._run = wandb.init(**own | self.options)
        except wandb.Error as error:
            if self.mode != "online":
                raise
            log.warning(f"W&B fails ({error}); the run is kept in wandb/ there, for `wandb sync`")
            self._run = wandb.init(**own | self.options | {"mode": "offline"})
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")

    def after_row(self, trainer: Trainer, row: Row) -> None:
        self._run.log(dict(row), step=int(row["step"]))

    def image(self, name: str, path: Path, step: int) -> None:
        picture = self._wandb.Image(str(path), caption=f"step {step}")
        self._run.log({name: picture, "step": step}, step=step)

    def finish(self, trainer: Trainer, summary: dict[str, Any], state: str) -> None:
        """End the W&B run, and wait until it is written."""
        self._run.summary.update(summary | {"state": state})
        self._run.finish(exit_code=int(state in ("failed", "diverged")))
        # W&B returns from finish() before its service has written the run; teardown() waits for
        # that. At the end of a process W&B does this itself, but not in those of a parallel sweep.
        self._wandb.teardown()

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.id = state.get("id")  # another logger has none
