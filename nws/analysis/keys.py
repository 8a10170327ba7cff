"""In which keys of the configuration runs differ, and what keys and values are called."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from nws.analysis.runs import Run
from nws.errors import UserError
from nws.experiment.config import override_key
from nws.experiment.resume import ASIDE, is_in

SHOWN = ("callbacks.images", "callbacks.divergence", "trainer.evaluate_every")
#: keys, or groups of them, that tell nothing about what a run computes
INCIDENTAL = ("name", "device", *SHOWN, *(each for each in ASIDE if each != "natural_metric"))
#: groups that an algorithm chooses along with itself
CHOSEN_BY_ALGORITHM = ("algorithm", "metric", "solver", "damping", "optimizer", "scheduler")


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the configuration that tell runs apart: algorithm first, seed last.

    Left out are the keys of `INCIDENTAL`, and those that follow from another key: a rule's weights
    from `algorithm.name`, an optimizer's options from `optimizer._target_`, the metric from the
    algorithm that chose it. A key that was given on a command line follows from none.
    """
    given = {override_key(str(o)) for run in runs for o in run.provenance.get("overrides", ())}
    kept: list[str] = []
    keys = [key for key in all_differences(runs) if not is_in(key, INCIDENTAL)]
    for key in sorted(keys, key=_rank):
        group = key.rpartition(".")[0]
        chosen = _is_name(key) and group in given and f"{group}.name" not in kept  # metric=fisher
        typed = key in given or chosen
        if typed or not any(_follows(runs, key, leader) for leader in kept):
            kept.append(key)
    return kept


def all_differences(runs: Sequence[Run]) -> list[str]:
    """Return every key of the configuration in which runs differ, in the order of the first."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    return [key for key in keys if len({_text(run, key) for run in runs}) > 1]


def but_seed(keys: Sequence[str]) -> list[str]:
    """Return keys without the seed: runs that agree in them are of one group."""
    return [key for key in keys if key != "seed"]


def _text(run: Run, key: str) -> str:
    """A value as text that can be compared and hashed; 1 and 1.0 are the same."""
    value = run.config.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if number else repr(value)  # type: ignore[arg-type]


def _is_name(key: str) -> bool:
    """Whether a key says which class or choice a group, or a part of it, is."""
    return key.endswith((".name", "._target_"))


def _rank(key: str) -> tuple[object, ...]:
    """The order of keys: the algorithm, the data, what else has a name, rates, all others, seed."""
    first = ("algorithm.name", "data.name")
    place = first.index(key) if key in first else len(first)
    rate = not key.endswith("lr")
    return key == "seed", place, not _is_name(key), key.endswith("_target_"), rate, key


def _follows(runs: Sequence[Run], key: str, leader: str) -> bool:
    """Whether a key is an option of what a leader names, and has one value for each of its."""
    chosen = leader == "algorithm.name" and key.partition(".")[0] in CHOSEN_BY_ALGORITHM
    own = _is_name(leader) and key.startswith(leader.rpartition(".")[0] + ".")
    pairs = {(_text(run, leader), _text(run, key)) for run in runs}
    return (chosen or own) and len(pairs) == len({value for value, _ in pairs})


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name for each key, no name twice: a group's own, or with its group."""
    short = {}
    for key in keys:
        group, _, last = key.rpartition(".")
        alone = key.startswith(("trainer.", "model.")) or key.endswith("lr")
        short[key] = group if _is_name(key) else last if alone else ".".join(key.split(".")[-2:])
    taken = list(short.values())
    return {key: name if taken.count(name) == 1 else key for key, name in short.items()}


def value_text(key: str, value: Any) -> str:
    """Return a value of the configuration as people write it: 0.1, SGD, 32-16, none."""
    if key == "metric._target_" and value is None:
        return "euclidean"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):
        return "-".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.7g}"
    ours = key.endswith("_target_") and str(value).startswith(("nws.", "torch."))
    return str(value).split(".")[-1] if ours else str(value)


def label(run: Run, keys: Sequence[str]) -> str:
    """Return what tells a run apart, by these keys: `rws, lr 0.1, damping.value 0.328, seed 0`."""
    parts = []
    for key, name in short_names(keys).items():
        if key not in run.config:
            continue
        text = value_text(key, run.config[key])
        parts.append(text if _is_name(key) and text != "none" else f"{name} {text}")
    return ", ".join(parts)


def columns_of(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """Return the values of keys as texts, a line for each run, under short names."""
    names = short_names(keys)
    columns = {names[key]: [value_text(key, run.config.get(key)) for run in runs] for key in keys}
    return pd.DataFrame(columns, index=range(len(runs)), dtype=object)


def find_key(name: str, keys: Iterable[str]) -> str:
    """Return that of the keys which a name stands for: lr, damping.value, algorithm, or a key."""
    keys = list(keys)
    for choice in (name, f"{name}.name", f"{name}._target_"):
        if choice in keys:
            return choice
    named = [key for key in keys if key.endswith(f".{name}")]
    if len(named) == 1:
        return named[0]
    if named:
        raise UserError(f"{name!r} is the end of several keys: {', '.join(named)}")
    near = [key for key in keys if name in key] or difflib.get_close_matches(name, keys)
    hint = f"; perhaps {', '.join(near[:6])}" if near else ""
    raise UserError(f"no run's .hydra/config.yaml has the configuration key {name!r}{hint}")
