"""Train, evaluate, sample, draw: a whole comparison by one command, `scripts/reproduce.py WHAT`.

nws/programs/comparisons.yaml says what is compared. After an interruption the same command goes on:
nothing is done twice.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from nws.analysis.comparison import Comparison, Entry
from nws.analysis.report.page import write_page
from nws.analysis.tables import print_table
from nws.data import TFD_MD5
from nws.errors import UserError
from nws.experiment.launch.arguments import rewrite_arguments
from nws.experiment.options.configuration import CONF, override_key
from nws.experiment.options.flags import split
from nws.experiment.process import hardware
from nws.experiment.boundary import errors_for_people
from nws.experiment.invocation import command_line, start_command
from nws.experiment.process.signals import StopSignals
from nws.experiment.storage import kinds
from nws.experiment.storage.directory import RunDirectory
from nws.files import check_folder, write_atomically

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: of every run: metrics.csv is all that is read here, and a finished run is not trained again
COMMON = ("logger=none", "resume=auto")
#: comparisons by name, as the comments of the file describe them
COMPARISONS: Any = OmegaConf.load(Path(__file__).with_name("comparisons.yaml"))


@dataclass(frozen=True)
class Step:
    """A call of one program, and the run directories that it works on, one for each seed."""

    program: str  # train, evaluate or sample
    method: str
    arguments: list[str]
    runs: list[Path]


class Plan:
    """What a call of this script asks for. Raises `UserError` for overrides that it cannot take."""

    def __init__(
        self, what: str, quick: bool, folder: Path, overrides: list[str], methods: Sequence[str]
    ) -> None:
        self.what, self.quick, self.folder, self.overrides = what, quick, folder, overrides
        self.methods, self.comparison = methods, COMPARISONS[what]
        self.size = self.comparison["quick" if quick else "full"]
        for override in parse(overrides):
            key = override.key_or_group
            given = override.input_line
            if key in ("experiment", "resume", "algorithm") or key.startswith("hydra"):
                raise UserError(f"{key} is chosen by this script, got {given}; leave it out")
            if override.is_sweep_override() and key != "seed":
                raise UserError(
                    f"only seed may take several values, got {given}; "
                    "reproduce them one by one, each with an --output of its own"
                )
        self.title = tfd_title(self) if what == "tfd" else self.comparison.title
        self.figures = folder / "figures"
        self.slug = "stand_in_for_tfd" if "stand-in" in self.title else what

    def option(self, key: str, default: str) -> str:
        """The value that the user gave for a key of the configuration."""
        given = [each.value() for each in parse(self.overrides) if each.key_or_group == key]
        return str(given[-1]) if given else default

    def training(self, method: str) -> list[str]:
        """The overrides of a method's sweep. The last one of a key counts, so the user's do."""
        texts = [*self.comparison.overrides, *self.comparison.methods[method].overrides, *COMMON]
        texts += [f"seed={self.size.seeds}", *self.size.overrides, *self.overrides]
        sweep = str(self.folder / "runs" / method).replace("'", "\\'")
        last = {override_key(text): text for text in texts}
        return [*last.values(), f"hydra.sweep.dir='{sweep}'"]

    def runs(self, method: str) -> list[Path]:
        """A method's run directories, one for each seed."""
        (seed,) = parse([text for text in self.training(method) if override_key(text) == "seed"])
        jobs = len(list(seed.sweep_iterator())) if seed.is_sweep_override() else 1
        return [self.folder / "runs" / method / str(job) for job in range(jobs)]

    def grid(self, method: str) -> Path:
        """The picture of a method's samples."""
        return self.figures / f"{self.slug}_samples_{method}.png"

    def steps(self) -> list[Step]:
        """All commands, method by method."""
        device = self.option("device", "auto")
        where = [] if device == "auto" else [f"--device={device}"]
        points = ["--data-points", str(self.size.images)] if self.size.images else []
        evaluate = ["--split", "test", "--samples", str(self.size.samples), *points, *where]
        sample = ["--count", "64", "--seed", "0", "--columns", "8", "--output"]
        steps = []
        for name in self.methods:
            runs, grid = self.runs(name), str(self.grid(name))
            for program, used, options in (
                ("train", runs, ["-m", *self.training(name)]),
                ("evaluate", runs, [*map(str, runs), *evaluate]),
                ("sample", runs[:1], [str(runs[0]), *sample, grid, *where]),
            ):
                steps.append(Step(program, name, options, used))
        return steps

    def is_done(self, step: Step) -> bool:
        """Whether everything that a step makes is there."""
        if step.program == "sample":
            return self.grid(step.method).is_file()
        if step.program == "train":
            return all(RunDirectory(path).is_finished() for path in step.runs)
        return all(self.result({}).row(path) is not None for path in step.runs)

    def result(self, machines: dict[str, list[str]]) -> Comparison:
        """What came of all methods in the folder, with the machines each was trained on."""
        given = [text for text in self.overrides if override_key(text) != "data.root"]
        command = command_line("reproduce", self.what, *["--quick"] * self.quick, *given)
        entries = [
            Entry(
                method.title, self.runs(name), name in self.methods, self.grid(name),
                machines.get(name, ["unknown"]),
            )
            for name, method in self.comparison.methods.items()
        ]  # fmt: skip
        return Comparison(
            self.title + ", quick size" * self.quick, command, self.figures, self.slug,
            self.comparison.column, self.comparison.log, self.size.samples, self.size.images,
            entries,
        )  # fmt: skip


