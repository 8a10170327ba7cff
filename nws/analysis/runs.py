"""Reading runs: which directories hold one, what it says, and in what several runs differ."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from nws.errors import UserError
from nws.experiment.options.configuration import flatten_config
from nws.experiment.storage.directory import RunDirectory, find_runs, open_run
from nws.experiment.storage.provenance import read_provenance

LOG_LIKELIHOOD, ERROR = "valid/log_likelihood", "valid/standard_error"  # of metrics.csv, in nats
POSITION = ["epoch", "step", "seconds"]  # the columns that every metrics.csv has

#: keys, or groups of them, that tell nothing about what a run computes
INCIDENTAL = (
    "name", "device", "progress", "verbosity", "resume", "logger", "hydra", "experiment", "debug",
    "tuned", "data.root", "trainer.check_every", "trainer.images_every",
)  # fmt: skip
#: groups whose keys tell enough without the group's name
WITHOUT_GROUP = ("trainer", "model")
#: groups that an algorithm chooses along with itself (conf/algorithm/nrws.yaml: metric and
#: optimizer)
CHOSEN_BY_ALGORITHM = ("metric", "solver", "damping", "optimizer", "scheduler")


@dataclass(frozen=True)
class Run:
    """What a run directory says about its run.

    Example:
        >>> import pandas as pd
        >>> run = Run(Path("RUN"), "RUN", {"seed": 3, "optimizer.lr": 0.1}, pd.DataFrame())
        >>> label(run, ["optimizer.lr", "seed"])
        'lr 0.1, seed 3'
    """

    path: Path
    argument: str  # the path of the command line that led to it
    config: dict[str, Any]  # by keys such as optimizer.lr
    metrics: pd.DataFrame  # the numbers of metrics.csv, a line for each evaluation, nan for none
    provenance: dict[str, Any] = field(default_factory=dict)  # provenance.json; older runs: {}

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped`, `failed` or `diverged`; older runs: what is known."""
        if "state" in self.provenance:
            return str(self.provenance["state"])
        return "finished" if RunDirectory(self.path).is_finished() else "unfinished"

    @property
    def steps(self) -> int:
        """Training steps up to the last evaluation, or to the last one that is recorded."""
        recorded = self.provenance.get("steps") or 0
        return max(int(recorded), int(self.last.get("step", 0)))

    @property
    def ms_per_step(self) -> float:
        """Milliseconds of training a step, without evaluation; nan where there is no step."""
        given = self.provenance.get("ms_per_step")
        if isinstance(given, int | float):
            return float(given)
        steps = self.last.get("step", 0.0)
        return 1000 * self.last["seconds"] / steps if steps else math.nan

    @cached_property
    def best(self) -> dict[str, float]:
        """The row of metrics.csv with the best `valid/log_likelihood`; {} where there is none.

        As best.pt, it leaves out step 0, before any training.
        """
        trained = self.metrics[self.metrics["step"] > 0]
        values = trained.get(LOG_LIKELIHOOD, pd.Series(dtype=float)).dropna()
        return dict(self.metrics.loc[values.idxmax()]) if len(values) else {}

    @cached_property
    def last(self) -> dict[str, float]:
        """The last row of metrics.csv; {} where there is none."""
        return dict(self.metrics.iloc[-1]) if len(self.metrics) else {}


def is_bidirectional(config: DictConfig) -> bool:
    """Whether a run's rule trains the bidirectional machine p*, which log p* and Gibbs are for."""
    named = config.algorithm.get("name") in ("bihm", "nbihm")  # for runs of version 0.1
    return bool(config.algorithm.get("bidirectional", named))


def read_config(path: str | Path, argument: str | None = None) -> Run:
    """Read a run's configuration and provenance, and leave its table of metrics empty."""
    directory, config = open_run(path)
    flat = flatten_config(OmegaConf.to_container(config, resolve=True))
    metrics = pd.DataFrame(columns=POSITION, dtype=float)
    provenance = read_provenance(directory.path)
    return Run(directory.path, argument or str(path), flat, metrics, provenance)


def read_run(path: str | Path, argument: str | None = None) -> Run:
    """Read a run's configuration, metrics and provenance; `UserError` for an unreadable file."""
    run = read_config(path, argument)
    file = RunDirectory(run.path).metrics
    try:
        table = pd.read_csv(file, dtype=float, float_precision="round_trip")
        _ = table[POSITION]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{file} cannot be read: expected rows of numbers with columns epoch, "
            f"step and seconds ({type(error).__name__}: {error})"
        ) from error
    return replace(run, metrics=table.replace([math.inf, -math.inf], math.nan))


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Read all runs at or below folders that have a metrics.csv, each once; `UserError` if none."""
    found: dict[Path, str] = {}
    for folder in folders:
        runs = [path for path in find_runs(folder) if RunDirectory(path).metrics.is_file()]
        if not runs:
            when = "it is there after the first evaluation"
            raise UserError(f"no run at or below {folder} has a metrics.csv yet: {when}")
        for path in runs:
            found.setdefault(path, str(folder))
    return [read_run(path, argument) for path, argument in found.items()]


# --- in what runs differ --------------------------------------------------------------------------


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the configuration that tell runs apart: algorithm first, seed last.

    Left out are the keys of `INCIDENTAL`, and those that follow from another key: the weights of
    a rule from `algorithm.name`, the options of an optimizer from `optimizer._target_`, the metric
    from the algorithm that chose it. A key that was given on a command line follows from none.
    """
    if not runs:
        return []
    typed = {_key_of(text) for run in runs for text in run.provenance.get("overrides") or ()}
    kept: list[str] = []
    for key in sorted(_unlike(runs), key=_rank):
        leaders = (other for other in kept if _leads(other, key, typed))
        if not any(_follows(runs, key, leader) for leader in leaders):
            kept.append(key)
    return kept


