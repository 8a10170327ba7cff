"""Conjugate gradient against a textbook on dense blocks: preconditioner, rows' space, stacks, how many iterations, state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import EXACT, REALISTIC, SolverCase, assert_close, tolerance, with_bias
from solving import dense, error, factored, mean_block, pcg, residual, saved, solve_dense, tight
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nws.errors import UserError
from nws.natural.conjugate_gradient import (
    FEW,
    KEEP,
    Preconditioner,
    Rows,
    row_weights,
    shared_basis,
    worst_ratio,
)
from nws.natural.operators import FisherStack, UnitFisher, zeros


def mean_row(fisher: UnitFisher) -> Tensor:
    """c = sum_k w_k h_k, w_k ~ sum_j s_kj, sum_k w_k = 1: (d,)."""
    weights = fisher.weights.double().cpu().sum(1)
    return (weights / weights.sum()) @ fisher.inputs.double().cpu()


def shared_inverses(fisher: UnitFisher, rank: int, alpha: float) -> Tensor:
    """The preconditioner, dense: the inverses of sbar_j (c c^T + Q Lambda Q^T + rest (I - Q Q^T)) + alpha I, (m, d, d)."""
    centre, identity = mean_row(fisher), torch.eye(fisher.shape[1], dtype=torch.float64)
    vectors, values, rest = shared_basis(fisher, rank, centre[None])
    shared = (
        centre.outer(centre)
        + vectors @ values.diag() @ vectors.T
        + rest * (identity - vectors @ vectors.T)
    )
    return torch.linalg.inv(fisher.weights.sum(0)[:, None, None] * shared + alpha * identity)


class Textbook:
    """Preconditioned conjugate gradient on dense matrices: iterates, directions and step lengths after each iteration."""

    def __init__(
        self,
        matrices: Tensor,
        inverses: Tensor,
        right: Tensor,
        iterations: int,
        start: Tensor | None = None,
    ) -> None:
        x = torch.zeros_like(right) if start is None else start
        r = right - _apply(matrices, x)
        z = _apply(inverses, r)
        p = z
        self.iterates, self.directions, self.steps = [x], [], []
        for _ in range(iterations):
            image = _apply(matrices, p)
            step = (r * z).sum(1, keepdim=True) / (p * image).sum(1, keepdim=True)
            x = x + step * p
            self.iterates.append(x)
            self.directions.append(p)
            self.steps.append(step)
            new = r - step * image
            new_z = _apply(inverses, new)
            p = new_z + (new * new_z).sum(1, keepdim=True) / (r * z).sum(1, keepdim=True) * p
            r, z = new, new_z

    @property
    def reused(self) -> Tensor:
        """The last iterate where its product is saved: with the least step length of those before."""
        return self.iterates[-2] + torch.stack(self.steps[:-1]).amin(0) * self.directions[-1]

    @staticmethod
    def of(case: SolverCase, rank: int, iterations: int, start: Tensor | None = None) -> Textbook:
        blocks = dense(case.fisher()) + case.alpha * torch.eye(case.d, dtype=torch.float64)
        return Textbook(
            blocks,
            shared_inverses(case.fisher(), rank, case.alpha),
            case.gradient(),
            iterations,
            start,
        )


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    return torch.einsum("mij,mj->mi", matrices, vectors)


NEVER = 1e-300  # a tolerance that no residual meets


@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("rank", [0, 8, 101])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("tolerance", [0.0, NEVER])
def test_a_fixed_number_takes_the_textbooks_iterations(
    tolerance: float, iterations: int, rank: int, warm_start: bool
) -> None:
    solver = pcg(iterations, tolerance, rank=rank, warm_start=warm_start)
    start = None
    if warm_start:
        start = factored(solver, REALISTIC).solve(REALISTIC.gradient(seed=4)).clone()
    textbook = Textbook.of(REALISTIC, rank, iterations, start)
    assert_close(
        factored(solver, REALISTIC).solve(REALISTIC.gradient()), textbook.iterates[-1], EXACT
    )


def test_a_number_that_was_found_reuses_the_least_step_length_after_a_look() -> None:
    """Where it is looked at the product is made, so that the reused length can be judged."""
    solver = factored(pcg(None, rank=8, accuracy=1e-4), REALISTIC)
    looked, then = (solver.solve(REALISTIC.gradient()) for _ in range(2))
    textbook = Textbook.of(REALISTIC, 8, solver.used_iterations)
    assert (
        textbook.steps[-2] > 1.01 * torch.stack(textbook.steps[:-1]).amin(0)
    ).any()  # not just the one before
    assert_close(looked, textbook.iterates[-1], EXACT)
    assert_close(then, textbook.reused, EXACT)


@pytest.mark.parametrize(("accuracy", "rank", "reuse"), [(0.1, 0, False), (1e-2, 8, True)], ids=str)
def test_a_step_length_is_reused_only_where_that_keeps_the_accuracy(
    accuracy: float, rank: int, reuse: bool
) -> None:
    solver, gradient = (
        factored(pcg(None, accuracy=accuracy, rank=rank), REALISTIC),
        REALISTIC.gradient(2),
    )
    for _ in range(2):  # the look, and after it
        assert relative_error(REALISTIC, solver.solve(gradient), gradient) < accuracy
    assert solver.used_iterations > 1 and solver._reuse == reuse
    solver._reuse = True  # what it decided against would do harm
    assert (relative_error(REALISTIC, solver.solve(gradient), gradient) < accuracy) == reuse


FEW_ROWS = SolverCase(20, 90, 6, 0.2)


@pytest.mark.parametrize("case", [FEW_ROWS, SolverCase(25, 101, 5, 0.05, "bipolar")], ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_few_rows_take_twice_the_textbooks_iterations_in_their_own_space(
    iterations: int, case: SolverCase
) -> None:
    """(alpha I + R K R) y = R H g preconditioned by K ~ a 1 1^T + diag(b), x = (g - H^T R y) / alpha at its best length."""
    fisher, gradient = case.fisher(), case.gradient()
    inputs, roots = fisher.inputs, fisher.weights.T.sqrt()  # (n, d), (m, n)
    gram, common = inputs @ inputs.T, mean_row(fisher).square().sum()
    guess = common * torch.ones_like(gram) + (gram.diagonal() - common).clamp_min(0).diag()
    pairs = roots[:, :, None] * roots[:, None, :]
    identity = case.alpha * torch.eye(case.n, dtype=torch.float64)
    inverses = torch.linalg.inv(pairs * guess + identity)
    textbook = Textbook(
        pairs * gram + identity, inverses, (gradient @ inputs.T) * roots, 2 * iterations
    )
    expected = (gradient - (textbook.iterates[-1] * roots) @ inputs) / case.alpha
    blocks = dense(fisher) + case.alpha * torch.eye(case.d, dtype=torch.float64)
    length = (expected * gradient).sum(1) / (expected * _apply(blocks, expected)).sum(1)
    solver = factored(pcg(iterations), case)
    assert_close(solver.solve(gradient), length[:, None] * expected, EXACT)
    assert solver.used_iterations == 2 * iterations
    assert case is FEW_ROWS or iterations > 1 or (length - 1).abs().max() > 1e-2, (
        "nothing to shorten"
    )
    exact = solve_dense(dense(fisher), case.alpha, gradient)
    for x in (
        solver.solve(gradient),
        factored(pcg(1), case).solve(gradient),
    ):  # never longer than the solution
        assert (
            (x * _apply(blocks, x)).sum(1) <= (exact * _apply(blocks, exact)).sum(1) * (1 + EXACT)
        ).all()


@pytest.mark.parametrize("alpha", [0.2, 0.05])
@pytest.mark.parametrize("iterations", [2, 3, 4, 6])
def test_the_iteration_without_a_product_is_worth_it(iterations: int, alpha: float) -> None:
    """It halves the error, at least, of the iterations with a product that it costs as much as."""
    case = SolverCase(320, 101, 60, alpha)
    expected = solve_dense(dense(case.fisher()), alpha, case.gradient())
    textbook = Textbook.of(case, 32, iterations)
    assert error(textbook.reused, expected) < 0.5 * error(textbook.iterates[-2], expected)


def test_one_iteration_misses_what_more_of_them_meet() -> None:
    """Negative control: the bound that a converged solve keeps is not kept by an under-converged one."""
    expected = solve_dense(dense(REALISTIC.fisher()), 0.2, REALISTIC.gradient())
    by_iterations = [
        error(factored(pcg(count), REALISTIC).solve(REALISTIC.gradient()), expected)
        for count in (1, 2, 4, 8, 30)
    ]
    assert by_iterations == sorted(by_iterations, reverse=True)
    assert by_iterations[0] > 1e-2 and by_iterations[2] < 1e-2 and by_iterations[-1] < EXACT


def test_more_iterations_than_needed_do_no_harm() -> None:
    for dtype, bound in [(torch.float64, 1e-13), (torch.float32, 1e-5)]:
        case = SolverCase(60, 9, 5, 0.2, dtype=dtype)
        gradient = case.gradient()
        gradient[2] *= 1e-18  # its squares leave the range of float32
        for never in (0.0, NEVER):
            solution = factored(pcg(300, never), case).solve(gradient)
            normal = [0, 1, 3, 4]
            assert (
                error(
                    solution[normal],
                    solve_dense(dense(case.fisher())[normal], 0.2, gradient[normal]),
                )
                < bound
            )
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
        ratios = (gradient - case.fisher().matmul(before) - 0.01 * before).norm(
            dim=1
        ) / gradient.norm(dim=1)
        assert ratios.median() < tolerance


def test_report_owns_up_to_a_residual_above_the_tolerance() -> None:
    solver = factored(pcg(2, 1e-10), REALISTIC)
    true = residual(
        REALISTIC.fisher(), 0.2, solver.solve(REALISTIC.gradient()), REALISTIC.gradient()
    )
    assert solver.report() == {"iterations": 2, "residual": pytest.approx(true, rel=1e-6)}
    assert true > 1e-10


def test_report_leaves_out_units_without_gradient() -> None:
    gradient = REALISTIC.gradient()
    gradient[:2] = 0
    solver = factored(pcg(4), REALISTIC)
    solution = solver.solve(gradient)
    kept = residual(
        UnitFisher(REALISTIC.fisher().inputs, REALISTIC.fisher().weights[:, 2:]),
        0.2,
        solution[2:],
        gradient[2:],
    )
    assert solver.report()["residual"] == pytest.approx(kept, rel=1e-6)
    ratio = worst_ratio(
        torch.tensor([[3.0, 4.0], [7.0, 0.0]]), torch.tensor([[0.0, 10.0], [0.0, 0.0]])
    )
    assert float(ratio) == pytest.approx(0.5)


def iterations_needed(
    case: SolverCase, seed: int = 0, basis_from: int | None = None, **settings: Any
) -> int:
    solver = pcg(1000, 1e-6, **settings)
    if basis_from is not None:
        factored(solver, case, basis_from)
    factored(solver, case, seed).solve(case.gradient())
    return solver.used_iterations


@pytest.mark.parametrize("alpha", [0.2, 0.01])
def test_the_mean_saves_iterations_and_the_basis_more(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = SolverCase(320, 101, 60, alpha)
    mean, small, large = (iterations_needed(case, rank=rank) for rank in (0, 4, 31))
    monkeypatch.setattr(Preconditioner, "__call__", lambda self, vectors: vectors.clone())
    none = iterations_needed(case)
    assert large <= small <= mean < none
    assert large <= 0.75 * mean


@pytest.mark.parametrize(
    "case", [SolverCase(32, 785, 30, 0.2), SolverCase(60, 301, 40, 0.01)], ids=str
)
def test_the_rows_preconditioner_saves_iterations(
    case: SolverCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iterations_needed(case)
    monkeypatch.setattr(Rows, "precondition", lambda self, vectors: vectors.clone())
    assert used < iterations_needed(case)


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
    nearly = (
        REALISTIC.gradient()
        + 1e-3 * REALISTIC.gradient().norm(dim=1, keepdim=True) / REALISTIC.d**0.5
    )
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


@pytest.mark.parametrize("iterations", [3, None], ids=["fixed", "by accuracy"])
@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
def test_pcg_goes_on_bit_for_bit_from_its_state(
    case: SolverCase, warm_start: bool, iterations: int | None
) -> None:
    """Saved between two refreshes of the basis, which the other one must then make at the same time."""
    settings: dict[str, Any] = dict(
        iterations=iterations, preconditioner_every=3, warm_start=warm_start
    )
    solver, other = pcg(**settings), pcg(**settings)
    for batch in range(2):
        factored(solver, case, seed=batch).solve(case.gradient(batch))
    other.load_state_dict(saved(solver))
    for batch in range(2, 9):
        one, two = (
            factored(each, case, seed=batch).solve(case.gradient(batch)) for each in (solver, other)
        )
        assert torch.equal(one, two)
    fresh = factored(pcg(**settings), case, seed=8).solve(case.gradient(8))
    if case is REALISTIC:
        assert not torch.equal(one, fresh), "the state makes no difference"


class NoReads(TorchDispatchMode):
    """Raises where a number is read from a tensor: `.item()`, `float`, `bool`, an index by a mask."""

    READS = (
        "aten::_local_scalar_dense",
        "aten::item",
        "aten::is_nonzero",
        "aten::nonzero",
        "aten::equal",
    )

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function._schema.name in self.READS:
            raise AssertionError(f"{function} reads from the device")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("warm_start", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_a_fixed_count_reads_no_number_from_the_device(
    rank: int, case: SolverCase, warm_start: bool
) -> None:
    solver = factored(pcg(4, rank=rank, warm_start=warm_start), case)
    with NoReads():
        solver.solve(case.gradient())
        solver.solve(case.gradient(2))
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        factored(pcg(4, 1e-6), case).solve(case.gradient())  # the check sees what it is there for


@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
def test_taking_in_the_next_rows_reads_no_number_from_the_device(
    case: SolverCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, fisher, damping = factored(pcg(4), case), case.fisher(1), case.damping
    with pytest.raises(AssertionError, match="reads from the device"), NoReads():
        solver.factor(
            fisher, damping
        )  # the checks of alpha and of the rows, which only tensors on the CPU have
    for check in ("check_damping", "check_finite"):
        monkeypatch.setattr(f"nws.natural.conjugate_gradient.{check}", lambda *_, **__: None)
    with NoReads():
        solver.factor(fisher, damping)


# --- as many iterations as the accuracy needs -----------------------------------------------------------------------


def relative_error(case: SolverCase, solution: Tensor, gradient: Tensor | None = None) -> float:
    """Of the whole layer, in the norm that the solver aims at: among few rows |x|, otherwise |x|^2 = sum_j x_j . A_j x_j."""
    blocks = dense(case.fisher()) + case.alpha * torch.eye(case.d, dtype=torch.float64)
    expected = torch.linalg.solve(blocks, case.gradient() if gradient is None else gradient)
    wrong = solution - expected
    if FEW * case.n <= case.d:
        return float(wrong.norm() / expected.norm())
    return float(
        ((wrong * _apply(blocks, wrong)).sum() / (expected * _apply(blocks, expected)).sum()).sqrt()
    )


@pytest.mark.parametrize("accuracy", [0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("alpha", [0.2, 0.01])
@pytest.mark.parametrize(
    "shape", [(320, 101, 60), (320, 301, 40), (200, 301, 40), (60, 301, 40), (32, 785, 30)], ids=str
)
def test_iterations_follow_the_accuracy(
    shape: tuple[int, int, int], alpha: float, accuracy: float
) -> None:
    """Within a factor of 3 above, since the last iteration's gain is foretold, and not done for nothing: two fewer miss it."""
    case = SolverCase(*shape, alpha)
    solver = factored(pcg(None, accuracy=accuracy), case)
    assert relative_error(case, solver.solve(case.gradient())) < 3 * accuracy
    if solver.used_iterations > 3:
        shorter = factored(pcg(None, NEVER), case)
        shorter._count = solver.used_iterations - 2
        assert relative_error(case, shorter.solve(case.gradient())) > accuracy


