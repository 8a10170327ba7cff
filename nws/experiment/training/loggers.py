"""What a run leaves behind: rows, images, checkpoints, in its directory and through a logger."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from omegaconf import DictConfig, OmegaConf

from nws import distributed
from nws.errors import UserError
from nws.experiment.options.configuration import instantiate, to_dict
from nws.experiment.storage.checkpoints import save_checkpoint
from nws.experiment.storage.directory import RunDirectory, config_texts
from nws.experiment.storage.metrics_file import MetricsFile
from nws.experiment.storage.provenance import Provenance
from nws.experiment.storage.sweep_record import sweep_of
from nws.experiment.training.images import Picture, save_png
from nws.experiment.training.measures import Row

log = logging.getLogger(__name__)

State = Literal["finished", "stopped", "failed", "diverged"]  # how a run ended
WANDB = "nws.experiment.wandb_logger.WandbLogger"


@dataclass(frozen=True)
class RunInfo:
    """What a logger is told of a run."""

    directory: Path
    name: str  # by algorithm, data and what its sweep varies
    config: dict[str, Any]
    run_id: str | None = None  # of the logger's own run that goes on; None for a new one
    step: int = 0  # from which it goes on
    sweep: Path | None = None  # the directory of its sweep, if any

    @property
    def group(self) -> str | None:
        """The name that the jobs of a sweep share."""
        return None if self.sweep is None else "/".join(self.sweep.parts[-2:])


class Logger(Protocol):
    """What shows a run elsewhere: a class that `logger._target_` names.

    Its constructor takes the options of the group, and raises `UserError` before work is spent.
    """

    def start(self, info: RunInfo) -> None:
        """Start to log a run, or go on with it."""

    def write(self, row: Row) -> None:
        """Log a row of metrics.csv."""

    def images(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""

    def finish(self, summary: dict[str, Any], state: State) -> None:
        """Log the run in a few numbers and texts, and its state, and end."""


class Guard:
    """A logger whose failure is a warning; training goes on without it. None logs nothing."""

    def __init__(self, logger: Logger | None) -> None:
        self._logger = logger

    @property
    def id(self) -> str | None:
        """By what the logger goes on with the run, where it has such a thing."""
        return getattr(self._logger, "id", None)

    def start(self, info: RunInfo) -> None:
        """Start to log a run, or go on with it."""
        self._try("start", info)

    def write(self, row: Row) -> None:
        """Log a row of metrics.csv."""
        self._try("write", row)

    def images(self, name: str, path: Path, step: int) -> None:
        """Log an image file under a name."""
        self._try("images", name, path, step)

    def finish(self, summary: dict[str, Any], state: State) -> None:
        """Log the run in a few numbers and texts, and its state, and end."""
        self._try("finish", summary, state)

    def _try(self, method: str, *arguments: Any) -> None:
        try:
            if self._logger is not None:
                getattr(self._logger, method)(*arguments)
        except (Exception, SystemExit) as error:  # wandb.teardown() exits where its service failed
            kind = type(self._logger)
            reason = f"{type(error).__name__}: {error}"
            title = getattr(kind, "title", kind.__name__)
            log.warning(f"{title} failed ({reason}); going on without it")
            self._logger = None


def build_logger(config: DictConfig) -> Guard:
    """Return the logger that the group `logger` names; `UserError` where it cannot be made."""
    options = {"_target_": WANDB} | to_dict(config.logger)  # runs of earlier versions had no other
    target = options["_target_"]
    if not distributed.is_first():  # one of several processes shows the run
        return Guard(None)
    if target is None:
        if len(options) > 1:
            given = ", ".join(sorted(options.keys() - {"_target_"}))
            raise UserError(f"logger=none takes no options, got {given}; choose another logger")
        return Guard(None)
    logger = instantiate(options)
    missing = [name for name in ("start", "write", "images", "finish") if not hasattr(logger, name)]
    if missing:
        needed = "a class with start, write, images and finish"
        raise UserError(f"logger._target_ must be {needed}, {missing[0]} is missing in {target}")
    return Guard(logger)


def run_name(config: DictConfig, varied: Sequence[str]) -> str:
    """Return what loggers call a run: its rule, its data and what its sweep varies.

    Example:
        >>> from omegaconf import OmegaConf
        >>> algorithm, data = {"name": "nrws"}, {"name": "digits"}
        >>> config = OmegaConf.create({"seed": 2, "algorithm": algorithm, "data": data})
        >>> run_name(config, ["algorithm", "seed"])
        'nrws digits seed=2'
    """
    parts = [str(config.algorithm.get("name")), str(config.data.get("name"))]
    for key in varied:
        value = OmegaConf.select(config, key)
        if key in ("algorithm", "data") or value is None:
            continue
        if isinstance(value, DictConfig):  # the choice of a group
            value = str(value.get("_target_") or value.get("name")).rpartition(".")[2]
        text = f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")
        parts.append(f"{key}={text}")
    return " ".join(parts)


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
    """The files of one run, and what its logger shows once `start_logger` was called.

    The configuration, and the `choices` of groups that it came from, are written after each
    checkpoint: config.yaml is always that of last.pt, also after a resume that failed. Checkpoints
    have both, and the rows of metrics.csv, so that a kill between two files loses neither.
    """

    def __init__(self, run: RunDirectory, config: DictConfig, choices: dict[str, str]) -> None:
        self.run, self.config = run, config
        self.metrics = MetricsFile(run.metrics)
        before = run.config.read_text() if run.config.is_file() else ""
        self._configuration = config_texts(config, choices) | {"before": before}
        self.logger = build_logger(config)
        self.wandb_id: str | None = None  # by which W&B goes on with the run
        self.provenance: Provenance | None = None

    def note(self, facts: dict[str, Any]) -> None:
        """Take facts into provenance.json, once the run has one."""
        if self.provenance is not None:
            self.provenance.update(**facts)

    def start_logger(self, step: int = 0, wandb_id: str | None = None) -> Guard:
        """Start to log, from a step of the run on; `wandb_id` names a W&B run to go on with."""
        sweep, varied = sweep_of(self.run.path)
        name, config = run_name(self.config, varied), to_dict(self.config)
        self.logger.start(RunInfo(self.run.path, name, config, wandb_id, step, sweep))
        self.wandb_id = self.logger.id or wandb_id
        return self.logger

    def row(self, row: Row) -> list[str]:
        """Write one row of metrics.csv. Return it for people, in parts, what matters most first."""
        self.metrics.write(row)
        self.logger.write(row)
        parts = row_parts(row)
        log.info("  ".join(parts))
        return parts

    def images(self, pictures: dict[str, Picture], step: int, row: Row | None = None) -> None:
        """Write pictures by their names, with captions; `row` is that of the step, if any."""
        likelihood = ""
        if row is not None:
            mean, error = row["valid/log_likelihood"], row["valid/standard_error"]
            likelihood = f", validation log p {mean:.2f} ± {error:.2f} nats"
        for name, picture in pictures.items():
            path = self.run.images / f"{name}_step_{step:07d}.png"
            where = f"{self.run.path.parent.name}/{self.run.path.name}"
            caption = f"{name}, {where}, step {step:,}{likelihood}\n{picture.rows}"
            save_png(picture.grid, path, caption)
            self.logger.images(f"images/{name}", path, step)

    def checkpoint(self, state: dict[str, Any], best: bool) -> None:
        """Write last.pt, and best.pt too where the state is the best so far.

        Of several processes the first one does.
        """
        if not distributed.is_first():
            return
        state |= {"wandb_id": self.wandb_id, "rows": self.metrics.text()}
        state["configuration"] = self._configuration
        for path in [self.run.best] * best + [self.run.last]:
            save_checkpoint(path, state)
        self.run.save_config(self._configuration)
