"""Everything that is built from a run's configuration."""

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch.optim import LBFGS, Muon, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nws.data import Dataset, load_dataset
from nws.errors import UserError, number, one_of, positive_int
from nws.experiment.batches import check_seed, derive_seed, steps_per_epoch
from nws.experiment.callbacks import Callback
from nws.experiment.config import (
    HYDRAS,
    Mistakes,
    check_names,
    check_section,
    filled,
    locate,
    made_of,
    make,
    override_key,
    parameters_of,
    to_dict,
)
from nws.experiment.hardware import PRECISIONS, product_type
from nws.experiment.optimizers import Together, parameter_groups
from nws.files import CONF
from nws.learning import NaturalMetric, RowOptions, Rule, WakeSleep
from nws.models import HelmholtzMachine, Poisson
from nws.models.likelihood import can_enumerate
from nws.models.units import find_units
from nws.natural import Damping
from nws.natural.metrics import Metric
from nws.natural.solvers import Solver

log = logging.getLogger(__name__)

MOST_SAMPLES = 10**6  # of an evaluation
RATES = ("generator_lr", "recognition_lr")  # options of every optimizer here, beside `biases`
SOURCE = ("name", "binarize", "where", "root")  # options of every data set
ROWS = tuple(field.name for field in fields(RowOptions))  # options of every metric
#: What a group's section has beside the parameters of its class.
MORE = {"data": SOURCE, "model": ("layers",), "optimizer": (*RATES, "biases"), "metric": ROWS}
#: What the `_target_` of a group makes, and how messages call it; callbacks are the rest.
MAKES: dict[str, tuple[Any, str]] = {
    "model": (HelmholtzMachine, "a nws.models.HelmholtzMachine"),
    "algorithm": (Rule, "a nws.learning.Rule"),
    "metric": (Metric, "a nws.natural.Metric"),
    "solver": (Solver, "a nws.natural.Solver"),
    "damping": (Damping, "a class of nws.natural.damping"),
    "optimizer": (Optimizer, "a torch optimizer"),
    "scheduler": (LRScheduler, "one of torch.optim.lr_scheduler"),
}
OTHERS = (Callback, "a nws.experiment.callbacks.Callback")


@dataclass
class Settings:
    """The options of the `trainer` group.

    Args:
        epochs: Passes over the training part; this and the interval may be fractions.
        batch_size: B, data points of a step.
        evaluate_every: Epochs between rows of metrics.csv, and checkpoints.
        evaluation_samples: Importance samples of valid/log_likelihood.
        evaluation_points: Validation images used; None for all.
        precision: Of products: "float32"; "tf32", which is that of the tensor cores of a GPU;
            "bfloat16" of those with states, summed in float32; or "auto", that on a fast CPU.
        cuda_graph: Whether a GPU replays steps that are alike, as `CapturedStep` says.
    """

    epochs: float = 100
    batch_size: int = 32
    evaluate_every: float = 10
    evaluation_samples: int = 100
    evaluation_points: int | None = None
    precision: str = "float32"
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "evaluate_every"):
            setattr(self, name, number(f"trainer.{name}", getattr(self, name), above=0, most=1e9))
        for name in ("batch_size", "evaluation_samples", "evaluation_points"):
            given, most = getattr(self, name), MOST_SAMPLES if "samples" in name else 10**9
            if given is not None or name != "evaluation_points":
                setattr(self, name, positive_int(f"trainer.{name}", given, maximum=most))
        one_of("trainer.precision", self.precision, PRECISIONS)
        one_of("trainer.cuda_graph", self.cuda_graph, (True, False))

    def total_steps(self, images: int) -> int:
        """Return the number of steps of a run on so many training images."""
        return max(1, round(self.epochs * steps_per_epoch(self.batch_size, images, "training")))


class Parts(NamedTuple):
    """What a run trains and trains with, at step 0. The same configuration makes the same."""

    settings: Settings
    data: Dataset
    learner: WakeSleep  # with the machine, on the device of the data
    optimizer: Optimizer  # it follows the gradients that the learner writes
    scheduler: LRScheduler  # stepped once a step; ReduceLROnPlateau once an evaluation
    callbacks: dict[str, Callback]
    total_steps: int


def build_parts(config: DictConfig, device: torch.device) -> Parts:
    """Return what a configuration names, at step 0; `UserError` with all mistakes in it."""
    mistakes = check_options(config)
    attempt, total = mistakes.attempt, 1
    options = to_dict(config.trainer) | {"_target_": "nws.experiment.build.Settings"}
    settings = attempt(make, options, "trainer")
    data = attempt(build_data, config, device)
    seed = attempt(check_seed, "seed", config.seed)
    if settings is not None and data is not None:
        total = attempt(settings.total_steps, len(data.train)) or 1
    config = OmegaConf.create(filled(to_dict(config), total))
    rule = attempt(_build, to_dict(config.algorithm), "algorithm")
    callbacks = attempt(build_callbacks, config)
    machine = attempt(build_machine, config, data or (1, 1))
    if machine is not None:
        metrics = attempt(build_metrics, config, total, machine.to(device))
        optimizer = attempt(build_optimizer, config, machine)
        if optimizer is not None:
            scheduler = attempt(_build, to_dict(config.scheduler), "scheduler", optimizer)
    mistakes.say()
    rng = torch.Generator(device).manual_seed(derive_seed(seed, 1))
    learner = WakeSleep(machine, rule, rng, metrics, product_type(settings.precision, device))
    return Parts(settings, suited(data, machine), learner, optimizer, scheduler, callbacks, total)


