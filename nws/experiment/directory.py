"""Run directories: their files, their checkpoints, opening one, finding all below a folder.

A checkpoint is a dictionary of tensors and plain values, written atomically, read without code.
"""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from nws import distributed
from nws.errors import UserError
from nws.experiment.pretrained import lay_out
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
                f" resume={self.path}, or give another hydra.run.dir or hydra.sweep.dir"
            )

    def claim(self, config: DictConfig, choices: dict[str, str], again: bool) -> None:
        """Take the directory for one run, unless it starts `again`, and write the configuration.

        Of several runs that start at once, one succeeds. Of the processes of one run the first
        one does this, once all of them have looked at the directory.
        """
        distributed.wait()
        if not distributed.is_first():
            return
        if not again:
            try:
                self.config.parent.mkdir(parents=True)
            except FileExistsError:
                self.check_free()
        try:
            self.save_config(config, choices)
        except UserError:
            if not again:  # the directory holds no run
                shutil.rmtree(self.config.parent, ignore_errors=True)
            raise

    def save_config(self, config: DictConfig, choices: dict[str, str]) -> None:
        """Write the resolved configuration, and the choice of each group that it came from."""
        write_atomically(self.choices, OmegaConf.to_yaml(choices).encode())
        write_atomically(self.config, OmegaConf.to_yaml(config, resolve=True).encode())

    def saved_choices(self) -> dict[str, str]:
        """Return the choice of each group that the run was composed from."""
        saved: Any = OmegaConf.load(self.choices) if self.choices.is_file() else {}
        return dict(saved)

    def is_finished(self) -> bool:
        """Return whether last.pt is that of a run's end; False where it is damaged."""
        try:
            state = load_checkpoint(self.last)
            return bool(state.get("finished", state["step"] >= state["total_steps"]))
        except UserError:
            return False


def open_run(path: str | Path) -> tuple[RunDirectory, DictConfig]:
    """Return an existing run and its configuration; `UserError` where it cannot be read."""
    run = RunDirectory(lay_out(Path(path).expanduser().resolve()))
    if not run.path.is_dir():
        raise UserError(f"{run.path} does not exist; a run prints its directory at start and end")
    if not run.config.is_file():
        raise UserError(f"{run.path} is not a run directory: it has no .hydra/config.yaml")
    try:
        config = OmegaConf.load(run.config)
    except Exception as error:
        raise UserError(f"{run.config} cannot be read: {error}") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(f"{run.config} should hold the configuration of a run, it does not")
    OmegaConf.set_struct(config, True)
    return run, config


def find_runs(folder: str | Path) -> list[Path]:
    """Return the run at a path, or all runs below it, 2 before 10; `UserError` for none."""
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
        raise UserError(f"{top} is not a run directory, and no run is below it")
    return runs


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint completely or not at all; `UserError` where the disk is full."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; `UserError` where there is none or it is damaged."""
    if not path.is_file():
        raise UserError(f"expected a checkpoint at {path}, found none: the run has saved none yet")
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{path} is not a checkpoint of nws or is damaged: {reason}") from error
    if not isinstance(state, dict) or "machine" not in state:
        raise UserError(f"{path} is not a checkpoint of nws: expected parameters under 'machine'")
    return state


def load_parameters(module: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Copy parameters from `path` into a module; `UserError` if of another architecture."""
    here = {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}
    there = {name: tuple(parameter.shape) for name, parameter in state.items()}
    if here != there:
        name = next(name for name in [*here, *there] if here.get(name) != there.get(name))
        raise UserError(
            f"{path} is of another architecture: {name} is {there.get(name, 'missing')} there and"
            f" {here.get(name, 'missing')} in the configuration;"
            " give the layers (model, data) that it was trained with"
        )
    module.load_state_dict(state)
