"""MINRES: the solution whose residual is smallest, all units of a layer at once.

Sources: Paige & Saunders 1975, section 6.1 (Lanczos vectors and plane rotations); Liu, Milzarek &
Roosta 2023 (the shortest solution from the residual).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nws.errors import number, positive_int
from nws.natural.operators import CurvatureOperator
from nws.natural.solvers.solver import IterativeSolver, check_system, damped


def minres(
    matmul: Callable[[Tensor], Tensor], right: Tensor, iterations: int, tolerance: float,
    shortest: bool = False,
) -> tuple[Tensor, int]:  # fmt: skip
    """Minimise |b_j - A_j x_j| for m symmetric matrices at once, from zero.

    Where A_j is singular and b_j in its range, x_j comes to the shortest of all solutions, since it
    stays in that range. For another b_j the best x_j is not the shortest, and later iterations
    leave it; x_j - (r_j . x_j / r_j . r_j) r_j is the shortest, r_j = b_j - A_j x_j. In float64 it
    is MINRES-QLP's (Choi, Paige & Saunders 2011) up to condition 1e5, and misses it at 1e7.

    Args:
        matmul: V -> A_j v_j, (m, d) each.
        right: b_j, (m, d).
        iterations: At most so many.
        tolerance: Stop where every unit's residual is at most tolerance |b_j|; reads one number
            from the device in each iteration. 0 reads nothing, and makes all iterations.
        shortest: Whether to end where |A_j r_j| <= sqrt(eps) |A_j| |r_j|, too, with the shortest
            x_j. For systems without damping: small eigenvalues may be taken for zeros.

    Returns:
        x_j, (m, d), and the number of iterations.
    """
    tiny = torch.finfo(right.dtype).tiny
    x, w, w_old, v = (torch.zeros_like(right) for _ in range(4))
    v_new = right
    beta = start = right.norm(dim=1, keepdim=True)
    phi, cos, sin = start, -torch.ones_like(start), torch.zeros_like(start)
    delta_bar, epsilon, norm = (torch.zeros_like(start) for _ in range(3))
    least, live = torch.finfo(right.dtype).eps ** 0.5, torch.ones_like(start, dtype=torch.bool)
    for iteration in range(1, iterations + 1):
        # A unit that is solved goes on with zeros, as one whose numbers are too small to square.
        v_old, v = v, torch.where(beta > 0, v_new / beta, 0.0)
        v_new = matmul(v).addcmul_(beta, v_old, value=-1)
        alpha = (v * v_new).sum(1, keepdim=True)
        v_new.addcmul_(alpha, v, value=-1)
        beta = v_new.norm(dim=1, keepdim=True)
        delta, gamma_bar = cos * delta_bar + sin * alpha, sin * delta_bar - cos * alpha
        epsilon_old, epsilon, delta_bar = epsilon, sin * beta, -cos * beta
        gamma = torch.hypot(gamma_bar, beta).clamp_min(tiny)
        cos, sin = gamma_bar / gamma, beta / gamma
        w_old, w = w, (v - epsilon_old * w_old - delta * w) / gamma
        if shortest:
            norm = torch.maximum(norm, torch.hypot(alpha, beta))
            live = live & (torch.hypot(gamma_bar, delta_bar) > least * norm)  # |A r| / |r|
            w = torch.where(live, w, 0.0)
        x.addcmul_(cos * phi, w)
        phi = sin * phi
        if tolerance and ((phi <= tolerance * start) | ~live).all():
            iterations = iteration
            break
    if shortest:
        r = right - matmul(x)
        share = (r * x).sum(1, keepdim=True) / r.square().sum(1, keepdim=True)
        x.addcmul_(share.where(r.norm(dim=1, keepdim=True) > least * start, 0.0), r, value=-1)
    return x, iterations


class MinRes(IterativeSolver):
    """MINRES with Jacobi's preconditioner, `solver=minres`: it sees nothing but products.

    Solves D^{-1/2} (C_j + alpha I) D^{-1/2} y = D^{-1/2} g_j with D the diagonal of C_j + alpha I.
    Without the preconditioner (`scaled=False`) D is the identity.

    Args:
        iterations: At most so many.
        tolerance: Relative residual of the worst unit's scaled system at which to stop, at least 0
            and below 1; 0 makes all iterations, and reads nothing from the device.
        scaled: Whether to precondition; a module's diagonal costs more than it saves.
    """

    def __init__(self, iterations: int = 50, tolerance: float = 1e-3, scaled: bool = True) -> None:
        self.iterations = positive_int("solver.iterations", iterations)
        self.tolerance = number("solver.tolerance", tolerance, least=0, below=1)
        self.scaled = scaled

    def factor(self, operator: CurvatureOperator, damping: Tensor) -> None:
        check_system(operator, damping)
        super().factor(operator, damping)
        diagonal = operator.diagonal() + damping if self.scaled else torch.ones_like(damping)
        self._roots = diagonal.rsqrt_()  # (m, d) D^{-1/2}, or 1

    def solve(self, gradient: Tensor) -> Tensor:
        roots = self._roots

        def matmul(vectors: Tensor) -> Tensor:
            return damped(self._operator, self._damping, vectors * roots) * roots

        found = minres(matmul, gradient * roots, self.iterations, self.tolerance)
        solution, self.used_iterations = found
        return self._finish(gradient, solution * roots)
