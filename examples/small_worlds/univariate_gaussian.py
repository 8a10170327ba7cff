"""The univariate Gaussians, a hyperbolic half-plane: see half_plane.py."""

import math
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from nws.geometry import Moments, MultivariateGaussian, fisher, gaussian_curvature
from nws.geometry.metrics import Metric
from small_worlds import drawing
from small_worlds.half_plane import (
    fisher_rao_distance,
    fisher_rao_geodesic,
    from_moments,
    to_moments,
)

FAMILY = MultivariateGaussian(1)
CENTRES = torch.tensor([[-1.1, 0.35], [-0.3, 1.0], [0.7, 2.0]], dtype=torch.float64)  # (mu, sigma)
ENDS = torch.tensor([[-2.0, 0.5], [2.0, 0.5]], dtype=torch.float64)


def theta(point: Tensor) -> Tensor:
    """Natural parameters of points (mu, log sigma), (..., 2)."""
    covariance = (2 * point[..., 1:, None]).exp()
    return FAMILY.from_moments(Moments(point[..., :1], covariance))


#: diag(1 / sigma^2, 2), made by the pullback of the family's Fisher matrix
METRIC: Metric = fisher(FAMILY, theta)


def to_theta(point: Tensor) -> Tensor:
    """Natural parameters of points (mu, sigma), (..., 2)."""
    return FAMILY.from_moments(to_moments(point))


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of points (mu, sigma), (..., 2), in nats."""
    return FAMILY.kl(*map(to_theta, torch.broadcast_tensors(p, q)))


def to_log(point: Tensor) -> Tensor:
    """(mu, log sigma) from (mu, sigma)."""
    return torch.stack([point[..., 0], point[..., 1].log()], dim=-1)


def between(kind: str, p: Tensor, q: Tensor, count: int = 101) -> Tensor:
    """The straight line from p to q in "theta" or "eta", as points (mu, sigma): (count, 2)."""
    share = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    ends = [to_theta(each) for each in (p, q)]
    if kind == "theta":
        moments = FAMILY.moments((1 - share) * ends[0] + share * ends[1])
    else:
        eta = [FAMILY.expectation(each) for each in ends]
        moments = FAMILY.expected_moments((1 - share) * eta[0] + share * eta[1])
    return from_moments(moments)


def length(path: Tensor) -> float:
    """The Fisher length of a polygon of points (mu, sigma), by the distance of neighbours."""
    return float(fisher_rao_distance(path[:-1], path[1:]).sum())


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/univariate_gaussian.md."""
    p, q = ENDS
    near, far = torch.tensor([[0.0, 1.0], [0.0, 3.0]], dtype=torch.float64)
    small, moved = torch.tensor([[0.0, 0.5], [1.0, 0.5]], dtype=torch.float64)
    wide, moved_wide = torch.tensor([[0.0, 2.0], [1.0, 2.0]], dtype=torch.float64)
    return {
        "curvature": float(gaussian_curvature(METRIC, to_log(CENTRES[2]))),
        "KL(N(0, 1) || N(0, 9))": float(kl(near, far)),
        "KL(N(0, 9) || N(0, 1))": float(kl(far, near)),
        "KL of a shift of mu by 1 at sigma = 0.5": float(kl(small, moved)),
        "KL of a shift of mu by 1 at sigma = 2": float(kl(wide, moved_wide)),
        "length of the geodesic from N(-2, 0.25) to N(2, 0.25)": float(fisher_rao_distance(p, q)),
        "largest sigma on this geodesic": float(fisher_rao_geodesic(p, q)[:, 1].max()),
        "length of the line in eta": length(between("eta", p, q, 2001)),
        "length of the line in theta": length(between("theta", p, q, 2001)),
    }


# --- the figure -----------------------------------------------------------------------------------


GREY: drawing.Style = {"color": "#9a9a9a", "linestyle": "-", "linewidth": 0.8}
REVERSE: drawing.Style = {"color": drawing.BLUE, "linestyle": ":", "linewidth": 1.3}


