"""How the user started this program, and what to type for the next one."""

import os
import shlex
import sys

#: The programs, and what `nws --help` says of them.
PROGRAMS = {
    "train": "train a machine, or a sweep of them: key=value ...",
    "sample": "draw images from a run",
    "evaluate": "log-likelihoods of runs on held-out images",
    "plot": "training curves of runs",
    "runs": "a table of the runs below a folder, or side by side",
    "report": "one page to browse runs",
    "export": "a small copy of a run, to share and to sample from",
}
#: What starts each in the repository.
SCRIPTS = {name: f"scripts/{name}.py" for name in (*PROGRAMS, "reproduce")}
SCRIPTS |= {"train": "train.py", "plot": "scripts/plot_curves.py"}
MODULE = ["python", "-m", "nws"]  # where the command nws is not on the path


def command_line(program: str, *arguments: object) -> str:
    """Return what to type to start a program, in the way in which this one was started.

    After `python scripts/evaluate.py` it is `python train.py 'resume=my runs/1'` for the arguments
    "train" and "resume=my runs/1"; after `nws evaluate` it is `nws train 'resume=my runs/1'`.
    """
    folder, file = os.path.split(sys.argv[0])
    if any(os.path.basename(script) == file for script in SCRIPTS.values()):
        root = folder if file == SCRIPTS["train"] else os.path.dirname(folder)
        words = ["python", os.path.join(root, SCRIPTS[program])]
    else:
        words = [*(MODULE if sys.argv[0].startswith(shlex.join(MODULE)) else ["nws"]), program]
    return shlex.join([*words, *map(str, arguments)])
