"""A run that was trained before: its machine, its data, its configuration."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from nws.data import Dataset
from nws.errors import UserError
from nws.experiment.options.validation import check_configuration
from nws.experiment.process.hardware import pick_device
from nws.experiment.storage.checkpoints import check_finite, load_checkpoint, load_parameters
from nws.experiment.storage.directory import RunDirectory, open_run
from nws.experiment.training.build import build_data, build_machine
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
    config: DictConfig
    machine: HelmholtzMachine
    state: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where the machine is, and its data."""
        return next(self.machine.parameters()).device

    @cached_property
    def data(self) -> Dataset:
        """The data set of the run, on the machine's device. It is read when it is first asked for.

        Raises:
            UserError: Where its files are missing, or its images have another size by now.
        """
        check_configuration(self.config, ("data",))
        data = build_data(self.config, self.device)
        pixels, visible = data.shape[0] * data.shape[1], self.machine.sizes[0]
        if pixels != visible:
            raise UserError(
                f"{self.directory.path} is of another architecture: its machine has {visible}"
                f" visible units, and the images of {data.name} have {pixels} pixels now;"
                " give the data that it was trained with"
            )
        return data

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Height and width of an image. A run made by `nws export` knows it without its data."""
        height, width = self.state.get("shape") or self.data.shape
        return height, width


def load_run(
    path: str | Path,
    checkpoint: str = "best",
    weights: str = "plain",
    device: str | torch.device = "auto",
) -> LoadedRun:
    """Return a trained run.

    Args:
        path: The run directory; or `pretrained/digits` and the like, which come with nws and are
            copied to the working directory.
        checkpoint: `best` or `last`.
        weights: `plain`, or `average` for those that the run averaged.
        device: `auto` (CUDA where there is one), `cpu` or `cuda`.

    Raises:
        UserError: Where there is no run, a file is damaged, or an option is none of these.
    """
    for name, value, choices in (
        ("checkpoint", checkpoint, ("best", "last")),
        ("weights", weights, ("plain", "average")),
    ):
        if value not in choices:
            raise UserError(f"{name} must be {' or '.join(choices)}, got {value!r}")
    place = pick_device(device) if isinstance(device, str) else device
    run, config = open_run(path)
    check_configuration(config, ("model",))
    file = run.best if checkpoint == "best" else run.last
    state = load_checkpoint(file)
    machine = build_machine(config, _visible_units(state["machine"], file))
    parameters = _parameters(state, weights, file)
    check_finite(parameters, file)
    load_parameters(machine, parameters, file)
    return LoadedRun(run, config, machine.to(place), state)


def _parameters(state: dict[str, Any], weights: str, file: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a checkpoint, or their average."""
    if weights == "average":
        state = state.get("average") or {"count": 0}
        if not state["count"]:
            raise UserError(
                f"{file} has no averaged weights; a run has them with average=exponential or"
                " average=tail, from average.start on"
            )
    parameters: dict[str, torch.Tensor] = state["machine"]
    return parameters


def _visible_units(parameters: dict[str, torch.Tensor], file: Path) -> int:
    """Return the number of visible units: the biases of the generator's layer 0."""
    bias = parameters.get("generator.layers.0.bias")
    if not isinstance(bias, torch.Tensor) or bias.ndim != 1:
        raise UserError(f"{file} is not a checkpoint of nws: it has no biases of the visible layer")
    return len(bias)
