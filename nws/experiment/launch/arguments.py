"""The one place that rewrites the command line before Hydra reads it."""

import importlib.util
import logging
import os
import shutil
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws import distributed
from nws.errors import UserError
from nws.experiment.launch.resume import left_state
from nws.experiment.options.composition import check_command
from nws.experiment.options.configuration import GROUPS
from nws.experiment.process.terminal import Terminal
from nws.experiment.storage.directory import RunDirectory, open_run

#: Launchers and sweepers of the extra `sweep`, and the packages that they are in.
PLUGINS = {
    "hydra/launcher=joblib": "hydra_joblib_launcher",
    "hydra/launcher=submitit_slurm": "hydra_submitit_launcher",
    "hydra/launcher=submitit_local": "hydra_submitit_launcher",
    "hydra/launcher=slurm_nodes": "hydra_submitit_launcher",
    "hydra/sweeper=optuna": "hydra_optuna_sweeper",
}
#: Those that need the commands of SLURM; the second one has several processes a run.
ON_SLURM = ("hydra/launcher=submitit_slurm", "hydra/launcher=slurm_nodes")
#: Our settings of a plugin, in conf/hydra/. Hydra allows no second file of the plugin's own name.
SETTINGS = {
    "hydra/launcher=submitit_slurm": "hydra/launcher=slurm",
    "hydra/sweeper=optuna": "hydra/sweeper=search",
}
SWEPT = (
    "a sweep (-m) starts its runs by itself, and torchrun starts the processes of one run; start"
    " run after run by torchrun, or the sweep without it, on SLURM with hydra/launcher=slurm_nodes"
    " for several processes a run"
)
#: Keys of earlier versions, and what they are called now.
OLD_KEYS = {
    "metric.kind": "metric",
    "solver.name": "solver",
    "algorithm.exponent": "algorithm.weighting.exponent",
}


def rewrite_arguments(arguments: list[str], conf: Path) -> list[str]:
    """Return the arguments that Hydra reads in place of the user's; `conf` has config.yaml.

    Raises `UserError` where a plugin is missing, RUN is no run, or options are wrong.
    """
    arguments = rename_old_keys(arguments, conf)
    check_choices(arguments)
    arguments = use_our_settings(arguments)
    arguments = resume_run(arguments)
    check_command(arguments, conf)
    return find_unfinished_run(arguments, conf)


def agree_on_arguments(arguments: list[str], conf: Path) -> list[str]:
    """Meet the other processes of the run, if any, and return what `rewrite_arguments` does.

    Of several processes the first one does it for all, and alone speaks from here on. They get the
    directory of the run as well, whose name has the time in it.
    """
    distributed.start()
    if distributed.size() == 1:
        return rewrite_arguments(arguments, conf)
    if not distributed.is_first():
        logging.disable()
        return list(distributed.send(None))
    if {"-m", "--multirun"} & set(arguments):
        raise UserError(SWEPT)
    rewritten = rewrite_arguments(arguments, conf)
    composed = compose(rewritten, conf)
    if composed is not None and _is_multirun(composed):
        raise UserError(SWEPT)
    if composed is not None:
        rewritten.append(f"hydra.run.dir={_quote(Path(composed.hydra.run.dir))}")
    return list(distributed.send(rewritten))


def _is_multirun(composed: DictConfig) -> bool:
    return getattr(composed.hydra.mode, "name", None) == "MULTIRUN"


def compose(arguments: list[str], conf: Path) -> DictConfig | None:
    """Return the configuration that Hydra composes; None where it cannot, which it says itself."""
    try:
        with hydra.initialize_config_dir(str(conf), job_name="train", version_base="1.3"):
            return hydra.compose("config", arguments, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException):
        return None


