"""nws and nrws from the command line.

The tests cover every choice of metric, solver and damping, and resumed runs.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import CONF, Command, Interrupt, assert_same_run, checkpoint, flatten, metrics, names
from omegaconf import OmegaConf

from nws.experiment.process.hardware import pick_device
from nws.experiment.training.build import (
    build_data,
    build_machine,
    build_metrics,
    build_optimizer,
    build_rule,
)
from nws.experiment.training.seeds import derive_seed
from nws.learning import WakeSleep

NRWS = ("algorithm=nrws", "metric=fisher", "scheduler=constant", "algorithm.samples=3")
SHORT = (*NRWS, "trainer.epochs=0.5")  # three steps


def group(name: str, choice: str) -> dict[str, Any]:
    return yaml.safe_load((CONF / name / f"{choice}.yaml").read_text())


def config_of(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / ".hydra" / "config.yaml").read_text())


def parameters(run: Path) -> dict[str, Any]:
    return flatten(checkpoint(run)["machine"])


def numbers(run: Path, column: str) -> list[float]:
    return [float(row[column]) for row in metrics(run)]


# --- the rows of the table ------------------------------------------------------------------------


@pytest.mark.parametrize("plain", ["ws", "rws", "bihm", "vimco"])
@pytest.mark.parametrize(
    ("choice", "metric"),
    [((), "kronecker"), (("metric=fisher",), "fisher"), (("natural_metric=fisher",), "fisher")],
    ids=str,
)
def test_a_natural_rule_is_the_plain_one_with_a_metric_and_sgd(
    train: Command, plain: str, choice: tuple[str, ...], metric: str
) -> None:
    natural = f"n{plain}"
    outcome = train(f"algorithm={natural}", *choice, "trainer.epochs=0.1")
    assert outcome.code == 0, outcome.err
    config = config_of(outcome.run)
    assert config["algorithm"] == {**group("algorithm", plain), "name": natural}
    assert config["metric"] == group("metric", metric)
    assert config["solver"] == group("solver", "pcg")
    assert config["damping"] == group("damping", "constant") and config["damping"]["value"] == 0.2
    assert (
        config["optimizer"] == group("optimizer", "sgd") and "momentum" not in config["optimizer"]
    )
    assert outcome.run.parent.name == f"digits_{natural}"


def test_the_metric_is_all_that_sets_nrws_apart(train: Command) -> None:
    plain = train("algorithm=rws", "optimizer=sgd", "hydra.run.dir=plain", *SHORT[2:]).run
    without = train(*SHORT, "metric=euclidean", "hydra.run.dir=without").run
    assert parameters(plain) == parameters(without) and metrics(plain) == metrics(without)
    assert not [column for column in metrics(without)[0] if column.endswith("damping")]


# --- every choice ---------------------------------------------------------------------------------

SOLVERS, DAMPINGS = names("solver"), names("damping")
EACH_CHOICE = [("fisher", solver, DAMPINGS[i % len(DAMPINGS)]) for i, solver in enumerate(SOLVERS)]
EACH_CHOICE += [
    (metric, "pcg", "constant")
    for metric in names("metric")
    if metric not in ("fisher", "euclidean")
]


def test_every_choice_trains_and_says_so_in_the_table(train: Command) -> None:
    ends = set()
    for metric, solver, damping in EACH_CHOICE:
        outcome = train(
            *SHORT,
            f"metric={metric}",
            f"solver={solver}",
            f"damping={damping}",
            "hydra.run.dir=" + metric + solver,
        )
        assert outcome.code == 0, (metric, solver, damping, outcome.err)
        state, row = checkpoint(outcome.run), metrics(outcome.run)[-1]
        assert state["step"] == 3 and all(
            value.isfinite().all() for value in state["machine"].values()
        )
        ends.add(flatten(state["machine"])["/generator.layers.0.weight"])
        iterative = solver in ("pcg", "minres") and metric in ("fisher", "empirical")
        for network in ("generator", "recognition"):
            assert float(row[f"{network}/damping"]) > 0
            assert (f"{network}/reduction_ratio" in row) == (damping == "levenberg_marquardt")
            if iterative:
                assert float(row[f"{network}/iterations"]) >= 2  # as many as the accuracy needs
                assert 0 < float(row[f"{network}/residual"]) < 0.5
            elif solver != "auto":  # which may have picked pcg
                assert f"{network}/iterations" not in row and f"{network}/residual" not in row
    assert len(ends) == len(EACH_CHOICE)  # no choice is another one in disguise


def after_one_step(run: Path, natural: bool = True, other: bool = False) -> dict[str, Any]:
    """The parameters after the first step of a run's configuration, without train.py."""
    config = OmegaConf.create(config_of(run))
    device = pick_device("auto")
    data = build_data(config, device)
    machine = build_machine(config, data).to(device)
    rng = torch.Generator(device).manual_seed(derive_seed(config.seed, 1))
    learner = WakeSleep(
        machine, build_rule(config), rng, build_metrics(config, 1, machine) if natural else ()
    )
    order = torch.randperm(
        len(data.train), generator=torch.Generator().manual_seed(derive_seed(config.seed, 2, 0))
    )
    batches = [
        data.train.batch(rows.to(device), rng)
        for rows in order.split(config.trainer.batch_size)[: 1 + other]
    ]
    learner.step(*batches)
    build_optimizer(config, 1, machine).step()
    return flatten(machine.cpu().state_dict())


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "nadam"])
def test_any_optimizer_follows_the_natural_direction(train: Command, optimizer: str) -> None:
    outcome = train(*NRWS, "trainer.epochs=0.1", f"optimizer={optimizer}")
    assert outcome.code == 0, outcome.err
    # The optimizer wins over the rule's SGD.
    assert config_of(outcome.run)["optimizer"] == group("optimizer", optimizer)
    assert after_one_step(outcome.run) == parameters(outcome.run)
    # The control: the plain gradient.
    assert after_one_step(outcome.run, natural=False) != parameters(outcome.run)


