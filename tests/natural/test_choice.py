"""solver=auto: what the table of costs says, that the choice is made once, and its state."""

from __future__ import annotations

import pytest
import torch
from cases import REALISTIC, SolverCase
from solving import DIRECT, factored, saved

from nws.natural import UnitFisher
from nws.natural.solvers import AutoSolver, ConjugateGradient
from nws.natural.solvers.direct import DirectSolver

KINDS = {**DIRECT, "pcg": ConjugateGradient}


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [
        (1000, 4, 50, 1, "cholesky"),
        (4, 800, 10, 1, "woodbury"),
        (320, 301, 784, 1, "pcg"),
        (320, 785, 300, 1, "pcg"),
        (320, 21, 15, 1000, "cholesky"),
    ],
)
def test_auto_takes_the_cheapest_of_the_cost_table(
    n: int, d: int, m: int, solves: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AutoSolver(solves=solves)
    costs = solver.costs(n, d, m)
    assert min(costs, key=costs.__getitem__) == expected
    for kind in (DirectSolver, ConjugateGradient):  # the choice is looked at, not the work
        monkeypatch.setattr(kind, "factor", lambda *_: None)
    taken = []
    for rows in (n, 2 * n):  # other rows do not change it
        solver.factor(UnitFisher(torch.ones(rows, d), torch.ones(rows, m)), torch.tensor(0.2))
        taken.append(solver._solver)
    assert type(taken[0]) is KINDS[expected] and taken[1] is taken[0]


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [
        (320, 51, 75, 2, "pcg"),
        (320, 51, 75, 16, "cholesky"),
        (32, 101, 200, 1, "pcg"),
        (32, 101, 200, 4, "woodbury"),
        (320, 301, 784, 1000, "cholesky"),
        (320, 301, 4096, 1000, "pcg"),
    ],
)
def test_auto_weighs_factoring_against_the_solves_that_follow(
    n: int, d: int, m: int, solves: int, expected: str
) -> None:
    """The last two: factors that fit in a GiB serve all solves, others are made again at each."""
    costs = AutoSolver(solves=solves).costs(n, d, m)
    assert min(costs, key=costs.__getitem__) == expected


def test_double_precision_takes_twice_the_room() -> None:
    room = 4 * 320 * 301**2 * 4  # so that the factors fit as float32 numbers alone
    solver = AutoSolver(solves=1000, max_bytes=room)
    assert solver.costs(320, 301, 784, 4)["cholesky"] < solver.costs(320, 301, 784, 8)["cholesky"]


@pytest.mark.parametrize(
    ("shape", "name"), [((60, 9), "cholesky"), ((4, 400), "woodbury"), ((320, 101), "pcg")]
)
def test_autos_options_reach_the_solver_that_it_takes(shape: tuple[int, int], name: str) -> None:
    solver = AutoSolver(accuracy=1e-3, max_bytes=12345)
    factored(solver, SolverCase(*shape, 5 if name != "pcg" else 60, 0.2))
    taken = solver._solver
    assert type(taken) is KINDS[name]
    if isinstance(taken, ConjugateGradient):
        assert taken.accuracy == 1e-3 and taken.iterations is None
    else:
        assert isinstance(taken, DirectSolver) and taken.max_bytes == 12345


@pytest.mark.parametrize("iterations", [None, 7])
def test_a_fixed_number_of_iterations_reaches_pcg_and_its_cost(iterations: int | None) -> None:
    solver = AutoSolver(iterations)
    factored(solver, REALISTIC)
    assert isinstance(solver._solver, ConjugateGradient)
    assert solver._solver.iterations == iterations
    pcg, seven = (each.costs(320, 101, 60)["pcg"] for each in (solver, AutoSolver(7)))
    assert pcg == pytest.approx(seven * (iterations or 3) / 7)


def test_auto_goes_on_bit_for_bit_from_its_state() -> None:
    """Loaded before the first Fisher matrix tells which solver it is the state of."""
    solver, other = AutoSolver(), AutoSolver()
    factored(solver, REALISTIC, seed=1)
    other.load_state_dict(saved(solver))
    one, two = (factored(each, REALISTIC).solve(REALISTIC.gradient()) for each in (solver, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, factored(AutoSolver(), REALISTIC).solve(REALISTIC.gradient()))


def test_auto_saved_again_before_a_step_keeps_its_state() -> None:
    solver, other = AutoSolver(), AutoSolver()
    factored(solver, REALISTIC)
    other.load_state_dict(saved(solver))
    assert saved(other).keys() == saved(solver).keys()
