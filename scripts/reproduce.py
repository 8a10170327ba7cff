"""Train, evaluate, sample, draw: all methods and seeds of a comparison by one command, `python scripts/reproduce.py WHAT`.

Stopped on the way, the same command goes on: nothing is done twice.
"""

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from nws.analysis.report import Entry, Report, is_finished, machine
from nws.data.image_files import TFD_MD5
from nws.errors import UserError
from nws.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]


class Method(NamedTuple):
    """A method of the comparison: what the figures call it, and its overrides of train.py."""

    title: str
    overrides: tuple[str, ...]
    quick: bool = True  # whether it is in the quick size


class Size(NamedTuple):
    """How much is computed."""

    seeds: str  # as train.py takes them
    overrides: tuple[str, ...]  # of every method
    samples: int  # importance samples a test image
    images: int | None  # the first so many test images; None: all


# --- what is compared ----------------------------------------------------------------------------------------------

ALGORITHMS = {
    "ws": "WS",
    "rws": "RWS",
    "nws": "NWS",
    "nrws": "NRWS",
    "bihm": "BiHM",
    "nbihm": "NBiHM",
}
SGD = ("optimizer=sgd", "optimizer.lr=0.2", "scheduler=linear")


def preset(what: str, algorithm: str) -> tuple[str, ...]:
    """The preset of an algorithm on a data set, in conf/experiment/."""
    return f"experiment={what}", f"algorithm={algorithm}"


def grey(what: str) -> dict[str, Method]:
    """The methods on a set of grey images: RWS with both optimizers, the natural rules, and the plain ones beside them."""
    return {
        "rws_adam": Method("RWS, Adam", preset(what, "rws")),
        "rws_sgd": Method("RWS, SGD", (*preset(what, "rws"), *SGD)),
        "nrws": Method("NRWS", preset(what, "nrws")),
        "bihm": Method("BiHM", preset(what, "bihm")),
        "nbihm": Method("NBiHM", preset(what, "nbihm")),
        "ws": Method("WS", preset(what, "ws"), quick=False),
        "nws": Method("NWS", preset(what, "nws"), quick=False),
    }


METHODS: dict[str, dict[str, Method]] = {
    "three_by_three": {
        name: Method(title, preset("three_by_three", name)) for name, title in ALGORITHMS.items()
    },
    "fashion_mnist": grey("fashion_mnist"),
    "tfd": grey("tfd"),
}

QUICK = (
    "trainer.epochs=1", "trainer.batch_size=128", "trainer.evaluate_every=0.1", "trainer.images_every=1",
    "trainer.evaluation_samples=50", "trainer.evaluation_points=500",
)  # fmt: skip

SIZES = {  # of (what, quick)
    ("three_by_three", False): Size("range(5)", (), 1000, None),
    ("three_by_three", True): Size(
        "range(2)", ("trainer.epochs=20", "trainer.evaluate_every=1"), 1000, None
    ),
    ("fashion_mnist", False): Size("range(5)", (), 1000, None),
    ("fashion_mnist", True): Size("0", QUICK, 100, 1000),
    ("tfd", False): Size("range(5)", (), 1000, None),
    ("tfd", True): Size("0", QUICK, 100, 1000),
}

FIGURES = {  # of each: column of metrics.csv, logarithmic y axis
    "three_by_three": ("exact/kl", True),
    "fashion_mnist": ("valid/log_likelihood", False),
    "tfd": ("valid/log_likelihood", False),
}

TITLES = {"three_by_three": "3x3 images", "fashion_mnist": "Fashion-MNIST", "tfd": "TFD"}

#: of every run: metrics.csv is all that is read here, and a run that is there is not trained again
COMMON = ("logger=none", "resume=auto")


# --- the plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One command. `runs` are the run directories that it works on, one a seed."""

    kind: str  # train, evaluate or sample
    method: str
    command: list[str]
    runs: list[Path]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.method}"