def ways(count: int) -> dict[str, tuple[Tensor, drawing.Style]]:
    """Three ways between the two ends: points (mu, sigma), (count, 2), and their look."""
    p, q = ENDS
    return {
        "geodesic": (fisher_rao_geodesic(p, q, count), drawing.NATURAL),
        "straight in η": (between("eta", p, q, count), drawing.PLAIN),
        "straight in θ": (between("theta", p, q, count), drawing.THIRD),
    }


def draw() -> Figure:
    """Isocontours of KL, geodesics, and densities half way."""
    figure = drawing.new_figure(6.8, 2.65)
    left, middle, right = figure.subplots(1, 3, subplot_kw={"box_aspect": 1})
    _balls(left)
    _geodesics(middle)
    _densities(right)
    looks = {name: style for name, (_, style) in ways(3).items()}
    drawing.legend(figure, looks | {"other geodesics from p": GREY})
    return figure


def _balls(axes: Axes) -> None:
    mu = torch.linspace(-2.0, 2.4, 241, dtype=torch.float64)
    sigma = torch.linspace(0.05, 4.4, 241, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(mu, sigma, indexing="xy"), dim=-1)
    angles = torch.linspace(0, 2 * math.pi, 121, dtype=torch.float64)
    circle = 0.4 * torch.stack([angles.cos(), angles.sin()], dim=-1)
    for centre in CENTRES:
        both = (kl(centre, points), drawing.NATURAL), (kl(points, centre), REVERSE)
        for values, style in both:
            axes.contour(
                mu, sigma, values, levels=[0.1], colors=style["color"],
                linestyles=style["linestyle"], linewidths=style["linewidth"],
            )  # fmt: skip
        drawing.line(axes, centre + circle, GREY)
        drawing.dot(axes, centre)
    names = {"KL(p ‖ q) = 0.1": drawing.NATURAL, "KL(q ‖ p) = 0.1": REVERSE}
    names["Euclidean, radius 0.4"] = GREY
    handles = [Line2D([], [], label=name, **style) for name, style in names.items()]
    axes.legend(handles=handles, loc="upper left", handlelength=1.8)
    axes.set(xlabel="µ", ylabel="σ", title="balls around p", xlim=(-2.0, 2.4), ylim=(0, 4.4))


def _geodesics(axes: Axes) -> None:
    """A fan of geodesics from one point, and three ways between the two ends."""
    p, q = ENDS
    for end in np.linspace(-1.2, 4.6, 10):
        if abs(end - float(q[0])) > 0.2:
            narrow = torch.tensor([end, 0.04]).double()
            drawing.line(axes, fisher_rao_geodesic(p, narrow, 201), GREY)
    for points, style in ways(101).values():
        drawing.line(axes, points, style, linewidth=2 if style is drawing.NATURAL else 1.5)
    for point in ENDS:
        drawing.dot(axes, point)
    axes.set(xlabel="µ", ylabel="σ", title="geodesics", xlim=(-2.8, 4.4), ylim=(0, 2.6))
    drawing.note(axes, "p", (-2.2, 0.42), ha="right")
    drawing.note(axes, "q", (2.1, 0.55))


def _densities(axes: Axes) -> None:
    x = torch.linspace(-6, 6, 301, dtype=torch.float64)

    def density(point: Tensor) -> Tensor:
        return FAMILY.log_prob(x[:, None], theta(to_log(point))).exp()

    for end in ENDS:
        axes.fill_between(x, density(end), color=drawing.BLACK, alpha=0.12, linewidth=0)
    for points, style in ways(3).values():
        axes.plot(x, density(points[1]), **style)
    axes.set(
        xlabel="x", ylabel="density", title="half way", ylim=(0, 0.95), xticks=[-4, -2, 0, 2, 4]
    )
    drawing.note(axes, "p", (-2.0, 0.83), ha="center")
    drawing.note(axes, "q", (2.0, 0.83), ha="center")
