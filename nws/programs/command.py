"""The command `nws`: one word for each program, `nws train data=digits`, `nws sample RUN`."""

import difflib
import shlex
import sys
from pathlib import Path

import nws
from nws.errors import UserError
from nws.experiment.boundary import errors_for_people, launch
from nws.experiment.invocation import MODULE, MODULES, PROGRAMS

HELP = """usage: nws PROGRAM ...

{programs}

`nws PROGRAM --help` has the options of each. A first look, without training:

  nws sample pretrained/digits"""


def module_of(program: str) -> str:
    """Return the name of the module that has a program's `run`."""
    return f"nws.programs.{MODULES[program]}"


def run() -> None:
    """The program: the first word says which one, by its own name or its module's."""
    words = sys.argv[1:]
    with errors_for_people():
        if not words or words[0] in ("-h", "--help"):
            print(HELP.format(programs="\n".join(f"  {n:16} {PROGRAMS[n]}" for n in PROGRAMS)))
        elif words[0] == "--version":
            print(f"nws {nws.__version__}")
        else:
            program = _named(words[0])
            name = shlex.join(MODULE) if Path(sys.argv[0]).name == "__main__.py" else "nws"
            sys.argv[:2] = [f"{name} {program}"]  # where argparse and `command_line` find it
            launch(module_of(program))


def _named(word: str) -> str:
    """Return the program that a word names; `UserError` for none."""
    names = {module: program for program, module in MODULES.items()} | {n: n for n in PROGRAMS}
    if word in names:
        return names[word]
    close = difflib.get_close_matches(word, names, 1)
    there = f"the programs are {', '.join(PROGRAMS)}"
    way = f"did you mean nws {names[close[0]]}?" if close else there
    raise UserError(f"nws has no program {word}; {way}")
