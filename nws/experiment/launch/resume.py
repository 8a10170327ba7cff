"""Going on with a run: where it starts, what may change, and how two configurations differ."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from nws import distributed
from nws.errors import UserError
from nws.experiment.options.configuration import (
    PRESETS,
    flatten_config,
    override_key,
    resolve_paths,
)
from nws.experiment.options.validation import check_configuration
from nws.experiment.storage.directory import RunDirectory, is_end, open_run
from nws.experiment.storage.metrics_file import restore_metrics
from nws.experiment.storage.provenance import note_finished
from nws.files import remove_abandoned

#: What a resumed run keeps: its place in the draws depends on it, or only a start takes it.
FIXED = ("seed", "name", "trainer.batch_size")
FIXED_GROUPS = ("algorithm", "model", "data")
#: What changes no number: two runs that differ in it alone are the same.
SHOWN = ("resume", "progress", "verbosity", "data.where")
#: Options of the data that may change: where the files are.
FREE = ("data.root", "data.path", "data.shape", "data.where")

#: What does nothing by itself: it chooses the values of other options.
CHOOSERS = (*PRESETS, "tuned")

PATIENCE = 5.0  # seconds that resume=auto waits for a process that is just ending


#: Values of options that a saved run is too old to have; others count as null.
BEFORE = {"trainer.matmul_precision": "highest", "trainer.on_divergence": "stop"}


@dataclass(frozen=True)
class Start:
    """Where a run starts."""

    run: RunDirectory
    config: DictConfig
    state: dict[str, Any] | None = None  # the last checkpoint; None for a new run
    changed: set[str] = field(default_factory=set)  # groups with overrides, which win over `state`
    again: bool = False  # whether the directory is of this run already
    finished: bool = False  # the run has ended


TOLD = ("config", "state", "changed", "again", "finished")  # after the directory


@contextmanager
def starting_point(config: DictConfig, hydra_config: HydraConf) -> Iterator[Start]:
    """Give what the option `resume` of a composed configuration stands for.

    This process is the owner of the run's directory meanwhile: it has its lock, and has removed
    what killed processes left, before it reads what it goes on with. A finished run may be in a
    folder that cannot be written to. Of several processes the first one is the owner, and tells
    the others.

    Raises:
        Taken: Another process trains there.
        UserError: There is a run already, there is none, or it is of another configuration.
    """
    if not distributed.is_first():
        path, *others = distributed.send(None)
        yield Start(RunDirectory(path), *others)
        return
    run = RunDirectory(Path(hydra_config.runtime.output_dir))
    if config.get("resume") in (None, "auto"):
        check_configuration(config)
    patience, state = 0.0, None
    if config.resume == "auto":
        patience, state = PATIENCE, left_state(run, config)
    elif config.resume is not None:
        run, _ = open_run(config.resume)
    try:
        try:
            start = _take(run, config, hydra_config, patience)
        except UserError:
            if not is_end(state):
                raise
            start = Start(run, config, state, finished=True)
        distributed.send((start.run.path, *(getattr(start, name) for name in TOLD)))
        yield start
    finally:
        run.lock.release()


def _take(run: RunDirectory, config: DictConfig, hydra_config: HydraConf, patience: float) -> Start:
    """Become the owner of a directory. Return where its run starts, after a kill too."""
    run.lock.acquire(patience)
    remove_abandoned(run.path, below=True)
    run.settle_config()
    start = _owned_start(run, config, hydra_config)
    if start.state is not None:  # what a kill, or a loss, left behind the checkpoint
        restore_metrics(run.metrics, start.state["step"], start.state.get("rows"))
        if is_end(start.state):
            note_finished(run.path, start.state["step"])
    return start


def _owned_start(run: RunDirectory, config: DictConfig, hydra_config: HydraConf) -> Start:
    """Return where a run starts whose directory is this process's."""
    if config.resume == "auto":
        again, state = run.config.is_file(), left_state(run, config)
        config.resume = None
        return Start(run, config, state, again=again, finished=is_end(state))
    if config.resume is None:
        run.check_free()
        return Start(run, config)
    saved = open_run(run.path)[1]
    as_before = {f"{name}={choice}" for name, choice in run.saved_choices().items()}
    overrides = [text for text in hydra_config.overrides.task if text not in as_before]
    changed = {override_key(text).split(".")[0] for text in overrides}
    if "_target_" not in (saved.get("algorithm") or {"_target_": ""}):
        raise UserError("this run is of version 0.1, which can be looked at but not gone on with")
    resumed = override(saved, config, overrides)
    state = run.last_state()  # a copy by nws export has none, and lacks options too
    check_configuration(resumed)
    return Start(run, resumed, state, changed, again=True)


def override(saved: DictConfig, composed: DictConfig, overrides: list[str]) -> DictConfig:
    """Return a saved configuration with overrides; `UserError` for one that is not allowed.

    The overrides have the values of the `composed` configuration.
    """
    config = saved.copy()
    for text in overrides:
        key = override_key(text)
        if key == "resume":
            continue
        changed = _changed_option(key, saved, composed)
        if changed or text.startswith("~") or key.split(".")[0] in CHOOSERS:
            raise UserError(
                f"a resumed run keeps its {changed or key}, got {text}; start a new run instead"
            )
        value = OmegaConf.select(composed, key)
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    return config


def _changed_option(key: str, saved: DictConfig, composed: DictConfig) -> str | None:
    """Return the first option, at, above or below a key, that is fixed and would change."""
    select = OmegaConf.select
    groups = [(group, select(composed, group) or {}) for group in FIXED_GROUPS]
    options = [f"{group}.{option}" for group, section in groups for option in section]
    options.sort(key=lambda option: option.endswith("._target_"))
    for name in (*FIXED, *options):
        outer, inner = sorted([f"{name}.", f"{key}."])
        differs = select(composed, name) != select(saved, name)
        if differs and name not in FREE and inner.startswith(outer):
            return name
    return None


def left_state(run: RunDirectory, config: DictConfig) -> dict[str, Any] | None:
    """Return the last checkpoint in a directory, if any; `UserError` of another configuration."""
    if not run.config.is_file():
        return None
    difference = first_difference(config, open_run(run.path)[1])
    if difference is not None:
        key, asked, found = difference
        raise UserError(
            f"{run.path} holds a run of another configuration: {key} is {found} there, and {asked}"
            " is asked for; nothing was changed. Give the options of that run, or another directory"
        )
    return run.last_state()


def first_difference(config: DictConfig, saved: DictConfig) -> tuple[str, str, str] | None:
    """Return the first key in which two configurations differ, and both values.

    `SHOWN`, the logger, and what only chooses other options, are left aside. A key that is missing
    is the same as null, or what `BEFORE` says: runs of before an option was there go on.
    """
    config = config.copy()
    resolve_paths(config)
    as_saved = OmegaConf.create(OmegaConf.to_yaml(config, resolve=True))
    here = flatten_config(OmegaConf.to_container(as_saved))
    there = flatten_config(OmegaConf.to_container(saved))
    for key in [*here, *there]:
        aside = key in SHOWN or key.split(".")[0] in ("logger", *CHOOSERS)
        if not aside and here.get(key) != there.get(key, BEFORE.get(key)):
            asked, found = (repr(flat[key]) if key in flat else "none" for flat in (here, there))
            return key, asked, found
    return None
