"""The runs of a comparison: the search for rate and damping, then the seeds, each run kept."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from nws.analysis.supervised.methods import METHODS, Settings, train
from nws.analysis.supervised.tasks import Task
from nws.errors import UserError
from nws.experiment.storage import kinds
from nws.files import write_atomically

SEARCH_SEEDS = (100, 101, 102)  # no seeds of the results
AVERAGED = 3  # last epochs whose mean decides
COARSE, FINE, DAMPING = 2.0, math.sqrt(2), 3.0  # factors of the rate, and of the damping

Run = dict[str, Any]
ROW = ("epoch", "seconds", "valid_loss")  # what each of its rows has


class Runs:
    """Runs of a task, each in a file of its own; a run that is there is not made again.

    Args:
        task: Of all runs.
        folder: For the files.
        say: Takes a line for people about each new run.
    """

    def __init__(self, task: Task, folder: Path, say: Callable[[str], None]) -> None:
        self.task, self.folder, self.say = task, folder, say

    def get(self, settings: Settings) -> Run:
        """The run of some settings, from its file or new."""
        path = self.folder / f"{settings.name}.json"
        if path.is_file():
            kept = _kept(path)
            if kept["epochs"] == self.task.epochs:
                return kept
        run = train(self.task, settings)
        write_atomically(path, (json.dumps(run, indent=1) + "\n").encode())
        self.say(f"{settings.name}: {score(run):.4f} ({run['rows'][-1]['seconds']:.1f} CPU s)")
        return run


def _kept(path: Path) -> Run:
    """Return a run that was made before; `UserError` where its file is damaged."""
    try:
        run: Run = kinds.read_json(path)
        rows = [{"epochs": run["epochs"]}, *run["rows"]]
        if not all(map(kinds.mapping, rows)):
            raise ValueError("its rows should be dictionaries")
        wrong = [kinds.misfit(row, dict.fromkeys(row, kinds.number)) for row in rows]
        names = {frozenset(row) for row in rows[1:]}
        if any(wrong) or len(names) != 1 or not {*ROW} <= next(iter(names)):
            raise ValueError(next(filter(None, wrong), "it lacks rows of epochs"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{path} is no kept run ({reason}); move it away, and the run is made again"
        ) from error
    return run


def score(run: Run) -> float:
    """What a search lowers: the validation error, or loss, of the last epochs; inf if it diverged.

    A run has diverged too where its loss ends above that of the untrained network. Equal errors are
    told apart by a thousandth of the loss.
    """
    rows = run["rows"]
    last = rows[1:][-AVERAGED:]
    if rows[-1]["epoch"] < run["epochs"] or last[-1]["valid_loss"] > rows[0]["valid_loss"]:
        return math.inf
    losses = sum(row["valid_loss"] for row in last) / len(last)
    if "valid_error" not in last[0]:
        return losses
    return sum(row["valid_error"] for row in last) / len(last) + 1e-3 * losses


def search(runs: Runs, method: str, limit: int = 40) -> tuple[Settings, list[Run]]:
    """The best rate and damping of a method, by steps to better neighbours.

    A neighbour has twice or half the rate, or three times or a third of the damping. At the end the
    rate is tried at factors of sqrt(2). So the best settings are at no edge of what was tried. They
    are best in the mean of three seeds. A neighbour that is worse with the first is left there. If
    the start diverges, the rate falls and the damping rises until a run comes to its end.

    Args:
        runs: Of the task.
        method: A key of `METHODS`.
        limit: Settings, at most.

    Returns:
        The best settings, and all runs that were looked at.
    """
    made: list[Run] = []

    def measure(settings: Settings, bound: float) -> float:
        scores: list[float] = []
        for seed in SEARCH_SEEDS:
            made.append(runs.get(replace(settings, seed=seed)))
            scores.append(score(made[-1]))
            if not mean(scores) < bound:
                break
        return mean(scores)

    start = METHODS[method]
    best = Settings(method, start.lr, start.damping, SEARCH_SEEDS[0])
    tried, lowest, fine = {best}, measure(best, math.inf), False
    while math.isinf(lowest) and len(tried) < limit:
        best = _calmer(best)
        tried.add(best)
        lowest = measure(best, math.inf)
    while len(tried) < limit:
        near = next((each for each in _neighbours(best, fine) if each not in tried), None)
        if near is None and fine:
            break
        if near is None:
            fine = True
            continue
        tried.add(near)
        found = measure(near, lowest)
        if found < lowest:
            best, lowest = near, found
    return best, made


def _calmer(at: Settings) -> Settings:
    damping = None if at.damping is None else float(f"{at.damping * DAMPING:.4g}")
    return replace(at, lr=float(f"{at.lr / COARSE:.4g}"), damping=damping)


def _neighbours(at: Settings, fine: bool) -> Iterator[Settings]:
    factors = (FINE, 1 / FINE) if fine else (COARSE, 1 / COARSE)
    for factor in factors:
        yield replace(at, lr=float(f"{at.lr * factor:.4g}"))
    if at.damping is not None and not fine:
        for factor in (DAMPING, 1 / DAMPING):
            yield replace(at, damping=float(f"{at.damping * factor:.4g}"))


def compare(
    runs: Runs, methods: list[str], seeds: int, limit: int
) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """The runs of each method at its best settings, one for each seed; and those of its search."""
    results, searches = {}, {}
    for method in methods:
        best, searches[method] = search(runs, method, limit)
        results[method] = [runs.get(replace(best, seed=seed)) for seed in range(seeds)]
    return results, searches