def tfd_title(plan: Plan) -> str:
    """The name of the data: a file that is not the official TFD is not called so."""
    side = 96 if plan.option("data.size", "24") == "96" else 48
    root = Path(plan.option("data.root", os.environ.get("NWS_DATA_ROOT", "data"))).expanduser()
    file = root / "TFD" / f"TFD_{side}x{side}.mat"
    try:
        with open(file, "rb") as content:
            md5 = hashlib.file_digest(content, "md5").hexdigest()
    except OSError as error:
        raise UserError(
            f"tfd needs {file.absolute()} ({error.strerror}); point data.root, or the environment "
            "variable NWS_DATA_ROOT, at the folder that has TFD/ "
            "(data/README.md says where the file comes from)"
        ) from error
    if side == 96:
        return f"TFD (the 96x96 file, whose md5 is not published; this one's is {md5})"
    other = f"stand-in for TFD (not the Toronto Face Dataset: md5 {md5})"
    return "TFD" if md5 == TFD_MD5 else other


def parse(texts: Sequence[str]) -> list[Any]:
    try:
        return list(OverridesParser.create().parse_overrides(list(texts)))
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"overrides are key=value, as in training: {reason}") from error


class State:
    """DIR/reproduce.json: the options that DIR belongs to, and the machines of each method.

    `UserError` where the folder belongs to other options, or the file is damaged.
    """

    def __init__(self, plan: Plan) -> None:
        self.path = plan.folder / "reproduce.json"
        self.options = {"what": plan.what, "quick": plan.quick, "data": plan.title}
        self.options["overrides"] = sorted(plan.overrides)
        self.machines: dict[str, list[str]] = {}
        if not self.path.is_file():
            return
        try:
            saved = kinds.read_json(self.path)
            self.machines = saved.pop("machines")
            if not (kinds.mapping(self.machines) and all(map(kinds.texts, self.machines.values()))):
                raise ValueError("machines should be lists of texts by the methods")
            saved.pop("done", None)  # of an earlier version
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(
                f"{self.path} cannot be read ({error!r}); move {plan.folder} away and start again"
            ) from error
        if saved != self.options:
            there, here = (
                ", ".join(f"{key} {value}" for key, value in options.items())
                for options in (saved, self.options)
            )
            raise UserError(
                f"{plan.folder} holds what came of other options: {there}. These are {here}; "
                "give the same ones to go on, or another --output DIR"
            )

    def trained_on(self, method: str, machine: str) -> None:
        """Remember the machine on which a method is trained from now on."""
        before = [other for other in self.machines.get(method, []) if other != machine]
        self.machines[method] = [*before, machine]
        content = self.options | {"machines": self.machines}
        write_atomically(self.path, json.dumps(content, indent=2).encode())


def carry_out(plan: Plan, state: State) -> list[str]:
    """Run every step that is not done yet, and write the results; a line for each that failed."""
    failures: list[str] = []
    steps = plan.steps()
    for number, step in enumerate(steps, 1):
        position = f"[{number}/{len(steps) + 1}] {step.program} {step.method}"
        if plan.is_done(step):
            print(f"{position}: done before", flush=True)
            continue
        absent = [str(path) for path in step.runs if not RunDirectory(path).is_finished()]
        if step.program == "train":
            absent = []
            state.trained_on(step.method, hardware.device_text(plan.option("device", "auto")))
        if len(absent) == len(step.runs):
            print(f"{position}: left out, as none of its runs is finished", flush=True)
            continue
        given = [text for text in step.arguments if text not in absent]
        print(f"{position}: {command_line(step.program, *given)}", flush=True)
        code, caught = call(start_command(step.program, *given))
        if caught is not None:
            raise KeyboardInterrupt(caught)
        if code != 0:
            ended = f"ended with status {code}; its messages are above"
            failures.append(f"{step.program} {step.method} {ended}")
        if step.program == "sample":  # so that the methods so far can be looked at
            plan.result(state.machines).write()
    print(f"[{len(steps) + 1}/{len(steps) + 1}] figures", flush=True)
    write_results(plan, state)
    return failures


