"""The configurations of runs, side by side: `python scripts/diff.py RUN RUN`."""

import argparse

#: what provenance.json says of a run that is shown beside its configuration, where it differs
ORIGIN = ("version", "git", "torch", "device", "host", "layers", "parameters")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The configurations of runs side by side: the keys that differ, then what the "
        "runs were made with, then what came out."
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("others", metavar="RUN", nargs="+", help="one more, or several")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    import pandas as pd

    from nws.analysis.keys import texts
    from nws.analysis.runs import folder_names, frame, read_run
    from nws.analysis.tables import show
    from nws.experiment.config import flatten

    runs = [read_run(path) for path in (given.run, *given.others)]
    config = texts([run.config for run in runs])
    origin = texts([
        flatten({name: run.provenance.get(name) for name in ORIGIN}) for run in runs
    ])  # fmt: skip
    outcome = frame(runs)[["state", "steps", "ms", "best"]].round(3).astype(str).T
    unlike = [each[each.nunique(axis=1) > 1] for each in (config, origin)]
    table = pd.concat([*unlike, outcome]).fillna("-").replace(["", "nan"], "-")
    table.columns = pd.Index(folder_names(runs))
    show(table.reset_index(names=""))
    print(f"{len(config) - len(unlike[0])} of {len(config)} keys of the configuration are the same")
