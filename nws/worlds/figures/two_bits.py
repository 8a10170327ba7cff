"""Figure: flows of the plain and natural gradient on two bits, in eta and in theta."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.func import vmap

from nws.worlds import two_bits as world
from nws.worlds.descent import Objective, gradient_in
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
from nws.worlds.metrics import Metric, euclidean

ETA, THETA = (-0.3, 1.3), (-5.0, 5.0)  # ends of both axes
ETA_METRIC: Metric = world.BITS.dual_fisher
#: how long the flows are drawn; the plain one in eta soon leaves the panel
DRAWN = {
    ("plain", "eta"): 1.0,
    ("plain", "theta"): 4.0,
    ("natural", "eta"): 4.0,
    ("natural", "theta"): 4.0,
}


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
    natural = kind == "natural"
    paths = world.distributions(f"{kind} in {coordinates}", 5, DRAWN[kind, coordinates], 401)
    objective: Objective = world.mean_in_eta
    (low, high), metric, saddle = ETA, ETA_METRIC, world.SADDLE
    if coordinates == "eta":
        _square(axes)
    else:
        (low, high), objective, metric = THETA, world.mean_in_theta, world.BITS.fisher
        paths = world.BITS.natural(paths.clamp(1e-12, 1 - 1e-12))
        saddle = world.BITS.natural(world.SADDLE)
    surface(axes, objective, (low, high), (low, high), torch.linspace(-4, 6, 16).numpy())
    inside = (0.04, 0.96) if natural and coordinates == "eta" else (low, high)
    side = torch.linspace(*inside, 11, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    space = metric if natural else euclidean
    field(axes, points, vmap(lambda x: -gradient_in(space, objective, x))(points))
    for k in range(paths.shape[1]):
        line(axes, paths[:, k], NATURAL if natural else PLAIN, arrow=0.5, linewidth=1.0)
        dot(axes, paths[0, k], markersize=2.6)
    dot(axes, saddle, marker="X", markersize=6)
    letter = {"eta": "η", "theta": "θ"}[coordinates]
    names = (f"$\\{coordinates}_{number}$" for number in (1, 2))
    axes.set(aspect="equal", title=f"{kind} gradient in {letter}")
    axes.set(**dict(zip(("xlabel", "ylabel"), names, strict=True)))


def _square(axes: Axes) -> None:
    """All distributions of the model, and f at the corners."""
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=BLACK, linewidth=1.0))
    star(axes, (1, 0))
    for x, y in ((0, 0), (0, 1), (1, 0), (1, 1)):
        value = int(world.f(torch.tensor([2 * x - 1, 2 * y - 1])))
        place = (1.06 if x else -0.06, 1.06 if y else -0.06)
        sides = {"ha": "left" if x else "right", "va": "bottom" if y else "top"}
        note(axes, f"f = {value}".replace("-", "−"), place, **sides)