def all_differences(runs: Sequence[Run]) -> list[str]:
    """Return every key of the configuration in which runs differ, in the order of the first."""
    return [key for key in all_keys(runs) if len({_text(run, key) for run in runs}) > 1]


def all_keys(runs: Sequence[Run]) -> list[str]:
    """Return every key of the configurations, in the order of the first."""
    return list(dict.fromkeys(key for run in runs for key in run.config))


def _unlike(runs: Sequence[Run]) -> list[str]:
    incidental = tuple(f"{name}." for name in INCIDENTAL)
    return [key for key in all_differences(runs) if not f"{key}.".startswith(incidental)]


def _text(run: Run, key: str) -> str:
    """A value as text that can be compared and hashed; 1 and 1.0 are the same."""
    value = run.config.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number else repr(value)  # type: ignore[arg-type]


def _key_of(override: object) -> str:
    """The key or group of an override such as +optimizer.lr=0.1."""
    return str(override).partition("=")[0].lstrip("+~").partition("@")[0].replace("/", ".")


def _is_name(key: str) -> bool:
    """Whether a key says which class or choice a group, or a part of it, is."""
    return "." in key and key.rpartition(".")[2] in ("name", "_target_")


def _rank(key: str) -> tuple[object, ...]:
    """The order of keys: the algorithm, the data, what else has a name, rates, all others, seed."""
    first = ("algorithm.name", "data.name")
    place = first.index(key) if key in first else len(first)
    rate = not key.endswith("lr")
    return key == "seed", place, not _is_name(key), key.endswith("_target_"), rate, key


def _leads(leader: str, key: str, typed: set[str]) -> bool:
    """Whether a key's value may follow from that of a leader, if these keys were typed."""
    if key in typed:
        return False
    if _is_name(leader) and key.startswith(f"{leader.rpartition('.')[0]}."):
        return True
    chosen = leader == "algorithm.name" and key.partition(".")[0] in CHOSEN_BY_ALGORITHM
    return chosen and not (_is_name(key) and key.rpartition(".")[0] in typed)  # optimizer=adam


def _follows(runs: Sequence[Run], key: str, leader: str) -> bool:
    """Whether runs with one value of the leader have one value of the key."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(_text(run, leader), set()).add(_text(run, key))
    return all(len(each) == 1 for each in values.values())


# --- what keys and values are called --------------------------------------------------------------


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name for each key, no name twice: a group's own, or with its group.

    Example:
        >>> short_names(["algorithm.name", "optimizer.lr", "damping.value", "trainer.batch_size"])
        {'algorithm.name': 'algorithm', 'optimizer.lr': 'lr', 'damping.value': 'damping.value', \
'trainer.batch_size': 'batch_size'}
    """
    choices = {key: _candidates(key) for key in keys}
    taken = [name for names in choices.values() for name in set(names)]
    return {
        key: next((name for name in names if taken.count(name) == 1), key)
        for key, names in choices.items()
    }


def _candidates(key: str) -> list[str]:
    """Names of a key, the shortest that says what it is first."""
    parts = key.split(".")
    if _is_name(key):
        return [".".join(parts[:-1]), key]
    short = parts[-1:] if parts[0] in WITHOUT_GROUP or parts[-1].endswith("lr") else parts[-2:]
    return [".".join(short), key]


def value_text(key: str, value: Any) -> str:
    """Return a value of the configuration as people write it: 0.1, SGD, 32-16, none."""
    if key == "metric._target_" and value is None:
        return "euclidean"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):
        return "-".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).split(".")[-1] if key.endswith("_target_") else str(value)


def label(run: Run, keys: Sequence[str]) -> str:
    """Return what tells a run apart, by these keys: `rws, lr 0.1, damping.value 0.328, seed 0`."""
    parts = []
    for key, name in short_names(keys).items():
        text = value_text(key, run.config.get(key))
        parts.append(text if _is_name(key) and text != "none" else f"{name} {text}")
    return ", ".join(parts)


def find_key(name: str, runs: Sequence[Run], others: Iterable[str] = ()) -> str:
    """Return the key that a name stands for: lr, damping.value or algorithm, or a key itself.

    `others` are more names that the user may have meant, for the message.

    Raises:
        UserError: No key of these runs is called so, or several are.
    """
    keys = all_keys(runs)
    if name in keys:
        return name
    for choice in (f"{name}.name", f"{name}._target_"):
        if choice in keys:
            return choice
    named = [key for key in keys if key.endswith(f".{name}")]
    if len(named) == 1:
        return named[0]
    if named:
        raise UserError(f"{name!r} is the end of several keys: {', '.join(named)}")
    below = [key for key in keys if key.startswith(f"{name}.")]
    near = below or difflib.get_close_matches(name, [*others, *keys])
    hint = ", ".join(["", *near[:6]]).replace(", ", "; perhaps ", 1)
    raise UserError(f"no run's .hydra/config.yaml has the configuration key {name!r}{hint}")
