"""A run as Hydra starts it, by itself or as a job of a sweep, and what Hydra does around runs.

A sweep's directory holds a run directory for each job (0, 1, ...), and `sweep.yaml`: the overrides
that make it this sweep, and the command that started it.
"""

import logging
import math
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from nws import distributed
from nws.errors import Diverged, Stopped, UserError
from nws.experiment.boundary import describe, end_program, errors_for_people, explain
from nws.experiment.build import build_parts, leave_out_others
from nws.experiment.config import foreign_modules, override_key, parameters_of, to_dict, typed
from nws.experiment.hardware import pick_device, surroundings
from nws.experiment.invocation import command_line
from nws.experiment.optimizers import title
from nws.experiment.provenance import Provenance, read_provenance
from nws.experiment.resume import Start, is_in, starting_point
from nws.experiment.run import SWEEP, RunDirectory, Taken, read_sweep, remove_empty
from nws.experiment.signals import StopSignals, end_with
from nws.experiment.terminal import Terminal, short_path, write_line
from nws.experiment.trainer import Trainer
from nws.files import CONF, write_atomically

log = logging.getLogger(__name__)

PARENT = "NWS_SWEEP_PROCESS"  # the variable by which workers know the process of their sweep
STARTED = ""  # when the program was started, with microseconds: one for each run


def folder(name: object) -> str:
    """Return an experiment's name as a folder below outputs/; `UserError` where it leads out."""
    path = Path("" if name is None else str(name))
    if not path.parts or ".." in path.parts or path.is_absolute():
        raise UserError(f"name must be a folder below outputs/, got {name!r}")
    return str(name)


def sweep_directory(parent: str, resume: str | None, overrides: DictConfig) -> str:
    """Return a sweep's directory; for resume=auto the newest one of the same command, if any."""
    if resume == "auto":
        for record in sorted(Path(parent).glob(f"*/{SWEEP}"), reverse=True):
            if read_sweep(record.parent).get("overrides") == sweep_command(overrides):
                return str(record.parent)
    return f"{parent}/{STARTED}"


def sweep_command(overrides: DictConfig) -> list[str]:
    """Return what makes two sweeps the same: the overrides of jobs and sweeper, no launcher."""
    sweepers = ("hydra/sweeper", "hydra.sweeper")
    ways = [text for text in typed(overrides.hydra) if text.startswith(sweepers)]
    return [text for text in typed(overrides.task) if override_key(text) != "resume"] + ways


# Cached, so that all jobs of a sweep share the folder that was named at its start.
OmegaConf.register_new_resolver("folder", folder, use_cache=True, replace=True)
OmegaConf.register_new_resolver("started", lambda: STARTED, use_cache=True, replace=True)
OmegaConf.register_new_resolver("sweep_directory", sweep_directory, use_cache=True, replace=True)


