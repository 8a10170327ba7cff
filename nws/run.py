"""A run: its directory, and everything that is built from its configuration."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nws.checkpoint import load_checkpoint, load_parameters
from nws.datasets import Dataset, load_dataset
from nws.errors import UserError
from nws.files import write_atomically
from nws.helmholtz import HelmholtzMachine
from nws.wake_sleep import Rule

log = logging.getLogger(__name__)

#: what a resumed run cannot change: where it stands in its data and draws would lose its meaning
FIXED = ("seed", "name", "algorithm.name", "trainer.batch_size", "data.name", "data.binarize")


@dataclass(frozen=True)
class RunDirectory:
    """The files that a run leaves behind."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / ".hydra" / "config.yaml"

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
    assert isinstance(config, DictConfig)
    return run, config


def save_config(run: RunDirectory, config: DictConfig) -> None:
    """Write the resolved configuration, enough to rebuild everything."""
    write_atomically(run.config, OmegaConf.to_yaml(config, resolve=True).encode())


def override(saved: DictConfig, composed: DictConfig, overrides: list[str]) -> DictConfig:
    """A saved configuration with command-line overrides applied: values or whole groups, as `composed` holds them.

    Raises `UserError` for what a resumed run cannot change.
    """
    config = saved.copy()
    for text in overrides:
        key = text.split("=", 1)[0].lstrip("+~").split("@")[0].replace("/", ".")
        if key == "resume":
            continue
        value = OmegaConf.select(composed, key, default=None)
        fixed = [name for name in FIXED if name == key or name.startswith(f"{key}.")]
        changed = [name for name in fixed if OmegaConf.select(composed, name) != OmegaConf.select(saved, name)]
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
    return load_dataset(device=device, **plain(config.data))


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
    return HelmholtzMachine([visible, *layers], rng=torch.Generator().manual_seed(derive_seed(seed, 0)), **options)


def build_rule(config: DictConfig) -> Rule:
    """The learning rule of the `algorithm` group."""
    return Rule(**plain(config.algorithm))


def build(section: DictConfig, total_steps: int, *arguments: Any) -> Any:
    """The object that a section's `_target_` names; the value `total_steps` in it stands for the run's number of steps.

    Raises `UserError` with the class's own words where it does not take the options.
    """
    try:
        filled = OmegaConf.create(_fill(plain(section), total_steps))
        return hydra.utils.instantiate(filled, *arguments)
    except (InstantiationException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise UserError(f"{section.get('_target_', section)} cannot be made from these options: {cause}") from error


def load_machine(
    path: str | Path, checkpoint: str, device: torch.device
) -> tuple[RunDirectory, DictConfig, Dataset, HelmholtzMachine]:
    """Everything that looking at a run needs, with the parameters of its `best` or `last` checkpoint."""
    run, config = open_run(path)
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
