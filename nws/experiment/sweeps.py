"""Sweeps: their directories, stopping one as a whole, and `resume=auto`, which goes on where a sweep or a run was left.

A sweep's directory holds one run directory a job (0, 1, ...), and `sweep.yaml`: the command that the sweep was started by.
"""

import importlib.util
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hydra
from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws.errors import Diverged, UserError
from nws.experiment.checkpoint import load_checkpoint
from nws.experiment.run import RunDirectory, absolute_paths, open_run
from nws.files import write_atomically

log = logging.getLogger(__name__)

#: launchers and sweepers that come with the extra `sweep`, and the packages that they are in
PLUGINS = {
    "hydra/launcher=joblib": "hydra_joblib_launcher",
    "hydra/launcher=submitit_slurm": "hydra_submitit_launcher",
    "hydra/launcher=submitit_local": "hydra_submitit_launcher",
    "hydra/sweeper=optuna": "hydra_optuna_sweeper",
}
#: our own settings of plugins, by the plugin's name; Hydra knows a plugin's own by this name and allows no second one
SETTINGS = {
    "hydra/launcher=submitit_slurm": "hydra/launcher=slurm",
    "hydra/sweeper=optuna": "hydra/sweeper=search",
}
STOPPED = "stopped"  # the file that tells the jobs of a sweep not to start any more


# --- directories ---------------------------------------------------------------------------------------------------


def sweep_name(name: str, data: str, algorithm: str, overrides: Sequence[str]) -> str:
    """The folder of a sweep in multirun/: the experiment's name without what the sweep varies; "sweep" if nothing is left."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    swept = {override.key_or_group for override in parsed if override.is_sweep_override()}
    standard = f"{data}_{algorithm}"
    if name.endswith(standard):
        kept = [
            part
            for key, part in (("data", data), ("algorithm", algorithm))
            if not swept & {key, f"{key}.name"}
        ]
        name = "_".join([*filter(None, [name.removesuffix(standard).strip("_")]), *kept])
    return "sweep" if swept & {"experiment", "name"} or not name else name


def sweep_directory(parent: str, time: str, resume: str | None, overrides: DictConfig) -> str:
    """A sweep's directory in `parent`: of this time, or with resume=auto the newest one of the same command, if there is one."""
    if resume == "auto":
        for record in sorted(Path(parent).glob("*/sweep.yaml"), reverse=True):
            if OmegaConf.load(record) == {"overrides": sweep_command(overrides)}:
                return str(record.parent)
    return f"{parent}/{time}"


def sweep_command(overrides: DictConfig) -> list[str]:
    """What makes two sweeps the same one: the overrides of their jobs and of the sweeper, not how they are launched."""
    ways = [text for text in overrides.hydra if text.startswith(("hydra/sweeper", "hydra.sweeper"))]
    return [text for text in overrides.task if text.lstrip("+").split("=")[0] != "resume"] + ways


# Cached, so that all jobs of a sweep share the folder that was named at its start.
OmegaConf.register_new_resolver("sweep_name", sweep_name, use_cache=True, replace=True)
OmegaConf.register_new_resolver("sweep_directory", sweep_directory, use_cache=True, replace=True)


