"""Training curves of runs and sweeps: `python scripts/plot_curves.py RUN...`."""

import argparse
import sys
from pathlib import Path

from nws.analysis.curves import Band, by_epochs, differences, group_runs, scale, with_column
from nws.analysis.figures import draw, labels, save
from nws.analysis.runs import Run, read_runs
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.files import check_writable


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Draw a column of metrics.csv by epochs and by training seconds, side by side: "
        "the mean of each group of runs as a line, the standard deviation over its runs as a band."
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or a folder with runs below it")
    add(
        "--column", default="valid/log_likelihood",
        help="of metrics.csv (default valid/log_likelihood)",
    )  # fmt: skip
    add(
        "--group", default="auto", metavar="KEY[,KEY]",
        help="runs with the same values of these configuration keys, such as algorithm,lr, make "
        "one line; argument: those of one RUN of this command line; run: each run by itself; "
        "auto (default): all keys in which the runs differ, but for the seed",
    )  # fmt: skip
    add(
        "--label", action="append", default=[], metavar="TEXT",
        help="what the legend calls a group; once for each, in their order "
        "(default: the values of its keys)",
    )  # fmt: skip
    add(
        "--from", dest="start", type=float, default=0.0, metavar="EPOCH",
        help="leave out what is before",
    )  # fmt: skip
    add("--log", action="store_true", help="logarithmic y axis")
    add("--log-x", action="store_true", help="logarithmic x axes")
    add("--ymin", type=float, help="lower end of the y axis (default: as the curves need)")
    add("--ymax", type=float, help="upper end of the y axis (default: as the curves need)")
    add("--title", help="above the figure (default: none)")
    add(
        "--output", type=Path,
        help="the PNG or SVG file to write (default: both, curves_COLUMN.png and .svg)",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    column: str = arguments.column
    output = arguments.output or Path(f"curves_{column.replace('/', '_')}.png")
    check_writable(output)
    every = read_runs(arguments.runs)
    runs = with_column(every, column, arguments.start)
    groups = relabel(group_runs(runs, arguments.group), arguments.label)
    bands = {name: by_epochs(group, column) for name, group in groups.items()}
    check_common_epochs(bands)
    for name, group in groups.items():
        warn_of_unlike(name, group, arguments.group)
    if len(runs) < len(every):
        warn(f"{len(every) - len(runs)} of {len(every)} runs have no such rows, left out")
    files = draw(
        groups, column, title=arguments.title, log=arguments.log, log_x=arguments.log_x,
        ymin=arguments.ymin, ymax=arguments.ymax,
    )  # fmt: skip
    paths = save(files, output, alone=arguments.output is not None)
    cut = scale(bands, column).cut
    if arguments.log or (arguments.ymin, arguments.ymax) != (None, None):
        cut = {}
    print_ends(groups, bands, cut)
    for path in paths:
        print(path)


def print_ends(groups: dict[str, list[Run]], bands: dict[str, Band], cut: dict[str, float]) -> None:
    """Print where each curve ends, and which leave the figure."""
    for name, text in labels(groups).items():
        band = bands[name]
        spread = f" ± {band.deviation[-1]:.3f}" if len(groups[name]) > 1 else ""
        print(f"{text}: {band.mean[-1]:.3f}{spread} after {band.x[-1]:g} epochs")
    for name, value in cut.items():
        end = f"--y{'min' if value <= bands[name].mean.min() else 'max'}={value:.4f}"
        print(f"cut, for it would flatten the others: {name}, to {value:,.1f}; {end} shows it")


def relabel(groups: dict[str, list[Run]], labels: list[str]) -> dict[str, list[Run]]:
    if not labels:
        return groups
    if len(labels) != len(groups) or len(set(labels)) != len(groups):
        raise UserError(
            f"--label must be given once for each of the {len(groups)} groups "
            f"({'; '.join(groups)}), each time another text, got {'; '.join(labels)}"
        )
    return dict(zip(labels, groups.values(), strict=True))


def check_common_epochs(bands: dict[str, Band]) -> None:
    apart = [name for name, band in bands.items() if not len(band.x)]
    if apart:
        raise UserError(
            f"the runs of {', '.join(apart)} share no epochs, so they have no mean; "
            "separate them with --group, or give fewer"
        )


def warn_of_unlike(name: str, group: list[Run], keys: str) -> None:
    """Warn of a group whose runs differ in more than the seed, or end at different epochs."""
    unlike = differences(group)
    if unlike:
        warn(
            f"{name} is a mean over runs that differ in {', '.join(unlike[:4])}; "
            f"--group auto would separate them"
        )
    ends = sorted({round(float(run.metrics["epoch"].iloc[-1]), 3) for run in group})
    if len(ends) > 1:
        warn(
            f"the runs of {name} end at epochs {ends[0]:g} to {ends[-1]:g}; "
            "its mean ends at the first"
        )


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
