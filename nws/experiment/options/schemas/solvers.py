"""The group `solver`: how a metric is inverted."""

from __future__ import annotations

from pydantic import Field

from nws.experiment.options.schemas.schema import Choice, Count, CountOrZero, Schema


class DirectOptions(Schema):
    """Direct solvers."""

    max_bytes: Count = Field(2**30, description="bytes: work in chunks of units within this")


class CholeskyOptions(DirectOptions):
    """Factors."""

    target = "nws.natural.solvers.Cholesky"


class WoodburyOptions(CholeskyOptions):
    """Systems of rows."""

    target = "nws.natural.solvers.Woodbury"


class ShermanMorrisonOptions(DirectOptions):
    """Rows folded in."""

    target = "nws.natural.solvers.ShermanMorrison"
    block: Count = Field(1, description="rows folded in at once; 1 is the rank-one formula")
    forgetting: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="above 0: keep the inverses across batches, old rows fading by this factor a"
        " refresh",
    )


class MinResOptions(Schema):
    """MINRES."""

    target = "nws.natural.solvers.minres.MinRes"
    iterations: Count = Field(50, description="of a solve, at most")
    tolerance: float = Field(
        0.001,
        ge=0,
        lt=1,
        description="relative residual of the worst unit at which to stop; 0: make all iterations",
    )
    scaled: bool = Field(True, description="scaled by Jacobi's preconditioner", exclude=True)


class ConjugateGradientOptions(Schema):
    """Preconditioned conjugate gradient."""

    target = "nws.natural.solvers.ConjugateGradient"
    iterations: Count | None = Field(
        None, description="a fixed number; null: as many as accuracy needs"
    )
    accuracy: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="relative error of a layer's direction; measured in steps 1, 2, 4, 8 .. and at"
        " refreshes",
    )
    tolerance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="above 0: stop once the worst unit's relative residual is below (reads a number"
        " an iteration)",
    )
    rank: CountOrZero = Field(
        15, description="eigenpairs of the shared preconditioner, next to the mean"
    )
    preconditioner_every: Count = Field(
        20, description="updates between refreshes of the eigenpairs; stale ones cost iterations"
    )


class AutoSolverOptions(Schema):
    """The cheapest solver of each layer."""

    target = "nws.natural.solvers.AutoSolver"
    iterations: Count | None = Field(
        None, description="of pcg, where that is the one; null: as many as accuracy needs"
    )
    accuracy: float = Field(
        0.01, ge=0, lt=1, description="of pcg: relative error of the direction of a layer"
    )
    max_bytes: Count = Field(2**30, description="bytes: work in chunks of units within this")
    solves: Count = Field(1, description="solves that one factor serves")


SOLVERS: dict[str, Choice | str] = {
    "auto": Choice(
        AutoSolverOptions,
        "For each layer the solver that a table of costs says is cheapest for its n, d, m.",
        solves="${oc.select:metric.refresh_every,1}",
    ),
    "cholesky": Choice(CholeskyOptions, "Form the blocks and factor them: m (n d^2 + d^3/3)."),
    "minres": Choice(
        MinResOptions,
        "MINRES with Jacobi's preconditioner: it sees products with the Fisher matrix alone.",
    ),
    "pcg": Choice(
        ConjugateGradientOptions,
        "Matrix-free preconditioned conjugate gradient, the fastest nearly everywhere.",
    ),
    "sherman_morrison": Choice(
        ShermanMorrisonOptions, "Fold the rows into the inverses: m n d^2.", block=32
    ),
    "woodbury": Choice(
        WoodburyOptions, "n x n systems instead of d x d, for few rows: n^2 d + m n^3/3."
    ),
}
