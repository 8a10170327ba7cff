"""The command `nws`: one word for each program, `nws train data=digits`, `nws sample RUN`."""

import shlex
import sys
from pathlib import Path

import nws
from nws.experiment.process.boundary import errors_for_people, launch
from nws.experiment.process.invocation import MODULE, PROGRAMS

#: The module of each program, which has `run`, and what `nws --help` says of it.
MODULES = {
    "train": ("train", "train a machine, or a sweep of them: key=value ..."),
    "sample": ("sample", "draw images from a run"),
    "evaluate": ("evaluate", "log-likelihoods of runs on held-out images"),
    "plot": ("plot_curves", "training curves of runs"),
    "runs": ("runs", "a table of the runs below a folder"),
    "diff": ("diff", "the configurations of two runs, side by side"),
    "report": ("report", "one page to browse runs"),
    "reproduce": ("reproduce", "train, evaluate and draw a whole comparison"),
    "export": ("export", "a small copy of a run, to share and to sample from"),
    "batch_sizes": ("batch_sizes", "steps and images to a likelihood, against the batch size"),
    "natural_gradient": ("natural_gradient", "NaturalGradient beside SGD and Adam on any module"),
    "worlds": ("worlds", "small worlds of information geometry, with a figure each"),
}
HELP = """usage: nws PROGRAM ...

{programs}

`nws PROGRAM --help` has the options of each. A first look, without training:

  nws sample pretrained/digits"""


def module_of(program: str) -> str:
    """Return the name of the module that has a program's `run`."""
    return f"nws.programs.{MODULES[program][0]}"


def run() -> None:
    """The program: the first word says which one, the others are its arguments."""
    with errors_for_people():
        start()


def start() -> None:
    """Start the program that the first word names."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(HELP.format(programs="\n".join(f"  {n:16} {MODULES[n][1]}" for n in PROGRAMS)))
    elif words[0] == "--version":
        print(f"nws {nws.__version__}")
    elif words[0] not in PROGRAMS:
        sys.exit(f"error: nws has the programs {', '.join(PROGRAMS)}; got {words[0]}")
    else:
        name = shlex.join(MODULE) if Path(sys.argv[0]).name == "__main__.py" else "nws"
        sys.argv[:2] = [f"{name} {words[0]}"]  # argparse and `command_line` take the name from here
        launch(module_of(words[0]))
