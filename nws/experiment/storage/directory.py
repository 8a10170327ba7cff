"""Run directories: their files, opening one, finding all below a folder."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nws import distributed
from nws.errors import UserError
from nws.experiment.storage.checkpoints import load_checkpoint
from nws.experiment.storage.lock import RunLock
from nws.experiment.storage.pretrained import lay_out
from nws.files import write_atomically

DELETE = "put back a good copy, or delete the file to do without it"


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
        self.lock = RunLock(path)

    def check_free(self) -> None:
        """Raise `UserError` where the directory holds a run: two runs would mix their files.

        What a killed start left, before it wrote config.yaml, is no run.
        """
        elsewhere = "give another hydra.run.dir or hydra.sweep.dir"
        if self.config.exists():
            raise UserError(
                f"{self.path} holds a run already, nothing was changed; go on with it by"
                f" resume={self.path}, or {elsewhere}"
            )
        if self.last.exists() or self.best.exists():
            raise UserError(
                f"{self.path} holds checkpoints of a run without its .hydra/config.yaml, nothing"
                f" was changed; move them away, or {elsewhere}"
            )

    def claim(self, config: DictConfig, choices: dict[str, str], again: bool) -> None:
        """Take the directory for one run, unless it starts `again`: write the configuration.

        From the moment that config.yaml is there, the directory holds a run. The process must have
        the `lock`, so that of several that start at once one succeeds. Of the processes of one run
        the first one does this.
        """
        if not distributed.is_first():
            return
        if not again:
            self.check_free()
        with contextlib.suppress(OSError):
            self.best.unlink()  # of a start that came no further
        try:
            self.save_config(config_texts(config, choices))
        except UserError:
            if not self.config.exists():  # the directory holds no run
                shutil.rmtree(self.config.parent, ignore_errors=True)
            raise

    def save_config(self, texts: dict[str, str]) -> None:
        """Write what `config_texts` returns. config.yaml comes last, as it makes the run."""
        write_atomically(self.choices, texts["choices"].encode())
        write_atomically(self.config, texts["config"].encode())

    def settle_config(self) -> None:
        """Write the configuration of last.pt again, where a kill came between the two.

        A configuration that was edited since stays.
        """
        with contextlib.suppress(UserError, OSError, ValueError, KeyError, TypeError):
            texts = load_checkpoint(self.last).get("configuration") or {}
            if texts and self.config.read_text() == texts["before"] != texts["config"]:
                self.save_config(texts)

    def saved_choices(self) -> dict[str, str]:
        """Return the choice of each group that the run was composed from."""
        saved = load_yaml(self.choices) if self.choices.is_file() else {}
        wrong = [name for name, choice in saved.items() if not isinstance(choice, str)]
        if wrong:
            raise UserError(f"{self.choices} is damaged: {wrong[0]} is no choice; {DELETE}")
        return saved

    def last_state(self) -> dict[str, Any] | None:
        """Return the last checkpoint, None where the run has not come to one.

        Raises:
            UserError: The checkpoint is damaged; or it is gone, though the run had come further.
        """
        if self.last.is_file():
            return load_checkpoint(self.last, resume=True)
        if not self.best.is_file():
            return None
        rows = 0  # after that of step 0; the first one is written before best.pt, and that before
        with contextlib.suppress(OSError):
            rows = len(self.metrics.read_text(errors="replace").splitlines()) - 2
        if rows != 1:
            raise UserError(
                f"expected a checkpoint at {self.last}, found none, though the run was further;"
                " copies by nws export have none. Where best.pt is of the run itself, copy it"
                " there to go on from it, or start a new run elsewhere"
            )
        return None

    def is_finished(self) -> bool:
        """Return whether last.pt is that of a run's end; False where it is damaged."""
        try:
            return is_end(load_checkpoint(self.last))
        except (UserError, KeyError):  # of an exported machine
            return False


def is_end(state: dict[str, Any] | None) -> bool:
    """Return whether a checkpoint is that of a run's end."""
    if state is None:
        return False
    return bool(state.get("finished", state["step"] >= state["total_steps"]))


def config_texts(config: DictConfig, choices: dict[str, str]) -> dict[str, str]:
    """Return config.yaml, resolved, and choices.yaml: the choices of groups that it came from."""
    resolved = OmegaConf.to_yaml(config, resolve=True)
    return {"config": resolved, "choices": OmegaConf.to_yaml(choices)}


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


def load_yaml(path: Path) -> dict[str, Any]:
    """Return what a file of ours says, keys and values; `UserError` where it is damaged."""
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is damaged: {reason}; {DELETE}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it has no keys and values; {DELETE}")
    return {str(key): value for key, value in content.items()}


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
