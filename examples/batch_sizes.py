"""How far a larger batch helps: steps and images until runs reach a target.

Of the runs of a method and batch size, such as those of several rates, the fastest counts. Up to
its critical batch size a method needs the same number of images; beyond it the same number of
steps (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training").
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from nws.analysis.curves import GRADED, group_runs, with_column
from nws.analysis.figures import DASHES, figure_paths, render, save
from nws.analysis.keys import value_text
from nws.analysis.runs import LOG_LIKELIHOOD, Run, read_runs
from nws.analysis.tables import show
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.programs.options import warn
from nws.style import COLOURS, STYLE


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or a folder with runs below it")
    target = "a value of the column to be reached, as --target=-255; several give a line each"
    add("--target", type=float, action="append", required=True, metavar="NATS", help=target)
    add("--column", default=LOG_LIKELIHOOD, help=f"of metrics.csv (default {LOG_LIKELIHOOD})")
    keys = "configuration keys that name a method (default algorithm.name)"
    add("--group", default="algorithm.name", metavar="KEY[,KEY]", help=keys)
    written = "the PNG or SVG file to write (default: both, batch_sizes.png and .svg)"
    add("--output", type=Path, help=written)
    return parser.parse_args()


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
        warn(f"{run.path} has reached {target:g} before its first evaluation, at step {steps[0]:g}")
    around = slice(max(first - 1, 0), first + 1)  # values before and after the target
    return float(np.interp(target, values[around], steps[around]))


def reach(runs: Sequence[Run], by: str, column: str, targets: Sequence[float]) -> pd.DataFrame:
    """The run of each method and batch size that needs the fewest steps, for each target.

    Args:
        runs: Of several batch sizes, and of several rates for each.
        by: What names a method, as in `group_runs`.
        column: Of metrics.csv; higher is better.
        targets: Values of the column.

    Returns:
        Columns method, target, batch, steps, images, rate (of the fastest run), tried (runs of this
        method and batch size), run (its path). Methods in their order, then targets, then batch
        sizes; without those that never got there.

    Raises:
        UserError: Where less is better in the column, or no run reaches any target.
    """
    if any(not up for word, up in GRADED.items() if word in column):
        raise UserError(f"--column must be one of which more is better, got {column}")
    batch = "trainer.batch_size"
    tried = pd.DataFrame(
        {
            "method": method, "target": target, "batch": int(run.config[batch]),
            "steps": crossing(run, column, target), "rate": run.config.get("optimizer.lr"),
            "run": run.path,
        }
        for method, group in group_runs(runs, by).items()
        for target in targets
        for run in sorted(group, key=lambda run: int(run.config[batch]))
    )  # fmt: skip
    tried["images"] = tried["steps"] * tried["batch"]
    groups = tried.groupby(["method", "target", "batch"], sort=False)
    tried["tried"] = groups["run"].transform("size")
    found = tried.loc[groups["steps"].idxmin()].query("steps < inf").reset_index(drop=True)
    if found.empty:
        raise UserError(f"no run reaches any of {', '.join(f'{t:g}' for t in targets)} in {column}")
    return found


def draw(found: pd.DataFrame) -> dict[str, bytes]:
    """Draw steps and images against the batch size, a line for each method and target."""
    methods, targets = (list(found[name].unique()) for name in ("method", "target"))
    colours = dict(zip(methods, itertools.cycle(COLOURS), strict=False))
    dashes = dict(zip(targets, itertools.cycle(DASHES), strict=False))
    sizes = sorted(found["batch"].unique())
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.8, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for axes, name in ((left, "steps"), (right, "images")):
            for (method, target), rows in found.groupby(["method", "target"], sort=False):
                style = {"color": colours[method], "linestyle": dashes[target], "markersize": 2.5}
                label = f"{method}, {target:g}"
                axes.plot(rows["batch"], rows[name], marker="o", label=label, **style)
            axes.set(xlabel="batch size", ylabel=f"{name} to the target", xscale="log")
            axes.set(yscale="log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axes.minorticks_off()
        lines, labels = left.get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=2, handlelength=2.6)
        return render(figure)


def main() -> None:
    given = read_arguments()
    paths = figure_paths(given.output, "batch_sizes")
    if not all(map(math.isfinite, given.target)):
        raise UserError(f"--target must be a number of nats, got {given.target}")
    every, wrong = read_runs(given.runs)
    warn(*wrong)
    runs = with_column(every, given.column)
    if len(runs) < len(every):
        warn(f"{len(every) - len(runs)} of {len(every)} runs have no such rows, left out")
    found = reach(runs, given.group, given.column, given.target)
    shown = found[["method", "target", "batch", "steps", "images", "rate", "tried"]].assign(
        target=found["target"].map("{:g}".format),
        steps=found["steps"].map("{:.0f}".format),
        images=found["images"].map("{:.0f}".format),
        rate=[value_text("optimizer.lr", rate) for rate in found["rate"]],
    )
    show(shown.rename(columns={"tried": "runs tried"}))
    save(draw(found), paths)


if __name__ == "__main__":
    with errors_for_people():
        main()