def suited(data: Dataset, machine: HelmholtzMachine) -> Dataset:
    """Return the data, its distribution only for an exact/kl; warn where units do not suit."""
    units, maximum, exact = machine.units[0], data.train.maximum, data.distribution
    if units.support is None and (data.train.redraw or maximum == 1):
        log.warning(f"the images are 0 and 1, not values of {units}; try data.binarize=none")
    elif isinstance(units, Poisson) and (1 / (maximum * units.scale) + 1e-6) % 1 > 2e-6:
        log.warning(f"{units} makes no whole counts; take model.visible.scale={1 / maximum}")
    if exact is None or (units.support is not None and can_enumerate(machine, len(exact[0]))):
        return data
    needs = "binary or bipolar visible units, and few states of hidden ones: see model=toy"
    log.warning(f"metrics.csv will not have exact/kl, which needs {needs}")
    return replace(data, distribution=None)


def check_options(config: DictConfig) -> Mistakes:
    """Return what is wrong with the names of options: every key against the class that takes it."""
    mistakes = Mistakes()
    names = {*map(str, OmegaConf.load(CONF / "config.yaml")), "tuned"} - {"defaults", "hydra"}
    names |= {path.name for path in CONF.iterdir() if path.is_dir()}
    mistakes.attempt(check_names, "", [str(key) for key in config], sorted(names), "train.py")
    for key in sorted(OmegaConf.missing_keys(config)):
        mistakes.texts.append(f"{key} has no value (???); give {key}=VALUE")
    kinds = {"trainer": "a section", "callbacks": "a section", "progress": "true or false"}
    for name, kind in kinds.items():
        if not isinstance(got := config.get(name), bool if name == "progress" else DictConfig):
            mistakes.texts.append(f"{name} must be {kind}, got {got!r}")
    for group in ("data", *MAKES):
        if group != "metric" and OmegaConf.select(config, f"{group}._target_") is None:
            mistakes.texts.append(f"{group}._target_ has no value; choose {group}=NAME")
    mistakes.say()  # what is missing cannot be resolved
    for group in ("data", *MAKES, "average", "logger", "callbacks"):
        section = to_dict(config[group]) if config.get(group) else {}
        mistakes.attempt(check_section, group, section, MORE.get(group, ()))
    return mistakes


def leave_out_others(config: DictConfig, overrides: Sequence[str]) -> None:
    """Leave out what a section has for its own class, where an override names another one."""
    given = set(map(override_key, overrides))
    for option in [key.removesuffix("._target_") for key in given if key.endswith("._target_")]:
        with suppress(UserError, AttributeError), open_dict(config):  # said when it is built
            section = OmegaConf.select(config, option)
            names, takes_others = parameters_of(locate(section._target_, option))
            # The file's refresh_every was for its own class; rows of another one are always new.
            more = {*MORE.get(option, ())} - {"refresh_every"}
            kept = {*section} if takes_others else {*names, *HYDRAS, *more}
            for key in {*section} - kept:
                if f"{option}.{key}" not in given:
                    del section[key]


def _build(section: dict[str, Any], option: str, *arguments: Any, **extra: Any) -> Any:
    """Return what a group's section makes; `UserError` where it is not what the group is for."""
    made = make(section, option, *arguments, **extra)
    group = option.partition(".")[0]
    kind, words = MAKES.get(group, OTHERS)
    if not isinstance(made, kind):
        found = type(made).__name__
        raise UserError(f"{option}._target_ must make {words}, got a {found}; see conf/{group}/")
    return made


def build_data(config: DictConfig, device: torch.device) -> Dataset:
    """Return the data set of the `data` group on the device."""
    options = to_dict(config.data)
    check_section("data", options, SOURCE)
    return load_dataset(locate(options.pop("_target_"), "data"), device=device, **options)