def rename_old_keys(arguments: list[str], conf: Path) -> list[str]:
    """Give keys of earlier versions their present names. They win over the choice of a group."""
    keys = {argument.partition("=")[0].lstrip("+") for argument in arguments}
    groups = {OLD_KEYS[key] for key in keys & OLD_KEYS.keys()} & set(GROUPS)
    renamed = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        old = key.lstrip("+")
        new = OLD_KEYS.get(old, old)
        if new != old and new in groups:
            choices = sorted(path.stem for path in (conf / new).glob("*.yaml"))
            if not set(value.split(",")) <= set(choices):
                raise UserError(f"{old} must be one of {', '.join(choices)}, got {value!r}")
            renamed.append(f"{new}={value}")
        elif old not in groups:
            renamed.append(key.replace(old, new) + equals + value)
    return renamed


def check_choices(arguments: list[str]) -> None:
    """Raise `UserError` for group=null and group=0.1, which Hydra answers with a traceback."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        groups = (*GROUPS, "natural_metric", "experiment", "debug")
        if key in groups and any(map(_is_no_name, value.split(","))):
            raise UserError(
                f"{key} needs the name of a file in conf/{key}/, got {value}; leave it out for the"
                " default. Numbers go to the options of a group, as in damping.value=0.1"
            )


def _is_no_name(value: str) -> bool:
    """Return whether Hydra reads a value as null, a truth value or a number."""
    try:
        float(value)
    except ValueError:
        return value in ("null", "true", "false")
    return True


def use_our_settings(arguments: list[str]) -> list[str]:
    """Choose our settings of a launcher or sweeper; `UserError` where it is not installed."""
    for text in arguments:
        package, find = PLUGINS.get(text), importlib.util.find_spec
        if package and not (find("hydra_plugins") and find(f"hydra_plugins.{package}")):
            name = package.replace("_", "-")
            raise UserError(f"{text} needs {name}: pip install {name}")
        cluster = shutil.which("sbatch") and shutil.which("srun")
        if text in ON_SLURM and not cluster:
            raise UserError(f"{text} needs the commands sbatch and srun of SLURM, found none here")
    return [SETTINGS.get(text, text) for text in arguments]


def resume_run(arguments: list[str]) -> list[str]:
    """Replace resume=RUN by the run's path and groups, and let Hydra's log go to its directory.

    The groups let overrides such as optimizer.momentum=0.5 be composed as the run was.
    """
    given = {argument.partition("=")[0].lstrip("+"): argument for argument in arguments}
    value = given.get("resume", "").partition("=")[2]
    if value in ("", "null", "auto"):
        return arguments
    if {"-m", "--multirun"} & set(arguments):
        raise UserError("resume=RUN takes one run; resume=auto goes on with a sweep (-m)")
    run, _ = open_run(value.strip("'\""))
    for key in ("hydra.run.dir", "hydra.sweep.dir"):
        if key in given:
            raise UserError(f"a resumed run stays in {run.path}, got {given[key]}; leave it out")
    run.settle_config()
    choices = run.saved_choices().items()
    groups = [f"{name}={choice}" for name, choice in choices if name not in given]
    others = [argument for argument in arguments if argument != given["resume"]]
    return [*groups, *others, f"resume={_quote(run.path)}", f"hydra.run.dir={_quote(run.path)}"]


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "\\'") + "'"


def find_unfinished_run(arguments: list[str], conf: Path) -> list[str]:
    """For resume=auto, make the newest unfinished run of this configuration the run directory.

    The arguments stay as they are for a sweep, which `sweep_directory` finds, and with a directory
    of the user's.
    """
    directed = any(text.startswith(("-", "hydra.run.dir=")) for text in arguments)
    if directed or "resume=auto" not in arguments:
        return arguments
    composed = compose(arguments, conf)
    if composed is None or _is_multirun(composed):
        return arguments
    parent = Path(composed.hydra.run.dir).parent
    config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    terminal = Terminal(config.verbosity)
    for file in sorted(parent.glob("*/.hydra/config.yaml"), reverse=True):
        run = RunDirectory(file.parent.parent.resolve())
        try:
            left_state(run, config)
        except UserError:  # another configuration, or damaged
            continue
        if not run.is_finished():
            terminal.line(f"resume=auto: going on with {os.path.relpath(run.path)}")
            return [*arguments, f"hydra.run.dir={_quote(run.path)}"]
    terminal.line(f"resume=auto: no unfinished run of this configuration in {parent}, a new one")
    return arguments
