"""Natural metrics beside the optimizers of today: `python examples/rivals.py digits`.

Every method has the same search with seed 0. It tries seven rates, each 1.5 times the last, and
more until both neighbours of the best are worse. One other choice of its options gets the same,
from the best rate on. Three seeds of the better choice follow, and last of all the test images.
It is a loop over the programs. Interrupted, the same command goes on.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nws.analysis.evaluation import read_rows
from nws.analysis.runs import LOG_LIKELIHOOD, Run, read_runs
from nws.analysis.tables import show
from nws.errors import UserError, positive_int
from nws.experiment.boundary import errors_for_people
from nws.files import check_folder, write_atomically

RATIO = 1.5  # of neighbouring rates
MOMENTS = (0.1, 0.2, 0.5, 1)  # shares of a run that the table shows
AVERAGE = "average/log_likelihood"


@dataclass(frozen=True)
class Method:
    """What is compared, as options of train.py."""

    options: str
    rate: float  # a guess, of one epoch of Fashion-MNIST at batch 32
    other: str  # another choice of what it has beside its rate
    factor: float = 1.0  # on the rate of the other choice


NATURAL = "algorithm=nrws algorithm.dreams=3 natural_metric="
DAMPING = "damping.value={damping}"
ADAPTIVE = "adaptive scheduler.lr_lambda.warmup_steps=20"  # as all have; its presets have five
PLAIN = "algorithm=rws algorithm.dreams=3 optimizer="
METHODS = {
    "RWS, SGD": Method(PLAIN + "sgd", 0.2, "+optimizer.momentum=0.9 +optimizer.nesterov=true", 0.1),
    "RWS, Adam": Method(PLAIN + "adam", 0.022, "optimizer.betas=[0.95,0.95]"),
    "RWS, schedule-free Adam": Method(
        PLAIN + "schedule_free scheduler=constant", 0.075, "optimizer.betas=[0.95,0.99]"
    ),
    "RWS, Muon": Method(PLAIN + "muon", 0.03, "optimizer.momentum=0.9"),
    "RWS, SOAP": Method(PLAIN + "soap", 0.033, "optimizer.betas=[0.9,0.99]"),
    "NRWS, exact": Method(NATURAL + "fisher metric.max_rows=320", 0.3, DAMPING),
    "NRWS, Kronecker": Method(NATURAL + "kronecker", 0.3, DAMPING),
    "NRWS, adaptive": Method(NATURAL + ADAPTIVE, 0.1, "metric.measured=1", 1 / 3),
}


@dataclass(frozen=True)
class Setting:
    """Where methods are compared."""

    options: str
    epochs: float
    memory: int  # of the average of the weights, in steps
    scale: float  # of the guesses
    damping: float  # the other choice of it
    test: str = "--samples 200 --data-points 1000"  # options of evaluate.py


FASHION = "experiment=fashion_mnist trainer.evaluation_points=500 trainer.batch_size="
DIGITS = "experiment=digits scheduler=linear_warmup"
BINARISED = "trainer.evaluation_points=500 experiment=benchmark/"
ALL = "--samples 100"  # binarised MNIST is in the order of its digits
SETTINGS = {
    "digits": Setting(DIGITS, 100, 30, 1, 0.1),
    "fashion_mnist_32": Setting(FASHION + "32", 1, 100, 1, 0.05),
    "fashion_mnist_128": Setting(FASHION + "128", 1, 30, 3, 0.05),
    "fashion_mnist_512": Setting(FASHION + "512", 1, 12, 4, 0.1),
    "fashion_mnist_32_five": Setting(FASHION + "32", 5, 100, 0.5, 0.05),
    "fashion_mnist_128_five": Setting(FASHION + "128", 5, 30, 1.5, 0.05),
    "fashion_mnist_512_five": Setting(FASHION + "512", 5, 12, 4, 0.1),
    "sbn": Setting(BINARISED + "sbn", 3, 30, 1.5, 0.025, ALL),
    "bihm": Setting(BINARISED + "bihm", 3, 30, 1.5, 0.025, ALL),
}


def rate_of(guess: float, place: int) -> float:
    """The rate so many steps of the ratio above a guess, with two digits."""
    return float(f"{guess * RATIO**place:.2g}")


def missing(found: dict[int, float]) -> list[int]:
    """The places next to the best of those tried that were not tried: none once it is bracketed."""
    best = max(found, key=lambda place: found[place])
    return [place for place in (best - 1, best + 1) if place not in found]


def search(attempt: Callable[[list[int]], Iterable[float]], places: list[int]) -> tuple[int, float]:
    """The best place and its value; `attempt` gives the value of each of some places."""
    found: dict[int, float] = {}
    while places:
        found |= dict(zip(places, attempt(places), strict=True))
        places = missing(found) if max(found.values()) > -math.inf else []
    best = max(found, key=lambda place: found[place])
    return best, found[best]


class Comparison:
    """The runs of one method in one setting, below a folder."""

    def __init__(self, folder: Path, setting: Setting, method: Method, more: list[str]) -> None:
        self.folder, self.setting, self.method, self.more = folder, setting, method, more
        self.guess = method.rate * setting.scale
        self.other = method.other.format(damping=setting.damping)

    def program(self, *arguments: str) -> int:
        """Start a program of nws, on one thread, with its output in a file; its status.

        Raises:
            UserError: It failed or was stopped. A sweep with a run that diverged has status 1.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        one = os.environ | {"OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("a") as log:
            command = [sys.executable, "-m", "nws", *arguments]
            code = subprocess.run(command, env=one, stdout=log, stderr=log).returncode
        if code not in ((0, 1) if arguments[0] == "train" else (0,)):
            place = self.folder / "log"
            raise UserError(f"{arguments[0]} ended with status {code}; {place} says why")
        return code

    def train(self, name: str, options: str, evaluations: int) -> list[Run]:
        """The runs of a sweep, those that diverged too."""
        folder = (self.folder / name).absolute()
        every = f"trainer.evaluate_every={self.setting.epochs / evaluations}"
        code = self.program(
            "train", "-m", *self.setting.options.split(), *self.method.options.split(),
            f"trainer.epochs={self.setting.epochs}", every, "logger=none", "progress=false",
            "callbacks.images.every=null", "resume=auto", f"hydra.sweep.dir={folder}",
            *options.split(), *self.more,
        )  # fmt: skip
        begun = any(folder.glob("*/metrics.csv"))
        runs, wrong = read_runs([folder]) if begun else ([], [])
        states = {*(run.state for run in runs), *wrong}
        if not runs or states - {"finished", "diverged"} or (code and "diverged" not in states):
            why = f"{self.folder / 'log'} says why, and the same command goes on"
            raise UserError(f"not all runs of {folder} came to an end; {why}")
        return runs

    def attempt(self, options: str, guess: float, places: list[int]) -> list[float]:
        rates = [rate_of(guess, place) for place in places]
        name = "_".join(["search", *options.partition("=")[::2], *map(str, rates)])
        name = re.sub(r"[^\w.]+", "_", name)
        listed = ",".join(map(str, rates))
        runs = self.train(name, f"{options} optimizer.lr={listed}", 1)
        ends = {float(run.config["optimizer.lr"]): end(run) for run in runs}
        return [ends.get(rate, -math.inf) for rate in rates]

    def run(self) -> None:
        """Search, train three seeds, and evaluate them on test images."""
        place, value = search(lambda p: self.attempt("", self.guess, p), [*range(-3, 4)])
        if value == -math.inf:
            raise UserError(f"{self.folder}: all seven rates diverged")
        rate, options = rate_of(self.guess, place), ""
        guess = rate * self.method.factor
        place, other = search(lambda p: self.attempt(self.other, guess, p), [0])
        if other > value:
            rate, options = rate_of(guess, place), self.other
        average = f"average=exponential average.memory={self.setting.memory}"
        self.train("seeds", f"{options} optimizer.lr={rate} seed=0,1,2 {average}", 10)
        test = self.setting.test.split()
        self.program("evaluate", str(self.folder / "seeds"), "--checkpoint", "last", *test)


def compare(parts: list[Comparison], workers: int) -> None:
    """Run comparisons, some at a time; after one that fails or is stopped no other starts."""
    over = threading.Event()

    def run(part: Comparison) -> None:
        if not over.is_set():
            try:
                part.run()
            except UserError:
                over.set()
                raise

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, parts))