@dataclass
class Plan:
    """What a call of this script asks for."""

    what: str
    quick: bool
    folder: Path
    overrides: list[str]  # the user's
    methods: dict[str, Method]
    size: Size = field(init=False)
    title: str = field(init=False)  # of the data, by its honest name

    def __post_init__(self) -> None:
        self.size, self.title = SIZES[self.what, self.quick], self._title()
        for override in self._parsed():
            key = override.key_or_group
            if key in ("experiment", "resume", "algorithm") or key.startswith("hydra"):
                raise UserError(
                    f"{key} is chosen by this script, got {override.input_line}; leave it out"
                )
            if override.is_sweep_override() and key != "seed":
                raise UserError(
                    f"only seed may take several values, got {override.input_line}; reproduce them one by one, "
                    "each with an --output of its own"
                )

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def slug(self) -> str:
        """What the names of the figures' files begin with."""
        return "stand_in_for_tfd" if "stand-in" in self.title else self.what

    def option(self, key: str, default: str) -> str:
        """The value that the user gave for a key of the configuration."""
        given = [override.value() for override in self._parsed() if override.key_or_group == key]
        return str(given[-1]) if given else default

    def seeds(self) -> list[str]:
        (override,) = _parse(
            [next(text for text in self.training(next(iter(self.methods))) if _key(text) == "seed")]
        )
        return (
            list(override.sweep_string_iterator())
            if override.is_sweep_override()
            else [str(override.value())]
        )

    def training(self, method: str) -> list[str]:
        """The overrides of a method's sweep: of a key given twice the later one counts, the user's last."""
        chosen = self.methods[method]
        texts = [
            *chosen.overrides,
            *COMMON,
            f"seed={self.size.seeds}",
            *self.size.overrides,
            *self.overrides,
        ]
        last = {_key(text): text for text in texts}
        sweep = str(self.runs(method)).replace("'", "\\'")
        return [*last.values(), f"hydra.sweep.dir='{sweep}'"]

    def runs(self, method: str) -> Path:
        return self.folder / "runs" / method

    def steps(self) -> list[Step]:
        """All commands, method by method."""
        steps = []
        device = (
            [f"--device={self.option('device', 'auto')}"]
            if self.option("device", "auto") != "auto"
            else []
        )
        points = [] if self.size.images is None else ["--data-points", str(self.size.images)]
        seeds = range(len(self.seeds()))
        for name in self.methods:
            runs = [self.runs(name) / str(job) for job in seeds]
            train = [str(ROOT / "train.py"), "-m", *self.training(name)]
            evaluate = [str(ROOT / "scripts" / "evaluate.py"), *map(str, runs), "--split", "test"]
            evaluate += ["--samples", str(self.size.samples), *points, *device]
            sample = [
                str(ROOT / "scripts" / "sample.py"),
                str(runs[0]),
                "--count",
                "64",
                "--seed",
                "0",
            ]
            sample += ["--columns", "8", "--output", str(self.grid(name)), *device]
            for kind, command in (("train", train), ("evaluate", evaluate), ("sample", sample)):
                steps.append(
                    Step(
                        kind,
                        name,
                        [sys.executable, *command],
                        runs if kind != "sample" else runs[:1],
                    )
                )
        return steps

    def grid(self, method: str) -> Path:
        return self.figures / f"{self.slug}_samples_{method}.png"

    def report(self, machines: dict[str, list[str]]) -> Report:
        """What is reported, of the methods of other calls for this folder too; `machines` are those of each method."""
        column, log = FIGURES[self.what]
        given = [text for text in self.overrides if _key(text) != "data.root"]
        command = ["python", "scripts/reproduce.py", self.what, *["--quick"] * self.quick, *given]
        jobs = range(len(self.seeds()))
        entries = [
            Entry(
                method.title, [self.runs(name) / str(job) for job in jobs], name in self.methods, self.grid(name),
                machines.get(name, ["unknown"]),
            )
            for name, method in METHODS[self.what].items()
        ]  # fmt: skip
        title = self.title + ", quick size" * self.quick
        return Report(
            title,
            shlex.join(command),
            self.figures,
            self.slug,
            column,
            log,
            self.size.samples,
            self.size.images,
            entries,
        )

    def identity(self) -> dict[str, Any]:
        """What all calls for one folder must agree in."""
        overrides = sorted(self.overrides)
        return {"what": self.what, "quick": self.quick, "overrides": overrides, "data": self.title}

    def _parsed(self) -> list[Any]:
        return _parse(self.overrides)

    def _title(self) -> str:
        """The data's name; for a file that is not the official TFD: that it is none.  Raises `UserError` where it is missing."""
        if self.what != "tfd":
            return TITLES[self.what]
        side = 96 if self.option("data.size", "24") == "96" else 48
        root = Path(self.option("data.root", os.environ.get("NWS_DATA_ROOT", "data"))).expanduser()
        file = root / "TFD" / f"TFD_{side}x{side}.mat"
        try:
            with open(file, "rb") as content:
                md5 = hashlib.file_digest(content, "md5").hexdigest()
        except OSError as error:
            raise UserError(
                f"tfd needs {file.absolute()} ({error.strerror}); point data.root, or the environment variable "
                "NWS_DATA_ROOT, at the folder that has TFD/ (data/README.md says where the file comes from)"
            ) from error
        if side == 96:
            return f"TFD (the 96x96 file, whose md5 is not published; this one's is {md5})"
        return (
            "TFD"
            if md5 == TFD_MD5
            else f"stand-in for TFD (not the Toronto Face Dataset: md5 {md5})"
        )


