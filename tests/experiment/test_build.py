"""What is built from the configuration: every choice of the groups, every torch optimizer, the
seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Command, assert_same_run, checkpoint, flatten, metrics, names
from omegaconf import OmegaConf

from nws.data import Dataset, Split
from nws.experiment.loading import load_run
from nws.experiment.build import build_machine
from nws.models import Units


def test_the_seed_fixes_a_run(train: Command) -> None:
    def run(name: str, seed: int) -> Path:
        return train(f"hydra.run.dir={name}", f"seed={seed}").run

    first, again, other = run("a", 3), run("b", 3), run("c", 4)
    assert_same_run(first, again)
    assert metrics(first) != metrics(other)
    for key in ("rng", "machine/generator.layers.0.weight"):
        assert flatten(checkpoint(first))[f"/{key}"] != flatten(checkpoint(other))[f"/{key}"]


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "model"])
def test_group_choices_train(train: Command, group: str) -> None:
    before = None
    for name in names(group):
        choice = "=".join(f"{group}/{name}".rsplit("/", 1))  # model/visible=gaussian
        outcome = train(choice, "trainer.epochs=0.5", f"hydra.run.dir={name}")
        assert outcome.code == 0, (name, outcome.err)
        assert checkpoint(outcome.run)["step"] == 3
        after = checkpoint(outcome.run)["machine"]["generator.layers.0.weight"]
        assert after.isfinite().all()
        if group == "optimizer":
            assert before is None or not torch.equal(after, before)
        before = after


OPTIMIZERS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


def test_every_torch_optimizer_trains(train: Command) -> None:
    assert {"SGD", "Adam", "LBFGS", "Rprop"} <= set(OPTIMIZERS)
    start = None
    for name in OPTIMIZERS:
        options = (
            f"optimizer._target_=torch.optim.{name}",
            "~optimizer.betas",
            "~optimizer.fused",
            "trainer.epochs=0.5",
            f"hydra.run.dir={name}",
        )
        outcome = train(*options, "scheduler=plateau")
        if name in ("SparseAdam", "Muon"):  # for sparse gradients; for matrices alone
            expected = "takes dense gradients" if name == "SparseAdam" else name
            assert expected in outcome.message() and name in outcome.message()
            continue
        assert outcome.code == 0, (name, outcome.err)
        state = checkpoint(outcome.run)
        assert state["step"] == 3 and state["optimizer_class"] == name
        weight = state["machine"]["generator.layers.0.weight"]
        assert weight.isfinite().all() and (start is None or not torch.equal(weight, start))
        start = weight


MY_IDEAS = """
import torch
from nws.data import RawImages

def my_images(period, root="nowhere"):
    images = (torch.arange(12) % torch.arange(period, period + 40)[:, None] == 0).byte()
    return RawImages(images, images[:5], images[5:10], shape=(3, 4), maximum=1)

def no_images(period):
    return [1]
"""


def test_a_source_of_images_in_the_working_directory(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my_ideas_of_data.py").write_text(MY_IDEAS)
    source = "data._target_=my_ideas_of_data.my_images"
    options = (*SMALL, "trainer.batch_size=20", "data.name=mine")
    outcome = command("train.py", *options, source, "+data.period=3")
    assert outcome.code == 0, outcome.err
    assert outcome.run.parent == tmp_path / "outputs" / "mine_rws"
    loaded = load_run(outcome.run, "last", device="cpu")
    config, data, machine = loaded.config, loaded.data, loaded.machine
    assert config.data._target_ == "my_ideas_of_data.my_images" and data.shape == (3, 4)
    assert data.name == "mine" and machine.sizes[0] == 12
    more = command("train.py", f"resume={outcome.run}", "trainer.epochs=3")
    assert more.code == 0 and checkpoint(outcome.run)["step"] == 6, more.err
    sweep = command("train.py", "-m", *options, source, "+data.period=3,4")
    assert sweep.code == 0, sweep.err

    for arguments, expected in {
        (source, "+data.perio=3"): "my_images takes no option perio; did you mean data.period?",
        (source,): "data.period is missing; my_images needs it: +data.period=VALUE",
        ("data._target_=my_ideas_of_data.yours",): "data._target_=my_ideas_of_data.yours cannot be",
        ("data._target_=no_such_file.images",): "No module named 'no_such_file'",
        (
            "data._target_=null",
        ): "data._target_ must name a function that returns nws.data.RawImages, got null",
        ("data._target_=math.pi",): "must name a function or a class, got math.pi",
        ("data._target_=my_ideas_of_data.no_images", "+data.period=1"): "no_images returned list",
    }.items():
        assert expected in command("train.py", *options, *arguments).message()


def test_only_the_data_group_s_source_needs_a_file(command: Command) -> None:
    """`root` goes to no source that does not take it: digits need none."""
    assert command("train.py", *SMALL, "data.root=nowhere", "trainer.epochs=0.2").code == 0


def test_whole_numbers_may_be_written_as_floats(train: Command) -> None:
    """As 2e2 is, and as a search may suggest them."""
    floats = ("trainer.batch_size=2e2", "trainer.evaluation_samples=5.0", "trainer.check_every=2.0")
    assert_same_run(train("hydra.run.dir=a", *floats).run, train("hydra.run.dir=b").run)


# --- model.visible_bias ---------------------------------------------------------------------------

GREY = Split(torch.tensor([[0, 255, 51], [0, 255, 102]], dtype=torch.uint8), 255, redraw=False)
GREYS = Dataset("grey", (1, 3), GREY, GREY, GREY)
VISIBLE = {
    "binary": None,
    "gaussian": {"_target_": "nws.models.gaussian.Gaussian", "scale": 0.5},
    "poisson": {"_target_": "nws.models.poisson.Poisson", "scale": 0.25},
}


def visible_bias(
    data: Dataset | int, bias: str | float, units: str = "binary", visible: Any = None
) -> tuple[Units, torch.Tensor]:
    """The visible units of a new machine, and their bias."""
    model = {"layers": [2], "units": units, "visible": visible, "visible_bias": bias}
    machine = build_machine(OmegaConf.create({"seed": 0, "model": model}), data)
    return machine.units[0], machine.generator.layers[0].bias.detach()


@pytest.mark.parametrize("units", ["binary", "bipolar"])
@pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE)
def test_the_visible_bias_of_the_data_is_their_mean_image(visible: Any, units: str) -> None:
    """One white and one black image are added to the two of training: no pixel is certain."""
    family, bias = visible_bias(GREYS, "data", units, visible)
    expected = torch.tensor([(0 + 0 + 1) / 4, (1 + 1 + 1) / 4, (0.2 + 0.4 + 1) / 4])
    torch.testing.assert_close(family.to_data(family.mean(bias)), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("units", ["binary", "bipolar"])
@pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE)
def test_the_visible_bias_without_images_and_as_a_number(visible: Any, units: str) -> None:
    """Without images, as where parameters are loaded afterwards, it is 0."""
    for data, given, expected in ((3, "data", 0.0), (GREYS, 0.5, 0.5)):
        _, bias = visible_bias(data, given, units, visible)
        assert bias.tolist() == [expected] * 3