def test_the_other_batch_is_the_next_one(train: Command) -> None:
    run = train(*NRWS, "trainer.epochs=0.1", "metric.batch=other").run
    assert after_one_step(run, other=True) == parameters(run)
    assert after_one_step(run) != parameters(run)


def test_schedules_of_damping_are_in_steps_and_filled_in(train: Command) -> None:
    """Three steps an evaluation: the row shows alpha of the step before it, counted from 0."""
    base = (*NRWS, "trainer.epochs=1", "trainer.evaluate_every=0.5")
    run = train(*base, "damping=linear", "hydra.run.dir=linear").run
    assert numbers(run, "generator/damping") == pytest.approx(
        [0.2 * (1 - 0.9 * step / 6) for step in (2, 5)]
    )
    run = train(
        *base, "damping=exponential", "damping.schedule.half_life=2", "damping.schedule.final=0"
    ).run
    assert numbers(run, "recognition/damping") == pytest.approx([0.2 * 0.5**1, 0.2 * 0.5**2.5])


def test_levenberg_marquardt_is_logged_for_each_network(train: Command) -> None:
    run = train(
        *NRWS, "damping=levenberg_marquardt", "damping.every=2", "optimizer.lr=1e-3",
        "trainer.epochs=1", "trainer.evaluate_every=0.5",
    ).run  # fmt: skip
    for network in ("generator", "recognition"):
        ratios = numbers(run, f"{network}/reduction_ratio")
        assert all(0.9 < ratio < 1.1 for ratio in ratios)  # of tiny steps
        expected = [0.2 * 0.9**count for count in (2, 3)]  # measured at steps 0, 2 and 4
        assert numbers(run, f"{network}/damping") == pytest.approx(expected)


def test_the_trust_region_is_told_the_learning_rate(train: Command) -> None:
    """Where the bound shortens a step, the length of the step does not depend on the rate.

    The control is a step that the bound lets pass.
    """
    ends = []
    for rate in (0.1, 0.2, 1e-4):
        options = ("metric.max_kl=1e-4", f"optimizer.lr={rate}", f"hydra.run.dir={rate}")
        run = train(*NRWS, "trainer.epochs=0.1", *options).run
        ends.append(checkpoint(run)["machine"]["generator.layers.0.weight"])
    bound = 1e-6  # float32 numbers of size 1
    assert (ends[0] - ends[1]).abs().max() < bound
    assert (ends[0] - ends[2]).abs().max() > 1e3 * bound


# --- stopping and going on ------------------------------------------------------------------------

