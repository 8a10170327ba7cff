"""Run directories: their files, opening one, finding all below a folder."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.checkpoints import load_checkpoint
from nws.files import write_atomically


class RunDirectory:
    """The files that a run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / ".hydra" / "config.yaml"
        self.choices = path / ".hydra" / "choices.yaml"
        self.metrics = path / "metrics.csv"
        self.last = path / "checkpoints" / "last.pt"
        self.best = path / "checkpoints" / "best.pt"
        self.images = path / "images"

    def check_free(self) -> None:
        """Raise `UserError` where the directory holds a run: two runs would mix their files."""
        if self.config.parent.exists():
            raise UserError(
                f"{self.path} holds a run already, nothing was changed; go on with it by"
                f" resume={self.path}, or give another hydra.run.dir (hydra.sweep.dir for a sweep),"
                " or remove it"
            )

    def claim(self) -> None:
        """Take the directory for one run: of several that start at once, one succeeds."""
        try:
            self.config.parent.mkdir(parents=True)
        except FileExistsError:
            self.check_free()

    def save_config(self, config: DictConfig, choices: dict[str, str]) -> None:
        """Write the resolved configuration, and the choice of each group that it came from."""
        write_atomically(self.choices, OmegaConf.to_yaml(choices).encode())
        write_atomically(self.config, OmegaConf.to_yaml(config, resolve=True).encode())

    def saved_choices(self) -> dict[str, str]:
        """Return the choice of each group that the run was composed from."""
        saved: Any = OmegaConf.load(self.choices) if self.choices.is_file() else {}
        return dict(saved)

    def is_finished(self) -> bool:
        """Return whether last.pt is that of the last step; False where it is damaged."""
        try:
            state = load_checkpoint(self.last)
        except UserError:
            return False
        return bool(state["step"] >= state["total_steps"])


def open_run(path: str | Path) -> tuple[RunDirectory, DictConfig]:
    """Return an existing run and its configuration.

    Raises:
        UserError: The directory is missing, or holds no run that can be read.
    """
    run = RunDirectory(Path(path).expanduser().resolve())
    if not run.path.is_dir():
        raise UserError(
            f"expected a run directory, {run.path} does not exist;"
            " a run prints its directory at start and end"
        )
    if not run.config.is_file():
        raise UserError(f"{run.path} is not a run directory: it has no .hydra/config.yaml")
    try:
        config = OmegaConf.load(run.config)
    except Exception as error:
        raise UserError(f"{run.config} cannot be read: {error}") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(
            f"{run.config} should hold the configuration of a run, but is empty or a list"
        )
    OmegaConf.set_struct(config, True)
    return run, config


def find_runs(folder: str | Path) -> list[Path]:
    """Return the run at a path, or all run directories below it, 2 before 10.

    Raises:
        UserError: There is none.
    """
    top = Path(folder).expanduser().resolve()
    if RunDirectory(top).config.is_file() or not top.is_dir():
        return [open_run(top)[0].path]
    runs = []
    for here, below, _ in os.walk(top):
        if RunDirectory(Path(here)).config.is_file():
            runs.append(Path(here))
            below.clear()
        below.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    if not runs:
        raise UserError(
            f"{top} is not a run directory: it has no .hydra/config.yaml, and no run is below it"
        )
    return runs
