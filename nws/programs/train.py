"""Train a Helmholtz machine.

Use: `python train.py [resume=RUN|auto] [key=value ...]`; `python train.py --help` lists the groups.
"""

import logging
import sys
from functools import partial

import hydra
from omegaconf import DictConfig

from nws.analysis.summaries import print_sweep
from nws.experiment.launch.arguments import agree_on_arguments
from nws.experiment.launch.job import Job
from nws.experiment.launch.panels import show_end, show_start, start_record
from nws.experiment.launch.resume import Start, starting_point
from nws.experiment.launch.sweeps import program
from nws.experiment.options.configuration import CONF, resolve_paths, to_dict
from nws.experiment.options.flags import split
from nws.experiment.options.help import help_text
from nws.experiment.process.hardware import pick_device
from nws.experiment.process.memory import check_memory
from nws.experiment.process.signals import StopSignals
from nws.experiment.process.terminal import Terminal
from nws.experiment.storage.checkpoints import from_checkpoint
from nws.experiment.training.build import build_data, unused_options, without_exact
from nws.experiment.training.facts import facts, summary
from nws.experiment.training.loggers import Outputs
from nws.experiment.training.parts import build_parts
from nws.experiment.training.settings import TrainerSettings
from nws.experiment.training.trainer import Trainer

log = logging.getLogger(__name__)


def build_trainer(start: Start, choices: dict[str, str]) -> Trainer:
    """Build everything that a run's configuration names, and go on from its checkpoint."""
    config = start.config
    resolve_paths(config)
    device = pick_device(config.device)
    settings, data = TrainerSettings(**to_dict(config.trainer)), build_data(config, device)
    check_memory(config, data, device)
    make = partial(build_parts, config, data, settings.total_steps(len(data.train)))
    trainer = Trainer(settings, data, make, Outputs(start.run, config, choices))
    trainer.data = without_exact(data, trainer.machine)
    if start.state is not None:
        with from_checkpoint(start.run.last, "going on from it"):
            trainer.load_state_dict(start.state, start.changed)
    return trainer


def train(start: Start, job: Job, terminal: Terminal) -> int | None:
    """Train one run to its end, or to a signal, whose number is returned."""
    trainer, state = build_trainer(start, job.choices), start.state
    if state is None:
        start.run.claim(start.config, job.choices, start.again)
    elif trainer.finished:
        terminal.line(f"nothing to do: {trainer.place}; go on with {trainer.way_on}")
        job.best = trainer.best
        return None
    record = start_record(trainer, job.origin, resumed=state is not None)
    try:
        with record.ended_by(partial(facts, trainer)), StopSignals(terminal.announce_stop) as stop:
            show_start(terminal, job.title(start.config.name), trainer, record, job.shares_output)
            trainer.outputs.start_logger(trainer.step, state["wandb_id"] if state else None)
            stopped = trainer.fit(terminal, stop)
        job.best = trainer.best
        show_end(terminal, trainer, record.record, with_commands=not job.sweep)
        return stopped
    finally:
        trainer.outputs.logger.finish(summary(trainer) | record.summary(), record.record["state"])


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> float:
    """Run one run, or one job of a sweep.

    Returns the best validation log-likelihood, which hydra/sweeper=optuna maximizes.
    """
    job = Job()
    with job.reports_errors(), starting_point(config, job.hydra) as start:
        state, stopped, terminal = start.state, None, job.terminal(start.config)
        if state is not None and start.finished:
            terminal.line("finished already: step {step} of {total_steps}".format(**state))
            job.best = float(state["best"])
        else:
            unused = [] if state else unused_options(start.config, job.hydra.overrides.task)
            if unused:
                metric = job.choices.get("metric")
                log.warning("without effect with metric=%s: %s", metric, ", ".join(unused))
            stopped = train(start, job, terminal)
        job.end(start.run, stopped)
    return job.best


def run() -> None:
    """The program: what the user typed, rewritten for Hydra."""
    given = sys.argv[1:]
    with program(given, print_sweep):
        if {"-h", "--help"} & set(given):
            print(help_text([word for word in split(given).overrides if "=" not in word]))
            return
        sys.argv[1:] = agree_on_arguments(given, CONF)
        main()
