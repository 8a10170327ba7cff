"""What a notebook uses: load_run, features, load_data, named_rule, natural_metrics."""

import shutil
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
from conftest import Command, checkpoint, composed, metrics, names
from hydra.core.global_hydra import GlobalHydra

import nws
from nws.errors import UserError
from nws.experiment.build import build_machine
from nws.learning import NaturalMetric
from nws.models import HelmholtzMachine, kl_divergence
from nws.natural import Damping
from nws.natural.metrics import Fisher


def test_a_run_is_loaded_and_its_data_when_asked_for(train: Command, tmp_path: Path) -> None:
    each = np.eye(8, dtype=np.uint8)
    np.savez("mine.npz", train=each[np.arange(20) % 8], valid=each, test=each[np.arange(20) % 8])
    own = ("data=npz", "data.path=mine.npz", "data.shape=[2,4]", "trainer.batch_size=5")
    path = train(*own, "hydra.run.dir=run").run
    run = nws.load_run(path, device="cpu")
    assert run.state["step"] == checkpoint(path, "best.pt")["step"] and run.shape == (2, 4)
    assert run.config.model.layers == [5, 3] and run.machine.sizes == (8, 5, 3)
    assert run.directory.path == path and len(run.data.train) == 20
    assert nws.load_run(path, checkpoint="last", device="cpu").state["step"] == 8
    x = run.data.valid.batch()
    features = run.features(x, samples=50)
    assert [tuple(each.shape) for each in features] == [(8, 5), (8, 3)]
    assert all(map(torch.equal, features, run.features(x, samples=50)))
    first = run.machine.recognition.layers[0]
    mean = run.machine.units[1].mean(x @ first.weight.T[: x.shape[1]] + first.bias)  # no draw
    torch.testing.assert_close(features[0], mean, rtol=1e-5, atol=1e-5)
    Path("mine.npz").unlink()
    with pytest.raises(UserError, match="mine.npz"):
        _ = nws.load_run(path, device="cpu").data
    (path / "checkpoints" / "best.pt").unlink()
    with pytest.raises(UserError, match=r"found none; last\.pt is there .*take checkpoint last"):
        nws.load_run(path, device="cpu")


def test_rows_of_a_small_machine_have_its_exact_divergence(train: Command) -> None:
    path = train("data=three_by_three", "trainer.batch_size=3000").run
    run = nws.load_run(path, checkpoint="last", device="cpu")
    assert run.data.distribution is not None
    expected = kl_divergence(run.machine, *run.data.distribution)
    first, last = (float(row["exact/kl"]) for row in metrics(path))
    assert last == pytest.approx(expected, rel=1e-6)
    assert first != pytest.approx(expected, rel=1e-5)  # the control: an epoch before
    assert "exact/kl" not in metrics(train("data=three_by_three", "model/visible=gaussian").run)[0]


MISTAKES = {
    "checkpoint=newest": "checkpoint must be one of best, last, got 'newest'",
    "weights=mean": "weights must be one of plain, average, got 'mean'",
    "weights=average": "has no averaged weights; a run has them with average=exponential",
    "device=gpu": "device must be one of auto, cpu, cuda",
    "path=nowhere": "nowhere does not exist",
    "path=pretrained/nowhere": "the machines that come with nws are pretrained/binarized_mnist",
    "path=.": "is not a run directory",
}


@pytest.mark.parametrize("option", MISTAKES)
def test_mistakes_of_load_run(command: Command, option: str) -> None:
    with pytest.raises(UserError, match=MISTAKES[option]):
        nws.load_run(**{"path": "pretrained/digits"} | dict([option.split("=")]))


