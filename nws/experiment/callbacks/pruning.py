"""The end of a run that falls behind the others of its sweep."""

import csv
from contextlib import suppress
from pathlib import Path
from statistics import median

from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError, positive_int
from nws.experiment.callbacks.callback import Callback, Row, Trainer
from nws.experiment.resume import check_same
from nws.experiment.run import open_run
from nws.files import read_text

#: What valid/log_likelihood is measured on: runs alike in it can be compared.
IMAGES = ("data", "trainer.evaluation_points", "trainer.evaluation_samples")


class Pruning(Callback):
    """Ends a job of a sweep whose best valid/log_likelihood is below the median of the others'.

    Each of the others counts with its best up to the same epoch, once it has come so far. The
    median rule of Golovin et al. 2017 (Google Vizier, section 3.2.2) takes running means.

    Args:
        evaluations: Those of a run before it may end; null for no such end.
        runs: Others that have come as far, at least.
    """

    def __init__(self, evaluations: int | None = None, runs: int = 4) -> None:
        name = "callbacks.pruning.evaluations"
        self.evaluations = None if evaluations is None else positive_int(name, evaluations)
        self.runs = positive_int("callbacks.pruning.runs", runs)

    def after_row(self, trainer: Trainer, row: Row) -> None:
        """Compare with the others' metrics.csv; of several processes the first one decides."""
        waits = self.evaluations is None or len(trainer.rows) <= self.evaluations
        if waits or not trainer.group or not trainer.run.writes:
            return
        files = set(trainer.run.path.parent.glob("*/metrics.csv")) - {trainer.run.metrics}
        own = OmegaConf.create(trainer.config)
        found = [best_until(path, trainer.epoch, own) for path in files]
        others = [best for best in found if best is not None]
        best = max(trainer.best, row["valid/log_likelihood"])
        if len(others) >= self.runs and best < median(others):
            where = f"{len(others)} other runs of the sweep at epoch {trainer.epoch:g}"
            way = "go on with callbacks.pruning.evaluations=null"
            middle = f"the median of {where}, {median(others):.3f}"
            self.ends = f"{best:.3f} nats are below {middle}; {way}"


def best_until(path: Path, epoch: float, own: DictConfig) -> float | None:
    """Return the best of another run up to an epoch; None before it, or of other images."""
    rows: list[tuple[float, float]] = []
    with suppress(UserError, KeyError, TypeError, ValueError):  # of a file that is damaged
        check_same(own, open_run(path.parent)[1], path, "has another {key}", IMAGES)
        for row in csv.DictReader(read_text(path).splitlines()):
            rows.append((float(row["epoch"]), float(row["valid/log_likelihood"])))
    seen = [value for place, value in rows if 0 < place <= epoch]
    return max(seen) if seen and rows[-1][0] >= epoch else None
