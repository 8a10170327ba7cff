"""The runs of a comparison: the search for rate and damping, then the seeds, each run kept."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import mean

from nws.errors import UserError
from nws.files import write_atomically
from supervised.methods import METHODS, Run, Settings, train
from supervised.tasks import Task

SEARCH_SEEDS = (100, 101, 102)  # no seeds of the results
AVERAGED = 3  # last epochs whose mean decides
COARSE, FINE, DAMPING = 2.0, math.sqrt(2), 3.0  # factors of the rate, and of the damping

Get = Callable[[Settings], Run]
Search = Callable[[Get, str], tuple[Settings, list[Run]]]


def kept_run(task: Task, folder: Path, settings: Settings) -> Run:
    """The run of some settings, from its file in a folder; if there is none, it is made.

    Raises:
        UserError: Where the file is damaged.
    """
    path = folder / f"{settings.name}.json"
    if path.is_file():
        try:
            kept: Run = json.loads(path.read_text())
            if (kept["settings"], kept["epochs"]) == (asdict(settings), task.epochs):
                score(kept)
                return kept
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{path} is no kept run ({type(error).__name__}: {error}); move it away, and the"
                " run is made again"
            ) from error
    run = train(task, settings)
    write_atomically(path, (json.dumps(run, indent=1) + "\n").encode())
    seconds = run["rows"][-1]["seconds"]
    print(f"{settings.name}: {score(run):.4f} ({seconds:.1f} CPU s)", file=sys.stderr, flush=True)
    return run


def score(run: Run) -> float:
    """What a search lowers: the validation error, or loss, of the last epochs; inf if it diverged.

    A run has diverged too where its loss ends above that of the untrained network. Equal errors are
    told apart by a thousandth of the loss.
    """
    rows = run["rows"]
    last = rows[1:][-AVERAGED:]
    if rows[-1]["epoch"] < run["epochs"] or not last[-1]["valid_loss"] <= rows[0]["valid_loss"]:
        return math.inf
    losses = sum(row["valid_loss"] for row in last) / len(last)
    if "valid_error" not in last[0]:
        return losses
    return sum(row["valid_error"] for row in last) / len(last) + 1e-3 * losses


def search(
    get: Get, method: str, limit: int = 40, seeds: int = len(SEARCH_SEEDS),
    start: tuple[float, float] | None = None,
) -> tuple[Settings, list[Run]]:  # fmt: skip
    """The best rate and damping of a method, by steps to better neighbours.

    A neighbour has twice or half the rate, or three times or a third of the damping. At the end the
    rate is tried at factors of sqrt(2). So the best settings are at no edge of what was tried,
    unless `limit` ends the search, which is said. They are best in the mean of three seeds. A
    neighbour is left as soon as its mean is no better. If the start diverges, the rate falls and
    the damping rises until a run comes to its end.

    Args:
        get: Makes the run of some settings.
        method: A key of `METHODS`.
        limit: Settings, at most.
        seeds: Of each setting, at most three.
        start: The first rate and damping of a method with damping, for those of `METHODS`.

    Returns:
        The best settings, and all runs that were looked at.
    """
    made: list[Run] = []

    def measure(settings: Settings, bound: float) -> float:
        scores: list[float] = []
        for seed in SEARCH_SEEDS[:seeds]:
            made.append(get(replace(settings, seed=seed)))
            scores.append(score(made[-1]))
            if not mean(scores) < bound:
                break
        return mean(scores)

    lr, damping = METHODS[method].lr, METHODS[method].damping
    if damping is not None and start is not None:
        lr, damping = start
    best = Settings(method, lr, damping, SEARCH_SEEDS[0])
    tried, lowest, fine = {best}, measure(best, math.inf), False
    while math.isinf(lowest) and len(tried) < limit:
        best = _scaled(best, 1 / COARSE, DAMPING)
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
    else:
        print(f"{method}: the search ended at {limit} settings, maybe at an edge", file=sys.stderr)
    return best, made


def _scaled(at: Settings, rate: float, damping: float = 1.0) -> Settings:
    lr = float(f"{at.lr * rate:.4g}")
    if at.damping is None:
        return replace(at, lr=lr)
    return replace(at, lr=lr, damping=float(f"{at.damping * damping:.4g}"))


def _neighbours(at: Settings, fine: bool) -> Iterator[Settings]:
    factor = FINE if fine else COARSE
    yield from (_scaled(at, factor), _scaled(at, 1 / factor))
    if at.damping is not None and not fine:
        yield from (_scaled(at, 1, DAMPING), _scaled(at, 1, 1 / DAMPING))


def compare(
    task: Task, folder: Path, methods: list[str], seeds: int, look: Search
) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """The runs of each method at its best settings, one for each seed; and those of its search."""
    get = partial(kept_run, task, folder)
    results, searches = {}, {}
    for method in methods:
        best, searches[method] = look(get, method)
        results[method] = [get(replace(best, seed=seed)) for seed in range(seeds)]
    return results, searches