def build_machine(config: DictConfig, data: Dataset | Sequence[int]) -> HelmholtzMachine:
    """Return an untrained machine of the `model` group, on the CPU, drawn from the run's seed.

    `data` may be the shape of an image, where parameters are loaded afterwards.
    """
    options, shape = to_dict(config.model), data.shape if isinstance(data, Dataset) else data
    if options.get("visible_bias") == "data":
        options["visible_bias"] = 0.0
        if isinstance(data, Dataset):
            own = "visible" if options.get("visible") else "units"
            made = made_of(options.get(own, "binary"), f"model.{own}")
            units = find_units(made, f"model.{own}")
            # The logits (D,) of the mean image, to which a white and a black one are added.
            white = data.train.total() / data.train.maximum
            mean = units.from_data((white + 1) / (len(data.train) + 2))
            options["visible_bias"] = units.link(mean)
    seed, layers = derive_seed(check_seed("seed", config.seed), 0), options.pop("layers", None)
    if not isinstance(layers, list):
        raise UserError(f"model.layers must be a list of sizes such as [128,64], got {layers!r}")
    with torch.random.fork_rng([]):  # masks and orders that draw are the seed's too
        rng = torch.default_generator.manual_seed(seed)
        return _build(options, "model", [math.prod(shape), *layers], shape=shape, rng=rng)


def build_metrics(config: DictConfig, steps: int, machine: HelmholtzMachine) -> list[NaturalMetric]:
    """Return a metric for each network from `metric`, `solver`, `damping`; none if Euclidean."""
    options = to_dict(config.metric)
    if options.get("_target_") is None:
        return []
    taken, _ = parameters_of(locate(options["_target_"], "metric"))  # its own options come first
    rows = RowOptions(**{n: options.pop(n) for n in ROWS if n in options and n not in taken})
    extra = {}
    if "solver" in taken:
        extra["solver"] = partial(_build, to_dict(config.solver), "solver")
        made = extra["solver"]()  # a wrong option is found here
        edges = machine.generator.edges + machine.recognition.edges
        if not made.masks and any(edge.layer.mask is not None for edge in edges):
            what = "units that see some parents alone (masks, lateral layers)"
            raise UserError(f"this solver has no form for {what}; pcg, minres and cholesky have")
    metrics = []
    for network in machine.networks:
        metric = _build(options, "metric", **extra)
        damping: Damping = _build(to_dict(config.damping), "damping")
        for step in (steps - 1, 0):  # a schedule that falls to 0 is found here
            damping.start_step(step)
        metrics.append(NaturalMetric(network, metric, damping, rows))
    return metrics


def build_optimizer(config: DictConfig, machine: HelmholtzMachine) -> Optimizer:
    """Return the `optimizer` group's optimizer of all parameters.

    It has one group of parameters, or where the networks' rates differ one for each network. With a
    section `biases`, it takes the matrices alone, and the optimizer of that section the rest.
    """
    options = to_dict(config.optimizer)
    for name in ("lr", *RATES):
        if options.get(name) is not None:
            options[name] = number(f"optimizer.{name}", options[name], least=0)
    found = locate(options["_target_"], "optimizer")
    if options.get("lr") is None and "lr" in parameters_of(found)[0]:
        raise UserError("optimizer.lr has no value; give optimizer.lr=VALUE")
    biases = options.pop("biases", {"_target_": "torch.optim.Adam"} if found is Muon else None)
    groups = parameter_groups(machine, options)
    if biases is not None:
        return build_together(options, biases, groups)
    return _build(options, "optimizer", groups)


def build_together(options: dict[str, Any], biases: Any, groups: list[dict[str, Any]]) -> Together:
    """Return an optimizer of the matrices and one of the rest, with the same rates, as one."""
    if not isinstance(biases, dict) or "_target_" not in biases or "lr" in biases:
        expected = "null or a section such as {_target_: torch.optim.Adam}, without lr"
        raise UserError(f"optimizer.biases must be {expected}, got {biases!r}")
    matrices, others = (
        [g | {"params": [p for p in g["params"] if (p.ndim == 2) == wanted]} for g in groups]
        for wanted in (True, False)
    )
    second = biases | {name: each for name, each in options.items() if name == "lr"}
    parts = [_build(options, "optimizer", matrices), _build(second, "optimizer.biases", others)]
    for part in parts:
        if isinstance(part, LBFGS) or hasattr(part, "eval"):
            what = f"{type(part).__name__} takes no steps beside another optimizer"
            raise UserError(f"optimizer.biases: {what}; take one such as torch.optim.Adam")
    return Together(parts)


def build_callbacks(config: DictConfig) -> dict[str, Callback]:
    """Return the callbacks of `callbacks`, `average` and `logger`, by their names."""
    sections = {f"callbacks.{name}": each for name, each in to_dict(config.callbacks).items()}
    sections |= {name: to_dict(config[name]) for name in ("average", "logger") if config.get(name)}
    made = {}
    for option, section in sections.items():
        target = section.get("_target_") if isinstance(section, dict) else None
        if section is None or (target is None and option in config):
            continue  # none
        if target is None:
            what = "needs a _target_, as the callbacks in conf/config.yaml have, or null"
            raise UserError(f"{option} {what}; got {section!r}")
        if option[10:] in ("average", "logger", "provenance", "terminal"):  # callbacks.NAME
            raise UserError(f"{option}: a part of nws has this name; call it +callbacks.my_... say")
        made[option.rpartition(".")[2]] = _build(section, option)
    return made
