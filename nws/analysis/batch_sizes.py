"""How far a larger batch helps: steps and images until a run reaches a target.

Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training". Up to its critical
batch size a method needs the same number of images; beyond it the same number of steps.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from nws.analysis.curves import group_runs
from nws.analysis.figures import DASHES, render
from nws.analysis.runs import Run
from nws.errors import UserError
from nws.style import COLOURS, STYLE


class Reached(NamedTuple):
    """Where the best run of a method and batch size first stood at the target."""

    method: str
    target: float
    batch_size: int
    run: Run
    steps: float
    images: float
    tried: int  # runs of this method and batch size


def crossing(run: Run, column: str, target: float) -> float:
    """The step at which a column first reaches a target, between evaluations by a straight line.

    The row of step 0 is left aside.

    Returns:
        A number of steps; infinity for a run that never gets there.
    """
    table = run.metrics.loc[run.metrics["step"] > 0, ["step", column]].dropna()
    steps, values = table["step"].to_numpy(), table[column].to_numpy()
    (above,) = np.nonzero(values >= target)
    if not len(above):
        return float("inf")
    first = int(above[0])
    if first == 0:
        return float(steps[0])
    share = (target - values[first - 1]) / (values[first] - values[first - 1])
    return float(steps[first - 1] + share * (steps[first] - steps[first - 1]))


def reach(runs: Sequence[Run], by: str, column: str, targets: Sequence[float]) -> list[Reached]:
    """The run of each method and batch size that needs the fewest steps, for each target.

    Args:
        runs: Of several batch sizes, and of several rates for each.
        by: What names a method, as in `group_runs`.
        column: Of metrics.csv; higher is better.
        targets: Values of the column.

    Returns:
        Methods in their order, then targets, then batch sizes; without those that never got there.

    Raises:
        UserError: Where a run has no such column, or no run reaches any target.
    """
    for run in runs:
        if column not in run.metrics:
            raise UserError(f"{run.path} has no column {column!r}; there are {list(run.metrics)}")
    found = []
    for method, group in group_runs(runs, by).items():
        by_batch: dict[int, list[Run]] = {}
        for run in group:
            by_batch.setdefault(int(run.config["trainer.batch_size"]), []).append(run)
        for target in targets:
            for batch, tried in sorted(by_batch.items()):
                steps, _, best = min(
                    (crossing(run, column, target), n, run) for n, run in enumerate(tried)
                )
                if np.isfinite(steps):
                    row = Reached(method, target, batch, best, steps, steps * batch, len(tried))
                    found.append(row)
    if not found:
        raise UserError(f"no run reaches any of {', '.join(f'{t:g}' for t in targets)} in {column}")
    return found


def draw(found: Sequence[Reached]) -> dict[str, bytes]:
    """Draw steps and images against the batch size, a line for each method and target."""
    methods = list(dict.fromkeys(each.method for each in found))
    targets = list(dict.fromkeys(each.target for each in found))
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.8, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for axes, name in ((left, "steps"), (right, "images")):
            for method, colour in zip(methods, itertools.cycle(COLOURS), strict=False):
                for target, style in zip(targets, itertools.cycle(DASHES), strict=False):
                    rows = [e for e in found if (e.method, e.target) == (method, target)]
                    x, y = [e.batch_size for e in rows], [getattr(e, name) for e in rows]
                    label = f"{method}, {target:g} nats"
                    line = {"linestyle": style, "color": colour, "label": label}
                    axes.plot(x, y, marker="o", markersize=2.5, **line)
            axes.set(xlabel="batch size", ylabel=f"{name} to the target")
            _powers_of_two(axes, sorted({each.batch_size for each in found}))
        lines, labels = left.get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=2, handlelength=2.6)
        return render(figure)


def _powers_of_two(axes: Axes, sizes: Sequence[int]) -> None:
    """Logarithmic axes, with the batch sizes themselves below."""
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.minorticks_off()
