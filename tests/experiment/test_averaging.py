"""Averages of the weights: against a slow sum, in the log, in checkpoints, resumed, evaluated."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, Interrupt, assert_same_run, checkpoint, flatten, metrics

from nws.errors import UserError
from nws.experiment.averaging import Average
from nws.experiment.loading import load_run
from nws.experiment.evaluation import validate
from nws.models import HelmholtzMachine

ROUNDING = 1e-5  # relative, of some 20 updates in float32
EXPONENTIAL = ("average=exponential", "average.memory=4")


def vector(machine: HelmholtzMachine) -> torch.Tensor:
    return torch.cat([each.detach().double().flatten() for each in machine.parameters()])


def walk(steps: int, **options: Any) -> tuple[torch.Tensor, Average]:
    """Weights that change at random, (steps, P), and their average."""
    rng = torch.Generator().manual_seed(0)
    machine = HelmholtzMachine([4, 3, 2], rng=rng)
    average, seen = Average(machine, steps, **options), []
    for step in range(1, steps + 1):
        for each in machine.parameters():
            each.data.add_(torch.randn(each.shape, generator=rng))
        average.update(machine, step)
        seen.append(vector(machine))
    return torch.stack(seen), average


@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_an_exponential_average_is_the_weighted_mean_of_what_it_saw(steps: int) -> None:
    seen, average = walk(steps, memory=5)
    shares = 0.8 ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
    expected = shares / shares.sum() @ seen
    torch.testing.assert_close(vector(average.machine), expected, rtol=ROUNDING, atol=ROUNDING)
    if steps == 7:  # the control: without the correction the first weights count more
        shares[0] /= 0.2
        wrong = shares / shares.sum() @ seen
        assert (wrong - expected).abs().max() > 1e4 * ROUNDING


@pytest.mark.parametrize(("start", "first"), [(0.0, 0), (0.5, 10), (0.74, 14), (0.99, 19)])
def test_a_tail_is_the_mean_of_the_last_part(start: float, first: int) -> None:
    seen, average = walk(20, start=start)
    assert average.count == 20 - first
    expected = seen[first:].mean(0)
    torch.testing.assert_close(vector(average.machine), expected, rtol=ROUNDING, atol=ROUNDING)
    assert (seen[max(first - 1, 0) : 19].mean(0) - expected).abs().max() > 1e3 * ROUNDING


def test_wrong_numbers_are_refused() -> None:
    machine = HelmholtzMachine([2, 1], rng=torch.Generator().manual_seed(0))
    for memory in (0.5, True, "long", float("inf"), float("nan")):
        with pytest.raises(UserError, match=r"average\.memory must be a number of steps"):
            Average(machine, 10, memory=memory)  # type: ignore[arg-type]
    for start in (-0.1, 1, None, float("nan")):
        with pytest.raises(UserError, match=r"average\.start must be a number of at least 0"):
            Average(machine, 10, start=start)  # type: ignore[arg-type]


# --- the command line -----------------------------------------------------------------------------


def without_average(run: Path) -> dict[str, Any]:
    state = checkpoint(run)
    del state["average"]
    return flatten(state)


def test_an_average_leaves_training_as_it_is(train: Command) -> None:
    plain = train("hydra.run.dir=plain").run
    averaged = train("hydra.run.dir=averaged", *EXPONENTIAL).run
    assert without_average(plain) == without_average(averaged)
    rows = metrics(averaged)
    columns = ("average/log_likelihood", "average/standard_error")
    assert all(float(row.pop(column)) for row in rows for column in columns)
    assert rows == metrics(plain)
    best = checkpoint(averaged, "best.pt")  # of the weights themselves
    assert best["best"] == max(float(row["valid/log_likelihood"]) for row in rows)


def test_what_is_saved_is_what_was_evaluated(train: Command) -> None:
    run = train(*EXPONENTIAL).run
    loaded = load_run(run, "last", "average")
    data, machine = loaded.data, loaded.machine
    row, found = metrics(run)[-1], validate(machine, data, 5, 20)
    assert float(row["average/log_likelihood"]) == found["valid/log_likelihood"]
    assert float(row["average/standard_error"]) == found["valid/standard_error"]
    plain = validate(load_run(run, "last").machine, data, 5, 20)
    assert float(row["valid/log_likelihood"]) == plain["valid/log_likelihood"]
    assert plain["valid/log_likelihood"] != found["valid/log_likelihood"]


def test_a_tail_starts_where_it_is_asked_to(train: Command) -> None:
    run = train("average=tail", "average.start=0.75", "hydra.run.dir=run").run  # of 12 steps
    rows = metrics(run)
    assert rows[0]["average/log_likelihood"] == "" and rows[1]["average/log_likelihood"] != ""
    assert checkpoint(run)["average"]["count"] == 3
    assert checkpoint(run, "best.pt")["step"] == 12
    train("resume=run", "trainer.epochs=3")  # the tail of 18 steps starts after 13.5
    assert checkpoint(run)["average"]["count"] == 5


@pytest.mark.parametrize("options", [EXPONENTIAL, ("average=tail", "average.start=0.6")])
def test_a_resumed_run_ends_as_one_never_stopped(
    train: Command, interrupt: Interrupt, options: tuple[str, ...]
) -> None:
    whole = train("hydra.run.dir=whole", *options).run
    for step in (5, 10):
        interrupt(step, signal.SIGTERM)
        name = f"stopped_{step}"
        assert checkpoint(train(f"hydra.run.dir={name}", *options).run)["step"] == step
        assert train(f"resume={name}").code == 0
        assert_same_run(whole, Path(name))


def test_a_resumed_run_may_begin_change_and_end_its_average(train: Command) -> None:
    train("hydra.run.dir=run", "trainer.epochs=1")
    run = Path("run")
    assert checkpoint(run)["average"] is None
    for epochs, option, count in (
        (2, "average=exponential", 6),
        (3, "logger=none", 12),
        (4, "average.memory=3", 6),
    ):
        outcome = train("resume=run", f"trainer.epochs={epochs}", option)
        assert outcome.code == 0, outcome.err
        assert checkpoint(run)["average"]["count"] == count, option
    assert train("resume=run", "trainer.epochs=5", "average=none").code == 0
    assert checkpoint(run)["average"] is None


def test_the_exact_divergence_of_an_average(train: Command) -> None:
    options = ("data=three_by_three", "model=toy", "trainer.epochs=0.1")
    row = metrics(train(*options, *EXPONENTIAL).run)[-1]
    assert 0 < float(row["average/kl"]) != float(row["exact/kl"])


def test_scripts_take_the_averaged_weights(train: Command, command: Command) -> None:
    run = train(*EXPONENTIAL, "hydra.run.dir=run").run
    asked = ("scripts/evaluate.py", "run", "--samples", "5", "--data-points", "20")
    plain = command(*asked)
    averaged = command(*asked, "--weights", "average")
    assert plain.code == averaged.code == 0, averaged.err
    assert "averaged weights" in averaged.out and "averaged weights" not in plain.out
    rows = json.loads((run / "evaluation.json").read_text())
    assert [row["weights"] for row in rows] == ["plain", "average"]
    assert rows[0]["log_likelihood"] != rows[1]["log_likelihood"]
    assert "in evaluation.json already" in command(*asked).out

    drawn = command("scripts/sample.py", "run", "--weights", "average", "--count", "4")
    assert drawn.code == 0 and (run / "images" / "samples_4_images_average_seed_0.png").is_file(), (
        drawn.err
    )
    train("hydra.run.dir=none")
    for script in ("evaluate.py", "sample.py"):
        message = command(f"scripts/{script}", "none", "--weights", "average").message()
        assert "has no averaged weights" in message and "average=tail" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("average=exponential", "average.memory=0"), "average.memory must be"),
        (("average=tail", "average.start=1"), "average.start must be"),
        (("average=exponential", "+average.decay=0.9"), "decay"),
        (("average=null",), "average needs the name of a file"),
        (("average._target_=torch.nn.Linear",), "cannot be made"),
    ],
)
def test_wrong_options_are_errors(
    train: Command, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    assert expected in train(*options).message()
    assert not list(tmp_path.rglob("checkpoints"))
