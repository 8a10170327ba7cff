"""Solvers of the damped systems (C_j + alpha I) x_j = g_j, all units j of a layer at once."""

from nws.natural.solvers.cg import cg
from nws.natural.solvers.conjugate_gradient import ConjugateGradient
from nws.natural.solvers.direct import Cholesky, ShermanMorrison, Woodbury
from nws.natural.solvers.minres import MinRes
from nws.natural.solvers.solver import Solver

__all__ = ["Cholesky", "ConjugateGradient", "MinRes", "ShermanMorrison", "Solver", "Woodbury", "cg"]
