"""What choices mean: rules and metrics are what sets runs apart, and rates are those asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cases import recorded
from conftest import CONF, Command, checkpoint, composed, flatten, metrics, names
from hydra.utils import instantiate

from nws.experiment.hardware import product_type
from nws.learning import NaturalMetric

ROUNDING = 1e-6  # of w + step in float32, where w is a visible bias of up to 5
SHORT = ("algorithm=nrws", "metric=fisher", "scheduler=constant", "trainer.epochs=0.5")
APART = ("optimizer.generator_lr=0.02", "optimizer.recognition_lr=0.05")


def group(name: str, choice: str) -> dict[str, Any]:
    return yaml.safe_load((CONF / name / f"{choice}.yaml").read_text())


def networks(run: Path) -> dict[str, torch.Tensor]:
    """All parameters of each network as one vector."""
    state = checkpoint(run)["machine"]
    return {
        network: torch.cat([part.flatten() for key, part in state.items() if network in key])
        for network in ("generator", "recognition")
    }


@pytest.mark.parametrize("plain", ["ws", "rws", "bihm", "vimco"])
@pytest.mark.parametrize("choice", ["", "metric=fisher", "natural_metric=fisher"])
def test_a_natural_rule_is_the_plain_one_with_a_metric_and_sgd(plain: str, choice: str) -> None:
    config = composed(f"algorithm=n{plain}", *choice.split())
    assert config["algorithm"] == {**group("algorithm", plain), "name": f"n{plain}"}
    assert config["metric"] == group("metric", "fisher" if choice else "adaptive")
    assert config["optimizer"] == group("optimizer", "sgd")
    assert config["damping"] == group("damping", "constant")


def test_no_choice_of_solver_damping_or_metric_is_another_in_disguise(train: Command) -> None:
    solvers, dampings = names("solver"), names("damping")
    cases = [("fisher", each, dampings[i % len(dampings)]) for i, each in enumerate(solvers)]
    others = set(names("metric")) - {"fisher", "euclidean"}
    cases += [(metric, "pcg", "constant") for metric in sorted(others)]
    few = (*SHORT[:3], "trainer.epochs=0.05", "trainer.batch_size=20", "algorithm.samples=3")
    ends = set()
    for metric, solver, damping in cases:
        options = (f"metric={metric}", f"solver={solver}", f"damping={damping}")
        run = train(*few, *options, f"hydra.run.dir={metric}{solver}").run
        ends.add(flatten(checkpoint(run)["machine"])["/generator.layers.0.weight"])
        row = metrics(run)[-1]
        assert float(row["generator/damping"]) > 0 and float(row["recognition/damping"]) > 0
        assert ("generator/reduction_ratio" in row) == (damping == "levenberg_marquardt")
        iterative = solver in ("pcg", "minres") and metric in ("fisher", "empirical")
        assert not iterative or float(row["generator/iterations"]) >= 1
    assert len(ends) == len(cases)
    plain = train("algorithm=rws", "optimizer=sgd", "hydra.run.dir=plain", *SHORT[2:]).run
    without = train(*SHORT, "metric=euclidean", "hydra.run.dir=without").run
    assert flatten(checkpoint(plain)["machine"]) == flatten(checkpoint(without)["machine"])


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "soap", "muon", "schedule_free"])
def test_each_network_has_its_own_rate(train: Command, optimizer: str) -> None:
    """One of rate zero stays and the other learns; of SGD a step is as long as the rate says."""
    steps = "1e-6" if optimizer == "sgd" else "0.5"
    options = (f"optimizer={optimizer}", f"trainer.epochs={steps}", "scheduler=constant")
    same = networks(train("hydra.run.dir=same", *options, "optimizer.lr=0.1").run)
    start = networks(train("hydra.run.dir=start", *options, "optimizer.lr=0").run)
    for still, other in (("generator", "recognition"), ("recognition", "generator")):
        rates = (f"optimizer.{still}_lr=0", f"optimizer.{other}_lr=0.02")
        after = networks(train(f"hydra.run.dir={still}", *options, *rates).run)
        assert torch.equal(after[still], start[still])
        assert not torch.equal(after[other], start[other])
        assert not torch.equal(same[still], start[still])  # the control
        if optimizer == "sgd":
            torch.testing.assert_close(
                after[other] - start[other], 0.2 * (same[other] - start[other]),
                rtol=1e-3, atol=ROUNDING,
            )  # fmt: skip


def test_a_trust_region_knows_its_rate(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = lambda _, it, *more: (it.network.upward, float(it.learning_rate))  # noqa: E731
    seen = recorded(monkeypatch, NaturalMetric, "precondition", rate)
    train(*SHORT, "metric.max_kl=1", *APART)
    assert dict(seen) == {False: pytest.approx(0.02), True: pytest.approx(0.05)}


# What each scheduler makes of the rate by steps 6 and 12 of 12. A warm-up of 20 steps has come to
# (step + 1) / 21, and wsd falls over the last fifth of the run.
FACTORS = {
    "constant": (1, 1), "cosine": (1 / 2, 0), "exponential": (0.5**0.006, 0.5**0.012),
    "linear": (1 / 2, 0), "linear_warmup": (7 / 21 / 2, 0), "plateau": (1, 1), "wsd": (7 / 21, 0),
}  # fmt: skip


@pytest.mark.parametrize("scheduler", names("scheduler"))
def test_schedules_scale_both_rates(train: Command, scheduler: str) -> None:
    rows = metrics(train(f"scheduler={scheduler}", "algorithm=ws", *APART).run)
    for column, rate in {"learning_rate": 0.02, "recognition/learning_rate": 0.05}.items():
        expected = [rate * factor for factor in FACTORS[scheduler]]
        assert [float(row[column]) for row in rows] == pytest.approx(expected, abs=1e-12)


def test_the_rate_falls_on_a_plateau_and_on_the_way_down(train: Command) -> None:
    for slope in (0.0, -0.01):
        rate = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        plateau = instantiate(composed("scheduler=plateau").scheduler, optimizer=rate)
        for place in range(8):
            plateau.step(-232 + slope * place)
        assert rate.param_groups[0]["lr"] == 0.5
    rows = metrics(train("scheduler=plateau", "scheduler.patience=0", "trainer.epochs=4").run)
    values = [float(row["valid/log_likelihood"]) for row in rows]
    assert values == sorted(values) and len({row["learning_rate"] for row in rows}) == 1
    never = ("scheduler.threshold=1e9", "scheduler.patience=0")  # nothing is better by so much
    rows = metrics(train("scheduler=plateau", *never, "trainer.epochs=4").run)
    assert float(rows[-1]["learning_rate"]) < float(rows[0]["learning_rate"])


def test_rates_may_part_and_join_again(train: Command) -> None:
    """Equal ones are one group; what Adam has gathered stays."""
    plain = train("hydra.run.dir=plain", "optimizer.lr=0.02").run
    other = ("optimizer.lr=7", "optimizer.generator_lr=0.02", "optimizer.recognition_lr=0.02")
    same = checkpoint(train("hydra.run.dir=both", *other).run)["machine"]
    assert flatten(same) == flatten(checkpoint(plain)["machine"])
    train("hydra.run.dir=run", "scheduler=constant", "trainer.epochs=1")
    before, start = checkpoint(Path("run"))["optimizer"]["state"], networks(Path("run"))
    assert train("resume=run", "trainer.epochs=2", "optimizer.generator_lr=0").code == 0
    after = checkpoint(Path("run"))["optimizer"]
    assert [each["lr"] for each in after["param_groups"]] == [0, 0.01]
    gathered = {key: state["step"] + 6 for key, state in before.items()}
    assert {key: state["step"] for key, state in after["state"].items()} == gathered
    assert torch.equal(networks(Path("run"))["generator"], start["generator"])
    assert train("resume=run", "trainer.epochs=3", "optimizer.generator_lr=null").code == 0
    rows = metrics(Path("run"))
    assert [row["learning_rate"] for row in rows] == ["0.01", "0.0", "0.01"]
    assert [row["recognition/learning_rate"] for row in rows] == ["", "0.01", ""]


def test_samples_and_places_of_bytes(train: Command) -> None:
    """Data in host memory make the run of data on the device."""
    options = ("trainer.epochs=0.5", "data.where=host", "algorithm.samples=3")
    whole, host, fewer = (
        flatten(checkpoint(train(options[0], option, f"hydra.run.dir=run{number}").run)["machine"])
        for number, option in enumerate(options)
    )
    assert whole == host != fewer
    again = train("resume=auto", options[0], "hydra.run.dir=run1", "data.where=device")
    assert again.code == 0 and "finished already" in again.out


@pytest.mark.parametrize("asked", ["float32", "tf32", "bfloat16", "auto"])
@pytest.mark.parametrize(("device", "fast"), [("cpu", True), ("cpu", False), ("cuda", True)])
def test_products_are_in_bfloat16_where_asked_or_where_a_cpu_is_fast(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: str, device: str,
    fast: bool,
) -> None:  # fmt: skip
    for name in ("cpu._is_avx512_bf16_supported", "cpu._is_amx_tile_supported"):
        monkeypatch.setattr(f"torch.{name}", lambda: fast)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: fast)
    found = product_type(asked, torch.device(device))
    rounds = asked == "bfloat16" or (asked, device, fast) == ("auto", "cpu", True)
    assert found == (torch.bfloat16 if rounds else torch.float32)
    assert ("float32 is faster" in caplog.text) == (asked == "bfloat16" and not fast)
