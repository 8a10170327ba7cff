"""Trained machines that come with nws: run directories with what sampling needs, and no more."""

import os
import shutil
from pathlib import Path

from nws.errors import UserError
from nws.experiment.process.terminal import write_line
from nws.files import PACKAGE, aside, remove_abandoned

FOLDER = PACKAGE / "pretrained"


def names() -> list[str]:
    """Return the names of the machines that come with nws."""
    return sorted(path.parents[1].name for path in FOLDER.glob("*/.hydra/config.yaml"))


def lay_out(path: Path) -> Path:
    """Copy the machine that `pretrained/NAME` names to that path, where nothing is there yet.

    Args:
        path: Any path, for instance of a run directory, which stays as it is.

    Returns:
        The path.

    Raises:
        UserError: There is no such machine, or the folder cannot be written to.
    """
    if path.parent.name != FOLDER.name or path.exists():
        return path
    if path.name not in names():
        there = ", ".join(f"pretrained/{name}" for name in names())
        raise UserError(f"{path} does not exist; the machines that come with nws are {there}")
    temporary = aside(path)
    remove_abandoned(path.parent)
    try:
        shutil.copytree(FOLDER / path.name, temporary)
        os.replace(temporary, path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.is_dir():  # another process was faster
            return path
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); start from a folder of yours"
        ) from error
    write_line(f"copied the machine {path.name}, which comes with nws, to {os.path.relpath(path)}")
    return path
