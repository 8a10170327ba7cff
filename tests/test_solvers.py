"""Every damped solver against dense float64 blocks, over one list of cases, and what each promises beside the solution."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SOLVER_CASES, SolverCase, assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nws.conjugate_gradient import KEEP, PreconditionedConjugateGradient, shared_basis, worst_ratio
from nws.direct_solvers import DIRECT, DirectSolver, RunningInverse
from nws.errors import UserError
from nws.fisher import UnitFisher, with_bias
from nws.solvers import Approximate, AutoSolver, Solver, make_solver, solver_costs

# A backward stable solve loses about eps times the condition number |F_j + alpha I| / alpha of its block; the products
# before and after it, of at most a hundred terms, lose a few eps more each. Woodbury's and Sherman-Morrison's differences of
# numbers of size |g| / alpha lose the same.
ROUNDING = 10


def pcg(iterations: int = 3, tolerance: float = 0.0, **settings: Any) -> PreconditionedConjugateGradient:
    return PreconditionedConjugateGradient(iterations, tolerance, **settings)


def tight(case: SolverCase) -> float:
    """A residual that conjugate gradient reaches in this dtype: 450 rounding units in float64, 8 in float32."""
    return 1e-13 if case.dtype == torch.float64 else 1e-6


def converged(case: SolverCase, **settings: Any) -> PreconditionedConjugateGradient:
    return pcg(1000, tight(case), **settings)


def warm(case: SolverCase) -> PreconditionedConjugateGradient:
    """Has solved another system with another gradient before."""
    solver = converged(case, warm_start=True)
    solver.factor(case.fisher(seed=5), case.damping)
    solver.solve(case.gradient(seed=6))
    return solver


SOLVERS: dict[str, Callable[[SolverCase], Solver]] = {
    "cholesky": lambda case: DirectSolver("cholesky"),
    "woodbury": lambda case: DirectSolver("woodbury"),
    "sherman_morrison": lambda case: DirectSolver("sherman_morrison"),
    "sherman_morrison, block 16": lambda case: DirectSolver("sherman_morrison", block=16),
    "running, first batch": lambda case: RunningInverse(0.9, block=16),
    "pcg": converged,
    "pcg, rank 3": lambda case: converged(case, rank=3),
    "pcg, full rank": lambda case: converged(case, rank=1000),
    "pcg, rank 0": lambda case: converged(case, rank=0),
    "pcg, warm start": warm,
}
each_solver = pytest.mark.parametrize("name", SOLVERS)
each_direct = pytest.mark.parametrize("method", DIRECT)


def dense(fisher: UnitFisher) -> Tensor:
    """The blocks in float64: (m, d, d)."""
    inputs, weights = fisher.inputs.double().cpu(), fisher.weights.double().cpu()
    return torch.einsum("km,ki,kj->mij", weights, inputs, inputs)


def solve_dense(blocks: Tensor, alpha: float, gradient: Tensor) -> Tensor:
    """(F_j + alpha I)^{-1} g_j in float64, unit by unit."""
    identity = torch.eye(blocks.shape[1], dtype=torch.float64)
    return torch.stack([
        torch.cholesky_solve(g[:, None], torch.linalg.cholesky(block + alpha * identity))[:, 0]
        for block, g in zip(blocks, gradient.double().cpu(), strict=True)
    ])  # fmt: skip


def errors(solution: Tensor, expected: Tensor) -> Tensor:
    """Relative error of each unit: (m,)."""
    return (solution.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)


def error(solution: Tensor, expected: Tensor) -> float:
    """Of the worst unit."""
    return float(errors(solution, expected).max())


def residual(fisher: UnitFisher, alpha: float, solution: Tensor, gradient: Tensor) -> float:
    """The worst unit's, from the dense blocks."""
    solution, gradient = solution.double().cpu(), gradient.double().cpu()
    image = torch.einsum("mij,mj->mi", dense(fisher), solution) + alpha * solution
    return float(((image - gradient).norm(dim=1) / gradient.norm(dim=1)).max())


def factored(solver: Any, case: SolverCase, seed: int = 0) -> Any:
    solver.factor(case.fisher(seed), case.damping)
    return solver


