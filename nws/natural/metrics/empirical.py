"""The empirical Fisher metric: the rows' own errors in place of the model's curvature."""

from torch import Tensor

from nws.natural.metrics.fisher import Fisher
from nws.natural.operators import Rows


class Empirical(Fisher):
    """(y - p)^2 in place of the curvature A'': the second moment of the rows' gradients.

    It is often taken for the Fisher matrix, but is not it.
    """

    def curvature(self, rows: Rows) -> Tensor:
        """w_k (y_kj - A'(a_kj))^2: (n, m)."""
        return rows.squared_errors()
