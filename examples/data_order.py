"""What an online run owes to the data it saw first: SGD beside the natural gradient.

A stream of deformed images comes once, in 20 parts. One part of the first ten is replaced by
another draw, five times each. The variance of the outputs between the five is what that part
decides (Pascanu & Bengio 2014, section 6).
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import pandas as pd
import torch
from matplotlib.figure import Figure
from small_worlds.drawing import NATURAL, PLAIN, as_png, new_figure, styled
from supervised.methods import METHODS, Settings, updates
from supervised.report import markdown
from supervised.tasks import Part, Task, add_folders, fashion
from torch import Tensor
from torchvision.transforms.v2 import RandomAffine

from nws.errors import positive_int
from nws.experiment.boundary import errors_for_people
from nws.files import check_folder, write_atomically

PARTS, REPLACED, DRAWS = 20, 10, 5
DEGREES, SHIFT = 15, 0.1  # of the deformations, at most; a shift is a share of the side
LOOKS = {"sgd": PLAIN, "same": NATURAL}
DAMPINGS = {"sgd": None, "same": 0.1}  # of the methods
RATES = [2 ** (-k / 2) for k in range(2, 16)]  # from 0.5, for both methods
SLACK = 0.5  # percent


@dataclass(frozen=True)
class Stream:
    """A task whose training images come once, in order, and what may stand in for a part.

    Args:
        task: Its `train` is the stream; its `test` the held-out images.
        others: For each of the first parts its other draws: inputs (10, 5, n, pixels) and targets.
    """

    task: Task
    others: Part

    def replaced(self, part: int, draw: int) -> Task:
        """The task with another draw of a part."""
        inputs, targets = (each.clone() for each in self.task.train)
        size = self.others[0].shape[2]
        for whole, others in zip((inputs, targets), self.others, strict=True):
            whole[part * size : (part + 1) * size] = others[part, draw]
        return replace(self.task, train=(inputs, targets))


def deformed(images: Tensor, side: int = 28) -> Tensor:
    """Each image (N, pixels) turned and shifted by amounts of its own."""
    deform = RandomAffine(DEGREES, (SHIFT, SHIFT))
    return torch.stack([deform(each.view(1, side, side)).flatten() for each in images])


def make_stream(root: Path, size: int, held_out: int) -> Stream:
    """Parts of `size` images of Fashion-MNIST; other draws are of images that are in no part."""
    task, count = fashion(root), PARTS * size
    torch.manual_seed(0)  # of the deformations
    inputs, targets = task.train
    others = torch.randint(count, len(targets), (REPLACED, DRAWS, size))
    train = deformed(inputs[:count]), targets[:count]
    other = deformed(inputs[others.flatten()]).view(*others.shape, -1), targets[others]
    test = deformed(task.test[0][:held_out]), task.test[1][:held_out]
    sizes = (784, 50, 10)
    batch = min(task.batch // 5, size)
    task = replace(task, train=train, test=test, sizes=sizes, batch=batch, epochs=1)
    return Stream(task, other)


def outputs(task: Task, settings: Settings) -> Tensor:
    """Probabilities of the classes of held-out images after one pass in order: (N, classes)."""
    torch.manual_seed(settings.seed)
    model = task.model()
    update = updates(task, model, settings, torch.Generator().manual_seed(settings.seed))
    for inputs, targets in zip(*(each.split(task.batch) for each in task.train), strict=True):
        update(inputs, targets)
    with torch.no_grad():
        return model(task.test[0]).softmax(-1)


def error(task: Task, probabilities: Tensor) -> float:
    """The share of held-out images with another class as the most probable one, in percent."""
    return float((probabilities.argmax(-1) != task.test[1]).float().mean()) * 100


def matched(errors: dict[str, list[float]]) -> dict[str, int]:
    """Of each method the smallest rate (its index; rates fall) that comes to the same error.

    The goal is what both can reach, and half a percent: near their best rates errors are nearly
    the same, while variances are not.
    """
    goal = max(min(each) for each in errors.values()) + SLACK
    return {
        method: max(k for k, found in enumerate(each) if found <= goal)
        for method, each in errors.items()
    }


def measure(stream: Stream, settings: Settings) -> pd.DataFrame:
    """For each replaced part the variance between its draws, and their mean error."""
    rows = []
    for part in range(REPLACED):
        runs = [stream.replaced(part, draw) for draw in range(DRAWS)]
        found = torch.stack([outputs(run, settings) for run in runs])
        errors = [error(stream.task, each) for each in found]
        variance = float(found.var(0).sum(-1).mean())
        row = {"part": part + 1, "variance": variance, "error": fmean(errors)}
        rows.append(vars(settings) | row)
    return pd.DataFrame(rows)


def compare(stream: Stream, seeds: int) -> pd.DataFrame:
    """The measurements of both methods at the rate of equal error, and at twice it."""
    errors = {}
    for method, damping in DAMPINGS.items():
        errors[method] = [
            fmean(
                error(stream.task, outputs(stream.task, Settings(method, lr, damping, seed)))
                for seed in range(seeds)
            )
            for lr in RATES
        ]
    rates = [
        (method, RATES[k])
        for method, small in matched(errors).items()
        for k in (small, max(small - 2, 0))  # and twice the rate
    ]
    return pd.concat([
        measure(stream, Settings(method, lr, DAMPINGS[method], seed))
        for method, lr in dict.fromkeys(rates) for seed in range(seeds)
    ])  # fmt: skip


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each method and rate the error, and variances in thousandths, as texts."""
    lines = []
    for (method, lr), group in rows.groupby(["method", "lr"], sort=False):
        variance = group.groupby("part")["variance"].mean() * 1e3
        lines.append({
            "method": METHODS[method].label, "rate": f"{lr:.3g}",
            "error %": f"{group['error'].mean():.2f}", "variance, 1e-3": f"{variance.mean():.2f}",
            "of part 1": f"{variance[1]:.2f}", f"of part {REPLACED}": f"{variance[REPLACED]:.2f}",
        })  # fmt: skip
    return pd.DataFrame(lines)