def place_of(name: str) -> str:
    """A method's name as that of a folder."""
    return name.lower().replace(",", "").replace(" ", "_")


def end(run: Run) -> float:
    """The last likelihood of a run; minus infinity where it diverged."""
    value = run.last.get(LOG_LIKELIHOOD, math.nan) if run.state == "finished" else math.nan
    return value if math.isfinite(value) else -math.inf


def line(run: Run, method: str) -> dict[str, object]:
    """What a run says at some moments; its test likelihood where it was evaluated."""
    table, epochs = run.metrics, float(run.config["trainer.epochs"])
    found: dict[str, object] = {"method": method, "rate": run.config["optimizer.lr"]}
    key = METHODS[method].other.partition("=")[0].removeprefix("+")
    choice = str(run.config.get(key, 0.0)).replace(" ", "")
    found |= {"choice": f"{key}={choice}", "seed": run.config["seed"], "state": run.state}
    for column, name in ((LOG_LIKELIHOOD, "valid"), (AVERAGE, "average")):
        for share in MOMENTS:
            near = table[(table["epoch"] - share * epochs).abs() < 0.02 * epochs]
            values = near[column] if column in near else near["epoch"].head(0)
            found[f"{name}_{share}"] = round(values.iloc[-1], 2) if len(values) else None
    rows = read_rows(run.path)
    return found | {"test": round(rows[-1]["log_likelihood"], 2) if rows else None}


