r"""Stochastic relaxation on two bits (Malagò, Matteucci & Pistone 2011).

A function of two spins x_i in {-1, +1} is replaced by its mean under independent bits,

    F(eta) = E_p[f(x)],   f(x) = x1 + 2 x2 + 3 x1 x2,

which is minimised over the distributions. The plain gradient depends on the coordinates in which it
is taken, the natural one does not.
"""

from functools import cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.func import vmap

from nws.geometry import IndependentUnits, descend, euclidean, flow, gradient_in
from nws.geometry.descent import Objective
from nws.geometry.metrics import Metric
from small_worlds import drawing, first

BITS = IndependentUnits("bipolar", 2)
SADDLE = torch.tensor([1 / 6, 1 / 3], dtype=torch.float64)  # where the gradient vanishes, in eta


def f(x: Tensor) -> Tensor:
    """x1 + 2 x2 + 3 x1 x2 of spins (..., 2)."""
    return x[..., 0] + 2 * x[..., 1] + 3 * x[..., 0] * x[..., 1]


def mean_in_eta(eta: Tensor) -> Tensor:
    """E_p[f] in expectation parameters, the probabilities of +1.

    f has each spin at most once, so its mean under independent spins is f of their means.
    """
    return f(BITS.units.encode(eta))


def mean_in_theta(theta: Tensor) -> Tensor:
    """E_p[f] in natural parameters, the logits."""
    return mean_in_eta(BITS.expectation(theta))


def grid(side: int = 5) -> Tensor:
    """Starting distributions, in eta: a grid of side x side points within the square."""
    ends = torch.linspace(0, 1, 2 * side + 1, dtype=torch.float64)[1::2]
    return torch.cartesian_prod(ends, ends)


def space(kind: str) -> tuple[Objective, Metric]:
    """F and the metric of a kind: "plain in eta", "natural in theta", ..."""
    if kind.endswith(" eta"):
        return mean_in_eta, BITS.dual_fisher if kind.startswith("natural") else euclidean
    return mean_in_theta, BITS.fisher if kind.startswith("natural") else euclidean


@cache
def distributions(kind: str, side: int = 5, end: float = 4.0, count: int = 401) -> Tensor:
    """A flow from the grid, as distributions in eta at equal times: (count, side^2, 2)."""
    starts, times = grid(side), torch.linspace(0, end, count, dtype=torch.float64)
    if kind.endswith(" eta"):
        return flow(*space(kind), starts, times)
    return BITS.expectation(flow(*space(kind), BITS.natural(starts), times))


def projected(starts: Tensor, rate: float = 0.05, steps: int = 200) -> Tensor:
    """Plain descent in eta, with each step projected on the square [0, 1]^2."""
    return descend(mean_in_eta, euclidean, starts, rate, steps, project=lambda x: x.clamp(0, 1))


def share_at_optimum(kind: str, end: float = 1.0, side: int = 20) -> float:
    """The share of starts whose flow ends at the best spins, (+1, -1)."""
    if kind == "projected":
        ends = projected(grid(side))[-1]
    else:
        ends = distributions(kind, side, end, 2)[-1]
    return float((ends[:, 0] > ends[:, 1]).double().mean())


def time_to_reach(kind: str, gap: float, end: float) -> float:
    """The time at which the flow from the uniform distribution has come so near to -4."""
    path = distributions(kind, 1, end, 4001)[:, 0]
    return first(mean_in_eta(path) + 4 < gap) * end / 4000


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/two_bits.md."""
    plain = distributions("plain in eta", 5, 1.0, 401)
    outside = ((plain[-1] < 0) | (plain[-1] > 1)).any(-1).double()
    apart = distributions("plain in theta") - distributions("natural in theta")
    return {
        "plain flows in eta outside of the square after time 1, share": float(outside.mean()),
        "largest distance of plain and natural flow in theta, in eta": float(apart.abs().max()),
        "starts that end at the minimum, natural": share_at_optimum("natural in theta", 4.0),
        "starts that end at the minimum, plain in theta": share_at_optimum("plain in theta", 100.0),
        "starts that end at the minimum, plain in eta, projected": share_at_optimum("projected"),
        "natural: time to a gap of 1e-2": time_to_reach("natural in theta", 1e-2, 4.0),
        "natural: time to a gap of 1e-3": time_to_reach("natural in theta", 1e-3, 4.0),
        "plain in theta: time to a gap of 1e-2": time_to_reach("plain in theta", 1e-2, 1000.0),
        "plain in theta: time to a gap of 1e-3": time_to_reach("plain in theta", 1e-3, 10000.0),
    }


# --- the figure -----------------------------------------------------------------------------------


def draw() -> Figure:
    """Rows: coordinates eta and theta. Columns: plain and natural. The same 25 starts in all."""
    figure = drawing.new_figure(5.9, 5.8)
    panels = figure.subplots(2, 2)
    for row, coordinates in zip(panels, ("eta", "theta"), strict=True):
        for axes, kind in zip(row, ("plain", "natural"), strict=True):
            _panel(axes, kind, coordinates)
    entries = {
        "flow of the plain gradient": drawing.PLAIN,
        "flow of the natural gradient": drawing.NATURAL,
        "direction of the gradient": {"color": drawing.GREY, "linewidth": 1},
    }
    drawing.legend(figure, entries)
    return figure


def _panel(axes: Axes, kind: str, coordinates: str) -> None:
    name, in_eta = f"{kind} in {coordinates}", coordinates == "eta"
    objective, metric = space(name)
    end = 1.0 if name == "plain in eta" else 4.0  # it soon leaves the panel
    paths, saddle, ends = distributions(name, 5, end, 401), SADDLE, (-0.36, 1.36)
    if in_eta:
        _square(axes)
    else:
        paths, saddle = BITS.natural(paths.clamp(1e-12, 1 - 1e-12)), BITS.natural(SADDLE)
        ends = (-5.0, 5.0)
    drawing.surface(axes, objective, ends, ends, torch.linspace(-4, 6, 16).numpy())
    inside = (0.04, 0.96) if name == "natural in eta" else ends
    side = torch.linspace(*inside, 11, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    drawing.field(axes, points, vmap(lambda x: -gradient_in(metric, objective, x))(points))
    style = drawing.NATURAL if kind == "natural" else drawing.PLAIN
    for path in paths.unbind(1):
        drawing.line(axes, path, style, arrow=0.5, linewidth=1.0)
        drawing.dot(axes, path[0], markersize=2.6)
    drawing.dot(axes, saddle, marker="X", markersize=6)
    axes.set(aspect="equal", title=f"{kind} gradient in {'η' if in_eta else 'θ'}")
    axes.set(xlabel=f"$\\{coordinates}_1$", ylabel=f"$\\{coordinates}_2$")


def _square(axes: Axes) -> None:
    """All distributions of the model, and f at the corners."""
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=drawing.BLACK, zorder=3))
    drawing.star(axes, (1, 0))
    for x, y in ((0, 0), (0, 1), (1, 0), (1, 1)):
        value = int(f(torch.tensor([2 * x - 1, 2 * y - 1])))
        place = (1.06 if x else -0.06, 1.06 if y else -0.06)
        sides = {"ha": "left" if x else "right", "va": "bottom" if y else "top"}
        drawing.note(axes, f"f = {value}".replace("-", "−"), place, **sides)
