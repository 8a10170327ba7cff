"""sweep.yaml: the overrides that make a sweep this one, its command, and what it varies."""

from pathlib import Path
from typing import Any

from nws.errors import UserError
from nws.experiment.storage.directory import DELETE, load_yaml

RECORD = "sweep.yaml"


def read_record(directory: Path) -> dict[str, Any]:
    """Return what the sweep.yaml of a directory says, {} without: overrides, command, varies."""
    path = directory / RECORD
    record = load_yaml(path) if path.is_file() else {}
    for key, value in record.items():
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UserError(f"{path} is damaged: {key} must be a list of texts; {DELETE}")
    return record


def sweep_of(run: Path) -> tuple[Path | None, list[str]]:
    """Return the directory of the sweep that a run is a job of, if any, and what it varies."""
    record = read_record(run.parent)
    return (run.parent, record.get("varies", [])) if record else (None, [])