def report(folder: Path) -> None:
    """Write all runs to a table, and show the means of the seeds."""
    lines = [
        line(run, method)
        for method in METHODS
        if any((folder / place_of(method)).rglob("metrics.csv"))
        for run in read_runs([folder / place_of(method)])[0]
    ]
    table = pd.DataFrame(lines)
    write_atomically(folder / "trials.csv", table.to_csv(index=False).encode())
    seeds = table[table["test"].notna() & (table["state"] == "finished")]
    columns = [f"{name}_{share}" for name in ("valid", "average") for share in MOMENTS] + ["test"]
    groups = seeds.groupby(["method", "rate", "choice"], sort=False)[columns]
    means, deviations = groups.mean(), groups.std()
    text = means.map("{:.1f}".format).assign(seeds=groups.size())
    for column in ("valid_1", "average_1", "test"):
        text[column] += deviations[column].map(" ± {:.1f}".format, na_action="ignore").fillna("")
    show(text.reset_index().astype(str))
    print(folder / "trials.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("what", choices=list(SETTINGS), help="the data, the batch size and the length of a run")
    passed_on = "passed on to the training; before --methods, and part of the folder's name"
    add("overrides", metavar="key=value", nargs="*", help=passed_on)
    add("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    add("--workers", type=int, default=1, help="methods at a time, each on one thread (default 1)")
    add("--output", type=Path, default=Path("rivals"), metavar="DIR", help="default: rivals")
    given = parser.parse_intermixed_args()
    positive_int("--workers", given.workers)
    name = re.sub(r"[^\w.]+", "_", "_".join([given.what, *given.overrides]))
    folder, setting = given.output / name, SETTINGS[given.what]
    for each in given.overrides:
        if each.lstrip("+").startswith(("trainer.epochs=", "optimizer.lr=", "seed=")):
            raise UserError(f"length, rates and seeds belong to the comparison; take away {each}")
    check_folder(folder)
    parts = [
        Comparison(folder / place_of(name), setting, METHODS[name], given.overrides)
        for name in given.methods
    ]
    compare(parts, given.workers)
    report(folder)


if __name__ == "__main__":
    with errors_for_people():
        main()
