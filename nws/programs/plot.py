"""Training curves of runs and sweeps: `python scripts/plot_curves.py RUN...`."""

import argparse
import math
from pathlib import Path

from nws.errors import UserError, number
from nws.programs.options import warn


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draw a column of metrics.csv by epochs and by training seconds, side by side: "
        "the mean of each group of runs as a line, the standard deviation over its runs as a band."
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or a folder with runs below it")
    add("--column", default="valid/log_likelihood", help="of metrics.csv (default %(default)s)")
    keys = "runs with the same values of these configuration keys, such as algorithm,lr, make one"
    keys += " line; auto (default): of all keys in which they differ, but for the seed; run: each"
    keys += " run by itself; argument: those of one RUN of this command line"
    add("--group", default="auto", metavar="KEY[,KEY]", help=keys)
    written = "the PNG or SVG file to write (default: both, curves_COLUMN.png and .svg)"
    add("--output", type=Path, help=written)
    called = "what the legend calls a group; once for each, in their order (default: by its keys)"
    add("--label", action="append", default=[], metavar="TEXT", help=called)
    add("--log", action="store_true", help="logarithmic y axis")
    add("--ymin", type=float, help="lower end of the y axis (default: as the curves need)")
    add("--ymax", type=float, help="upper end of the y axis (default: as the curves need)")
    given = parser.parse_args()
    ends = [each for each in (given.ymin, given.ymax) if each is not None]
    for end in ends:
        number("--ymin or --ymax", end, above=0 if given.log else -math.inf)
    if ends != sorted({*ends}):
        raise UserError(f"--ymin must be below --ymax, got {given.ymin:g} and {given.ymax:g}")
    return given


def run() -> None:
    given = read_arguments()
    from nws.analysis.curves import curve, group_runs, with_column
    from nws.analysis.figures import draw, figure_paths, labels, save
    from nws.analysis.keys import but_seed, differing_keys
    from nws.analysis.runs import read_runs

    column: str = given.column
    paths = figure_paths(given.output, f"curves_{column.replace('/', '_')}")
    every, wrong = read_runs(given.runs)
    runs = with_column(every, column)
    groups, names = group_runs(runs, given.group), given.label
    if names:
        if len(names) != len(groups) or len(set(names)) != len(groups) or "" in names:
            each = f"each of the {len(groups)} groups ({'; '.join(groups)}), each time another text"
            got = "; ".join(map(repr, names))
            raise UserError(f"--label must be given once for {each}, got {got}")
        groups = dict(zip(names, groups.values(), strict=True))
    bands = {name: curve(group, "epoch", column) for name, group in groups.items()}
    if apart := [name for name, band in bands.items() if band.empty]:
        way = "so they have no mean; separate them with --group, or give fewer"
        raise UserError(f"the runs of {', '.join(apart)} share no epochs, {way}")
    for name, group in groups.items():
        short = min(group, key=lambda run: run.last["epoch"])
        if short.last["epoch"] < max(run.last["epoch"] for run in group):
            warn(f"{name} ends at {short.last['epoch']:g}, as {short.path} ({short.state}) does")
        if unlike := but_seed(differing_keys(group)):
            warn(f"{name} is a mean over runs that differ in {', '.join(unlike[:4])}")
    warn(*wrong)
    if len(runs) < len(every):
        warn(f"{len(every) - len(runs)} of {len(every)} runs have no such rows, left out")
    files = draw(groups, column, log=given.log, ymin=given.ymin, ymax=given.ymax)
    for name, text in labels(groups).items():
        end = bands[name].iloc[-1]
        spread = f" ± {end['deviation']:.2g}" if len(groups[name]) > 1 else ""
        print(f"{text}: {end['mean']:.6g}{spread} after {end.name:g} epochs")
    save(files, paths)
