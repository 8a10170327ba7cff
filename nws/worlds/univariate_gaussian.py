r"""The geometry of the univariate Gaussian.

In (mu, log sigma) the Fisher metric is diag(1 / sigma^2, 2). With u = mu / sqrt(2) its length
element is ds^2 = 2 (du^2 + dsigma^2) / sigma^2: the Gaussians are a hyperbolic half-plane of
curvature -1/2. Geodesics are half circles in (u, sigma) around points of the line sigma = 0.
"""

import math
from functools import cache

import torch
from torch import Tensor

from nws.worlds.gaussian import Moments, MultivariateGaussian
from nws.worlds.geodesics import gaussian_curvature, geodesics
from nws.worlds.metrics import Metric, fisher

FAMILY = MultivariateGaussian(1)
CENTRES = torch.tensor([[-1.1, 0.35], [-0.3, 1.0], [0.7, 2.0]], dtype=torch.float64)  # (mu, sigma)
ENDS = torch.tensor([[-2.0, 0.5], [2.0, 0.5]], dtype=torch.float64)


def theta(point: Tensor) -> Tensor:
    """Natural parameters of points (mu, log sigma), (..., 2)."""
    covariance = (2 * point[..., 1:, None]).exp()
    return FAMILY.from_moments(Moments(point[..., :1], covariance))


#: diag(1 / sigma^2, 2), made by the pullback of the family's Fisher matrix
METRIC: Metric = fisher(FAMILY, theta)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of points (mu, sigma), (..., 2), in nats."""
    return FAMILY.kl(*(theta(to_log(each)) for each in torch.broadcast_tensors(p, q)))


def to_log(point: Tensor) -> Tensor:
    """(mu, log sigma) from (mu, sigma)."""
    return torch.stack([point[..., 0], point[..., 1].log()], dim=-1)


def distance(p: Tensor, q: Tensor) -> Tensor:
    """The length of the geodesic between points (mu, sigma): (...)."""
    gap = (p[..., 0] - q[..., 0]).square() / 2 + (p[..., 1] - q[..., 1]).square()
    return math.sqrt(2) * torch.acosh(1 + gap / (2 * p[..., 1] * q[..., 1]))


def half_circle(p: Tensor, q: Tensor, count: int = 101) -> Tensor:
    """The geodesic between two points with different mu, at equal lengths: (count, 2).

    With u = c + r tanh(s) and sigma = r / cosh(s) the length is sqrt(2) s.
    """
    u, v = p[0] / math.sqrt(2), q[0] / math.sqrt(2)
    centre = (v.square() + q[1].square() - u.square() - p[1].square()) / (2 * (v - u))
    radius = ((u - centre).square() + p[1].square()).sqrt()
    ends = [float(torch.atanh((each - centre) / radius)) for each in (u, v)]
    s = torch.linspace(ends[0], ends[1], count, dtype=torch.float64)
    return torch.stack([math.sqrt(2) * (centre + radius * s.tanh()), radius / s.cosh()], dim=-1)


def geodesic_by_equation(p: Tensor, q: Tensor, count: int = 101) -> Tensor:
    """The same from its differential equation, with the first velocity of the half circle."""
    line = to_log(half_circle(p, q, 3))
    u, v = p[0] / math.sqrt(2), q[0] / math.sqrt(2)
    centre = (v.square() + q[1].square() - u.square() - p[1].square()) / (2 * (v - u))
    # d(u, log sigma)/ds at p: (sigma^2 / r, -(u - c) / r), for s of the whole length
    radius = ((u - centre).square() + p[1].square()).sqrt()
    span = torch.atanh((v - centre) / radius) - torch.atanh((u - centre) / radius)
    velocity = span / radius * torch.stack([math.sqrt(2) * p[1].square(), centre - u])
    times = torch.linspace(0, 1, count, dtype=torch.float64)
    path = geodesics(METRIC, line[:1], velocity[None], times)[:, 0]
    return torch.stack([path[:, 0], path[:, 1].exp()], dim=-1)


def between(kind: str, p: Tensor, q: Tensor, count: int = 101) -> Tensor:
    """The straight line from p to q in "theta" or "eta", as points (mu, sigma): (count, 2)."""
    share = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    ends = [theta(to_log(each)) for each in (p, q)]
    if kind == "theta":
        moments = FAMILY.moments((1 - share) * ends[0] + share * ends[1])
    else:
        eta = [FAMILY.expectation(each) for each in ends]
        moments = FAMILY.expected_moments((1 - share) * eta[0] + share * eta[1])
    return torch.cat([moments.mean, moments.covariance[..., 0].sqrt()], dim=-1)


def length(path: Tensor) -> float:
    """The Fisher length of a polygon of points (mu, sigma), by the distance of neighbours."""
    return float(distance(path[:-1], path[1:]).sum())


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
        "length of the geodesic from N(-2, 0.25) to N(2, 0.25)": float(distance(p, q)),
        "largest sigma on this geodesic": float(half_circle(p, q)[:, 1].max()),
        "length of the line in eta": length(between("eta", p, q, 2001)),
        "length of the line in theta": length(between("theta", p, q, 2001)),
    }
