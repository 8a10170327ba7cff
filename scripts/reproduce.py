"""Train, evaluate and draw a comparison: `python scripts/reproduce.py fashion_mnist`.

It is a loop over the programs. Interrupted, the same command goes on: runs by `resume=auto`,
evaluations by evaluation.json.
"""

import argparse
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from nws.analysis.runs import read_runs
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.experiment.invocation import command_line

#: The sweeps of each preset in conf/experiment: what they are called, and their options.
METHODS = {
    "baseline": "algorithm=rws,bihm",
    "adaptive": "algorithm=nrws,nbihm",
    "kronecker": "algorithm=nrws natural_metric=kronecker",
    "exact": "algorithm=nrws natural_metric=fisher",
}
#: One epoch with one seed, in minutes.
QUICK = (
    "trainer.epochs=1 trainer.batch_size=128 trainer.evaluate_every=0.1 algorithm.dreams=null "
    "trainer.evaluation_points=500"
)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train every method of a preset, evaluate on the test part, draw samples, "
        "curves and report.html in DIR. After an interruption the same command goes on.",
        epilog="example: reproduce.py three_by_three trainer.epochs=5 seed=0,1,2",
    )
    add = parser.add_argument
    add("what", choices=["fashion_mnist", "mnist", "tfd", "three_by_three"], help="the preset")
    passed_on = "passed on to the training, before --methods: data.root=DIR, seed=0,1"
    add("overrides", metavar="key=value", nargs="*", help=passed_on)
    add("--quick", action="store_true", help="one epoch at batch 128, 100 samples, 1,000 images")
    add("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    add("--output", type=Path, metavar="DIR", help="default: reproduce/WHAT[_quick]")
    add("--dry-run", action="store_true", help="print the commands and do nothing")
    return parser.parse_intermixed_args()


def commands(given: argparse.Namespace, folder: Path) -> list[list[str]]:
    """The programs with their arguments, in order."""
    size = QUICK.split() if given.quick else ["seed=0,1,2"]
    common = ["-m", f"experiment={given.what}", "logger=none", "resume=auto", *size]
    runs = folder / "runs"
    evaluation = ["--samples", "100", "--data-points", "1000"] if given.quick else []
    return [
        *(
            ["train", *common, *METHODS[name].split(), *given.overrides,
             f"hydra.sweep.dir='{runs / name}'"]
            for name in given.methods
        ),
        ["evaluate", str(runs), *evaluation],
        *(["sample", str(runs / name / "0"), "--output", str(folder / f"samples_{name}.png")]
          for name in given.methods),
        ["plot", str(runs), "--output", str(folder / "curves.png")],
        ["report", str(runs), "--output", str(folder / "report.html")],
    ]  # fmt: skip


def ended(sweep: Path) -> bool:
    """Whether all runs of a sweep came to an end, if only as they diverged."""
    begun = any(sweep.glob("*/metrics.csv"))
    runs, wrong = read_runs([sweep]) if begun else ([], [])
    ends = ("finished", "pruned", "diverged")
    return begun and not wrong and all(run.state in ends for run in runs)


def start(*words: str) -> int:
    """Start a program of nws and wait for its end; after Ctrl-C it saves first."""
    with subprocess.Popen([sys.executable, "-m", "nws", *words]) as child:
        while True:
            with suppress(KeyboardInterrupt):  # the child got it too
                return child.wait()


def main() -> None:
    given = read_arguments()
    folder = given.output or Path("reproduce") / (given.what + "_quick" * given.quick)
    steps = commands(given, folder.absolute())
    typed = [command_line(*step) for step in steps]
    again = shlex.join(["python", *sys.argv])
    if given.dry_run:
        print(*typed, sep="\n")
        return
    failed = []
    for number, (program, *arguments) in enumerate(steps):
        print(f"[{number + 1}/{len(steps)}] {typed[number]}", flush=True)
        if code := start(program, *arguments):
            failed.append(program)
            over = program == "train" and not ended(folder / "runs" / given.methods[number])
            if code != 1 or over:
                break
    if failed:
        raise UserError(f"{' and '.join(failed)} failed, see above; go on with\n  {again}")
    print(folder)


if __name__ == "__main__":
    with errors_for_people():
        main()
