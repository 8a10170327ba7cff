"""Each group takes a class of the user's own, from a file of the user's; its state is saved."""

import shlex
import signal
import sys
from pathlib import Path

import pytest
from conftest import Command, Interrupt, altered, assert_same_run, checkpoint, metrics
from omegaconf import OmegaConf

from nws.experiment.loading import load_run
from nws.experiment.provenance import read_provenance

IDEAS = """
import copy

import torch
from nws import HelmholtzMachine, Rule
from nws.data import load_digits
from nws.experiment.callbacks import Callback
from nws.models.units import Binary
from nws.natural import Damping
from nws.natural.metrics import Metric


class Unscaled(Metric):
    alpha = None  # (0 + alpha I)^{-1} g: the plain gradient

    def update(self, rows, alpha):
        self.alpha = alpha.clone()

    def direction(self, gradients):
        return [g / self.alpha for g in gradients]

    def state_dict(self):
        return {"alpha": self.alpha}

    def load_state_dict(self, state):
        self.alpha = state["alpha"]


class Baseline:
    def __init__(self, decay=0.9):
        self.decay, self.mean = decay, torch.zeros(())

    def __call__(self, log_p, log_q):
        ratio = log_p - log_q
        self.mean = self.decay * self.mean + (1 - self.decay) * ratio.mean()
        weights = torch.softmax(ratio * (1 + self.mean.tanh().abs()), dim=1)
        return weights, weights

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


class Twice(Rule):
    def __post_init__(self):
        object.__setattr__(self, "samples", 2 * self.samples)
        super().__post_init__()


class Shy(HelmholtzMachine):
    def __init__(self, sizes, shyness, **options):
        super().__init__(sizes, **options)
        for parameter in self.parameters():
            parameter.data.mul_(shyness)


class Flat(Binary):
    pass


class Stubborn(Damping):
    def start_step(self, step):
        self.alpha.fill_(0.3)


class Slow(torch.optim.SGD):
    def __init__(self, parameters, lr, slowness=2):
        super().__init__(parameters, lr / slowness)


def held(optimizer, start):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(start - 0.01 * step, 0))


def sparse(sizes, child, parent, shape):
    return (torch.rand(sizes[child], sizes[parent]) < 0.5).float()


def few(root, binarize="static"):
    return load_digits()


class Diary(Callback):
    every = 1  # it counts all that it is told, and shows it in metrics.csv

    def __init__(self):
        self.counts = {"steps": 0, "losses": 0, "due": 0}

    def after_step(self, trainer):
        self.counts["steps"] += 1

    def after_loss(self, trainer, result):
        self.counts["losses"] += 1

    def due(self, trainer):
        self.counts["due"] += 1

    def row(self, trainer):
        return {f"own/{key}": value for key, value in self.counts.items()}

    def finish(self, trainer, summary, state):
        print("DIARY", state, summary["steps"])

    def state_dict(self):
        return copy.copy(self.counts)

    def load_state_dict(self, state):
        self.counts = copy.copy(state)
"""
NRWS = "algorithm=nrws metric=fisher"
#: A class or function in every group, some groups together.
OWN = (
    f"{NRWS} metric._target_=my_ideas.Unscaled average._target_=my_ideas.Diary",
    f"{NRWS} damping._target_=my_ideas.Stubborn model._target_=my_ideas.Shy +model.shyness=0.5",
    "algorithm.weighting._target_=my_ideas.Baseline +algorithm.weighting.decay=0.5"
    " '++model.units={_target_: my_ideas.Flat}'",
    "algorithm._target_=my_ideas.Twice algorithm.samples=2"
    " 'model.visible={_target_: my_ideas.Flat}'"
    " 'model.mask={_target_: my_ideas.sparse, _partial_: true}'",
    "optimizer._target_=my_ideas.Slow +optimizer.slowness=4 logger._target_=my_ideas.Diary",
    "scheduler._target_=my_ideas.held +scheduler.start=1"
    " '+callbacks.diary={_target_: my_ideas.Diary}'",
    "data._target_=my_ideas.few data.binarize=threshold",
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file my_ideas.py in the working directory."""
    monkeypatch.delitem(sys.modules, "my_ideas", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_ideas.py").write_text(IDEAS)
    return tmp_path / "my_ideas.py"


@pytest.mark.parametrize("options", OWN)
def test_own_classes_go_on(train: Command, own: Path, interrupt: Interrupt, options: str) -> None:
    words = shlex.split(options)
    whole = train("hydra.run.dir=whole", *words)
    assert whole.code == 0 and whole.err == "", whole.err
    interrupt(8, signal.SIGTERM)
    stopped = train("hydra.run.dir=parts", *words)
    assert stopped.code == 143 and "'trust=[my_ideas]'" in stopped.out
    refused = train("resume=parts").message()
    assert "wants to call my_ideas." in refused and "add 'trust=[my_ideas]' to" in refused
    assert checkpoint(Path("parts"))["step"] == 8
    resumed = train("resume=parts", "trust=my_ideas")
    assert resumed.code == 0, resumed.err
    assert_same_run(whole.run, resumed.run)
    assert "finished already" in train("resume=parts", "trust=my_ideas").out
    assert load_run("parts", "last", device="cpu", trust="my_ideas").state["step"] == 12
    if "Diary" in options:
        row = metrics(resumed.run)[-1]
        assert [row[f"own/{key}"] for key in ("steps", "losses", "due")] == ["12", "12", "1"]
        assert "DIARY finished 12" in resumed.out


def test_own_classes_are_what_trains(train: Command, own: Path) -> None:
    """The plain gradient as a metric is (1 + alpha) / alpha times the plain gradient: six times."""
    short = ("trainer.epochs=0.1", "scheduler=constant", "optimizer=sgd")
    metric = (*NRWS.split(), "metric._target_=my_ideas.Unscaled")
    one = train("hydra.run.dir=own", *metric, *short, "optimizer.lr=0.01").run
    plain = train("hydra.run.dir=plain", *short, "optimizer.lr=0.06").run
    ends = [checkpoint(run)["machine"]["generator.layers.0.weight"] for run in (one, plain)]
    assert (ends[0] - ends[1]).abs().max() < 1e-6
    for every in ((), ("metric.refresh_every=7",)):  # 20 is for the class that adaptive.yaml names
        run = train("algorithm=nrws", metric[-1], *short, *every).run
        saved = OmegaConf.load(run / ".hydra" / "config.yaml").metric
        assert saved.get("refresh_every") == (7 if every else None) and saved.max_rows == 64


def test_what_no_program_could_read_is_no_checkpoint(train: Command, own: Path) -> None:
    own.write_text(
        "import math, functools\nimport numpy as np\nfrom nws.schedules import linear\n"
        "half = functools.partial(linear, final=0.5)\n\ndef fall(step):\n    return np.cos(step)\n"
    )
    message = train("scheduler.lr_lambda._target_=my_ideas.fall", "hydra.run.dir=run").message()
    assert "a checkpoint cannot keep numpy" in message and "as float(x) is" in message
    assert not Path("run/checkpoints/last.pt").exists()
    # nor does trust in a module reach what it imports, unless that is ours
    assert train("hydra.run.dir=other").code == 0
    altered("scheduler.lr_lambda._target_", "my_ideas.math.cos")(Path("other/checkpoints/last.pt"))
    message = train("resume=other", "trainer.epochs=3", "trust=[my_ideas]").message()
    assert "wants to call my_ideas.math.cos" in message
    for name in ("linear", "half"):
        change = altered("scheduler.lr_lambda._target_", f"my_ideas.{name}")
        change(Path("other/checkpoints/last.pt"))
        load_run("other", "last", device="cpu", trust=["my_ideas"])


ERRORS = {
    "import os\nclass Metric\n": "my_ideas.py line 2: SyntaxError: expected ':'",
    "class Mien: pass\n": "module 'my_ideas' has no attribute 'Mine')",
    "import no_such\n": "my_ideas.py line 1: ModuleNotFoundError: No module named 'no_such'",
    "class Mine:\n  def __init__(self): [][3]\n": "my_ideas.py line 2: IndexError: list index",
    "class Mine: pass\n": "metric._target_ must make a nws.natural.Metric, got a Mine",
    "from nws.natural import Metric\nclass Mine(Metric):\n  def direction(self, g): return g\n"
    "  def update(self, rows, alpha):\n    import torch; torch.eye('a')\n": "line 5: TypeError",
    "": "",
}


@pytest.mark.parametrize("text", ERRORS)
def test_a_mistake_in_the_users_file_names_it(train: Command, own: Path, text: str) -> None:
    own.write_text(text) if text else own.unlink()
    options = (*NRWS.split(), "metric._target_=my_ideas.Mine")
    message = train(*options, "hydra.run.dir=run").message()
    expected = ERRORS[text] or "your own file must lie in the working directory"
    assert expected in message and "defect" not in message, message
    assert ("your own file" in message) == (text in ("", "import no_such\n"))  # it may be elsewhere
    if "direction" in text:  # it broke in a step, so it leaves a record
        assert "line 5: TypeError" in read_provenance("run")["reason"]
        assert "Traceback" in Path("run/train.log").read_text()
