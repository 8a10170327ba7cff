"""What the command line names by a word, for programs of one's own: data, rules and metrics.

The words are the files of conf/, and so are the values of what is not given.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from nws.data import Dataset
from nws.errors import UserError
from nws.experiment.options.configuration import CONF
from nws.experiment.options.validation import check_configuration
from nws.experiment.process.hardware import pick_device
from nws.experiment.training.build import build_data, build_metrics, build_rule
from nws.learning import NaturalMetric, Rule
from nws.models import HelmholtzMachine


def load_data(name: str, device: str | torch.device = "auto", **options: Any) -> Dataset:
    """Return a data set by its name on the command line.

    Args:
        name: A file of conf/data/: `digits`, `fashion_mnist`, `npz`, `folder` and others.
        device: Where the images are held: `auto` (CUDA where there is one), `cpu` or `cuda`.
        **options: Those of the `data` group, for instance `binarize="threshold"` or `path=FILE`.

    Raises:
        UserError: There is no such data set or option, or a file is missing or damaged.

    Example:
        >>> data = load_data("digits", device="cpu")
        >>> len(data.train), data.shape, data.valid.batch().shape
        (1297, (8, 8), torch.Size([250, 64]))
    """
    config = _compose({"data": name})
    _set("data", config, options)
    check_configuration(config, ("data",))
    return build_data(config, pick_device(device) if isinstance(device, str) else device)


def named_rule(name: str, **options: Any) -> Rule:
    """Return a learning rule by its name on the command line.

    A natural rule such as `nrws` has the numbers of `rws`: what makes it natural are the metrics
    that `WakeSleep` is given, for instance those of `natural_metrics`.

    Args:
        name: A file of conf/algorithm/: `ws`, `rws`, `nrws`, `bihm`, `vimco` and others.
        **options: Fields of `Rule` that are to differ.

    Raises:
        UserError: There is no such rule or field, or a value is out of range.

    Example:
        >>> rule = named_rule("nrws", samples=5)
        >>> rule.samples, rule.recognition_wake, rule.recognition_dream
        (5, 0.5, 0.5)
    """
    config = _compose({"algorithm": name})
    _check_names("algorithm", config, options)
    return replace(build_rule(config), **options)  # the values may be functions


def natural_metrics(
    machine: HelmholtzMachine,
    metric: str = "kronecker",
    damping: float = 0.2,
    solver: str = "pcg",
    **options: Any,
) -> list[NaturalMetric]:
    """Return a metric for each of a machine's networks, for `WakeSleep(..., metrics)`.

    Args:
        machine: Whose gradients become natural.
        metric: A file of conf/metric/: `kronecker`, `fisher`, `diagonal`, `empirical` or `mean`.
        damping: alpha, above 0, constant.
        solver: A file of conf/solver/, for the metrics that take one.
        **options: Those of the `metric` group, for instance `rank=5` or `max_kl=0.01`.

    Raises:
        UserError: There is no such metric, solver or option, or a value is out of range.

    Example:
        >>> machine = HelmholtzMachine([64, 32, 16])
        >>> generator, recognition = natural_metrics(machine, "kronecker", damping=0.1)
        >>> generator.network.name, recognition.network.name
        ('generator', 'recognition')
    """
    config = _compose({"metric": metric, "solver": solver})
    _set("damping", config, {"value": damping})
    _set("metric", config, options)
    check_configuration(config, ("metric", "solver", "damping"))
    return build_metrics(config, 1, machine)


def _compose(choices: dict[str, str]) -> DictConfig:
    """Return the configuration of these choices of groups."""
    for group, choice in choices.items():
        there = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        if choice not in there:
            raise UserError(f"{group} must be one of {', '.join(there)}, got {choice!r}")
    overrides = [f"{group}={choice}" for group, choice in choices.items()]
    with hydra.initialize_config_dir(str(CONF), job_name="nws", version_base="1.3"):
        return hydra.compose("config", overrides)


def _check_names(group: str, config: DictConfig, options: Iterable[str]) -> None:
    """Raise `UserError` for an option that a group does not have."""
    there = [str(key) for key in config[group] if key != "_target_"]
    unknown = [name for name in options if name not in there]
    if unknown:
        raise UserError(f"{group} has the options {', '.join(there)}; got {', '.join(unknown)}")


def _set(group: str, config: DictConfig, options: dict[str, Any]) -> None:
    """Set options of a group; `UserError` for one that the group does not have."""
    _check_names(group, config, options)
    for name, value in options.items():
        OmegaConf.update(config, f"{group}.{name}", value, merge=False)
