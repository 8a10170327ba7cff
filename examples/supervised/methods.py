"""One run of a method on a task: its optimizer, its training, and what it reached by epochs."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nws.errors import UserError
from nws.natural import NaturalGradient
from supervised.tasks import Task

Run = dict[str, Any]
Update = Callable[[Tensor, Tensor], object]  # a step from inputs and targets


class Method(NamedTuple):
    """A way to train: its name for people, and the rate and damping at which a search starts."""

    label: str
    lr: float
    damping: float | None = None  # None: the method has none
    metric: str = "fisher"
    rows: str = "same"  # whose inputs the metric is taken at: same, other or unlabelled


METHODS = {
    "sgd": Method("SGD, momentum 0.9", 0.05),
    "adam": Method("Adam", 0.003),
    "same": Method("natural, same batch", 0.5, 0.03),
    "other": Method("natural, other batch", 0.5, 0.03, rows="other"),
    "unlabelled": Method("natural, unlabelled batch", 0.5, 0.03, rows="unlabelled"),
    "empirical": Method("empirical Fisher", 0.5, 0.03, "empirical"),
    "covariance": Method("covariance of gradients", 0.5, 0.03, "covariance"),
}


@dataclass(frozen=True)
class Settings:
    """What makes a run: the same settings give the same run."""

    method: str
    lr: float
    damping: float | None
    seed: int

    @property
    def name(self) -> str:
        """A name for its file."""
        damping = "" if self.damping is None else f"_damping{self.damping:.4g}"
        return f"{self.method}_lr{self.lr:.4g}{damping}_seed{self.seed}"


def train(task: Task, settings: Settings) -> Run:
    """Train a new network, and evaluate it after each epoch.

    Returns:
        The settings, and `rows`: for each epoch the CPU seconds of training so far, and losses and
        errors of the parts. A run that diverges ends early.
    """
    torch.manual_seed(settings.seed)
    model = task.model()
    draws = torch.Generator().manual_seed(settings.seed)
    update = updates(task, model, settings, draws)
    inputs, targets = task.train
    rows, seconds = [_evaluate(task, model, 0, 0.0)], 0.0
    for epoch in range(1, task.epochs + 1):
        order = torch.randperm(len(inputs), generator=draws).split(task.batch)
        start = time.process_time()
        try:
            for batch in order:
                update(inputs[batch], targets[batch])
        except UserError:  # outputs or rows that are not finite: it has diverged
            break
        seconds += time.process_time() - start
        row = _evaluate(task, model, epoch, seconds)
        if not math.isfinite(row["train_loss"]):
            break
        rows.append(row)
    return {"settings": asdict(settings), "epochs": task.epochs, "rows": rows}


def updates(task: Task, model: nn.Module, settings: Settings, draws: torch.Generator) -> Update:
    """What takes a step with a method, and sets the rate of the next one."""
    natural = settings.damping is not None
    optimizer, step = (_natural if natural else _first_order)(task, model, settings, draws)
    scheduler = LambdaLR(optimizer, task.schedule)

    def update(inputs: Tensor, targets: Tensor) -> None:
        step(inputs, targets)
        scheduler.step()

    return update


def _natural(
    task: Task, model: nn.Module, settings: Settings, draws: torch.Generator
) -> tuple[Optimizer, Update]:
    method = METHODS[settings.method]
    optimizer = NaturalGradient(
        model, task.family, lr=settings.lr, damping=settings.damping or 0.0, metric=method.metric
    )
    pool = task.train[0] if method.rows == "other" else task.unlabelled

    def step(inputs: Tensor, targets: Tensor) -> object:
        if method.rows == "same":
            return optimizer.step(inputs, targets)
        drawn = torch.randint(len(pool), (task.batch,), generator=draws)
        return optimizer.step(inputs, targets, pool[drawn])

    return optimizer, step


def _first_order(
    task: Task, model: nn.Module, settings: Settings, draws: torch.Generator
) -> tuple[Optimizer, Update]:
    optimizer: Optimizer
    if settings.method == "adam":
        optimizer = torch.optim.Adam(model.parameters(), settings.lr)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=0.9)

    def step(inputs: Tensor, targets: Tensor) -> object:
        optimizer.zero_grad()
        task.family.loss(model(inputs), targets).mean().backward()
        return optimizer.step()

    return optimizer, step


@torch.no_grad()
def _evaluate(task: Task, model: nn.Module, epoch: int, seconds: float) -> dict[str, float]:
    row: dict[str, float] = {"epoch": epoch, "seconds": round(seconds, 3)}
    for name, (inputs, targets) in zip(
        ("train", "valid", "test"), (task.train, task.valid, task.test), strict=True
    ):
        outputs = model(inputs)
        row[f"{name}_loss"] = float(task.family.loss(outputs, targets).mean())
        if task.classifies:
            row[f"{name}_error"] = float((outputs.argmax(1) != targets).float().mean()) * 100
    return row
