"""A run: its directory, and everything that is built from its configuration."""

import inspect
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from torch.optim import Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nws.data import Dataset, load_dataset
from nws.errors import UserError
from nws.experiment.checkpoint import load_checkpoint, load_parameters
from nws.files import write_atomically
from nws.learning.metrics import KINDS, SOLVED, MetricSettings, NaturalMetric
from nws.learning.wake_sleep import Rule
from nws.models.helmholtz import HelmholtzMachine
from nws.natural.damping import Damping
from nws.natural.solvers import make_solver

log = logging.getLogger(__name__)

#: what a resumed run cannot change: where it stands in its data and draws would lose its meaning
FIXED = (
    "seed", "name", "algorithm.name", "trainer.batch_size", "model.units",
    "data.name", "data.binarize", "data.fold", "data.split", "data.size",
)  # fmt: skip


def overridden(text: str) -> str:
    """The key of an override, as in model.layers; of a whole group, as in optimizer."""
    return text.split("=", 1)[0].lstrip("+~").split("@")[0].replace("/", ".")


#: the groups of options that every run has
GROUPS = (
    "trainer",
    "algorithm",
    "data",
    "model",
    "metric",
    "solver",
    "damping",
    "optimizer",
    "scheduler",
    "logger",
)


@dataclass(frozen=True)
class RunDirectory:
    """The files that a run leaves behind."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / ".hydra" / "config.yaml"

    def check_free(self) -> None:
        """Raise `UserError` where the directory holds a run already: two that write one directory would mix their files."""
        if self.config.parent.exists():
            raise UserError(
                f"{self.path} holds a run already, nothing was changed; go on with it by resume={self.path}, or give another "
                "hydra.run.dir (hydra.sweep.dir for a sweep), or remove it"
            )

    def claim(self) -> None:
        """Make the directory this run's own, which only one of several that start at once can. Raises as `check_free`."""
        try:
            self.config.parent.mkdir(parents=True)
        except FileExistsError:
            self.check_free()

    @property
    def choices(self) -> Path:
        return self.path / ".hydra" / "choices.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def last(self) -> Path:
        return self.path / "checkpoints" / "last.pt"

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.pt"

    @property
    def images(self) -> Path:
        return self.path / "images"


def open_run(path: str | Path) -> tuple[RunDirectory, DictConfig]:
    """An existing run and its configuration. Raises `UserError` where the directory is none or not a run."""
    run = RunDirectory(Path(path).expanduser().resolve())
    if not run.path.is_dir():
        raise UserError(
            f"expected a run directory, {run.path} does not exist; a run prints its directory at start and end"
        )
    if not run.config.is_file():
        raise UserError(f"{run.path} is not a run directory: it has no .hydra/config.yaml")
    try:
        config = OmegaConf.load(run.config)
    except Exception as error:
        raise UserError(f"{run.config} cannot be read: {error}") from error
    if not isinstance(config, DictConfig) or not config:
        raise UserError(
            f"{run.config} should hold the configuration of a run, but is empty or a list"
        )
    OmegaConf.set_struct(config, True)
    return run, config


def save_config(run: RunDirectory, config: DictConfig, choices: dict[str, str]) -> None:
    """Write the resolved configuration, enough to rebuild everything, and the choice of each group that it came from."""
    write_atomically(run.choices, OmegaConf.to_yaml(choices).encode())
    write_atomically(run.config, OmegaConf.to_yaml(config, resolve=True).encode())


def check_groups(config: DictConfig) -> None:
    """Raise `UserError` where a group of options is missing, as after optimizer=null."""
    for name in GROUPS:
        if not isinstance(OmegaConf.select(config, name), DictConfig):
            found = OmegaConf.select(config, name)
            raise UserError(
                f"the configuration needs a group of options {name}, got {found!r}; see conf/{name}/"
            )


def absolute_paths(config: DictConfig) -> None:
    """Make the paths of the data absolute, so that a run is found again from any working directory."""
    for key in ("root", "path"):
        if config.data.get(key) is not None:
            config.data[key] = str(Path(str(config.data[key])).expanduser().resolve())


