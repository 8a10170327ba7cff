"""Runs that were trained before; and data, rules and metrics by their names on the command line.

The names are the files of conf/, and so are the values of what is not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from nws.data import Dataset, load_arrays, load_dataset
from nws.errors import UserError, explained, one_of
from nws.experiment.build import build_data, build_machine, build_metrics
from nws.experiment.checkpoints import State, from_checkpoint, load_checkpoint
from nws.experiment.config import check_trust, make, to_dict
from nws.experiment.hardware import pick_device
from nws.experiment.run import RunDirectory, open_run, parse_yaml, with_data_here
from nws.files import CONF
from nws.learning import NaturalMetric, Rule
from nws.models import HelmholtzMachine


@dataclass(frozen=True)
class LoadedRun:
    """A run, as `load_run` returns it.

    Attributes:
        directory: Its files; `directory.path` is where they are.
        config: Its resolved configuration, with keys such as `config.optimizer.lr`.
        machine: The trained machine.
        state: The checkpoint that the machine is from: `state["step"]` and others.
    """

    directory: RunDirectory
    config: DictConfig = field(repr=False)
    machine: HelmholtzMachine
    state: State = field(repr=False)

    @property
    def device(self) -> torch.device:
        """Where the machine is, and its data."""
        return next(self.machine.parameters()).device

    @property
    def bidirectional(self) -> bool:
        """Whether its rule trains the bidirectional machine p*, which log p* and Gibbs are for."""
        return bool(self.config.algorithm.get("bidirectional"))

    @cached_property
    def data(self) -> Dataset:
        """The data set of the run, on the machine's device; read when it is first asked for."""
        data = build_data(with_data_here(self.config), self.device)
        if data.shape != self.shape:
            raise UserError(f"images of {data.name} are {data.shape}, but of training {self.shape}")
        return data

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an image, which the checkpoint knows without the data."""
        height, width = self.state["shape"]
        return int(height), int(width)

    @torch.no_grad()
    def features(self, x: torch.Tensor, samples: int = 100, seed: int = 0) -> list[torch.Tensor]:
        """Return what the recognition network makes of images: the mean value of each layer.

        Args:
            x: Images in [0, 1], (B, D).
            samples: K, samples of h ~ q(h | x) that the means are of.
            seed: Of the draws.

        Returns:
            (B, n_1) .. (B, n_L), of the hidden layers from below.
        """
        rng = torch.Generator(self.device).manual_seed(seed)
        trace = self.machine.wake(x.to(self.device), samples, rng)
        means = trace.means(self.machine.recognition).split(self.machine.recognition.widths, 1)
        return [each.unflatten(0, (-1, samples)).mean(1) for each in means]


def load_run(
    path: str | Path, checkpoint: str = "best", weights: str = "plain",
    device: str | torch.device = "auto", trust: Sequence[str] = (),
) -> LoadedRun:  # fmt: skip
    """Return a trained run.

    Args:
        path: The run directory; or `pretrained/digits` and the like, which come with nws and are
            copied to the working directory.
        checkpoint: `best` or `last`.
        weights: `plain`, or `average` for those that the run averaged.
        device: `auto` (CUDA where there is one), `cpu` or `cuda`.
        trust: Modules of yours that the run may call, for instance `["my_ideas"]`. What else it
            names besides nws is refused before it is imported.
    """
    one_of("checkpoint", checkpoint, ("best", "last"))
    one_of("weights", weights, ("plain", "average"))
    place = pick_device(device)
    run, _ = open_run(path)
    file = run.best if checkpoint == "best" else run.last
    state = load_checkpoint(file)
    config = parse_yaml(state["configuration"], file)
    check_trust(config, trust, run.path)
    parameters: dict[str, torch.Tensor] = state["machine"]
    if weights == "average":
        average = (state.get("callbacks") or {}).get("average") or {"count": 0}
        if not average["count"]:
            way = "a run has them with average=exponential or average=tail, from its start on"
            later = "; perhaps checkpoint last has them" * (checkpoint == "best")
            raise UserError(f"{file} has no averaged weights; {way}{later}")
        parameters = average["machine"]
    machine = build_machine(config, [int(side) for side in state["shape"]])
    with from_checkpoint(file):
        if not all(each.isfinite().all() for each in parameters.values()):
            raise UserError(f"{file} has parameters that are not finite, of no use to any program")
        machine.load_state_dict(parameters)
    return LoadedRun(run, config, machine.to(place), state)


def load_data(data: Any, device: str | torch.device = "auto", **options: Any) -> Dataset:
    """Return a data set by its name on the command line, or one of images in memory.

    Args:
        data: A file of conf/data/: `digits`, `fashion_mnist`, `npz`, `folder` and others. Or images
            themselves, an array, tensor or data frame (N, D) or (N, H, W), as
            `nws.data.load_arrays` takes them.
        device: Where the images are held: `auto` (CUDA where there is one), `cpu` or `cuda`.
        **options: Those of the `data` group, for instance `binarize="threshold"` or `path=FILE`; of
            images in memory those of `nws.data.load_arrays`, such as `valid` and `test`.

    Examples:
        >>> data = load_data("digits", device="cpu")
        >>> len(data.train), data.shape, data.valid.batch().shape
        (1297, (8, 8), torch.Size([250, 64]))
        >>> load_data(torch.ones(40, 6), device="cpu").train.batch().shape
        torch.Size([32, 6])
    """
    place = pick_device(device)
    if not isinstance(data, str):
        return load_dataset(load_arrays, device=place, train=data, **{"name": "arrays"} | options)
    return build_data(_compose({"data": data}, {"data": options}), place)


def named_rule(name: str, **options: Any) -> Rule:
    """Return a learning rule by its name on the command line.

    A natural rule such as `nrws` has the numbers of `rws`: what makes it natural are the metrics
    that `WakeSleep` is given, for instance those of `natural_metrics`.

    Args:
        name: A file of conf/algorithm/: `ws`, `rws`, `nrws`, `bihm`, `vimco` and others.
        **options: Fields of `Rule` that are to differ.

    Examples:
        >>> rule = named_rule("nrws", samples=5)
        >>> rule.samples, rule.recognition_wake, rule.recognition_dream
        (5, 0.5, 0.5)
    """
    section = to_dict(_compose({"algorithm": name}, {}).algorithm)
    return make(section | options, "algorithm")  # the values may be functions


def natural_metrics(
    machine: HelmholtzMachine, metric: str = "adaptive", damping: float = 0.2, solver: str = "pcg",
    **options: Any,
) -> list[NaturalMetric]:  # fmt: skip
    """Return a metric for each of a machine's networks, for `WakeSleep(..., metrics)`.

    Args:
        machine: Whose gradients become natural.
        metric: A file of conf/metric/, such as `kronecker`, `adaptive` or `fisher`.
        damping: alpha, above 0, constant.
        solver: A file of conf/solver/, for the metrics that take one.
        **options: Those of the `metric` group, for instance `rank=5` or `max_kl=0.01`.

    Examples:
        >>> machine = HelmholtzMachine([64, 32, 16])
        >>> generator, recognition = natural_metrics(machine, "kronecker", damping=0.1)
        >>> generator.network.name, recognition.network.name
        ('generator', 'recognition')
    """
    more = {"damping": {"value": damping}, "metric": options}
    return build_metrics(_compose({"metric": metric, "solver": solver}, more), 1, machine)


def _compose(choices: dict[str, str], options: dict[str, dict[str, Any]]) -> DictConfig:
    """Return the configuration of these choices of groups, with these values of options."""
    for group, choice in choices.items():
        one_of(group, choice, sorted(path.stem for path in (CONF / group).glob("*.yaml")))
    outer = GlobalHydra.instance().hydra  # of a program of the user's own that Hydra started
    try:
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(CONF), job_name="nws", version_base="1.3"):
            config = hydra.compose("config", [f"{name}={each}" for name, each in choices.items()])
    finally:
        GlobalHydra.instance().hydra = outer
    for group, values in options.items():
        for name, value in values.items():
            with explained(f"{group}.{name} must be a plain value, a list or a dictionary"):
                OmegaConf.update(config, f"{group}.{name}", value, merge=False, force_add=True)
    return config