def test_machines_that_come_with_nws(command: Command, tmp_path: Path) -> None:
    """They are laid out where one works, are small, and of no other machine's paths."""
    for path in sorted((Path(nws.__file__).parent / "pretrained").glob("*/")):
        run = nws.load_run(f"pretrained/{path.name}", device="cpu")
        assert run.directory.path == tmp_path / "pretrained" / path.name
        files = [each for each in path.rglob("*") if each.is_file()]
        assert sum(each.stat().st_size for each in files) < 2 * 2**20
        text = (path / ".hydra" / "config.yaml").read_text()
        assert "/home" not in text and "/work" not in text and "/tmp" not in text
    # A folder of the user's own of that name stays as it is.
    shutil.rmtree("pretrained")
    (tmp_path / "pretrained" / "digits").mkdir(parents=True)
    with pytest.raises(UserError, match="is not a run directory"):
        nws.load_run("pretrained/digits")


def test_digits_are_as_good_as_they_are_said_to_be(command: Command) -> None:
    """nws/pretrained/README.md; the draws alone make less than 0.05 nats: 0.2 is 4 of these."""
    run = nws.load_run("pretrained/digits", device="cpu")
    images, labels = run.data.valid.batch(), run.data.labels["valid"]
    first = run.features(images)[0]
    means = torch.stack([first[labels == digit].mean(0) for digit in range(10)])
    assert (torch.cdist(first, means).argmin(1) == labels).float().mean() > 0.6  # of guesses 0.1
    rng = torch.Generator().manual_seed(0)
    assert nws.log_likelihood(run.machine, images, 50, rng).mean == pytest.approx(-23.12, abs=0.2)


def test_data_and_rules_by_name(command: Command) -> None:
    data = nws.load_data("digits", device="cpu", binarize="threshold")
    assert data.name == "digits" and set(data.train.batch().unique().tolist()) == {0.0, 1.0}
    grey = nws.load_data("digits", device="cpu", binarize="none")
    layer = build_machine(composed(), grey).generator.layers[0]  # with model.visible_bias=data
    mean = (grey.train.batch().sum(0) + 1) / (len(grey.train) + 2)
    torch.testing.assert_close(layer.bias.sigmoid(), mean)
    for name in names("algorithm"):
        assert nws.named_rule(name).samples == (1 if name in ("ws", "nws") else 10), name
    with hydra.initialize(None, version_base="1.3"):  # in a program that Hydra started
        assert nws.named_rule("rws", samples=5, recognition_dream=0).samples == 5
        assert GlobalHydra.instance().is_initialized()
    machine = HelmholtzMachine([4, 2])
    for call, words in (
        (lambda: nws.load_data("digit"), "data must be one of"),
        (lambda: nws.load_data("digits", sise=3), "data.sise is no option of"),
        (lambda: nws.named_rule("rsw"), "algorithm must be one of bihm, nbihm"),
        (lambda: nws.named_rule("rws", sample=5), "did you mean algorithm.samples"),
        (lambda: nws.named_rule("rws", samples=0), "algorithm.samples must be a whole number"),
        (lambda: nws.natural_metrics(machine, "fischer"), "metric must be one of"),
        (lambda: nws.natural_metrics(machine, damping=Damping()), "damping.value must be a plain"),
        (lambda: nws.natural_metrics(machine, rnk=3), "did you mean metric.rank"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            call()


@pytest.mark.parametrize("solver", ["pcg", "cholesky"])
def test_a_metric_in_one_call_is_the_one_made_by_hand(solver: str) -> None:
    """Three steps of the library as the documents use it; to the tolerance of the iterations."""
    ends = []
    for by_hand in (True, False):
        rng = torch.Generator().manual_seed(0)
        machine = HelmholtzMachine([64, 8, 4], rng=rng)
        data = nws.load_data("digits", device="cpu", binarize="threshold")
        metrics = nws.natural_metrics(machine, "fisher", 0.3, solver=solver)
        if by_hand:
            metrics = [NaturalMetric(each, Fisher(), Damping(0.3)) for each in machine.networks]
        learner = nws.WakeSleep(machine, nws.named_rule("nrws", samples=3), rng, metrics)
        optimizer = torch.optim.SGD([p for p in machine.parameters() if p.numel()], 0.1)
        for step in range(3):
            learner.step(data.train.batch()[step * 50 : step * 50 + 50])
            optimizer.step()
            learner.after_step()
        ends.append(torch.cat([each.detach().flatten() for each in machine.parameters()]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-3)
