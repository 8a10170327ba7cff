"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

import argparse
from pathlib import Path

from nws.programs.options import machine_options, open_machine


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Importance-sampled log-likelihoods of runs, in nats per data point; added to "
        "evaluation.json of each. What is there is not computed again.",
        parents=[machine_options()],
    )
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run directory, or one with runs below it")
    several = "importance samples a data point (default 1000); several numbers give a row each"
    add("--samples", type=int, nargs="+", default=[1000], metavar="K", help=several)
    add("--split", choices=["test", "valid"], default="test")
    add("--data-points", type=int, help="only the first so many images (default: all)")
    add("--seed", type=int, default=0, help="of the samples, the same for every run (default 0)")
    dreams = "dreams for log Z and log p* (default 100,000 for bidirectional rules, else 0)"
    add("--z-samples", type=int, help=dreams)
    add("--plot", type=Path, metavar="FILE", help="PNG or SVG: the bound against its samples")
    return parser.parse_args()


def run() -> None:
    given = read_arguments()
    from nws.analysis.likelihoods import evaluate_runs
    from nws.experiment.launch import meet_others

    meet_others()
    evaluate_runs(given, lambda path: open_machine(path, given))