class Sweep(Callback):
    """Hydra's callback at the start of a sweep, which notes its command."""

    command: ClassVar[list[str]] = []  # that this process was started by
    directory: ClassVar[Path | None] = None  # of the sweep that this process started

    @errors_for_people()  # Hydra would only warn
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Write sweep.yaml, unless the sweep goes on."""
        directory = Path(config.hydra.sweep.dir).absolute()
        if distributed.size() > 1:
            what = "a sweep (-m) starts its runs by itself"
            way = "start run after run by it, or the sweep alone (hydra/launcher=slurm_nodes)"
            raise UserError(f"{what}, and torchrun starts the processes of one run; {way}")
        if config.resume not in (None, "auto"):
            raise UserError("resume=RUN takes one run; resume=auto goes on with a sweep (-m)")
        sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
        if "/" in str(sweep["subdir"]):
            raise UserError("hydra.sweep.subdir must be one folder for each job, without a /")
        record, overrides = directory / SWEEP, sweep_command(config.hydra.overrides)
        before = read_sweep(directory)
        if record.exists() and (config.resume != "auto" or before.get("overrides") != overrides):
            way = "give another hydra.sweep.dir, or resume=auto and its command"
            command = shlex.join(before.get("command", ["none"]))
            raise UserError(f"{directory} holds a sweep, nothing was changed; {way}:\n  {command}")
        start = "going on with the" if before else "a new"
        print(f"{start} sweep in {short_path(directory)}", flush=True)
        if not before:
            text = OmegaConf.to_yaml({"overrides": overrides, "command": Sweep.command})
            write_atomically(record, text.encode())
        Sweep.directory = directory
        os.environ[PARENT] = str(os.getpid())

    @staticmethod
    def forget(directory: Path) -> None:
        """Remove the files of a sweep of which no job began, so that it can be started again."""
        if not any(each.is_dir() for each in directory.iterdir()):
            for name in (SWEEP, "multirun.yaml"):  # the second is Hydra's
                (directory / name).unlink(missing_ok=True)
            remove_empty(directory)


class Job:
    """One run of train.py as Hydra sees it: by itself, or a job of a sweep."""

    def __init__(self, config: DictConfig) -> None:
        self.hydra, self.config = HydraConfig.get(), config
        self.overrides = typed(self.hydra.overrides.task)
        self.sweep = self.hydra.mode == RunMode.MULTIRUN
        launcher = str(self.hydra.launcher._target_)
        self.in_worker = self.sweep and not launcher.endswith(".BasicLauncher")
        self.shares_output = self.in_worker and "joblib" in launcher
        if self.shares_output and PARENT in os.environ:
            end_with(int(os.environ[PARENT]))
        if self.in_worker and "submitit" in launcher and int(os.environ.get("SLURM_NTASKS", 1)) > 1:
            from submitit.helpers import TorchDistributedEnvironment  # the tasks train one run

            TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
            meet_others()

    def run(self) -> float:
        """Train; return the best valid/log_likelihood in nats, which hydra/sweeper=search wants."""
        try:
            leave_out_others(self.config, self.overrides)
            place = Path(self.hydra.runtime.output_dir)
            with self._start(place) as start, StopSignals() as stop:
                best = self._train(start, stop)
        except Exception as error:
            if not self.sweep:  # Hydra would name the overrides once more
                end_program(error)
            return self._failed(error)
        write_line(start.run.path)
        if stop.caught is not None and self.in_worker:
            raise Stopped(f"job {self.hydra.job.num} was stopped by signal {stop.caught}")
        if stop.caught is not None:
            sys.exit(128 + stop.caught)
        return best

    @contextmanager
    def _start(self, output: Path) -> Iterator[Start]:
        """Give where the run starts. Of several processes the first one says it to the others."""
        if distributed.rank() > 0:
            path, config, state, changed = distributed.send(None)
            yield Start(RunDirectory(path), OmegaConf.create(config), state, changed)
            return
        named = "hydra.run.dir" in map(override_key, typed(self.hydra.overrides.hydra))
        with starting_point(self.config, self.overrides, output, named) as start:
            distributed.send((start.run.path, to_dict(start.config), start.state, start.changed))
            yield start

    def _failed(self, error: Exception) -> float:
        """Say why a job of a sweep failed; a search goes on after a run that diverged."""
        number, message = self.hydra.job.num, explain(error)
        searches = "direction" in self.hydra.sweeper
        if isinstance(error, Taken) and self.config.resume == "auto" and not searches:
            write_line(f"job {number} is left out: {message}")
            return -math.inf
        print(f"error: job {number}: {message}", file=sys.stderr, flush=True)
        if isinstance(error, Diverged) and searches:
            return -math.inf
        raise UserError(f"job {number}: {message}") from None  # Hydra reports it at the end

    def _train(self, start: Start, stop: StopSignals) -> float:
        """Train one run to its end or to a signal."""
        state = start.state
        if state is not None and state["finished"] and not start.changed:
            write_line(f"finished already: step {state['step']}")
            start.run.write_views(state)
            return float(state["best"])
        trainer = self._trainer(start)
        if start.run.writes:
            start.run.log.capacity = 0  # lines that waited are written with the next one
        if state is None:
            self._warn_of_idle_options(trainer)
        else:  # from here on files change
            start.run.write_views(state)
        if state is not None and trainer.ends:
            write_line(f"nothing to do: {trainer.ends}")
            return trainer.best
        sweep = read_sweep(Path(self.hydra.sweep.dir)) if self.in_worker else {}
        command = sweep.get("command", Sweep.command)  # a worker is another process than its own
        origin: Any = {"command": command, "overrides": self.overrides}
        parameters = sum(each.numel() for each in trainer.machine.parameters())
        origin |= {"layers": [*trainer.machine.sizes], "parameters": parameters}
        origin["experiment"] = self.hydra.runtime.choices.get("experiment")
        here = surroundings(trainer.device)
        here["precision"] = str(trainer.learner.precision).removeprefix("torch.")
        record = Provenance(start.run, origin, here, None if state is None else trainer.step)
        job = f", job {self.hydra.job.num}: {trainer.name}" if self.sweep else ""
        title = f"{start.config.name}{job} ({record.code})"
        number = str(self.hydra.job.num) if self.shares_output else None
        terminal = Terminal(title, start.config, number, single=not self.sweep)
        trainer.callbacks = {"provenance": record, "terminal": terminal, **trainer.callbacks}
        self._fit(trainer, stop)
        if not trainer.ends and not self.sweep:
            modules = ",".join(foreign_modules(start.config))
            trust = [f"trust=[{modules}]"] if modules else []
            again = command_line("train", f"resume={start.run.path}", *trust)
            write_line(f"stopped by signal {stop.caught}; go on with\n  {again}")
        return trainer.best

    def _warn_of_idle_options(self, trainer: Trainer) -> None:
        metrics, rule = trainer.learner.metrics, trainer.learner.rule
        solves = metrics and "solver" in parameters_of(type(metrics[0].metric))[0]
        takers: dict[str, Any] = dict.fromkeys(("natural_metric", "metric", "damping"), metrics)
        dreams = metrics or rule.recognition_dream or rule.dreams is None
        takers |= {"solver": solves, "algorithm.dreams": dreams}
        unused = [name for name, taken in takers.items() if not taken]
        keys = {text: override_key(text).removesuffix("._target_") for text in self.overrides}
        if idle := [text for text, key in keys.items() if key != "metric" and is_in(key, unused)]:
            log.warning(f"no part of this run takes {', '.join(idle)}")
        if hasattr(trainer.optimizer, "eval") and trainer.choices["scheduler"] != "constant":
            what = f"{title(trainer.optimizer)} stands for a falling rate"
            log.warning(f"{what}, and scheduler={trainer.choices['scheduler']} lowers it once more")

    def _trainer(self, start: Start) -> Trainer:
        """Build what a configuration names, and go on from the checkpoint, if there is one."""
        leave_out_others(start.config, self.overrides)  # of a resumed run too
        parts = build_parts(start.config, pick_device(start.config.device))
        aside = ("hydra/", "experiment/", "debug/")
        found = self.hydra.runtime.choices.items()
        choices = {name: each for name, each in found if each and not f"{name}/".startswith(aside)}
        if start.state is not None:  # what this command chooses anew
            given = set(map(override_key, self.overrides))
            anew = {name: each for name, each in choices.items() if override_key(name) in given}
            choices = start.state["choices"] | anew
        place, record = start.run.path, read_sweep(start.run.path.parent)
        words = [str(start.config.algorithm.name), str(start.config.data.name)]
        if record:  # with what its sweep varies
            started = read_provenance(place).get("overrides") or self.overrides
            shared = [*record.get("overrides", []), "resume=auto"]
            words += [text for text in started if text not in shared]
        group = "/".join(place.parts[-3:-1]) if record else None
        trainer = Trainer(parts, start.config, start.run, " ".join(words), group, choices)
        if start.state is not None:
            trainer.load_state_dict(start.state, start.changed)
        return trainer

    def _fit(self, trainer: Trainer, stop: StopSignals) -> None:
        """Train, and tell the callbacks how that ended."""
        state = reason = "failed"
        try:
            trainer.fit(stop)
            state = "finished" if trainer.ends else "stopped"
            reason = trainer.ends or f"signal {stop.caught}"
            if trainer.ends and distributed.size() > 1:
                stop.caught = None  # it came too late for the others to know
        except (Exception, KeyboardInterrupt) as error:  # the latter is a second Ctrl-C
            state = {Diverged: "diverged", KeyboardInterrupt: "stopped"}.get(type(error), "failed")
            reason = str(error) if isinstance(error, UserError) else describe(error)
            log.info("error: %s", reason, exc_info=not isinstance(error, UserError))
            raise
        finally:
            summary: Any = {"best/log_likelihood": trainer.best, "steps": trainer.step}
            summary |= {"reason": reason, "training_seconds": round(trainer.seconds, 3)}
            trainer.call("finish", trainer, summary, state)


def meet_others() -> None:
    """Meet the other processes of a run, if there are some."""
    global STARTED
    distributed.start()
    STARTED = distributed.send(datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> float:
    """Run one run, or one job of a sweep, of a composed configuration."""
    best = Job(config).run()
    distributed.stop()
    return best
