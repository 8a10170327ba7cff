"""Everything that is built from a run's configuration, which was checked before."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nws.data import Dataset, load_dataset
from nws.errors import UserError
from nws.experiment.averaging import Average
from nws.experiment.options.configuration import instantiate, locate, override_key, to_dict
from nws.experiment.training import trial
from nws.experiment.training.rates import parameter_groups
from nws.experiment.training.seeds import derive_seed
from nws.learning import NaturalMetric, RowOptions, Rule
from nws.models import HelmholtzMachine, Units
from nws.models.likelihood import can_enumerate
from nws.models.units import find_units
from nws.natural import Damping, Metric, Solver

log = logging.getLogger(__name__)

# What each of these groups makes.
KINDS: dict[str, tuple[Any, str]] = {
    "algorithm": (Rule, "nws.learning.Rule"),
    "damping": (Damping, "a class of nws.natural.damping"),
    "optimizer": (Optimizer, "a torch optimizer that takes dense gradients"),
    "average": (Average, "nws.experiment.averaging.Average"),
    "scheduler": (LRScheduler | ReduceLROnPlateau, "one of torch.optim.lr_scheduler"),
}


def build_data(config: DictConfig, device: torch.device) -> Dataset:
    """Return the data set of the `data` group on the device."""
    options = to_dict(config.data)
    named = f"nws.data.load_{config.data.name}"  # what runs of earlier versions mean by the name
    source = locate(options.pop("_target_", named), "data")
    return load_dataset(source, device=device, **options)


def build_machine(config: DictConfig, data: Dataset | int) -> HelmholtzMachine:
    """Return an untrained machine of the `model` group, on the CPU, drawn from the run's seed.

    Args:
        config: The run's configuration.
        data: The data set; or the number of pixels, where parameters are loaded afterwards.
    """
    options = to_dict(config.model)
    for name in ("units", "visible"):
        if isinstance(options.get(name), dict):
            options[name] = instantiate(options[name])
    if options.get("visible_bias") == "data":
        options["visible_bias"] = _bias_of(data, options)
    rng = torch.Generator().manual_seed(derive_seed(config.seed, 0))
    make = locate(options.pop("_target_", "nws.models.HelmholtzMachine"), "model")  # of version 0.1
    pixels = data if isinstance(data, int) else math.prod(data.shape)
    made: HelmholtzMachine = make([pixels, *options.pop("layers")], rng=rng, **options)
    return made


def _bias_of(data: Dataset | int, options: dict[str, Any]) -> Tensor | float:
    """Return what model.visible_bias=data stands for; 0 where there is no data set."""
    visible = options.get("visible") or options.get("units", "binary")
    return 0.0 if isinstance(data, int) else mean_image_bias(data, find_units(visible))


def without_exact(data: Dataset, machine: HelmholtzMachine) -> Dataset:
    """Return a data set without its p_D where the machine has too many states to sum over."""
    if data.distribution is None or can_enumerate(machine, len(data.distribution[0])):
        return data
    log.warning(
        f"metrics.csv will not have exact/kl: layers {list(machine.sizes[1:])} have too many states"
        " to sum over; model=toy has few enough"
    )
    return replace(data, distribution=None)


def mean_image_bias(data: Dataset, units: Units) -> Tensor:
    """Return the logits (D,) of the training part's mean image.

    One white and one black image are added, so that no pixel is certain.
    """
    white = data.train.total() / data.train.maximum
    return units.link(units.from_data((white + 1) / (len(data.train) + 2)))


def build_rule(config: DictConfig, total_steps: int = 1) -> Rule:
    """Return the learning rule of the `algorithm` group."""
    rule: Rule = _build(config, "algorithm", total_steps)
    rule.try_step(total_steps - 1)  # a schedule that leaves its range is found here
    return rule


def _build(config: DictConfig, group: str, total_steps: int, *arguments: Any) -> Any:
    """Return the object of a group; `UserError` where it is not what the group is for."""
    return _make(group, to_dict(config[group]), total_steps, *arguments)


def _make(group: str, options: dict[str, Any], total_steps: int, *arguments: Any) -> Any:
    """Return the object of a group from its options."""
    made, (kind, expected) = instantiate(options, total_steps, *arguments), KINDS[group]
    if not isinstance(made, kind) or isinstance(made, SparseAdam):
        found = options["_target_"]
        raise UserError(f"{group}._target_ must be {expected}, got {found}; see conf/{group}/")
    return made


def build_metrics(
    config: DictConfig, total_steps: int, machine: HelmholtzMachine
) -> list[NaturalMetric]:
    """Return a metric for each network from `metric`, `solver`, `damping`; none if Euclidean.

    The options of `RowOptions` say which rows a metric takes in. The metric's own come first.
    """
    options = to_dict(config.metric)
    if options.get("_target_") is None:
        return []
    own = _taken_by(options["_target_"])
    names = [field.name for field in fields(RowOptions) if field.name in {*options} - {*own}]
    if options.get("memory") == 1 and "memory" not in own:
        del options["memory"]  # what a class of a user's own has anyway
    rows = RowOptions(**{name: options.pop(name) for name in names})
    extra = {}
    if takes_solver(config):
        extra["solver"] = partial(instantiate, config.solver, total_steps)
        if not isinstance(extra["solver"](), Solver):  # found here, as a wrong option is
            raise UserError(
                "solver._target_ must be a class that derives from nws.natural.Solver, got"
                f" {config.solver['_target_']}; see docs/extending.md"
            )
    metrics = []
    for network in machine.networks:
        metric = instantiate(options, total_steps, **extra)
        if not isinstance(metric, Metric):
            raise UserError(
                "metric._target_ must be a class that derives from nws.natural.Metric, got"
                f" {options['_target_']}; see docs/extending.md"
            )
        damping = _build(config, "damping", total_steps)
        for step in (total_steps - 1, 0):  # a schedule that falls to 0 is found here
            damping.start_step(step)
        metrics.append(NaturalMetric(network, metric, damping, rows))
    return metrics


def takes_solver(config: DictConfig) -> bool:
    """Return whether the metric's class takes a solver."""
    target = config.metric.get("_target_")
    return target is not None and "solver" in _taken_by(target)