def resume_arguments(arguments: list[str]) -> list[str]:
    """What `resume=RUN` among command-line arguments stands for: the run's path, its groups, and Hydra's log beside it.

    The groups let overrides such as optimizer.momentum=0.5 be composed as the run was. Raises `UserError` for what is no
    run, and for group=null.
    """
    given = [argument.partition("=") for argument in arguments]
    for key, _, value in given:
        if key in (*GROUPS, "experiment", "debug") and any(map(_is_no_name, value.split(","))):
            raise UserError(  # Hydra answers this with a traceback
                f"{key} needs the name of a file in conf/{key}/, got {value}; leave it out for the default. Numbers go to the "
                f"options of a group, as in damping.value=0.1"
            )
        if key.lstrip("+") == "resume" and value not in ("", "null", "auto"):
            if {"-m", "--multirun"} & set(arguments):
                raise UserError(
                    "resume=RUN takes one run and no sweep (-m); resume=auto goes on with a sweep"
                )
            run, _ = open_run(value.strip("'\""))
            quoted = "'" + str(run.path).replace("'", "\\'") + "'"
            here = arguments.index(f"{key}={value}")
            taken = {each[0] for each in given}
            groups = [
                f"{name}={choice}"
                for name, choice in saved_choices(run).items()
                if name not in taken
            ]
            resume = [*groups, f"resume={quoted}", f"hydra.run.dir={quoted}"]
            return [*arguments[:here], *resume, *arguments[here + 1 :]]
    return arguments


def _is_no_name(value: str) -> bool:
    """Whether Hydra reads an override's value as something other than text: null, a truth value or a number."""
    try:
        float(value)
    except ValueError:
        return value in ("null", "true", "false")
    return True


def saved_choices(run: RunDirectory) -> dict[str, str]:
    """The choice of each group that a run was composed from; none where it did not keep them."""
    return dict(OmegaConf.load(run.choices).items()) if run.choices.is_file() else {}  # type: ignore[arg-type,misc]


def override(saved: DictConfig, composed: DictConfig, overrides: list[str]) -> DictConfig:
    """A saved configuration with command-line overrides applied: values or whole groups, as `composed` holds them.

    Raises `UserError` for what a resumed run cannot change.
    """
    config = saved.copy()
    for text in overrides:
        key = overridden(text)
        if key == "resume":
            continue
        value = OmegaConf.select(composed, key, default=None)
        fixed = [name for name in FIXED if name == key or name.startswith(f"{key}.")]
        changed = [
            name
            for name in fixed
            if OmegaConf.select(composed, name) != OmegaConf.select(saved, name)
        ]
        if changed or text.startswith("~") or key.split(".")[0] in ("experiment", "debug"):
            raise UserError(
                f"a resumed run keeps its {changed[0] if changed else key}, got {text}; start a new run instead"
            )
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    return config


def pick_device(name: str) -> torch.device:
    """The device for `auto` (CUDA where there is one), `cpu` or `cuda`. Raises `UserError` where it is not to be had."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda, but torch sees no CUDA device; use device=cpu or device=auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def derive_seed(seed: int, *stream: int) -> int:
    """The seed of one of a run's independent streams of random numbers."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0])


def build_data(config: DictConfig, device: torch.device) -> Dataset:
    """The data set of the `data` group, on the device."""
    options = plain(config.data)
    return load_dataset(locate(options.pop("_target_", None), "data"), device=device, **options)


def locate(target: object, group: str) -> Callable[..., Any]:
    """Import what a `_target_` names; a file in the working directory counts too."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = pkgutil.resolve_name(str(target))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{group}._target_={target} cannot be imported: {error}") from error
    if not callable(found):
        raise UserError(f"{group}._target_ must name a function or a class, got {target}")
    return found


def build_machine(config: DictConfig, data: Dataset) -> HelmholtzMachine:
    """An untrained machine of the `model` group for these images, its parameters drawn from the run's seed (on the CPU)."""
    options = plain(config.model)
    layers = options.pop("layers")
    if not isinstance(layers, list):
        raise UserError(
            f"model.layers must be a list of layer sizes, bottom up, got {layers!r}; say model.layers=[200,100]"
        )
    visible = data.shape[0] * data.shape[1]
    seed = config.seed
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number of at least 0, got {seed!r}")
    if (
        options.get("visible_bias") == "data"
    ):  # log-odds of the training part's mean image, as if each pixel had one more of both
        count, on = (
            len(data.train),
            data.train.bytes.sum(0, dtype=torch.float64).cpu() / data.train.maximum,
        )
        options["visible_bias"] = torch.logit((on + 1) / (count + 2))
    for name in ("weight_scale", "hidden_bias", "visible_bias"):
        value = options.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            raise UserError(
                f"model.{name} must be a number{' or data' * (name == 'visible_bias')}, got {value!r}"
            )
    rng = torch.Generator().manual_seed(derive_seed(seed, 0))
    return checked(HelmholtzMachine, "model", [visible, *layers], rng=rng, **options)