class Sweep(Callback):
    """Hydra's callback around a sweep: keeps its command in its directory, and lets a signal end it in good order.

    Jobs in this process save and end the sweep themselves. Where they are in other processes, the first SIGINT or SIGTERM
    keeps further jobs from starting and waits for those that run: Ctrl-C reaches these too, and they save. A second one stops
    at once.
    """

    directory: Path | None = None  # of the sweep that this process launched
    caught: int | None = None
    _previous: dict[int, Any] = {}  # noqa: RUF012  # of the process, as signal handlers are

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        directory = Path(config.hydra.sweep.dir).resolve()
        Sweep.directory, Sweep.caught = directory, None
        logging.getLogger("alembic").setLevel(
            logging.WARNING
        )  # Optuna's data base speaks up even where there is none
        (directory / STOPPED).unlink(missing_ok=True)
        record = directory / "sweep.yaml"
        if config.resume == "auto":
            print(
                f"resume=auto: {'going on with the sweep' if record.exists() else 'a new sweep'} in {directory}"
            )
        if config.resume != "auto" or not record.exists():
            write_atomically(
                record,
                OmegaConf.to_yaml({"overrides": sweep_command(config.hydra.overrides)}).encode(),
            )
        if not in_process(config.hydra.launcher):
            for number in (signal.SIGINT, signal.SIGTERM):
                Sweep._previous[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        assert Sweep.directory is not None
        Sweep.caught = number
        Sweep.restore_signals()
        (Sweep.directory / STOPPED).touch()
        print(
            f"\nstopping the sweep (signal {number}); once more to stop at once",
            file=sys.stderr,
            flush=True,
        )

    @staticmethod
    def restore_signals() -> None:
        while Sweep._previous:
            signal.signal(*Sweep._previous.popitem())


@contextmanager
def job(config: HydraConf) -> Iterator[None]:
    """Around one job of a sweep; `config` is Hydra's.

    A user's error becomes one of Hydra's: the other jobs go on, and the first one is repeated at the end. In a search a run
    that diverged is no error. A job in a process beside others does not start in a sweep that was stopped.
    """
    worker = in_worker(config)
    try:
        if worker:
            if (Path(config.sweep.dir) / STOPPED).exists():
                raise CompactHydraException(
                    "not started: the sweep was stopped; go on with resume=auto"
                )
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except (UserError, OmegaConfBaseException) as error:
        log.error("%s", error)
        if not (isinstance(error, Diverged) and is_search(config.sweeper)):
            raise CompactHydraException(f"error: {error}") from None
    except KeyboardInterrupt:
        if not worker:
            raise
        raise CompactHydraException(
            "interrupted"
        ) from None  # what runs in the other processes is left to save
    finally:
        if worker:
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # this process may wait for others, which a signal would harm


def end_by_signal(number: int, config: HydraConf) -> NoReturn:
    """After a run that was stopped by a signal: end the program, or the job alone where it is in a process beside others."""
    if in_worker(config):
        raise CompactHydraException(f"stopped by signal {number}")
    Sweep.caught = number
    sys.exit(128 + number)


def in_worker(config: HydraConf) -> bool:
    """Whether this is a job of a sweep in a process beside others; `config` is Hydra's."""
    return config.mode == RunMode.MULTIRUN and not in_process(config.launcher)


def is_search(sweeper: DictConfig) -> bool:
    """Whether a sweeper looks for the largest value that jobs return, as Optuna's does."""
    return "direction" in sweeper


def in_process(launcher: DictConfig) -> bool:
    """Whether a launcher runs the jobs one after the other in the process that it is in."""
    return str(launcher._target_).endswith(".BasicLauncher")


@contextmanager
def stopping(arguments: Sequence[str]) -> Iterator[None]:
    """Around the whole program: where a signal stopped a sweep, say by what command to go on, and exit with its status."""
    Sweep.directory, Sweep.caught = None, None
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        Sweep.caught = signal.SIGINT
        sys.exit(128 + signal.SIGINT)
    finally:
        Sweep.restore_signals()
        if Sweep.directory is not None and Sweep.caught is not None:
            rest = [text for text in arguments if text.lstrip("+").split("=")[0] != "resume"]
            command = shlex.join(["python", "train.py", *rest, "resume=auto"])
            print(
                f"the sweep was stopped by signal {int(Sweep.caught)}; go on with\n  {command}\n{Sweep.directory}"
            )
            sys.exit(128 + Sweep.caught)


def plugin_arguments(arguments: list[str]) -> list[str]:
    """Command-line arguments with our settings for the launcher or sweeper; `UserError` if it is not installed."""
    for text in arguments:
        package = PLUGINS.get(text)
        if package is not None and not _is_installed(f"hydra_plugins.{package}"):
            raise UserError(
                f"{text} needs {package.replace('_', '-')}, which is not installed: pip install '.[sweep]'"
            )
        if text == "hydra/launcher=submitit_slurm" and not (
            shutil.which("sbatch") and shutil.which("srun")
        ):
            raise UserError(
                f"{text} needs the commands of a SLURM cluster, found no sbatch and srun here; start it there"
            )
    return [SETTINGS.get(text, text) for text in arguments]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even hydra_plugins
        return False


# --- resume=auto ---------------------------------------------------------------------------------------------------


def left_state(run: RunDirectory, config: DictConfig) -> dict[str, Any] | None:
    """The last checkpoint of the run that a directory holds of this configuration; None where it holds none.

    Raises `UserError` where the directory holds a run of another configuration.
    """
    if not run.config.is_file():
        return None
    difference = first_difference(config, open_run(run.path)[1])
    if difference is not None:
        key, asked, found = difference
        raise UserError(
            f"{run.path} holds a run of another configuration: {key} is {found} there, and {asked} is asked for; "
            "nothing was changed. Give the options of that run, or another directory"
        )
    return load_checkpoint(run.last) if run.last.is_file() else None


def is_finished(state: dict[str, Any]) -> bool:
    """Whether a checkpoint is that of the last step."""
    return bool(state["step"] >= state["total_steps"])


def first_difference(config: DictConfig, saved: DictConfig) -> tuple[str, str, str] | None:
    """The first key in which a run's configuration differs from a saved one, apart from `resume`, and both values."""
    config = config.copy()
    absolute_paths(config)
    here = _leaves(
        OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(config, resolve=True)))
    )  # as it is saved
    there = _leaves(OmegaConf.to_container(saved))
    for key in [*here, *there]:
        if key != "resume" and (key not in here or key not in there or here[key] != there[key]):
            return (
                key,
                repr(here[key]) if key in here else "none",
                repr(there[key]) if key in there else "none",
            )
    return None


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    found = (_leaves(each, f"{path}.{key}" if path else str(key)) for key, each in value.items())
    return {key: leaf for each in found for key, leaf in each.items()}