def figure(rows: pd.DataFrame) -> Figure:
    """The variance by the part that was replaced: means over seeds, and their range."""
    image = new_figure(5.2, 3.2)
    axes = image.subplots()
    for method, group in rows.groupby("method", sort=False):
        for k, (lr, runs) in enumerate(group.groupby("lr")):
            style = LOOKS[str(method)] | {"linestyle": "--" if k else "-"}
            parts = runs.groupby("part")["variance"]
            label = (
                f"{METHODS[str(method)].label}, rate {lr:.3g}: error {runs['error'].mean():.1f} %"
            )
            axes.plot(parts.mean(), label=label, **style)
            axes.fill_between(
                parts.mean().index, parts.min(), parts.max(), color=style["color"], alpha=0.15
            )
    axes.set(xlabel="replaced part of 20", ylabel="variance of the outputs", yscale="log")
    axes.grid(True)
    axes.legend()
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--seeds", type=int, default=2, help="of the networks, from 0 (default 2)")
    add("--quick", action="store_true", help="little data, one seed: does everything run?")
    add_folders(parser, "data_order")
    arguments = parser.parse_args()
    seeds = 1 if arguments.quick else positive_int("--seeds", arguments.seeds)
    check_folder(arguments.output)
    torch.set_num_threads(1)
    stream = make_stream(arguments.root, *((10, 100) if arguments.quick else (250, 2_000)))
    rows = compare(stream, seeds)
    write_atomically(arguments.output / "results.csv", rows.to_csv(index=False).encode())
    with styled():
        write_atomically(arguments.output / "data_order.png", as_png(figure(rows)))
    print(markdown(summary(rows)), end="")
    print(f"{time.process_time():.0f} CPU seconds")
    print(arguments.output)


if __name__ == "__main__":
    with errors_for_people():
        main()
