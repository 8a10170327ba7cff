"""Draw the figures of docs/results/ from the lists of trials: `python docs/results/draw.py`.

The lists are CSV files in docs/results/trials/. Curves of runs come from `nws plot`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nws.style import COLOURS, STYLE

TRIALS = Path(__file__).parent / "trials"
IMAGES = Path(__file__).parents[1] / "images"
DATA = {"tfd": "faces", "fashion_mnist": "Fashion-MNIST", "binarized_mnist": "binarised MNIST"}
LEFT_OUT = ("RWS, SGD", "NRWS, exact", "NRWS, halfway")  # of the rivals' figure
METHODS = {"RWS, SGD": "#999999", "RWS, Adam": COLOURS[0]} | {
    "NRWS, exact": COLOURS[2],
    "NRWS, Kronecker": COLOURS[1],
}


def panel(axes: Axes, trials: pd.DataFrame, title: str, depth: float) -> None:
    """Nats against the rate: a point for each trial, a line through the best at each rate."""
    trials = trials.dropna(subset="valid")
    for method, colour in METHODS.items():
        mine = trials[trials.method == method]
        best = mine.groupby("rate").valid.max()
        axes.plot(mine.rate, mine.valid, ".", color=colour, markersize=4, alpha=0.5)
        axes.plot(best.index, best.values, color=colour, label=method)
    axes.set(xscale="log", title=title)
    axes.set_ylim(trials.valid.max() - depth, trials.valid.max() + 0.06 * depth)


def draw_fashion_mnist() -> None:
    """Rates on Fashion-MNIST, one epoch with ten dreams and five with three."""
    trials = pd.read_csv(TRIALS / "fashion_mnist.csv")
    figure, grid = plt.subplots(2, 3, figsize=(7, 4), sharey="row", layout="constrained")
    for row, (epochs, dreams, depth) in zip(grid, [(1, 10, 30), (5, 3, 18)], strict=True):
        for axes, batch in zip(row, (32, 128, 512), strict=True):
            chosen = trials[(trials.epochs == epochs) & (trials.dreams == dreams)]
            length = f"{epochs} epoch{'s' * (epochs > 1)}"
            panel(axes, chosen[chosen.batch == batch], f"{length}, batch {batch}", depth)
        top = trials[(trials.epochs == epochs) & (trials.dreams == dreams)].valid.max()
        row[0].set(ylabel="validation nats", ylim=(top - depth, top + 0.06 * depth))
    for axes in grid[-1]:
        axes.set_xlabel("learning rate")
    grid[1, 0].legend(loc="lower left")
    figure.savefig(IMAGES / "rates_fashion_mnist.png")


def draw_other_data() -> None:
    """Rates on digits, MNIST and faces."""
    digits, mnist, faces = (
        pd.read_csv(TRIALS / f"{name}.csv") for name in ("digits", "mnist", "faces")
    )
    short = mnist[mnist.epochs == 6]
    shallow = short.network == "784-200-200-200"
    panels = {
        "digits, 100 epochs": (digits, 1.2),
        "MNIST, 3 layers, 6 epochs": (short[shallow], 20),
        "MNIST, 12 layers, 6 epochs": (short[~shallow], 16),
        "faces, soft targets": (faces[faces.network == "soft targets"], 6),
        "faces, Gaussian units": (faces[faces.network == "Gaussian units"], 60),
    }
    figure, grid = plt.subplots(2, 3, figsize=(7, 4), layout="constrained")
    for axes, (title, (trials, depth)) in zip(grid.flat, panels.items(), strict=False):
        panel(axes, trials, title, depth)
        axes.set_xlabel("learning rate")
    for axes in grid[:, 0]:
        axes.set_ylabel("validation nats")
    grid[1, 2].axis("off")
    handles = [plt.Line2D([], [], color=colour, label=name) for name, colour in METHODS.items()]
    grid[1, 2].legend(handles=handles, loc="center")
    figure.savefig(IMAGES / "rates_other_data.png")


def draw_costs() -> None:
    """Solvers by time and error, and memory against the size of the image."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
    solvers = pd.read_csv(TRIALS / "solvers.csv").fillna({"relative_error": 1e-6})
    for colour, (name, mine) in zip(COLOURS, solvers.groupby("solver", sort=False), strict=False):
        below = "" if name == "pcg" else ", below 1e-6"
        marker = "v" if below else "o"
        left.loglog(mine.ms, mine.relative_error, marker, color=colour, label=name + below)
    left.set(xlabel="ms of one solve", ylabel="relative error of the direction")
    left.legend(loc="upper right")
    scale = pd.read_csv(TRIALS / "scale.csv")
    scale = scale[scale.hidden == "1024-100"]
    for method in ("NRWS, exact", "NRWS, Kronecker"):
        mine = scale[scale.rule == method]
        right.loglog(mine.visible, mine.peak_gb, "o-", color=METHODS[method], label=method)
    dense = scale.drop_duplicates("visible")
    right.loglog(dense.visible, dense.dense_blocks_gb, "o--", color="#999999", label="dense blocks")
    right.set(xlabel="visible units, 1,024 hidden", ylabel="GB")
    right.legend()
    figure.savefig(IMAGES / "costs.png")


