"""Bad options of metric, solver and damping: one message, before any work."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import yaml
from conftest import Command, composed
from omegaconf import OmegaConf

from nws.errors import UserError
from nws.experiment.options.configuration import GROUPS
from nws.experiment.options.validation import check_configuration
from nws.experiment.training.build import build_metrics
from nws.models import HelmholtzMachine

NRWS = ("algorithm=nrws", "metric=fisher", "scheduler=constant", "algorithm.samples=3")
SHORT = (*NRWS, "trainer.epochs=0.5")  # three steps

BAD = {
    ("metric._target_=nws.natural.metrics.Riemann",): "metric._target_=nws.natural.metrics.Riemann",
    (
        "metric._target_=torch.nn.ReLU",
    ): "metric._target_ must be a class that derives from nws.natural",
    (
        "metric.generator_rows=dreams",
    ): "metric.generator_rows must be model or posterior, got 'dreams'",
    ("metric.max_rows=0",): "metric.max_rows must be a whole number of at least 1 or null, got 0",
    ("metric.refresh_every=0",): "metric.refresh_every must be a whole number of at least 1, got 0",
    ("metric.max_kl=-1",): "metric.max_kl must be a number above 0 or null, got -1",
    ("+metric.foo=1",): "there is no option metric.foo; the options are metric.generator_rows",
    ("metric=euclidean", "metric._target_=fisherman"): "metric._target_=fisherman cannot be",
    ("solver._target_=nws.natural.solvers.LU",): "solver._target_=nws.natural.solvers.LU cannot be",
    (
        "solver.iterations=0",
    ): "solver.iterations must be a whole number of at least 1 or null, got 0",
    ("solver.rank=-1",): "solver.rank must be a whole number of at least 0, got -1",
    ("solver.tolerance=2",): "solver.tolerance must be a number of at least 0 and below 1, got 2",
    ("+solver.foo=1",): "there is no option solver.foo; the options are solver.iterations",
    (
        "solver=auto",
        "solver.iterations=0",
    ): "solver.iterations must be a whole number of at least 1 or null, got 0",
    (
        "solver=cholesky",
        "solver.max_bytes=0",
    ): "solver.max_bytes must be a whole number of at least 1, got 0",
    (
        "solver=sherman_morrison",
        "solver.block=0",
    ): "solver.block must be a whole number of at least 1, got 0",
    (
        "solver=sherman_morrison",
        "solver.forgetting=1.5",
    ): "solver.forgetting must be a number of at least 0 and below 1, got 1.5",
    ("damping.value=-0.1",): "damping.value must be a number above 0",
    ("damping.value=much",): "damping.value must be a number above 0",
    (
        "+damping.foo=1",
    ): "there is no option damping.foo; the options are damping.value, damping.schedule",
    ("damping._target_=nws.natural.damping.Nope",): "nws.natural.damping.Nope",
    (
        "damping=levenberg_marquardt",
        "damping.factor=2",
    ): "damping.factor must be a number above 0 and below 1, got 2",
    (
        "damping=levenberg_marquardt",
        "damping.factor=x",
    ): "damping.factor must be a number above 0 and below 1, got 'x'",
    (
        "damping=levenberg_marquardt",
        "damping.every=0",
    ): "damping.every must be a whole number of at least 1, got 0",
    (
        "damping=levenberg_marquardt",
        "damping.maximum=0.1",
    ): "damping.value must lie in damping.minimum .. damping.maximum, got 0.2 in 0.001 .. 0.1",
    ("damping=exponential", "damping.schedule.half_life=0"): "damping.schedule.half_life must be a",
    (
        "damping=exponential",
        "damping.schedule.half_life=long",
    ): "half_life must be a number above 0",
    ("damping=exponential", "+damping.schedule.foo=1"): "no option damping.schedule.foo",
    ("+damping.schedule=3",): "damping.schedule must be an object or function by _target_",
    ("damping._target_=torch.nn.ReLU", "~damping.value"): "damping._target_ must be a class of",
}


@pytest.fixture(scope="module")
def configured() -> Callable[..., None]:
    """configured("metric.kind=x", ...) builds the metrics from the configuration with overrides."""
    machine = HelmholtzMachine((4, 3, 2))

    compose = cache(partial(composed, *NRWS))

    def build(*overrides: str) -> None:
        choices = [text for text in overrides if text.split("=")[0] in GROUPS]
        config = compose(*choices).copy()
        OmegaConf.set_struct(config, False)
        for text in overrides:  # as Hydra does, but faster than composing again
            key, _, value = text.lstrip("+~").partition("=")
            if text.startswith("~"):
                del config[key.split(".")[0]][key.split(".")[1]]
            elif text not in choices:
                OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
        check_configuration(config)
        for metric in build_metrics(config, 10, machine):
            metric.damping.start_step(0)

    return build


@pytest.mark.parametrize(("overrides", "expected"), list(BAD.items()))
def test_bad_options_are_errors_before_the_first_step(
    configured: Callable[..., None], overrides: tuple[str, ...], expected: str
) -> None:
    # The control: the choices alone are good.
    configured(*(text for text in overrides if text.split("=")[0] in GROUPS))
    with pytest.raises(UserError, match=re.escape(expected)):
        configured(*overrides)


@pytest.mark.parametrize(
    "override",
    [
        "metric._target_=nope.Nope",
        "metric.batch=mine",
        "solver._target_=nope.Nope",
        "damping.value=0",
    ],
)
def test_bad_options_are_one_message_at_the_command_line(
    train: Command, tmp_path: Path, override: str
) -> None:
    message = train(*SHORT, override).message()
    assert re.search(r"(metric|solver|damping)\.\S+ must be|nope\.Nope\S* cannot be", message), (
        message
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_schedule_that_comes_to_zero_stops_with_a_message(train: Command) -> None:
    options = ("damping=linear", "damping.schedule.total_steps=4", "damping.schedule.final=0")
    message = train(*NRWS, *options, "hydra.run.dir=run").message()
    # The message names the run's last step, and comes before its first.
    assert "error: the damping at step 11 must be a number above 0" in message
    assert not Path("run").exists()


def test_rows_that_are_not_finite_name_a_layer(train: Command) -> None:
    message = train(*SHORT, "optimizer.lr=1e38", "solver=cholesky").message()
    assert (
        re.search(r"(generator|recognition) layer \d", message) and "lower optimizer.lr" in message
    )
