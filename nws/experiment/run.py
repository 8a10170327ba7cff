"""Run directories: their files, their owner, opening one, and finding all below a folder.

`checkpoints/last.pt` is the truth of a run. It has the configuration and the rows of metrics.csv in
it. `metrics.csv` and `.hydra/config.yaml` are views for people and programs, written after it.
"""

import csv
import io
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from logging.handlers import MemoryHandler
from pathlib import Path

import yaml
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from nws import distributed
from nws.errors import UserError, explained
from nws.experiment.checkpoints import State, load_checkpoint, save_checkpoint
from nws.files import PACKAGE, check_folder, read_text, remove_temporary, write_atomically

SWEEP = "sweep.yaml"  # in a sweep's folder: its overrides, its command
YAML_LIMIT, DEPTH = 2**20, 50  # bytes, and sections within each other
PRETRAINED = PACKAGE / "pretrained"  # machines that come with nws


class Taken(UserError):
    """A run directory that another process trains in."""


class RunDirectory:
    """The files that a run leaves behind. Of several processes the first one `writes` them."""

    def __init__(self, path: Path) -> None:
        self.path, self.writes = path, distributed.rank() == 0
        self.config = path / ".hydra" / "config.yaml"
        self.metrics = path / "metrics.csv"
        self.last = path / "checkpoints" / "last.pt"
        self.best = path / "checkpoints" / "best.pt"
        self.images = path / "images"
        self.provenance = path / "provenance.json"

    def check_free(self) -> None:
        """Raise `UserError` where there is a run, or a file that a run would write over."""
        ours = (self.last, self.best, self.config, self.metrics, self.images, self.provenance)
        there = next((each for each in ours if each.exists()), None)
        if there is not None:
            way = f"go on with it by resume={self.path}" if self.last.exists() else "move it away"
            what = f"{self.path} holds {there.relative_to(self.path)} already, nothing was changed"
            raise UserError(f"{what}; {way}, or give another hydra.run.dir or hydra.sweep.dir")

    def check_links(self) -> None:
        """Raise `UserError` where a link would lead what is written here elsewhere."""
        for each in (self.images, self.config.parent, self.last.parent, self.path / "train.log"):
            if each.is_symlink():
                raise UserError(f"{each} is a link, and is not written to; put a copy in its place")

    def save(self, state: State, best: bool) -> None:
        """Write last.pt, before it best.pt where the state is the best so far, then the views."""
        if self.writes:
            save_checkpoint([self.best] * best + [self.last], state)
            self.write_views(state)

    def write_views(self, state: State) -> None:
        """Write metrics.csv and config.yaml as a checkpoint has them."""
        if self.writes:
            remove_temporary(self.path)
            # The row of step 0 lacks the columns of training.
            columns = dict.fromkeys(name for each in reversed(state["rows"]) for name in each)
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, [*columns], lineterminator="\n")
            writer.writeheader()
            writer.writerows(state["rows"])
            write_atomically(self.metrics, text.getvalue().encode())
            write_atomically(self.config, state["configuration"].encode())

    def write(self, name: str, content: bytes) -> None:
        """Write another file of the run."""
        if self.writes:
            write_atomically(self.path / name, content)

    @contextmanager
    def owned(self, patience: float = 0.0) -> Iterator[None]:
        """Own the directory, and let all that is logged go to its train.log as well.

        `Taken` where another process still owns it after `patience` seconds. Lines wait for the
        `log`, until its capacity is 0: a start that is refused writes none.
        """
        self.check_links()
        logging.raiseExceptions = False  # a full disk costs lines of the log alone
        file = logging.FileHandler(self.path / "train.log", delay=True)  # made by its first line
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.log = MemoryHandler(10**6, target=file, flushOnClose=False)
        place = self.path / ".lock"
        lock = FileLock(place, fallback_to_soft=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=patience)
            place.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
        except Timeout:
            who = read_text(place, 1000) or "another process"
            what = f"{self.path} is being trained by {who}; nothing was changed"
            raise Taken(f"{what}; wait for its end, stop it, or give another directory") from None
        try:
            logging.getLogger().addHandler(self.log)
            yield
        finally:
            logging.getLogger().removeHandler(self.log)
            self.log.close()
            file.close()
            if os.listdir(self.path) == [place.name]:  # a start that came to nothing
                place.unlink()
            lock.release()
            remove_empty(self.path)