def draw_rivals() -> None:
    """Averaged weights along a run, by its share and by its time in that of RWS with SGD."""
    runs, steps = (pd.read_csv(TRIALS / f"{name}.csv") for name in ("comparison", "rival_steps"))
    runs = runs[runs.test.notna() & runs.note.isna()]
    titles = {f"fashion_mnist_{batch}": f"Fashion-MNIST, batch {batch}" for batch in (32, 128, 512)}
    titles = {"digits": "digits"} | titles
    titles |= {"sbn": "binarised MNIST, 3 epochs", "bihm": "twelve layers, 3 epochs"}
    shares = np.array([0.1, 0.2, 0.5, 1])
    names = [name for name in steps.method.unique() if name not in LEFT_OUT]
    figure, grid = plt.subplots(2, 6, figsize=(12.5, 4), sharey="col", layout="constrained")
    for column, (setting, title) in zip(grid.T, titles.items(), strict=True):
        ends = []
        for name, colour in zip(names, COLOURS, strict=False):
            mine = runs[(runs.setting == setting) & (runs.method == name)]
            cost = steps[(steps.setting == setting) & (steps.method == name) & (steps.threads == 1)]
            curve = mine[[f"average_{share:g}" for share in shares]].mean()
            for axes, scale in zip(column, (1, cost.times_rws.iloc[0]), strict=True):
                axes.plot(shares * scale, curve, "o-", markersize=2.5, color=colour, label=name)
            ends += [curve.iloc[0], curve.iloc[-1]]
        top, low = np.nanmax(ends), np.nanquantile(ends[::2], 0.4)
        column[0].set(title=title, xlabel="share of the run", ylim=(low, top + 0.04 * (top - low)))
        column[1].set_xlabel("time (RWS with SGD: 1)")
    for axes in grid[:, 0]:
        axes.set_ylabel("validation nats")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.savefig(IMAGES / "rivals.png", dpi=80)


def draw_batch_sizes() -> None:
    """Steps and images until two likelihoods, as `examples/batch_sizes.py` draws runs."""
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    from batch_sizes import draw

    found = pd.read_csv(TRIALS / "batch_sizes.csv")
    pictures = draw(found.assign(images=found.steps * found.batch))
    save_small(pictures["png"], "batch_sizes.png")


