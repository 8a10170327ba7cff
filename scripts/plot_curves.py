"""Training curves of runs and sweeps, by epochs and by training seconds: `python scripts/plot_curves.py RUN...`."""

import argparse
import sys
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from nws.analysis.curves import (
    by_epochs,
    count,
    differences,
    draw,
    group_runs,
    read_runs,
    save,
    with_column,
)
from nws.errors import UserError


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw a column of metrics.csv by epochs and by training seconds, side by side: the mean of each group "
        "of runs as a line, the standard deviation over its runs as a band."
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run directory, or one with runs below it (a sweep)",
    )
    parser.add_argument(
        "--column",
        default="valid/log_likelihood",
        help="of metrics.csv (default valid/log_likelihood)",
    )
    parser.add_argument(
        "--group", default="algorithm.name", metavar="KEY[,KEY]",
        help="runs with the same values of these configuration keys make one group (default algorithm.name); "
        "argument: those of one RUN of this command line",
    )  # fmt: skip
    parser.add_argument(
        "--label", action="append", default=[], metavar="TEXT",
        help="what the legend calls a group; once for each, in their order (default: the values of its keys)",
    )  # fmt: skip
    parser.add_argument(
        "--from",
        dest="start",
        type=float,
        default=0.0,
        metavar="EPOCH",
        help="leave out what is before",
    )
    parser.add_argument("--log", action="store_true", help="logarithmic y axis")
    parser.add_argument("--log-x", action="store_true", help="logarithmic x axes")
    parser.add_argument(
        "--ymin", type=float, help="lower end of the y axis (default: as the curves need)"
    )
    parser.add_argument(
        "--ymax", type=float, help="upper end of the y axis (default: as the curves need)"
    )
    parser.add_argument("--title", help="above the figure (default: none)")
    parser.add_argument(
        "--output",
        type=Path,
        help="PNG file; an SVG file goes beside it (default: curves_COLUMN.png)",
    )
    arguments = parser.parse_args()
    every = read_runs(arguments.runs)
    runs = with_column(every, arguments.column, arguments.start)
    groups = group_runs(runs, arguments.group.split(","))
    if arguments.label:
        if len(arguments.label) != len(groups) or len(set(arguments.label)) != len(groups):
            raise UserError(
                f"--label must be given once for each of the {len(groups)} groups ({'; '.join(groups)}), each another, "
                f"got {'; '.join(arguments.label)}"
            )
        groups = dict(zip(arguments.label, groups.values(), strict=True))
    bands = {name: by_epochs(group, arguments.column) for name, group in groups.items()}
    apart = [name for name, band in bands.items() if not len(band.x)]
    if apart:
        raise UserError(
            f"the runs of {', '.join(apart)} share no epochs, so they have no mean; tell them apart with --group, or give fewer"
        )
    for name, group in groups.items():
        unlike = differences(group)
        if unlike:
            hint = f"--group {','.join([arguments.group, *unlike[:2]])} would tell them apart"
            print(
                f"warning: {name} is a mean over runs that differ in {', '.join(unlike[:4])}; {hint}",
                file=sys.stderr,
            )
        ends = sorted({round(float(run.columns["epoch"][-1]), 3) for run in group})
        if len(ends) > 1:
            print(
                f"warning: the runs of {name} end at epochs {ends[0]:g} to {ends[-1]:g}; its mean ends at the first",
                file=sys.stderr,
            )
    if len(runs) < len(every):
        print(
            f"warning: {len(every) - len(runs)} of {len(every)} runs have no such rows, left out",
            file=sys.stderr,
        )
    files = draw(
        groups, arguments.column, title=arguments.title, log=arguments.log, log_x=arguments.log_x,
        ymin=arguments.ymin, ymax=arguments.ymax,
    )  # fmt: skip
    paths = save(
        files, arguments.output or Path(f"curves_{arguments.column.replace('/', '_')}.png")
    )
    for name, group in groups.items():
        band = bands[name]
        spread = f" ± {band.deviation[-1]:.3f}" if len(group) > 1 else ""
        print(f"{name} ({count(group)}): {band.mean[-1]:.3f}{spread} after {band.x[-1]:g} epochs")
    for path in paths:
        print(path)


if __name__ == "__main__":
    try:
        main()
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