def unused_options(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Those of a run's overrides that can have no effect: of the solver or the damping, where the metric takes none."""
    kind = OmegaConf.select(config, "metric.kind")
    takers = {"damping": KINDS, "solver": SOLVED}
    keys = [(text, overridden(text).split(".")[0]) for text in overrides]
    return [text for text, key in keys if key in takers and kind not in takers[key]]


def build_rule(config: DictConfig) -> Rule:
    """The learning rule of the `algorithm` group."""
    return checked(Rule, "algorithm", **plain(config.algorithm))


def checked(make: Callable[..., Any], section: str, /, *arguments: Any, **options: Any) -> Any:
    """make(*arguments, **options), where the options are those of a group. Raises `UserError` if one is unknown or missing."""
    try:
        inspect.signature(make).bind(*arguments, **options)
    except TypeError as error:
        raise UserError(
            f"the options of {section} do not fit: {error}, got {', '.join(options)}"
        ) from error
    return make(*arguments, **options)


def build_metrics(
    config: DictConfig, total_steps: int, machine: HelmholtzMachine
) -> list[NaturalMetric]:
    """A metric for each network from the groups `metric`, `solver` and `damping`; none for the Euclidean one."""
    if config.metric.get("kind") == "euclidean":
        return []
    settings = checked(MetricSettings, "metric", **plain(config.metric))
    solver = partial(make_solver, solves=settings.refresh_every, **plain(config.solver))
    solver()  # a wrong option is found here, not at the first step
    metrics = []
    for network in machine.networks:
        damping = build(config.damping, total_steps)
        if not isinstance(damping, Damping):
            raise UserError(
                f"damping._target_ must be a class of nws.natural.damping, got {config.damping._target_}"
            )
        for step in (total_steps - 1, 0):
            damping.start_step(
                step
            )  # a schedule that falls to 0 is found here, not in the middle of a run
        metrics.append(NaturalMetric(network, settings, solver, damping))
    return metrics


def build_optimizer(config: DictConfig, total_steps: int, machine: HelmholtzMachine) -> Optimizer:
    """The `optimizer` group's optimizer of all parameters."""
    parameters = [
        parameter for parameter in machine.parameters() if parameter.numel()
    ]  # the top layer has only biases
    optimizer = build(config.optimizer, total_steps, parameters)
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, SparseAdam):
        raise UserError(
            f"optimizer._target_ must be a torch optimizer that takes dense gradients, got {config.optimizer._target_}; "
            "try optimizer=adam or optimizer=sgd"
        )
    return optimizer


def build_scheduler(
    config: DictConfig, total_steps: int, optimizer: Optimizer
) -> LRScheduler | ReduceLROnPlateau:
    """The `scheduler` group's scheduler of an optimizer."""
    scheduler = build(config.scheduler, total_steps, optimizer)
    if not isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
        raise UserError(
            f"scheduler._target_ must be one of torch.optim.lr_scheduler, got {config.scheduler._target_}; "
            "try scheduler=linear or scheduler=constant"
        )
    return scheduler


def build(section: DictConfig, total_steps: int, *arguments: Any) -> Any:
    """The object that a section's `_target_` names; the value `total_steps` in it stands for the run's number of steps.

    Raises `UserError` with the class's own words where it does not take the options.
    """
    try:
        filled = OmegaConf.create(_fill(plain(section), total_steps))
        return hydra.utils.instantiate(filled, *arguments)
    except (InstantiationException, OmegaConfBaseException) as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        options = plain(section)
        target = options.pop("_target_", "an object without _target_")
        cause = (str(error.__cause__) or str(error)).splitlines()[0]
        raise UserError(f"{target} cannot be made from the options {options}: {cause}") from error


def load_machine(
    path: str | Path, checkpoint: str, device: torch.device
) -> tuple[RunDirectory, DictConfig, Dataset, HelmholtzMachine]:
    """Everything that looking at a run needs, with the parameters of its `best` or `last` checkpoint."""
    run, config = open_run(path)
    check_groups(config)
    file = run.best if checkpoint == "best" else run.last
    state = load_checkpoint(file)
    data = build_data(config, device)
    machine = build_machine(config, data)
    load_parameters(machine, state["machine"], file)
    return run, config, data, machine.to(device)


def _fill(value: Any, total_steps: int) -> Any:
    if isinstance(value, dict):
        return {key: _fill(each, total_steps) for key, each in value.items()}
    return total_steps if value == "total_steps" else value


def plain(section: DictConfig) -> dict[str, Any]:
    """A section of the configuration, resolved, as dictionaries and lists."""
    container = OmegaConf.to_container(section, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