def _key(text: str) -> str:
    return text.split("=", 1)[0].lstrip("+~")


def _parse(texts: Sequence[str]) -> list[Any]:
    try:
        return list(OverridesParser.create().parse_overrides(list(texts)))
    except HydraException as error:
        raise UserError(
            f"overrides are key=value, as train.py takes them: {str(error).splitlines()[0]}"
        ) from error


# --- carrying it out -----------------------------------------------------------------------------------------------


class Stopped(Exception):
    """A signal came; its number is the argument."""


class State:
    """DIR/reproduce.json: whose folder it is, which steps came to their end, and on which machines they were run."""

    def __init__(self, plan: Plan) -> None:
        """Raises `UserError` where the folder belongs to another plan, or the file is damaged."""
        self.path, self.identity = plan.folder / "reproduce.json", plan.identity()
        self.done: list[str] = []
        self.machines: dict[str, list[str]] = {}
        if not self.path.is_file():
            return
        try:
            saved = json.loads(self.path.read_text())
            self.done, self.machines = saved.pop("done"), saved.pop("machines")
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.path} cannot be read ({error!r}); move {plan.folder} away and start anew"
            ) from error
        if saved != self.identity:
            raise UserError(
                f"{plan.folder} holds what came of other options ({_said(saved)}), these are {_said(self.identity)}; "
                "give the same ones to go on, or another folder (--output DIR)"
            )

    def save(self) -> None:
        content = self.identity | {"done": self.done, "machines": self.machines}
        write_atomically(self.path, json.dumps(content, indent=2).encode())

    def mark(self, name: str, done: bool) -> None:
        self.done = sorted({*self.done, name} if done else {*self.done} - {name})
        self.save()


def _said(identity: dict[str, Any]) -> str:
    parts = [str(identity.get("what")), "--quick" if identity.get("quick") else "full size"]
    return ", ".join([*parts, *identity.get("overrides", []), str(identity.get("data"))])


def carry_out(plan: Plan, state: State) -> list[str]:
    """Every step that is not done yet; then what failed, a line each. Raises `Stopped`."""
    failures: list[str] = []
    steps = plan.steps()
    for number, step in enumerate(steps, 1):
        position = f"[{number}/{len(steps) + 1}] {step.name}"
        finished = (
            step.runs if step.kind == "train" else [path for path in step.runs if is_finished(path)]
        )
        if step.name in state.done and all(is_there(plan, step, path) for path in step.runs):
            print(f"{position}: done before", flush=True)
            continue
        if not finished:
            print(f"{position}: left out, no run of it came to its end", flush=True)
            continue
        left_out = {str(path) for path in step.runs} - {str(path) for path in finished}
        command = [text for text in step.command if text not in left_out]
        print(f"{position}: {shlex.join(['python', *command[1:]])}", flush=True)
        if step.kind == "train":
            here = machine(plan.option("device", "auto"))
            state.machines[step.method] = [
                *[m for m in state.machines.get(step.method, []) if m != here],
                here,
            ]
            state.save()
        code, caught = call(command)
        if code != 0 and caught is None:
            failures.append(f"{step.name} ended with status {code}; what it said stands above")
        state.mark(step.name, code == 0 and not left_out)
        if caught is not None:
            raise Stopped(caught)
        if step.kind == "sample" and number < len(steps):
            plan.report(
                state.machines
            ).write()  # so that those of the methods so far are there to be looked at
    print(f"[{len(steps) + 1}/{len(steps) + 1}] figures", flush=True)
    plan.report(state.machines).write()
    return failures


