"""The command `nws`: one word for each program, `nws train data=digits`, `nws sample RUN`."""

import argparse
import shlex
import sys
from pathlib import Path

import nws
from nws.experiment.boundary import errors_for_people, launch
from nws.experiment.invocation import MODULE, PROGRAMS

HELP = """{programs}

`nws PROGRAM --help` has the options of each. A first look, without training:

  nws sample pretrained/digits"""


def run() -> None:
    """The program: the first word says which one."""
    with errors_for_people():
        programs = "\n".join(f"  {name:16} {text}" for name, text in PROGRAMS.items())
        parser = argparse.ArgumentParser(
            "nws", "nws PROGRAM ...", HELP.format(programs=programs),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        parser.add_argument("--version", action="version", version=f"nws {nws.__version__}")
        parser.add_argument("program", choices=PROGRAMS, metavar="PROGRAM", help=argparse.SUPPRESS)
        program = parser.parse_args(sys.argv[1:2] or ["--help"]).program
        name = shlex.join(MODULE) if Path(sys.argv[0]).name == "__main__.py" else "nws"
        sys.argv[:2] = [f"{name} {program}"]  # where argparse and `command_line` find it
        launch(f"nws.programs.{program}")