def now() -> str:
    """Return the time, as ISO 8601 with the offset of the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def remove_empty(directory: Path) -> None:
    """Remove a directory that holds nothing, and those above it, up to the working directory."""
    with suppress(OSError):  # of one that holds something
        while Path.cwd() in directory.parents:
            if directory.exists():
                directory.rmdir()
            directory = directory.parent


def parse_yaml(text: str, path: Path) -> DictConfig:
    """Return the configuration that a text is, which came from a file, or from a checkpoint."""
    with explained(f"{path} is damaged", "put back a good copy"):
        depth = 0
        for each in yaml.parse(text, yaml.SafeLoader):
            starts = isinstance(each, yaml.CollectionStartEvent)
            depth += starts - isinstance(each, yaml.CollectionEndEvent)
            if isinstance(each, yaml.AliasEvent) or depth > DEPTH:  # aliases could multiply
                raise ValueError("it has aliases, or is nested deeper than any file of ours")
        found = OmegaConf.create(text)
        if not isinstance(found, DictConfig) or not found:
            raise ValueError("it has no keys and values")
        return found


def with_data_here(config: DictConfig) -> DictConfig:
    """Return a saved configuration; NWS_DATA_ROOT replaces a data.root that is no folder here."""
    here, root = os.environ.get("NWS_DATA_ROOT"), config.data.get("root")
    if here and root and not os.path.isdir(root):
        what = f"data.root={root} is no folder, so NWS_DATA_ROOT={here} is taken"
        logging.getLogger(__name__).warning(what)
        config.data.root = here
    return config


def open_run(path: str | Path) -> tuple[RunDirectory, DictConfig]:
    """Return an existing run and its configuration; of `pretrained/NAME` a copy, made here."""
    place = Path(os.path.abspath(os.path.expanduser(path)))
    if place.parent.name == PRETRAINED.name and not place.exists():
        names = sorted(each.name for each in PRETRAINED.iterdir() if each.is_dir())
        if place.name not in names:
            there = ", ".join(f"pretrained/{name}" for name in names)
            raise UserError(f"{place} does not exist; the machines that come with nws are {there}")
        check_folder(place)
        shutil.copytree(PRETRAINED / place.name, place, dirs_exist_ok=True)
    run = RunDirectory(Path(os.path.realpath(place)))
    if not run.path.is_dir():
        what = "is a file" if run.path.exists() else "does not exist"
        raise UserError(f"{run.path} {what}; a run prints its directory at start and end")
    run.check_links()
    if run.config.exists():
        return run, parse_yaml(read_text(run.config, YAML_LIMIT), run.config)
    checkpoint = next((each for each in (run.last, run.best) if each.exists()), None)
    if checkpoint is None:
        raise UserError(f"{run.path} is not a run directory: it has no checkpoints/last.pt")
    return run, parse_yaml(load_checkpoint(checkpoint)["configuration"], checkpoint)


def is_run(path: Path) -> bool:
    """Return whether a directory holds a run."""
    run = RunDirectory(path)
    return any(each.is_file() for each in (run.config, run.last, run.best))


def find_runs(folder: str | Path) -> list[Path]:
    """Return the run at a path, or all runs below it, 2 before 10; `UserError` for none."""
    top = Path(os.path.realpath(os.path.expanduser(folder)))
    if is_run(top) or not top.is_dir():
        return [open_run(top)[0].path]
    runs = []
    for here, below, _ in os.walk(top):
        if is_run(Path(here)):
            runs.append(Path(here))
            below.clear()
        below.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    if not runs:
        raise UserError(f"{top} is not a run directory, and no run is below it")
    return runs


def read_sweep(directory: Path) -> dict[str, list[str]]:
    """Return what the sweep.yaml of a directory says, {} without: overrides and command."""
    path, keys = directory / SWEEP, ("overrides", "command")
    found = parse_yaml(read_text(path, YAML_LIMIT), path) if path.exists() else {}
    own = keys if all(OmegaConf.is_list(found.get(key)) for key in keys) else ()  # else W&B's
    return {key: [str(each) for each in found[key]] for key in own}
