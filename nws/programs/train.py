"""Train a Helmholtz machine.

Use: `python train.py [-m] [resume=RUN|auto] [key=value ...]`; `--help [GROUP]` prints options.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path
from textwrap import fill

from nws.errors import Stopped, UserError
from nws.experiment.boundary import all_keys, did_you_mean
from nws.experiment.invocation import command_line
from nws.files import CONF

USAGE = """usage: {train} [-m] [resume=RUN|auto] [group=choice ...] [key=value ...]
       {train} --help [GROUP ...]

Train a Helmholtz machine.
A group takes the name of a file: algorithm=nrws. A key takes a value:
optimizer.lr=0.1. With -m, every combination of values is a run: seed=0,1,2.
A class of your own, in my_ideas.py here: metric._target_=my_ideas.MyMetric.
--cfg job prints the configuration that the other arguments make, and trains
nothing. A key with + is in no file: +optimizer.weight_decay=0.1 adds it.
--config-dir FOLDER adds choices of your own.

The groups and their choices; --help GROUP prints the options of one:
"""


def help_text(asked: list[str], folder: str | None) -> str:
    """Return what `--help` prints: usage and choices, or the files of the groups asked for."""
    groups: dict[str, dict[str, Path]] = {}
    for root in [CONF, *([] if folder is None else [Path(folder)])]:
        for path in sorted(root.rglob("*.yaml")):
            group, _, choice = path.relative_to(root).with_suffix("").as_posix().rpartition("/")
            if group.startswith("experiment/"):  # chosen as experiment=benchmark/sbn
                group, choice = "experiment", f"{group[11:]}/{choice}"
            groups.setdefault(group, {})[choice] = path
    del groups[""]
    if not asked:
        own = [group for group in groups if not group.startswith("hydra")]
        lines = [f"  {group + '=':18} {', '.join(groups[group])}" for group in own]
        lines = [fill(line, 100, subsequent_indent=" " * 21) for line in lines]
        keys = (CONF / "config.yaml").read_text()
        return USAGE.format(train=command_line("train")) + "\n".join([*lines, "", keys.strip()])
    unknown = [word for word in asked if word not in groups]
    if unknown:
        raise UserError(f"--help takes the groups {', '.join(groups)}; got {shlex.join(unknown)}")
    files = [(f"{group}={name}", path) for group in asked for name, path in groups[group].items()]
    return "\n\n".join(f"{choice}\n{path.read_text().strip()}" for choice, path in files)


def check_words(given: list[str]) -> None:
    """Raise `UserError` for a word that is neither a flag nor key=value, and for group=null."""
    from hydra._internal.utils import get_args_parser

    flags, unknown = get_args_parser().parse_known_args(given)
    for word in [*unknown, *flags.overrides]:
        key, sign, value = word.partition("=")
        if word[:1] == "-" or not (sign or word[:1] == "~"):
            name = key.strip("-")
            way = f"give {name}=VALUE" if name in all_keys() else did_you_mean(name)
            raise UserError(f"expected key=value, as in trainer.epochs=3, got {word}; {way}")
        if flags.cfg and key == "resume" and value not in ("", "null", "auto"):
            what = "--cfg prints the configuration of a new run"
            raise UserError(f"{what}; that of {value} is in its .hydra/config.yaml")
        choices = sorted(path.stem for path in (CONF / key).glob("*.yaml"))
        if choices and sign and value in ("", "null"):
            raise UserError(f"{word} is no choice; the choices are {', '.join(choices)}")


def run() -> None:
    """The program. Hydra reads the command line; of a run to go on with, the choices are added."""
    given = sys.argv[1:]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    own, rest = parser.parse_known_args(given)
    if {"-h", "--help"} & set(given):
        asked = [word for word in rest if "=" not in word and word[:1] != "-"]
        print(help_text(asked, own.config_dir))
        return
    from nws.experiment.config import override_key
    from nws.experiment.launch import Sweep, main, meet_others
    from nws.experiment.resume import resume_arguments

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors pass through Hydra, to our boundary
    Sweep.command, Sweep.directory = shlex.split(command_line("train", *given)), None
    meet_others()
    # SIGTERM ends a sweep as Ctrl-C does; a run in this process takes both over meanwhile.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.sort(key=lambda word: word[:1] == "~" or (word[:1] != "-" and "=" in word))  # flags first
    check_words(given)
    sys.argv[1:] = resume_arguments(given)
    try:
        main()
    except (KeyboardInterrupt, SystemExit, Stopped) as stop:
        if Sweep.directory is not None and (not isinstance(stop, SystemExit) or stop.code):
            rest = [text for text in given if override_key(text) != "resume"]
            command = command_line("train", *rest, "resume=auto")
            print(f"the sweep was stopped; go on with\n  {command}")
        if isinstance(stop, Stopped):  # a worker heard the signal first
            raise KeyboardInterrupt from None
        raise
    finally:
        if Sweep.directory is not None:
            from nws.analysis.summaries import print_sweep  # pandas takes its time

            print_sweep(Sweep.directory, own.config_dir)
            Sweep.forget(Sweep.directory)
        signal.signal(signal.SIGTERM, before)  # while the interpreter ends, a signal is quiet