def saved(solver: Solver) -> dict[str, Tensor]:
    """The state, by way of a file."""
    file = io.BytesIO()
    torch.save(solver.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# --- all solvers, all cases -----------------------------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize("case", SOLVER_CASES)
def test_every_solver_gives_the_dense_solution_of_each_unit(case: SolverCase, name: str) -> None:
    """Factored once, solved twice. An iterative solver's residual of `tolerance` is an error of at most that times the
    condition number."""
    fisher, solver = case.fisher(), SOLVERS[name](case)
    solver.factor(fisher, case.damping)
    blocks, alpha = dense(fisher), float(case.damping)
    condition = (torch.linalg.eigvalsh(blocks)[:, -1] + alpha) / alpha
    bound = (ROUNDING * torch.finfo(case.dtype).eps + (tight(case) if name.startswith("pcg") else 0)) * condition
    for seed in (1, 2):
        gradient = case.gradient(seed)
        before = gradient.clone()
        solution = solver.solve(gradient)
        assert solution.shape == (case.m, case.d) and solution.dtype == case.dtype
        assert torch.equal(gradient, before)
        assert (errors(solution, solve_dense(blocks, alpha, gradient)) <= bound).all()


@each_solver
def test_the_damping_may_have_the_shape_of_one_element(name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    one, other = SOLVERS[name](case), SOLVERS[name](case)
    one.factor(case.fisher(), case.damping)
    other.factor(case.fisher(), case.damping[None])
    assert torch.equal(one.solve(case.gradient()), other.solve(case.gradient()))


@pytest.mark.parametrize("name", SOLVERS)
def test_damping_that_changes_in_place_counts_from_the_next_factor_on(name: str) -> None:
    """A schedule or an adaptation writes alpha anew between two refreshes; all solvers must take it in at the same time."""
    case = SolverCase(60, 40, 5, 0.2)
    damping = case.damping
    solver = SOLVERS[name](case)
    solver.factor(case.fisher(), damping)
    damping.fill_(1.0)
    expected = solve_dense(dense(case.fisher()), 0.2, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < EXACT


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (20, 33)], ids=["n>d", "n<d"])
def test_units_without_gradient_get_no_direction(shape: tuple[int, int], name: str) -> None:
    case = SolverCase(*shape, 5, 0.2)
    if name == "pcg, warm start":
        pytest.skip("has its own test")
    solver = factored(SOLVERS[name](case), case)
    gradient = case.gradient()
    gradient[[0, 3]] = 0
    solution = solver.solve(gradient)
    assert (solution[[0, 3]] == 0).all() and solution.isfinite().all()
    rest = [1, 2, 4]
    assert error(solution[rest], solve_dense(dense(case.fisher())[rest], 0.2, gradient[rest])) < EXACT
    assert (solver.solve(torch.zeros_like(gradient)) == 0).all()


# --- direct solvers -------------------------------------------------------------------------------------------------


class PeakBytes(TorchDispatchMode):
    """The most bytes that lived at once in tensors made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = storage.data_ptr()
                if storage.nbytes() and key not in self._known and key not in given:
                    self._known.add(key)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._freed, key, storage.nbytes())
        return result

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


@each_direct
@pytest.mark.parametrize("units", [1, 3, 7, 40], ids=lambda units: f"{units} at once")
def test_chunks_of_units_keep_within_max_bytes_and_change_nothing(
    method: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SolverCase(30, 24, 40, 0.2)
    kind = DIRECT[method]
    limit = units * kind.numbers(case.n, case.d, 1) * 8
    chunks: list[slice] = []
    original = kind.factor

    def record(fisher: UnitFisher, damping: Tensor, chunk: slice, block: int) -> Tensor:
        chunks.append(chunk)
        return original(fisher, damping, chunk, block)

    expected = factored(DirectSolver(method), case).solve(case.gradient())
    monkeypatch.setattr(kind, "factor", staticmethod(record))
    solver = factored(DirectSolver(method, max_bytes=limit), case)
    assert_close(solver.solve(case.gradient()), expected, EXACT)
    assert all(chunk.stop - chunk.start <= units for chunk in chunks)
    assert {j for chunk in chunks for j in range(case.m)[chunk]} == set(range(case.m))
    if units == case.m:  # one chunk: the factor is held, so another solve does not make it again
        solver.solve(case.gradient(2))
        assert len(chunks) == 1


@each_direct
def test_less_room_than_one_unit_needs_is_one_unit_at_a_time(method: str) -> None:
    case = SolverCase(30, 24, 5, 0.2)
    solution = factored(DirectSolver(method, max_bytes=1), case).solve(case.gradient())
    assert error(solution, solve_dense(dense(case.fisher()), 0.2, case.gradient())) < EXACT


@pytest.mark.parametrize(
    ("method", "block", "shape", "units"),
    [
        *(
            (method, 1, shape, units)
            for method in DIRECT
            for shape in [(64, 16), (16, 64), (40, 40)]
            for units in (2, 40)
        ),
        ("sherman_morrison", 64, (64, 16), 40),
    ],
    ids=str,
)
def test_the_memory_in_use_at_once_stays_below_max_bytes(
    method: str, block: int, shape: tuple[int, int], units: int
) -> None:
    """Measured over every tensor; the n x n Gram matrix, gradient-shaped tensors and roots of weights come beside the bound."""
    case = SolverCase(*shape, 40, 0.2)
    fisher, gradient = case.fisher(), case.gradient()
    limit = units * DIRECT[method].numbers(case.n, case.d, block) * 8
    beside = (case.n**2 + 2 * case.d**2 + 3 * case.m * (case.n + case.d)) * 8
    solver = DirectSolver(method, max_bytes=limit, block=block)
    with PeakBytes() as memory:
        solver.factor(fisher, case.damping)
        solver.solve(gradient)
    assert memory.peak > 0.3 * units * min(case.n, case.d) ** 2 * 8, "nothing was measured"
    assert memory.peak <= limit + beside


@each_direct
def test_direct_solvers_carry_nothing_from_step_to_step(method: str) -> None:
    solver = factored(DirectSolver(method), SolverCase(60, 9, 5, 0.2))
    assert solver.state_dict() == {}
    solver.load_state_dict({})


def test_cholesky_works_undamped_where_the_block_has_full_rank() -> None:
    case = SolverCase(200, 5, 3, 0.0)
    solution = factored(DirectSolver("cholesky"), case).solve(case.gradient())
    condition = torch.linalg.cond(dense(case.fisher())).max()
    assert error(solution, solve_dense(dense(case.fisher()), 0.0, case.gradient())) < ROUNDING * 2.3e-16 * condition


# --- the running estimate -------------------------------------------------------------------------------------------


def running_average(case: SolverCase, forgetting: float, batches: int) -> Tensor:
    """F̄_0 = F_0, F̄_t = f F̄_{t-1} + (1 - f) F_t, dense: (m, d, d)."""
    average = dense(case.fisher(seed=0))
    for seed in range(1, batches):
        average = forgetting * average + (1 - forgetting) * dense(case.fisher(seed))
    return average


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("shape", [(60, 9), (5, 33), (20, 40)], ids=str)
@pytest.mark.parametrize("forgetting", [0.3, 0.9])
def test_a_running_inverse_is_that_of_the_exponential_average(
    forgetting: float, shape: tuple[int, int], block: int
) -> None:
    case = SolverCase(*shape, 4, 0.05)
    solver = RunningInverse(forgetting, block=block)
    for batch in range(6):
        solver.factor(case.fisher(seed=batch), case.damping)
        expected = solve_dense(running_average(case, forgetting, batch + 1), 0.05, case.gradient())
        assert error(solver.solve(case.gradient()), expected) < EXACT


def test_a_running_inverse_goes_on_bit_for_bit_from_its_state() -> None:
    case = SolverCase(20, 12, 4, 0.1)
    solver, other = RunningInverse(0.8), RunningInverse(0.8)
    assert solver.state_dict() == {}
    other.load_state_dict({})
    for batch in range(3):
        solver.factor(case.fisher(seed=batch), case.damping)
    other.load_state_dict(saved(solver))
    for batch in range(3, 5):
        solver.factor(case.fisher(seed=batch), case.damping)
        other.factor(case.fisher(seed=batch), case.damping)
        assert torch.equal(solver.solve(case.gradient()), other.solve(case.gradient()))


def test_a_running_inverse_that_does_not_fit_names_the_layer_and_the_way_out() -> None:
    case = SolverCase(20, 12, 4, 0.1)
    needed = DIRECT["sherman_morrison"].numbers(20, 12, 1) * 4 * 8
    factored(RunningInverse(0.9, max_bytes=needed), case)
    with pytest.raises(UserError) as raised:
        RunningInverse(0.9, max_bytes=needed - 1).factor(case.fisher(name="generator.2"), case.damping)
    message = str(raised.value)
    for part in ("generator.2", "12", "solver.max_bytes", "solver.forgetting=0"):
        assert part in message


# --- conjugate gradient ---------------------------------------------------------------------------------------------


class Textbook:
    """Preconditioned conjugate gradient on dense blocks: iterates, directions and step lengths after each iteration."""

    def __init__(self, case: SolverCase, rank: int, iterations: int, start: Tensor | None = None) -> None:
        fisher, gradient = case.fisher(), case.gradient()
        identity = torch.eye(case.d, dtype=torch.float64)
        blocks = dense(fisher) + case.alpha * identity
        vectors, values, rest = shared_basis(fisher, rank)
        outside = identity - vectors @ vectors.T
        shared = vectors @ values.diag() @ vectors.T + rest * outside
        mean_curvature = fisher.weights.sum(0)[:, None, None]
        inverse = torch.linalg.inv(mean_curvature * shared + case.alpha * identity)

        x = torch.zeros_like(gradient) if start is None else start
        r = gradient - _apply(blocks, x)
        z = _apply(inverse, r)
        p = z
        self.iterates, self.directions, self.steps = [x], [], []
        for _ in range(iterations):
            image = _apply(blocks, p)
            step = (r * z).sum(1, keepdim=True) / (p * image).sum(1, keepdim=True)
            x = x + step * p
            self.iterates.append(x)
            self.directions.append(p)
            self.steps.append(step)
            new = r - step * image
            new_z = _apply(inverse, new)
            p = new_z + (new * new_z).sum(1, keepdim=True) / (r * z).sum(1, keepdim=True) * p
            r, z = new, new_z


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.einsum("mij,mj->mi", matrices, vectors)


NEVER = 1e-300  # a tolerance that no residual meets: every iteration is a full one


@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("rank", [0, 8, 101])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_pcg_takes_the_textbooks_iterations_and_reuses_the_last_step_length(
    iterations: int, rank: int, warm_start: bool
) -> None:
    solver, full = pcg(iterations, rank=rank, warm_start=warm_start), pcg(iterations, NEVER, rank=rank)
    start = None
    if warm_start:
        start = factored(solver, REALISTIC).solve(REALISTIC.gradient(seed=4)).clone()
        full = pcg(iterations, NEVER, rank=rank, warm_start=True)
        full.load_state_dict(saved(solver))
    textbook = Textbook(REALISTIC, rank, iterations, start)
    assert_close(factored(full, REALISTIC).solve(REALISTIC.gradient()), textbook.iterates[-1], EXACT)
    expected = textbook.iterates[-1]
    if iterations > 1:  # the product of the last iteration is saved
        expected = textbook.iterates[-2] + textbook.steps[-2] * textbook.directions[-1]
    assert_close(factored(solver, REALISTIC).solve(REALISTIC.gradient()), expected, EXACT)


@pytest.mark.parametrize("alpha", [0.2, 0.05])
@pytest.mark.parametrize("iterations", [2, 3, 4, 6])
def test_the_iteration_without_a_product_is_worth_it(iterations: int, alpha: float) -> None:
    """It halves the error, at least, of the iterations with a product that it costs as much as."""
    case = SolverCase(320, 101, 60, alpha)
    expected = solve_dense(dense(case.fisher()), alpha, case.gradient())
    solution = factored(pcg(iterations, rank=32), case).solve(case.gradient())
    plain = Textbook(case, 32, iterations - 1).iterates[-1]
    assert error(solution, expected) < 0.5 * error(plain, expected)


def test_one_iteration_misses_what_more_of_them_meet() -> None:
    """Negative control: the bound that a converged solve keeps is not kept by an under-converged one."""
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    by_iterations = [
        error(factored(pcg(count), REALISTIC).solve(REALISTIC.gradient()), expected) for count in (1, 2, 4, 8, 30)
    ]
    assert by_iterations == sorted(by_iterations, reverse=True)
    assert by_iterations[0] > 1e-2 and by_iterations[2] < 1e-2 and by_iterations[-1] < EXACT


def test_more_iterations_than_needed_do_no_harm() -> None:
    for dtype, bound in [(torch.float64, 1e-13), (torch.float32, 1e-5)]:
        case = SolverCase(60, 9, 5, 0.2, dtype=dtype)
        gradient = case.gradient()
        gradient[2] *= 1e-18  # its squares leave the range of float32
        for tolerance in (0.0, NEVER):
            solution = factored(pcg(300, tolerance), case).solve(gradient)
            normal = [0, 1, 3, 4]
            assert error(solution[normal], solve_dense(dense(case.fisher())[normal], 0.2, gradient[normal])) < bound
            assert solution.isfinite().all() and solution[2].norm() <= gradient[2].norm() / 0.19


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
def test_tolerance_holds_for_the_worst_unit_and_report_says_so(tolerance: float) -> None:
    case, gradient = SolverCase(320, 101, 60, 0.01), SolverCase(320, 101, 60, 0.01).gradient()
    solver = factored(pcg(200, tolerance), case)
    assert solver.report() == {}
    true = residual(case.fisher(), 0.01, solver.solve(gradient), gradient)
    report = solver.report()
    assert true < tolerance
    assert report["residual"] == pytest.approx(true, rel=1e-6)
    assert 1 <= report["iterations"] == solver.used_iterations < 200
    before = factored(pcg(solver.used_iterations - 1, NEVER), case).solve(gradient)
    assert residual(case.fisher(), 0.01, before, gradient) >= tolerance, "stopped an iteration late"
    if tolerance == 1e-2:  # the mean would have stopped earlier
        ratios = (gradient - case.fisher().matmul(before) - 0.01 * before).norm(dim=1) / gradient.norm(dim=1)
        assert ratios.median() < tolerance


def test_report_owns_up_to_a_residual_above_the_tolerance() -> None:
    solver = factored(pcg(2, 1e-10), REALISTIC)
    true = residual(REALISTIC.fisher(), 0.2, solver.solve(REALISTIC.gradient()), REALISTIC.gradient())
    assert solver.report() == {"iterations": 2, "residual": pytest.approx(true, rel=1e-6)}
    assert true > 1e-10


def test_report_leaves_out_units_without_gradient() -> None:
    gradient = REALISTIC.gradient()
    gradient[:2] = 0
    solver = factored(pcg(4), REALISTIC)
    solution = solver.solve(gradient)
    kept = residual(
        UnitFisher(REALISTIC.fisher().inputs, REALISTIC.fisher().weights[:, 2:]), 0.2, solution[2:], gradient[2:]
    )
    assert solver.report()["residual"] == pytest.approx(kept, rel=1e-6)
    ratio = worst_ratio(torch.tensor([[3.0, 4.0], [7.0, 0.0]]), torch.tensor([[0.0, 10.0], [0.0, 0.0]]))
    assert float(ratio) == pytest.approx(0.5)


def iterations_needed(case: SolverCase, seed: int = 0, basis_from: int | None = None, **settings: Any) -> int:
    solver = pcg(1000, 1e-6, **settings)
    if basis_from is not None:
        factored(solver, case, basis_from)
    factored(solver, case, seed).solve(case.gradient())
    return solver.used_iterations


@pytest.mark.parametrize("alpha", [0.2, 0.01])
def test_the_preconditioner_saves_iterations(alpha: float) -> None:
    case = SolverCase(320, 101, 60, alpha)
    none, small, large = (iterations_needed(case, rank=rank) for rank in (0, 8, 32))
    assert large <= small < none
    assert large <= 0.75 * none


def test_a_stale_basis_costs_iterations_and_never_correctness() -> None:
    case = SolverCase(320, 101, 60, 0.01)
    fresh, stale = iterations_needed(case), iterations_needed(case, basis_from=3)
    assert fresh < stale
    solver = factored(pcg(1000, 1e-12, preconditioner_every=100), case, seed=3)
    factored(solver, case)
    expected = solve_dense(dense(case.fisher()), 0.01, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < EXACT


def test_the_basis_is_refreshed_every_so_many_factorings() -> None:
    solver, bases = pcg(preconditioner_every=3), []
    for batch in range(7):
        factored(solver, REALISTIC, seed=batch)
        bases.append(solver.state_dict()["vectors"].clone())
    fresh = [batch for batch in range(1, 7) if not torch.equal(bases[batch], bases[batch - 1])]
    assert fresh == [3, 6]


def test_a_warm_start_saves_iterations_where_the_system_hardly_changes() -> None:
    nearly = REALISTIC.gradient() + 1e-3 * REALISTIC.gradient().norm(dim=1, keepdim=True) / REALISTIC.d**0.5
    used = []
    for warm_start in (False, True):
        solver = factored(pcg(100, 1e-6, warm_start=warm_start), REALISTIC)
        solver.solve(REALISTIC.gradient())
        solution = solver.solve(nearly)
        assert residual(REALISTIC.fisher(), 0.2, solution, nearly) < 1e-6
        used.append(solver.used_iterations)
    assert used[1] < used[0]


def test_a_warm_start_gives_no_direction_to_units_that_lost_their_gradient() -> None:
    solver = factored(pcg(50, 1e-3, warm_start=True), REALISTIC)
    solver.solve(REALISTIC.gradient())
    gradient = REALISTIC.gradient()
    gradient[1] = 0
    assert (solver.solve(gradient)[1] == 0).all()


@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("case", [REALISTIC, SolverCase(20, 33, 6, 0.2)], ids=["basis", "few rows"])
def test_pcg_goes_on_bit_for_bit_from_its_state(case: SolverCase, warm_start: bool) -> None:
    """Saved between two refreshes of the basis, which the other one must then make at the same time."""
    settings: dict[str, Any] = dict(preconditioner_every=3, warm_start=warm_start)
    solver, other = pcg(**settings), pcg(**settings)
    for batch in range(2):
        factored(solver, case, seed=batch).solve(case.gradient(batch))
    other.load_state_dict(saved(solver))
    for batch in range(2, 9):
        one, two = (factored(each, case, seed=batch).solve(case.gradient(batch)) for each in (solver, other))
        assert torch.equal(one, two)
    fresh = factored(pcg(**settings), case, seed=8).solve(case.gradient(8))
    assert torch.equal(one, fresh) == (case is not REALISTIC), "the state makes no difference"


class NoReads(TorchDispatchMode):
    """Raises where a number is read from a tensor: `.item()`, `float`, `bool`, an index by a mask."""

    READS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.name in self.READS:
            raise AssertionError(f"{function} reads from the device")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_a_fixed_count_reads_no_number_from_the_device(rank: int, warm_start: bool) -> None:
    solver = factored(pcg(4, rank=rank, warm_start=warm_start), REALISTIC)
    with NoReads():
        solver.solve(REALISTIC.gradient())
        solver.solve(REALISTIC.gradient(2))
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        factored(pcg(4, 1e-6), REALISTIC).solve(REALISTIC.gradient())  # the check sees what it is there for


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
def test_a_fixed_count_does_not_synchronise_on_cuda(warm_start: bool) -> None:
    """Nor does taking in the next Fisher matrix while the basis is not due."""
    case = SolverCase(320, 101, 60, 0.2, dtype=torch.float32, device="cuda")
    solver = factored(pcg(4, warm_start=warm_start), case)
    fisher, damping, gradient = case.fisher(1), case.damping, case.gradient()
    solver.solve(gradient)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        solver.factor(fisher, damping)
        solution = solver.solve(gradient)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert solution.isfinite().all()


# --- the shared basis -----------------------------------------------------------------------------------------------


def mean_block(fisher: UnitFisher) -> Tensor:
    """A = sum_k w_k h_k h_k^T, w_k ~ sum_j s_kj, from the dense blocks: the sum of them over the sum of all weights."""
    return dense(fisher).sum(0) / fisher.weights.sum().double().cpu()


@pytest.mark.parametrize("kind", ["plain", "degenerate", "saturated"])
@pytest.mark.parametrize(
    ("n", "d", "rank"), [(60, 9, 9), (60, 9, 32), (20, 33, 20), (20, 33, 33), (12, 12, 12), (7, 1, 5)]
)
def test_a_basis_of_full_rank_is_the_eigenbasis(n: int, d: int, rank: int, kind: Any) -> None:
    if kind == "degenerate" and d < 5:
        pytest.skip("too few parents to repeat")
    fisher = SolverCase(n, d, 4, 0.2, kind=kind).fisher()
    vectors, values, rest = shared_basis(fisher, rank)
    expected = torch.linalg.eigvalsh(mean_block(fisher))
    assert vectors.shape == (d, min(n, d)) and values.shape == (min(n, d),) and rest.shape == ()
    assert_close(vectors.T @ vectors, torch.eye(min(n, d), dtype=torch.float64))
    assert_close(values, expected[-min(n, d) :])
    assert_close(vectors @ values.diag() @ vectors.T, mean_block(fisher))
    assert float(rest) == pytest.approx(0, abs=EXACT)


@pytest.mark.parametrize("refreshed", [False, True], ids=["from the rows", "from an old basis"])
@pytest.mark.parametrize("rank", [0, 1, 8, 32, 100])
def test_a_basis_of_low_rank_is_orthonormal_and_keeps_the_trace(rank: int, refreshed: bool) -> None:
    fisher = REALISTIC.fisher()
    last = shared_basis(REALISTIC.fisher(seed=1), rank) if refreshed else None
    vectors, values, rest = shared_basis(fisher, rank, last)
    a = mean_block(fisher)
    if last is not None:
        outside = torch.eye(REALISTIC.d, dtype=torch.float64) - last.vectors @ last.vectors.T
        a = torch.lerp(a, last.vectors @ last.values.diag() @ last.vectors.T + last.rest * outside, KEEP)
    largest = torch.linalg.eigvalsh(a)[REALISTIC.d - rank :]
    assert vectors.shape == (REALISTIC.d, rank) and (values >= 0).all() and rest >= 0
    assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
    assert_close(vectors.T @ a @ vectors, values.diag())  # Ritz values, each at most the eigenvalue in its place
    assert (values <= largest + EXACT).all()
    assert float(values.sum() + rest * (REALISTIC.d - rank)) == pytest.approx(float(a.trace()), abs=EXACT)
    if rank and not refreshed:  # four subspace iterations find nearly all that there is to find
        assert values.sum() > 0.97 * largest.sum()


def test_a_basis_kept_over_many_batches_serves_the_next_better_than_the_last_batch_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = (torch.rand(12, 320, 100, generator=rng) < torch.rand(100, generator=rng)).double()
    curvatures = torch.rand(12, 320, 40, generator=rng, dtype=torch.float64) / 4 / 320
    *earlier, now = [UnitFisher(with_bias(h), s) for h, s in zip(inputs, curvatures, strict=True)]
    alpha, gradient = torch.tensor(0.02, dtype=torch.float64), torch.randn(40, 101, generator=rng).double()
    expected = torch.linalg.solve(dense(now) + alpha * torch.eye(101), gradient)

    def error(batches: list[UnitFisher]) -> float:
        solver = PreconditionedConjugateGradient(iterations=2, rank=90, preconditioner_every=1)
        for fisher in batches:
            solver.factor(fisher, alpha)
        solver.preconditioner_every = 100
        solver.factor(now, alpha)
        return float((solver.solve(gradient) - expected).norm() / expected.norm())

    assert error(earlier) < 0.8 * error(earlier[-1:])


def test_the_basis_of_rows_without_weight_is_still_orthonormal() -> None:
    fisher = UnitFisher(REALISTIC.fisher().inputs, torch.zeros(320, 3, dtype=torch.float64))
    for rank in (8, 101):
        vectors, values, rest = shared_basis(fisher, rank)
        assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
        assert (values == 0).all() and rest == 0
    solver = pcg()
    solver.factor(fisher, torch.tensor(0.5, dtype=torch.float64))
    gradient = torch.ones(3, 101, dtype=torch.float64)
    assert_close(solver.solve(gradient), 2 * gradient)


# --- stand-ins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in SOLVER_CASES if c.values[0].device == "cpu"])
def test_the_diagonal_and_kronecker_stand_ins_solve_what_they_say(case: SolverCase) -> None:
    fisher, gradient = case.fisher(), case.gradient()
    diagonals = dense(fisher).diagonal(dim1=1, dim2=2)
    mean_curvature = fisher.weights.double().sum(0)
    shared = mean_curvature[:, None, None] * mean_block(fisher)
    alpha = float(case.damping)
    condition = (torch.linalg.eigvalsh(shared)[:, -1].max() + alpha) / alpha
    bound = ROUNDING * torch.finfo(case.dtype).eps * float(condition)
    diagonal, kronecker = (factored(Approximate(kind), case).solve(gradient) for kind in ("diagonal", "kronecker"))
    assert error(diagonal, gradient.double() / (diagonals + alpha)) < ROUNDING * torch.finfo(case.dtype).eps
    assert error(kronecker, solve_dense(shared, alpha, gradient)) < bound


def test_the_stand_ins_are_not_the_fisher_matrix() -> None:
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    for kind in ("diagonal", "kronecker"):
        assert error(factored(Approximate(kind), REALISTIC).solve(REALISTIC.gradient()), expected) > 1e-2
    assert Approximate("diagonal").state_dict() == {}


# --- by name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("pcg", {"iterations": 60, "rank": 8}, PreconditionedConjugateGradient),
        ("auto", {"iterations": 60}, AutoSolver),
        ("cholesky", {"max_bytes": 2**20}, DirectSolver),
        ("woodbury", {}, DirectSolver),
        ("sherman_morrison", {"block": 4}, DirectSolver),
        ("sherman_morrison", {"forgetting": 0.5}, RunningInverse),
    ],
    ids=str,
)
def test_each_name_makes_its_solver(name: str, options: dict[str, Any], kind: type) -> None:
    case = SolverCase(48, 40, 5, 0.2)
    solver = factored(make_solver(name, **options), case)
    assert type(solver) is kind
    assert error(solver.solve(case.gradient()), solve_dense(dense(case.fisher()), 0.2, case.gradient())) < EXACT
    assert all(isinstance(value, int | float) for value in solver.report().values())


@pytest.mark.parametrize(
    ("n", "d", "m", "solves", "expected"),
    [(1000, 4, 50, 1, "cholesky"), (4, 800, 10, 1, "woodbury"), (320, 301, 784, 1, "pcg"), (320, 785, 300, 1, "pcg"),
     (320, 21, 15, 1000, "cholesky")],
)  # fmt: skip
def test_auto_takes_the_cheapest_of_the_cost_table(
    n: int, d: int, m: int, solves: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = solver_costs(n, d, m, 3, solves)
    assert min(costs, key=costs.__getitem__) == expected
    made: list[str] = []
    solver = AutoSolver(solves=solves)
    monkeypatch.setattr(
        "nws.solvers.make_solver", lambda name, **options: made.append(name) or make_solver(name, **options)
    )
    for kind in (DirectSolver, PreconditionedConjugateGradient):  # the choice is looked at, not the work
        monkeypatch.setattr(kind, "factor", lambda *_: None)
    for _ in range(2):
        solver.factor(UnitFisher(torch.ones(n, d), torch.ones(n, m)), torch.tensor(0.2))
    assert made == [expected]


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


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("newton", {}, "pcg, auto, cholesky, woodbury, sherman_morrison"),
        ("cholesky", {"rank": 3}, "rank"),
        ("pcg", {"forgetting": 0.5}, "forgetting"),
        ("auto", {"iterations": 0}, "solver.iterations"),
        ("auto", {"max_bytes": 0}, "solver.max_bytes"),
    ],
)
def test_unknown_names_and_options_are_errors(name: str, options: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part) as raised:
        make_solver(name, **options)
    assert name in str(raised.value) or part.startswith("solver.")


# --- errors ---------------------------------------------------------------------------------------------------------


def failing(case: SolverCase, solver: Solver, alpha: float, spoil: Callable[[UnitFisher], Any] | None = None) -> str:
    """The message, which must name the layer, n, d, alpha and a way out. A factor may be made as late as in `solve`."""
    fisher = case.fisher(name="recognition.1")
    if spoil is not None:
        spoil(fisher)
    with pytest.raises(UserError) as raised:  # noqa: PT012
        solver.factor(fisher, torch.tensor(alpha, dtype=case.dtype))
        solver.solve(case.gradient())
    message = str(raised.value)
    for part in ("recognition.1", f"n={case.n}", f"d={case.d}", f"{alpha:g}", "damping"):
        assert part in message, message
    return message


@each_solver
@pytest.mark.parametrize("alpha", [-0.1, float("nan")])
def test_damping_that_is_not_positive_is_an_error(alpha: float, name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)
    failing(case, SOLVERS[name](case), alpha)


@each_solver
@pytest.mark.parametrize("shape", [(60, 9), (5, 9)], ids=["n>d", "n<d"])
def test_no_damping_is_an_error_where_the_solver_needs_some(shape: tuple[int, int], name: str) -> None:
    case = SolverCase(*shape, 5, 0.2)
    if name == "cholesky" and case.n > case.d:
        pytest.skip("needs none")
    failing(case, SOLVERS[name](case), 0.0)


@pytest.mark.parametrize("kind", ["diagonal", "kronecker"])
@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_the_stand_ins_need_damping_too(alpha: float, kind: str) -> None:
    failing(SolverCase(60, 9, 5, 0.2), Approximate(kind), alpha)


def test_cholesky_takes_no_undamped_block_of_fewer_rows_than_parents() -> None:
    """One row too few: the last pivot is rounding of either sign, and must not decide."""
    for seed in range(20):
        fisher = SolverCase(8, 9, 1, 0.0).fisher(seed)
        with pytest.raises(UserError, match="n=8 rows of d=9"):
            DirectSolver("cholesky").factor(fisher, torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("max_bytes", [2**30, 1], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("method", ["cholesky", "woodbury"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_chunks_that_are_not_finite_are_an_error(value: float, method: str, max_bytes: int) -> None:
    def spoil(fisher: UnitFisher) -> None:
        fisher.weights[3, 4] = value  # one weight, in the last unit

    message = failing(SolverCase(60, 9, 5, 0.2), DirectSolver(method, max_bytes), 0.2, spoil)
    assert "not finite" in message and "optimizer.lr" in message


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "pcg, warm start"])
def test_rows_that_are_not_finite_are_an_error(name: str) -> None:
    case = SolverCase(60, 9, 5, 0.2)

    def spoil(fisher: UnitFisher) -> None:
        fisher.inputs[3, 1] = float("nan")

    assert "not finite" in failing(case, SOLVERS[name](case), 0.2, spoil)


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("solver.max_bytes", lambda: DirectSolver("cholesky", max_bytes=0)),
    ("solver.block", lambda: DirectSolver("sherman_morrison", block=0)),
    ("solver.max_bytes", lambda: RunningInverse(0.9, max_bytes=0)),
    ("solver.block", lambda: RunningInverse(0.9, block=-1)),
    *[
        ("solver.forgetting", lambda value=value: RunningInverse(value))
        for value in (0, 1, -0.5, 1.5, float("nan"), True)
    ],
    ("solver.iterations", lambda: pcg(0)),
    ("solver.iterations", lambda: pcg(2.5)),  # type: ignore[arg-type]
    *[("solver.tolerance", lambda value=value: pcg(3, value)) for value in (-1e-3, 1.0, float("nan"), True, "1e-3")],
    ("solver.rank", lambda: pcg(rank=-1)),
    ("solver.preconditioner_every", lambda: pcg(preconditioner_every=0)),
]


@pytest.mark.parametrize(("setting", "make"), BAD, ids=[f"{name} {i}" for i, (name, _) in enumerate(BAD)])
def test_bad_settings_are_errors_that_name_them(setting: str, make: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=setting):
        make()