def save_small(picture: bytes, name: str) -> None:
    """A picture in 64 colours, for many thin lines."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(64)
    image.save(IMAGES / name, optimize=True)


def save_figure(figure: Figure, name: str) -> None:
    """A figure in 64 colours."""
    figure.savefig(drawn := io.BytesIO(), dpi=110)
    save_small(drawn.getvalue(), name)


def by_epochs_and_seconds(
    runs: pd.DataFrame,
    styles: dict[str, dict[str, str]],
    limits: list[tuple[float, float]],
    name: str,
) -> None:
    """A column for each data set: the mean of each `label` by epochs above, by seconds below."""
    figure, columns = plt.subplots(2, 3, figsize=(9, 5.4), layout="constrained")
    for (above, below), (data, title), limit in zip(columns.T, DATA.items(), limits, strict=True):
        mine = runs[runs.data == data].groupby(["label", "epoch"])[["valid", "seconds"]].mean()
        for label in (each for each in styles if each in mine.index.unique("label")):
            curve = mine.loc[label]
            for axes, x in ((above, curve.index), (below, curve.seconds)):
                axes.plot(x, curve.valid, label=label, **styles[label])
        above.set(xlabel="epochs", ylim=limit, title=title)
        above.locator_params(axis="x", integer=True)
        below.set(xlabel="seconds", ylim=limit)
    for axes in columns[:, 0]:
        axes.set_ylabel("validation nats")
    figure.legend(*columns[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save_figure(figure, name)


def draw_published() -> None:
    """The authors' settings: methods; SGD at 0.005, Nadam at 0.001."""
    runs = pd.read_csv(TRIALS / "published.csv").fillna({"refresh_every": 0})
    runs = runs[runs.refresh_every.isin([0, 1000, 20]) | (runs.method == "NRWS, diagonal")]
    runs = runs[runs.rate == runs.optimizer.map({"SGD": 0.005, "NAdam": 0.001})]
    runs["label"] = runs.method + runs.optimizer.map({"SGD": "", "NAdam": ", Nadam"})
    colours = dict(zip(runs.method.unique(), COLOURS, strict=False))
    styles = {
        label: {"color": colours[method], "linestyle": "--" if label != method else "-"}
        for method, label in dict.fromkeys(zip(runs.method, runs.label, strict=True))
    }
    limits = [(-356, -342.5), (-268, -233), (-125, -92)]
    by_epochs_and_seconds(runs, styles, limits, "published.png")


def draw_age_of_inverses() -> None:
    """What old inverses cost and save: of the faces 20 epochs, for there were no more of most."""
    runs = pd.read_csv(TRIALS / "published.csv")
    runs = runs[(runs.method == "NRWS, exact") & (runs.seed == 0) & (runs.rate == 0.005)]
    runs = runs[(runs.data != "tfd") | (runs.epoch <= 20)]
    ages = {1: "every step"} | {age: f"every {age:,} steps" for age in (10, 100, 1000)}
    runs["label"] = runs.refresh_every.map(ages)
    pairs = zip(ages.values(), COLOURS, strict=False)
    styles = {label: {"color": colour} for label, colour in pairs}
    limits = [(-351, -344.5), (-262, -233), (-118, -93)]
    by_epochs_and_seconds(runs, styles, limits, "published_age.png")


def draw_binarized() -> None:
    """Adam and Kronecker on three machines of the binarised MNIST, by epochs and by seconds."""
    curves = pd.read_csv(TRIALS / "binarized_curves.csv")
    figure, rows = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
    parts = zip(rows.T, curves.groupby("network", sort=False), strict=True)
    for (above, below), (network, of) in parts:
        limit = (of.valid.max() - 15, of.valid.max() + 1)
        for method, mine in of.groupby("method", sort=False):
            above.plot(mine.epoch, mine.valid, color=METHODS[method], label=method)
            below.plot(mine.epoch * mine.seconds, mine.valid, color=METHODS[method])
        above.set(title=network, xlabel="epochs", ylim=limit)
        below.set(xlabel="seconds", ylim=limit)
    for axes in rows[:, 0]:
        axes.set_ylabel("validation nats")
    rows[0, 0].legend(loc="lower right")
    figure.savefig(IMAGES / "binarized_fifty.png", dpi=90)


if __name__ == "__main__":
    plt.rcParams.update(STYLE | {"savefig.dpi": 150, "lines.markersize": 4})
    draw_fashion_mnist()
    draw_other_data()
    draw_costs()
    draw_rivals()
    draw_batch_sizes()
    draw_published()
    draw_age_of_inverses()
    draw_binarized()
