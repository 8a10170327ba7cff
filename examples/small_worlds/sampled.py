r"""The metric of a classifier from random perturbations of its outputs, beside the exact one.

With M (q, d) the rows of the exact C = M^T M, e random signs and a = M^T e, the mean C_S of S
matrices a a^T is unbiased. Its error falls as S^{-1/2}; K = M M^T:

    E |C_S - C|^2 = ((tr K)^2 + |K|^2 - 2 sum_i K_ii^2) / S

Source: Martens, Sutskever & Swersky 2012 (curvature propagation).
"""

import math
from functools import cache

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from nws.natural.modules import CategoricalLogits, Linearized, ModelCurvature, Sampled
from small_worlds import drawing

COUNTS = (1, 4, 16, 64, 256)  # S
REPEATS = 20
DAMPINGS = 0.1, 0.01
MEMORIES = 1, 10, 100  # steps
STEPS = 100


@cache
def task() -> tuple[Linearized, Tensor, Tensor]:
    """A classifier 2-8-3 at its start on 100 points, the rows M (300, 51), the gradient (51,)."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        inputs = torch.randn(100, 2, dtype=torch.float64)
    linear, family = Linearized(model, list(model.parameters()), inputs), CategoricalLogits()
    targets = (inputs > 0).sum(1)
    gradient = linear.pull(family.errors(linear.outputs, targets)) / len(inputs)
    return linear, ModelCurvature(linear, family).with_rows().inputs.detach(), gradient


def exact() -> Tensor:
    """C, (51, 51)."""
    rows = task()[1]
    return rows.T @ rows


def expected_error(samples: int, diagonal: bool = False) -> float:
    """The root of E |C_S - C|^2 over |C|; of the diagonals alone."""
    rows, matrix = task()[1], exact()
    if diagonal:
        variance = 2 * (matrix.diagonal().square() - rows.pow(4).sum(0)).sum()
        return math.sqrt(variance / samples) / float(matrix.diagonal().norm())
    k = rows @ rows.T
    variance = k.trace().square() + k.square().sum() - 2 * k.diagonal().square().sum()
    return math.sqrt(variance / samples) / float(matrix.norm())


def estimate(metric: Sampled) -> Tensor:
    """The next estimate: C (51, 51), or its diagonal as one."""
    blocks = metric.update(task()[0], CategoricalLogits()).blocks()
    return blocks.flatten().diag() if metric.diagonal else blocks[0]


@cache
def estimates(samples: int, diagonal: bool = False) -> Tensor:
    """Independent estimates from S samples each: (REPEATS, 51, 51)."""
    with torch.random.fork_rng([]):
        torch.manual_seed(samples)
        return torch.stack([estimate(Sampled(samples, diagonal=diagonal)) for _ in range(REPEATS)])


def error(samples: int, diagonal: bool = False) -> float:
    """The root of the mean of |C_S - C|^2 over |C|, as sampled."""
    matrix = exact().diagonal().diag() if diagonal else exact()
    gaps = (estimates(samples, diagonal) - matrix).square().sum((1, 2)).mean()
    return float(gaps.sqrt() / matrix.norm())


def angle(samples: int, damping: float) -> float:
    """Mean degrees between the natural gradients in C_S and in C; 0 samples: the plain one's."""
    gradient, eye = task()[2], torch.eye(len(exact()), dtype=torch.float64)
    right = torch.linalg.solve(exact() + damping * eye, gradient)
    found = gradient[None]
    if samples:
        found = torch.linalg.solve(estimates(samples) + damping * eye, gradient)
    cosines = torch.cosine_similarity(found, right[None], dim=1)
    return float(cosines.clamp(max=1).acos().rad2deg().mean())


@cache
def along_a_run(memory: int) -> list[float]:
    """Errors of four samples a step, in a run whose parameters stay."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        metric = Sampled(4, memory)
        gaps = [(estimate(metric) - exact()).norm() for _ in range(STEPS)]
    return [float(gap / exact().norm()) for gap in gaps]


@cache
def facts() -> dict[str, float]:
    """The numbers of docs/worlds/sampled.md."""
    found: dict[str, float] = {}
    for samples in (1, 256):
        found[f"error, S = {samples}"] = error(samples)
        found[f"formula, S = {samples}"] = expected_error(samples)
    found["diagonal, S = 256"] = error(256, diagonal=True)
    for samples in (4, 256):
        found[f"degrees, S = {samples}"] = angle(samples, 0.01)
    found["degrees, plain gradient"] = angle(0, 0.01)
    found["error, S = 4, memory 100"] = along_a_run(100)[-1]
    return found


# --- the figure -----------------------------------------------------------------------------------

STYLES = {"full": drawing.NATURAL, "diagonal": drawing.PLAIN}


def draw() -> Figure:
    """Errors by samples, angles by samples, errors along a run."""
    figure = drawing.new_figure(6.8, 2.6)
    left, middle, right = figure.subplots(1, 3)
    for name, style in STYLES.items():
        diagonal = name == "diagonal"
        left.loglog(COUNTS, [expected_error(n, diagonal) for n in COUNTS], label=name, **style)
        measured = [error(n, diagonal) for n in COUNTS]
        left.loglog(COUNTS, measured, "o", color=style["color"], markersize=4)
    left.set(xlabel="samples S", ylabel="relative error", title="lines: the formula")
    left.legend()
    _angles(middle)
    styles = drawing.PLAIN, drawing.THIRD, drawing.NATURAL
    for memory, style in zip(MEMORIES, styles, strict=True):
        right.semilogy(range(1, STEPS + 1), along_a_run(memory), label=f"memory {memory}", **style)
    right.set(xlabel="step", ylabel="relative error", title="four samples a step", ylim=(0.05, 12))
    right.legend(loc="upper right")
    return figure


def _angles(axes: Axes) -> None:
    for damping, style in zip(DAMPINGS, (drawing.NATURAL, drawing.THIRD), strict=True):
        degrees = [angle(n, damping) for n in COUNTS]
        axes.semilogx(COUNTS, degrees, marker=".", label=f"damping {damping}", **style)
        axes.axhline(angle(0, damping), color=style["color"], linestyle=":", linewidth=1)
    axes.set(xlabel="samples S", ylabel="degrees", title="dotted: plain gradient", ylim=(0, None))
    axes.legend()