def is_there(plan: Plan, step: Step, path: Path) -> bool:
    """Whether what a step makes of a run is where it should be."""
    if step.kind == "train":
        return is_finished(path)
    return (
        plan.report({}).result(path) is not None
        if step.kind == "evaluate"
        else plan.grid(step.method).is_file()
    )


def call(command: list[str]) -> tuple[int, int | None]:
    """Run a command to its end: its exit status, and the signal that came meanwhile, which is passed on to it as SIGTERM.

    It has a process group of its own, so that Ctrl-C, which goes to the whole group of a terminal, does not reach it twice;
    and SIGTERM ends it without a traceback even while it still imports.
    """
    child: subprocess.Popen[bytes] | None = None
    caught: int | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal caught
        caught = number
        if child is not None:
            child.send_signal(signal.SIGTERM)

    previous = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        child = subprocess.Popen(command, process_group=0)
        if caught is not None:  # it came before there was a child
            child.send_signal(signal.SIGTERM)
        return child.wait(), caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# --- the command line ----------------------------------------------------------------------------------------------


def read_arguments() -> tuple[Plan, bool]:
    parser = argparse.ArgumentParser(
        description="Train every method with several seeds, evaluate on the test part, draw samples and curves, and write "
        "DIR/figures with table.md. Stopped on the way, the same command goes on.",
        epilog="example: reproduce.py three_by_three --quick trainer.epochs=5 seed=0,1,2",
    )
    parser.add_argument("what", choices=list(METHODS))
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        help="passed on to train.py: data.root=DIR, device=cpu",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small size: fewer epochs, seeds, methods, samples"
    )
    parser.add_argument(
        "--methods", metavar="NAME[,NAME]", help="only these (default: all of them)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="default: reproduce/WHAT, or reproduce/WHAT_quick",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and do nothing")
    arguments = parser.parse_intermixed_args()
    methods = METHODS[arguments.what]
    if arguments.quick:
        methods = {name: method for name, method in methods.items() if method.quick}
    if arguments.methods is not None:
        unknown = [name for name in arguments.methods.split(",") if name not in methods]
        if unknown:
            raise UserError(f"--methods takes {', '.join(methods)}, got {', '.join(unknown)}")
        methods = {name: methods[name] for name in arguments.methods.split(",")}
    folder = arguments.output or Path("reproduce") / (arguments.what + "_quick" * arguments.quick)
    plan = Plan(
        arguments.what,
        arguments.quick,
        folder.expanduser().absolute(),
        arguments.overrides,
        methods,
    )
    return plan, arguments.dry_run


def main() -> None:
    plan, dry_run = read_arguments()
    if "stand-in" in plan.title:
        print(
            f"warning: {plan.title}; no figure made from it is a TFD figure",
            file=sys.stderr,
            flush=True,
        )
    if dry_run:
        for step in plan.steps():
            print(shlex.join(["python", *step.command[1:]]))
        return
    state = State(plan)
    again = shlex.join(["python", *sys.argv])
    try:
        failures = carry_out(plan, state)
    except (Stopped, KeyboardInterrupt) as stop:
        number = stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT
        print(f"stopped by signal {int(number)}; go on with\n  {again}", flush=True)
        sys.exit(128 + number)
    print(f"\n{(plan.figures / 'table.md').read_text().split('![')[0].strip()}\n")
    print(plan.figures, flush=True)
    if failures:
        lines = "\n".join(f"  {line}" for line in failures)
        raise UserError(
            f"{len(failures)} steps failed:\n{lines}\nThe others are in the figures. To try again:\n  {again}"
        )


if __name__ == "__main__":
    try:
        main()
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