def write_results(plan: Plan, state: State) -> None:
    """Write the curves, table.md, and report.html of the runs that are finished."""
    result = plan.result(state.machines)
    result.write()
    runs = [run.path for _, found in result.results for run, _ in found]
    if runs:
        path = plan.figures / "report.html"
        write_page(runs, path, title=result.title, command=result.command)


def call(command: list[str]) -> tuple[int, int | None]:
    """Run a command to its end; return its exit status, and the signal that came meanwhile.

    Signals are passed on to it as SIGTERM, which ends it without a traceback even while it still
    imports. It has a process group of its own: Ctrl-C goes to the whole group of a terminal, and
    would reach it twice.
    """
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int) -> None:
        if child is not None:
            child.terminate()

    with StopSignals(pass_on, once=False, numbers=SIGNALS) as stop:
        child = subprocess.Popen(command, process_group=0)
        if stop.caught is not None:  # it came before there was a child
            child.terminate()
        return child.wait(), stop.caught


def read_arguments() -> tuple[Plan, bool]:
    parser = argparse.ArgumentParser(
        description="Train every method with several seeds, evaluate on the test part, draw "
        "samples and curves, and write DIR/figures with table.md. After an interruption the same "
        "command goes on.",
        epilog="example: reproduce.py three_by_three --quick trainer.epochs=5 seed=0,1,2",
    )
    add = parser.add_argument
    add("what", choices=list(COMPARISONS))
    passed_on = "passed on to the training: data.root=DIR, device=cpu"
    add("overrides", metavar="key=value", nargs="*", help=passed_on)
    add("--quick", action="store_true", help="fewer epochs, seeds, methods and samples")
    add("--methods", metavar="NAME[,NAME]", help="only these (default: all of them)")
    add("--output", type=Path, metavar="DIR", help="default: reproduce/WHAT[_quick]")
    add("--dry-run", action="store_true", help="print the commands and do nothing")
    given = parser.parse_intermixed_args()
    methods = COMPARISONS[given.what].methods
    known = [name for name, each in methods.items() if each.get("quick", True) or not given.quick]
    chosen = known if given.methods is None else given.methods.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise UserError(f"--methods takes {', '.join(known)}, got {', '.join(unknown)}")
    folder = given.output or Path("reproduce") / (given.what + "_quick" * given.quick)
    where = folder.expanduser().absolute()
    return Plan(given.what, given.quick, where, given.overrides, chosen), given.dry_run


def check_options(plan: Plan) -> None:
    """Refuse overrides that a method's training cannot take, before the folder has a file."""
    for method in plan.methods:
        try:
            rewrite_arguments(split(["-m", *plan.training(method)]), CONF)
        except UserError as error:
            raise UserError(f"training of {method}: {error}") from error


def main() -> None:
    plan, dry_run = read_arguments()
    check_options(plan)
    if "stand-in" in plan.title:
        print(f"warning: {plan.title}; its figures are no TFD figures", file=sys.stderr, flush=True)
    if dry_run:
        for step in plan.steps():
            print(command_line(step.program, *step.arguments))
        return
    check_folder(plan.folder)
    state = State(plan)
    again = command_line("reproduce", *sys.argv[1:])
    try:
        failures = carry_out(plan, state)
    except KeyboardInterrupt as stop:  # its argument is the signal that a command got
        number = int(stop.args[0] if stop.args else signal.SIGINT)
        print(f"stopped by signal {number}; go on with\n  {again}", flush=True)
        sys.exit(128 + number)
    result = plan.result(state.machines)
    print(f"\n{result.title}\n")
    heads, lines = result.table()
    print_table(heads[:-1], [line[:-1] for line in lines])  # the machines are in table.md
    print("\n".join(["", *result.missing(), str(plan.figures)]), flush=True)
    if failures:
        text = "\n  ".join([f"{len(failures)} steps failed:", *failures])
        raise UserError(f"{text}\nThe others are in the figures. To try again:\n  {again}")


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
