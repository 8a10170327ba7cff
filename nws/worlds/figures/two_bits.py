"""Figure: flows of the plain and natural gradient on two bits, in eta and in theta."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.func import vmap

from nws.worlds import two_bits as world
from nws.worlds.descent import gradient_in
from nws.worlds.figures.drawing import (
    BLACK,
    GREY,
    NATURAL,
    PLAIN,
    dot,
    field,
    legend,
    line,
    new_figure,
    note,
    star,
    surface,
)  # fmt: skip
from nws.worlds.metrics import euclidean


def draw() -> Figure:
    """Rows: coordinates eta and theta. Columns: plain and natural. The same 25 starts in all."""
    figure = new_figure(5.9, 5.8)
    panels = figure.subplots(2, 2)
    for row, coordinates in zip(panels, ("eta", "theta"), strict=True):
        for axes, kind in zip(row, ("plain", "natural"), strict=True):
            _panel(axes, kind, coordinates)
    entries = {"flow of the plain gradient": PLAIN, "flow of the natural gradient": NATURAL}
    entries |= {"direction of the gradient": {"color": GREY, "linewidth": 1}}
    legend(figure, entries)
    return figure


def _panel(axes: Axes, kind: str, coordinates: str) -> None:
    eta = coordinates == "eta"
    low, high = (-0.3, 1.3) if eta else (-5.0, 5.0)
    objective = world.mean_in_eta if eta else world.mean_in_theta
    levels = torch.linspace(-4, 6, 16).numpy()
    surface(axes, objective, (low, high), (low, high), levels)
    metrics = {"eta": world.BITS.dual_fisher, "theta": world.BITS.fisher}
    metric = metrics[coordinates] if kind == "natural" else euclidean
    ends = (0.04, 0.96) if eta and kind == "natural" else (low, high)
    side = torch.linspace(*ends, 11, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    arrows = vmap(lambda x: -gradient_in(metric, objective, x))(points)
    field(axes, points, arrows)
    name, end = f"{kind} in {coordinates}", 1.0 if kind == "plain" and eta else 4.0
    paths = world.distributions(name, 5, end, 401)
    paths = paths if eta else world.BITS.natural(paths.clamp(1e-12, 1 - 1e-12))
    style = NATURAL if kind == "natural" else PLAIN
    for k in range(paths.shape[1]):
        line(axes, paths[:, k], style, arrow=0.5, linewidth=1.0)
        dot(axes, paths[0, k], markersize=2.6)
    dot(axes, world.SADDLE if eta else world.BITS.natural(world.SADDLE), marker="X", markersize=6)
    axes.set(aspect="equal", title=f"{kind} gradient in {'η' if eta else 'θ'}")
    axes.set_xlabel("$\\eta_1$" if eta else "$\\theta_1$")
    axes.set_ylabel("$\\eta_2$" if eta else "$\\theta_2$")
    if eta:
        axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=BLACK, linewidth=1.0))
        star(axes, (1, 0))
        for x, y in ((0, 0), (0, 1), (1, 0), (1, 1)):
            value = int(world.f(torch.tensor([2 * x - 1, 2 * y - 1])))
            place = (1.06 if x else -0.06, 1.06 if y else -0.06)
            sides = {"ha": "left" if x else "right", "va": "bottom" if y else "top"}
            note(axes, f"f = {value}".replace("-", "−"), place, **sides)