def auto_arguments(arguments: list[str], config_directory: Path) -> list[str]:
    """Command-line arguments with resume=auto, and the run to go on with as the run directory, if there is one.

    That is the newest run of the experiment's name whose configuration is the one composed here and which is not finished.
    For a sweep (`sweep_directory` finds it), and with a directory of the user's, the arguments stay as they are.
    """
    if "resume=auto" not in arguments or any(
        text.startswith(("-", "hydra.run.dir=")) for text in arguments
    ):
        return arguments
    try:
        with hydra.initialize_config_dir(
            str(config_directory), job_name="train", version_base="1.3"
        ):
            config = hydra.compose("config", arguments, return_hydra_config=True)
        if config.hydra.mode is not None and config.hydra.mode.name == "MULTIRUN":
            return arguments
        parent = Path(config.hydra.run.dir).parent
        config = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    except (
        HydraException,
        OmegaConfBaseException,
    ):  # composed once more by Hydra, which says what is wrong
        return arguments
    for file in sorted(parent.glob("*/.hydra/config.yaml"), reverse=True):
        run = RunDirectory(file.parent.parent.resolve())
        try:
            state = left_state(run, config)
        except UserError:  # another configuration, or damaged
            continue
        if state is None or not is_finished(state):
            print(f"resume=auto: going on with {os.path.relpath(run.path)}")
            quoted = "'" + str(run.path).replace("'", "\\'") + "'"
            return [*arguments, f"hydra.run.dir={quoted}"]
    print(f"resume=auto: no unfinished run of this configuration in {parent}, a new one")
    return arguments