@pytest.mark.parametrize("length", [0.3, 0.1, 0.03])
def test_units_that_take_longer_are_not_lost_among_those_that_are_done_at_once(
    length: float,
) -> None:
    """Four units in five have next to no curvature, and long gradients. Foretold by the sums over units, the others' error
    would go unseen: at lengths of 0.1 and 0.03 it ends 4.6 and 1.5 times above the accuracy."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.rand(320, 60, generator=rng, dtype=torch.float64) ** 6 / 160
    weights[:, :48] *= 1e-3
    gradient = torch.randn(60, 101, generator=rng, dtype=torch.float64)
    gradient[48:] *= length
    fisher, alpha = UnitFisher(REALISTIC.fisher().inputs, weights), 0.05
    solver = pcg(None, accuracy=1e-3)
    solver.factor(fisher, torch.tensor(alpha, dtype=torch.float64))
    expected = solve_dense(dense(fisher), alpha, gradient)
    assert (solver.solve(gradient) - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
def test_the_number_is_looked_at_again_early_and_at_refreshes_and_costs_no_read_between(
    case: SolverCase,
) -> None:
    solver, looked = pcg(None, preconditioner_every=20), []
    for step in range(45):
        factored(solver, case, seed=step)
        try:
            with NoReads():
                solver.solve(case.gradient())
        except AssertionError:
            looked.append(step)
            solver.solve(case.gradient())
    assert looked == [0, 1, 2, 4, 8, 16, 20, 32, 40]


@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
def test_the_number_goes_on_from_the_state(case: SolverCase) -> None:
    solver, other = pcg(None), pcg(None)
    for step in range(6):
        factored(solver, case, seed=step).solve(case.gradient())
    other.load_state_dict(saved(solver))
    factored(other, case, seed=6)
    with NoReads():  # step 6 does not look
        solution = other.solve(case.gradient())
    assert torch.equal(solution, factored(solver, case, seed=6).solve(case.gradient()))


@pytest.mark.parametrize("case", [REALISTIC, FEW_ROWS], ids=["basis", "few rows"])
def test_the_state_of_another_layer_is_an_error(case: SolverCase) -> None:
    solver, other = pcg(warm_start=True), pcg(warm_start=True)
    factored(solver, case).solve(case.gradient())
    other.load_state_dict(saved(solver))
    narrower = SolverCase(case.n, case.d - 3, case.m, case.alpha)
    message = rf"state of {case.d} parents, these rows have {case.d - 3}; .* start anew"
    with pytest.raises(UserError, match=message):
        factored(other, narrower)
    with pytest.raises(
        UserError, match=message
    ):  # with the rows there first, as between two refreshes
        factored(pcg(warm_start=True), narrower).load_state_dict(saved(solver))
    factored(other, case)


def test_a_warm_start_counts_towards_the_accuracy() -> None:
    nearly = REALISTIC.gradient() + 1e-3 * REALISTIC.gradient(5)
    used = []
    for warm_start in (False, True):
        solver = factored(pcg(None, accuracy=1e-3, warm_start=warm_start), REALISTIC)
        solver.solve(REALISTIC.gradient())
        solver._count = 0
        solver.solve(nearly)
        used.append(solver.used_iterations)
    assert used[1] < used[0]


# --- stacks of layers -----------------------------------------------------------------------------------------------


STACKS = {
    "many rows": [
        SolverCase(60, 9, 5, 0.2),
        SolverCase(60, 20, 3, 0.2),
        SolverCase(1, 1, 4, 0.2),
        SolverCase(60, 6, 7, 0.2),
    ],
    "few rows": [SolverCase(20, 90, 6, 0.2), SolverCase(20, 81, 3, 0.2), SolverCase(1, 1, 4, 0.2)],
}


def stacked(cases: list[SolverCase], seed: int, multiple: int = 1) -> UnitFisher:
    fishers = [case.fisher(seed) for case in cases]
    stack = FisherStack(
        [fisher.shape for fisher in fishers], ["layer"] * len(cases), fishers[0].inputs, multiple
    )
    stack.fill([(fisher.inputs[:, :-1], fisher.weights) for fisher in fishers])
    return stack.whole


def stacked_gradient(cases: list[SolverCase], multiple: int = 1) -> Tensor:
    gradient, parts = zeros([(case.m, case.d) for case in cases], cases[0].gradient(), multiple)
    for part, case in zip(parts, cases, strict=True):
        part.copy_(case.gradient())
    return gradient


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("settings", [{}, {"rank": 3}, {"rank": 0}, {"warm_start": True}], ids=str)
@pytest.mark.parametrize("cases", STACKS.values(), ids=STACKS)
def test_a_stack_of_layers_has_the_dense_solution_of_each(
    cases: list[SolverCase], settings: dict[str, Any], multiple: int, dtype: torch.dtype
) -> None:
    cases, bound = [replace(case, dtype=dtype) for case in cases], tolerance(dtype)
    solver = pcg(1000, tight(cases[0]), **settings)
    for seed in (3, 0):  # the second time from the first one's basis, and direction
        solver.factor(stacked(cases, seed, multiple), cases[0].damping)
        solution = solver.solve(stacked_gradient(cases, multiple))
    for layer, case in zip(solution, cases, strict=True):
        expected = solve_dense(dense(case.fisher()), case.alpha, case.gradient())
        assert error(layer[: case.m, : case.d], expected) < bound
        assert layer[case.m :].abs().sum() == 0 and layer[:, case.d :].norm() < bound


def test_a_stack_that_goes_on_from_its_state_is_bit_for_bit_the_same() -> None:
    cases = STACKS["many rows"]
    solver, other = pcg(None, warm_start=True), pcg(None, warm_start=True)
    gradient = stacked_gradient(cases)
    for seed in range(6):
        solver.factor(stacked(cases, seed), cases[0].damping)
        solution = solver.solve(gradient)
        if seed == 2:
            other.load_state_dict(saved(solver))
        elif seed > 2:
            other.factor(stacked(cases, seed), cases[0].damping)
            assert torch.equal(other.solve(gradient), solution)


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


@pytest.mark.parametrize("kind", ["plain", "degenerate", "saturated"])
@pytest.mark.parametrize(
    ("n", "d", "rank"),
    [(60, 9, 9), (60, 9, 32), (20, 33, 20), (20, 33, 33), (12, 12, 12), (7, 1, 5)],
)
def test_a_basis_of_full_rank_is_the_eigenbasis(n: int, d: int, rank: int, kind: Any) -> None:
    if kind == "degenerate" and d < 5:
        pytest.skip("too few parents to repeat")
    fisher = SolverCase(n, d, 4, 0.2, kind=kind).fisher()
    vectors, values, rest = shared_basis(fisher, rank)
    expected = torch.linalg.eigvalsh(mean_block(fisher))
    assert vectors.shape == (d, min(n, d)) and values.shape == (min(n, d),) and rest.shape == (1,)
    assert_close(vectors.T @ vectors, torch.eye(min(n, d), dtype=torch.float64))
    assert_close(values, expected[-min(n, d) :])
    assert_close(vectors @ values.diag() @ vectors.T, mean_block(fisher))
    assert float(rest) == pytest.approx(0, abs=EXACT)


@pytest.mark.parametrize("refreshed", [False, True], ids=["from the rows", "from an old basis"])
@pytest.mark.parametrize("rank", [0, 1, 8, 32, 100])
def test_a_basis_of_low_rank_is_orthonormal_and_keeps_the_trace(rank: int, refreshed: bool) -> None:
    fisher = REALISTIC.fisher()
    last = shared_basis(REALISTIC.fisher(seed=1), rank) if refreshed else None
    vectors, values, rest = shared_basis(fisher, rank, last=last)
    a = mean_block(fisher)
    if last is not None:
        outside = torch.eye(REALISTIC.d, dtype=torch.float64) - last.vectors @ last.vectors.T
        a = torch.lerp(
            a, last.vectors @ last.values.diag() @ last.vectors.T + last.rest * outside, KEEP
        )
    largest = torch.linalg.eigvalsh(a)[REALISTIC.d - rank :]
    assert vectors.shape == (REALISTIC.d, rank) and (values >= 0).all() and rest >= 0
    assert_close(vectors.T @ vectors, torch.eye(rank, dtype=torch.float64))
    assert_close(
        vectors.T @ a @ vectors, values.diag()
    )  # Ritz values, each at most the eigenvalue in its place
    assert (values <= largest + EXACT).all()
    assert float(values.sum() + rest * (REALISTIC.d - rank)) == pytest.approx(
        float(a.trace()), abs=EXACT
    )
    if rank and not refreshed:  # four subspace iterations find nearly all that there is to find
        assert values.sum() > 0.97 * largest.sum()


def test_a_basis_kept_over_many_batches_serves_the_next_better_than_the_last_batch_alone() -> None:
    rng = torch.Generator().manual_seed(0)
    inputs = (torch.rand(12, 320, 100, generator=rng) < torch.rand(100, generator=rng)).double()
    curvatures = torch.rand(12, 320, 40, generator=rng, dtype=torch.float64) / 4 / 320
    *earlier, now = [UnitFisher(with_bias(h), s) for h, s in zip(inputs, curvatures, strict=True)]
    alpha, gradient = (
        torch.tensor(0.02, dtype=torch.float64),
        torch.randn(40, 101, generator=rng).double(),
    )
    expected = torch.linalg.solve(dense(now) + alpha * torch.eye(101), gradient)

    def error(batches: list[UnitFisher]) -> float:
        solver = pcg(2, rank=90, preconditioner_every=1)
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


@pytest.mark.parametrize("rank", [0, 8, 101])
def test_the_basis_about_a_centre_is_that_of_the_covariance(rank: int) -> None:
    fisher = REALISTIC.fisher()
    centre = mean_row(fisher)
    assert_close(row_weights(fisher) @ fisher.inputs, centre[None])
    vectors, values, rest = shared_basis(fisher, rank, centre[None])
    covariance = mean_block(fisher) - centre.outer(centre)
    assert_close(vectors.T @ covariance @ vectors, values.diag())
    assert float(values.sum() + rest * (REALISTIC.d - rank)) == pytest.approx(
        float(covariance.trace()), abs=EXACT
    )


@pytest.mark.parametrize("alpha", [0.2, 1e-3])
@pytest.mark.parametrize("rank", [0, 8, 101])
def test_the_preconditioner_is_the_inverse_that_it_says(rank: int, alpha: float) -> None:
    fisher, vectors = REALISTIC.fisher(), REALISTIC.gradient()
    centre = mean_row(fisher)[None]
    plain = Preconditioner.of(
        shared_basis(fisher, rank, centre),
        fisher.weights.sum(0),
        torch.tensor(alpha, dtype=torch.float64),
    )
    expected = _apply(shared_inverses(fisher, rank, alpha), vectors)
    assert_close(plain.about(centre)(vectors), expected, EXACT)
    assert (
        plain(vectors) - expected
    ).norm() > 1e-3 * expected.norm()  # without its mean it is another one


def test_units_without_weight_are_left_to_the_damping() -> None:
    fisher = REALISTIC.fisher()
    fisher.weights[:, 1] = 0
    centre = row_weights(fisher) @ fisher.inputs
    precondition = Preconditioner.of(
        shared_basis(fisher, 8, centre),
        fisher.weights.sum(0),
        torch.tensor(0.5, dtype=torch.float64),
    ).about(centre)
    vectors = REALISTIC.gradient()
    assert_close(precondition(vectors)[1], 2 * vectors[1])
    assert precondition(vectors).isfinite().all()