def _taken_by(target: str) -> Mapping[str, Parameter]:
    """Return what a metric's class takes; nothing of a builtin, which does not say."""
    try:
        return signature(locate(target, "metric")).parameters
    except ValueError:
        return {}


def unused_options(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the overrides of solver and damping, or of a metric, that the run does not use."""
    natural = config.metric.get("_target_") is not None
    used = {"damping": natural, "solver": takes_solver(config), "natural_metric": natural}
    return [text for text in overrides if not used.get(override_key(text).split(".")[0], True)]


def build_optimizer(config: DictConfig, total_steps: int, machine: HelmholtzMachine) -> Optimizer:
    """Return the `optimizer` group's optimizer of all parameters.

    It has one group of parameters, or where the networks' rates differ one for each network.
    """
    options = to_dict(config.optimizer)
    groups = parameter_groups(machine, options)
    if trial.is_tried(locate(options["_target_"], "optimizer")):
        trial.try_optimizer(_make("optimizer", options, total_steps, trial.small(groups)), options)
    return _make("optimizer", options, total_steps, groups)


def build_scheduler(
    config: DictConfig, total_steps: int, optimizer: Optimizer
) -> LRScheduler | ReduceLROnPlateau:
    """Return the `scheduler` group's scheduler of an optimizer."""
    options = to_dict(config.scheduler)
    if trial.is_tried(locate(options["_target_"], "scheduler")):
        tried = _make("scheduler", options, total_steps, trial.beside(optimizer))
        trial.try_scheduler(tried, options, total_steps)
    return _make("scheduler", options, total_steps, optimizer)


def build_average(
    config: DictConfig, total_steps: int, machine: HelmholtzMachine
) -> Average | None:
    """Return the average of a machine's weights that the `average` group asks for, if any."""
    if (config.get("average") or {}).get("_target_") is None:  # runs of earlier versions have none
        return None
    average: Average = _build(config, "average", total_steps, machine, total_steps)
    return average