RESUMABLE = {
    "refreshed every 3 steps": (
        "metric.refresh_every=3", "damping=exponential", "damping.schedule.half_life=3",
    ),
    "pcg": ("solver.preconditioner_every=5", "solver.rank=4"),
    "running inverse": (
        "solver=sherman_morrison", "solver.forgetting=0.9", "metric.refresh_every=3",
        "model.layers=[5]",
    ),
    "levenberg_marquardt": ("damping=levenberg_marquardt", "damping.every=3", "optimizer=momentum"),
    "other batch": (
        "metric.batch=other", "metric.generator_rows=posterior", "metric.refresh_every=3",
        "metric.max_rows=60", "solver=auto", "metric.max_kl=0.01",
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", RESUMABLE.values(), ids=RESUMABLE)
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, options: tuple[str, ...]
) -> None:
    whole = train("hydra.run.dir=whole", *NRWS, *options).run
    interrupt(8, signal.SIGTERM)
    stopped = train("hydra.run.dir=stopped", *NRWS, *options)
    assert stopped.code == 128 + signal.SIGTERM, stopped.err
    # Step 8 is inside an epoch, between the refreshes at 6 and 9, and at 5 and 10.
    assert checkpoint(stopped.run)["step"] == 8
    resumed = train("resume=stopped")
    assert resumed.code == 0 and resumed.err == "", resumed.err
    assert_same_run(whole, resumed.run)


DAMPED = {  # before, overrides at resume, alpha at the end
    "value": (("metric.refresh_every=4",), ("damping.value=0.5",), 0.5),
    "adaptive, with a floor": (
        (),
        ("damping=levenberg_marquardt", "damping.every=1", "damping.minimum=0.19"),
        0.19,
    ),
    # The schedule goes on at the run's step, 11 at its last: it does not start again.
    "a schedule": (
        (),
        ("damping=exponential", "damping.schedule.half_life=11", "damping.schedule.final=0"),
        0.1,
    ),
}


@pytest.mark.parametrize(("before", "overrides", "expected"), DAMPED.values(), ids=DAMPED)
def test_damping_overridden_at_resume_is_applied(
    train: Command, before: tuple[str, ...], overrides: tuple[str, ...], expected: float
) -> None:
    train("hydra.run.dir=run", *NRWS, "optimizer.lr=1e-3", "trainer.epochs=1", *before)
    resumed = train("resume=run", "trainer.epochs=2", *overrides)
    assert resumed.code == 0 and checkpoint(resumed.run)["step"] == 12, resumed.err
    assert numbers(resumed.run, "generator/damping") == pytest.approx([0.2, expected])


def test_a_schedule_of_damping_goes_on_where_a_solver_is_overridden_at_resume(
    train: Command,
) -> None:
    options = ("damping=exponential", "damping.schedule.half_life=11", "damping.schedule.final=0")
    run = train("hydra.run.dir=run", *NRWS, *options, "trainer.epochs=1").run
    train("resume=run", "trainer.epochs=2", "solver.iterations=5")
    assert numbers(run, "generator/iterations")[-1] == 5
    assert numbers(run, "generator/damping")[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("solver", [None, "auto"])
def test_a_plain_run_goes_on_with_a_metric_at_its_own_step(
    train: Command, solver: str | None
) -> None:
    options = ("damping=exponential", "damping.schedule.half_life=11", "damping.schedule.final=0")
    run = train("hydra.run.dir=run", "algorithm=rws", "trainer.epochs=1").run
    resumed = train(
        "resume=run",
        "trainer.epochs=2",
        "metric=fisher",
        *options,
        *[f"solver={solver}"] * bool(solver),
    )
    assert resumed.code == 0 and resumed.err == "", resumed.err
    assert float(metrics(run)[-1]["generator/damping"]) == pytest.approx(0.1)


def test_auto_goes_on_where_other_rows_make_another_solver_the_cheapest(train: Command) -> None:
    """Few rows: woodbury; many: pcg."""
    exact = ("algorithm=nrws", "metric=fisher", "solver=auto")
    small = (*exact, "model.layers=[20]", "trainer.batch_size=20")
    run = train("hydra.run.dir=run", *small, "algorithm.samples=1", "trainer.epochs=0.1").run
    file = run / ".hydra" / "config.yaml"
    file.write_text(file.read_text().replace("samples: 1\n", "samples: 20\n"))
    resumed = train("resume=run", "trainer.epochs=0.2")
    assert resumed.code == 0 and resumed.err == "", resumed.err
