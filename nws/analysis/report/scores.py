"""By which number the methods of a report are compared, and how sure the difference of two is.

A method is the runs that differ in the seed alone. Units: nats per image.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

from nws.analysis.evaluation import EARLY, Row, read_rows
from nws.analysis.runs import ERROR, LOG_LIKELIHOOD, Run

LEVEL = 0.05  # chance of one false claim among all comparisons of a verdict
#: what makes two rows of evaluation.json comparable
REQUEST = ("split", "samples", "data_points", "checkpoint", "weights", "seed")


@dataclass(frozen=True)
class Score:
    """The log-likelihoods of a method: one for each of its runs."""

    method: str
    values: tuple[float, ...]  # nats per image
    errors: tuple[float, ...]  # standard errors over the images; nan where one image has none

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return float(np.mean(self.values))

    @property
    def over_seeds(self) -> bool:
        """Whether `error` is that over seeds."""
        return len(self.values) > 1

    @property
    def variance(self) -> float:
        """The square of the standard error of the mean over seeds."""
        return float(np.var(self.values, ddof=1)) / len(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean over seeds; of one run that over the images."""
        return math.sqrt(self.variance) if self.over_seeds else self.over_images

    @property
    def over_images(self) -> float:
        """The standard error over the images. They are the same for all runs, so it stays."""
        return float(np.mean(self.errors))


@dataclass(frozen=True)
class Difference:
    """How far one method is above another, and the chance of such a distance by noise alone."""

    value: float  # nats
    error: float  # its standard error
    p: float  # two-sided
    over_seeds: bool  # Welch's t-test over the seeds of both; else by the errors over images


def difference(one: Score, other: Score) -> Difference:
    r"""Compare two methods.

    With several seeds of both it is Welch's test: $t = (a - b) / \sqrt{s_a^2 / n_a + s_b^2 / n_b}$.
    With one seed the standard errors over images add up. They share their images, so the true
    error of the difference is smaller, and this test is careful.

    Source: B. L. Welch 1947, Biometrika 34, with the degrees of freedom of his equation 28.

    Example:
        >>> found = difference(Score("a", (1.0, 1.2), (9, 9)), Score("b", (0.0, 0.2), (9, 9)))
        >>> print(f"{found.value:.2f} ± {found.error:.2f}, p = {found.p:.3f}")
        1.00 ± 0.14, p = 0.019
    """
    value = one.mean - other.mean
    over_seeds = one.over_seeds and other.over_seeds
    if not over_seeds:
        error = math.hypot(one.over_images, other.over_images)
        return Difference(value, error, _two_sided(value, error, None), False)
    parts = [(each.variance, len(each.values) - 1) for each in (one, other)]
    total = sum(variance for variance, _ in parts)
    weights = sum(variance**2 / freedom for variance, freedom in parts)
    freedom = total**2 / weights if weights else math.inf
    return Difference(value, math.sqrt(total), _two_sided(value, math.sqrt(total), freedom), True)


def _two_sided(value: float, error: float, freedom: float | None) -> float:
    if error == 0:
        return float(value == 0)
    ratio = abs(value / error)
    return float(2 * (norm.sf(ratio) if freedom is None else t.sf(ratio, freedom)))


# --- which number ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number that all methods have, and what it is in words."""

    words: str
    scores: list[Score]


def measure(groups: dict[str, list[Run]]) -> Measure | None:
    """Find what compares all groups: rows of evaluation.json of one request, or metrics.csv.

    None where a group has no number, or the runs were validated in different ways.
    """
    rows = {run.path: dict(requests(run)) for runs in groups.values() for run in runs}
    if common := set.intersection(*map(set, rows.values())):
        request = max(common, key=_worth)
        found = {name: [rows[run.path][request] for run in runs] for name, runs in groups.items()}
        scores = [_evaluated(name, each) for name, each in found.items()]
        return Measure(request_words(request), scores)
    return _validation(groups)


def _validation(groups: dict[str, list[Run]]) -> Measure | None:
    """The best rows of metrics.csv, where all were evaluated in the same way."""
    keys = [f"trainer.evaluation_{name}" for name in ("samples", "points")]
    every = [run for runs in groups.values() for run in runs]
    ways = {tuple(run.config.get(key) for key in keys) for run in every}
    if len(ways) > 1 or not all(run.best for run in every):
        return None
    scores = [_validated(name, runs) for name, runs in groups.items()]
    return Measure("on validation images, at the best evaluation", scores)


def _validated(name: str, runs: Sequence[Run]) -> Score:
    errors = tuple(run.best.get(ERROR, math.nan) for run in runs)
    return Score(name, tuple(run.best[LOG_LIKELIHOOD] for run in runs), errors)


def requests(run: Run) -> Iterator[tuple[tuple[object, ...], Row]]:
    """The rows of evaluation.json by their requests, without those of earlier checkpoints."""
    for row in read_rows(run.path):
        full = EARLY | row
        now = (run.best if full["checkpoint"] == "best" else run.last).get("step")
        if full.get("step") in (None, now):
            yield tuple(full.get(name) for name in REQUEST), full


def _evaluated(name: str, rows: Sequence[Row]) -> Score:
    errors = [math.nan if row["standard_error"] is None else row["standard_error"] for row in rows]
    return Score(name, tuple(row["log_likelihood"] for row in rows), tuple(errors))


def _worth(request: tuple[object, ...]) -> tuple[object, ...]:
    """How good a request is to compare by: test images, many of them, many samples."""
    of = dict(zip(REQUEST, request, strict=True))
    best, plain = of["checkpoint"] == "best", of["weights"] == "plain"
    return of["split"] == "test", of["data_points"], of["samples"], best, plain, str(of["seed"])


def request_words(request: Sequence[object]) -> str:
    """A request in words: on 1,000 test images, 500 importance samples."""
    of = dict(zip(REQUEST, request, strict=True))
    split = {"test": "test", "valid": "validation"}.get(str(of["split"]), of["split"])
    words = f"on {of['data_points']:,} {split} images, {of['samples']:,} importance samples"
    words += f", {of['checkpoint']} checkpoint"
    return words + ", averaged weights" * (of["weights"] == "average")
