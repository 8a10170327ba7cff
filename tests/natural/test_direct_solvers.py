"""What is special to direct solvers: chunks in a memory bound, and inverses across batches."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from cases import EXACT, SolverCase, assert_close, tolerance
from solving import DIRECT, dense, error, factored, solve_dense
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nws.errors import UserError
from nws.natural.solvers import ShermanMorrison

each_direct = pytest.mark.parametrize("method", DIRECT)


def recorded(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[tuple[slice, Tensor]]:
    """Chunks of units and their factors, as they are made from now on."""
    made: list[tuple[slice, Tensor]] = []
    original = kind._factor

    def record(self: Any, chunk: slice) -> Tensor:
        made.append((chunk, original(self, chunk)))
        return made[-1][1]

    monkeypatch.setattr(kind, "_factor", record)
    return made


class PeakBytes(TorchDispatchMode):
    """The most bytes that lived at once in tensors made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
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
@pytest.mark.parametrize("units", [0, 1, 3, 7, 40], ids=lambda units: f"room for {units}")
def test_chunks_of_units_keep_within_max_bytes_and_change_nothing(
    method: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less room than one unit needs is one unit at a time."""
    case, kind = SolverCase(30, 24, 40, 0.2), DIRECT[method]
    expected = factored(kind(), case).solve(case.gradient())
    made = recorded(monkeypatch, kind)
    solver = factored(kind(max_bytes=max(1, units * kind().work(case.n, case.d) * 8)), case)
    assert_close(solver.solve(case.gradient()), expected, EXACT)
    chunks = [chunk for chunk, _ in made]
    assert all(chunk.stop - chunk.start <= max(1, units) for chunk in chunks)
    assert {j for chunk in chunks for j in range(case.m)[chunk]} == set(range(case.m))


@each_direct
@pytest.mark.parametrize(("room", "fits"), [(1.0, True), (0.99, False)], ids=["held", "too large"])
def test_factors_are_made_once_where_all_fit_beside_the_work_on_a_chunk(
    method: str, room: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, kind = SolverCase(30, 24, 6, 0.2), DIRECT[method]
    work, held = kind().work(case.n, case.d), kind().held(case.n, case.d)
    made = recorded(monkeypatch, kind)
    two = 6 * held + 2 * (work - held)  # numbers: all factors and the work on two units at once
    solver = kind(max_bytes=int(room * 8 * two))
    for seed in range(2):
        made.clear()
        solver.factor(case.fisher(seed), case.damping)
        expected = dense(case.fisher(seed))
        for gradient in (case.gradient(2), case.gradient(3)):
            assert error(solver.solve(gradient), solve_dense(expected, 0.2, gradient)) < EXACT
        assert all(factor[0].numel() == held for _, factor in made)
        assert len(made) >= 3 and (len(made) == 3) == fits


@pytest.mark.parametrize(
    ("method", "options", "shape", "units"),
    [
        *(
            (method, {}, shape, units)
            for method in DIRECT
            for shape in [(64, 16), (16, 64), (40, 40)]
            for units in (2, 40)
        ),
        ("sherman_morrison", {"block": 64}, (64, 16), 40),
    ],
    ids=str,
)
def test_the_memory_in_use_at_once_stays_below_max_bytes(
    method: str, options: dict[str, int], shape: tuple[int, int], units: int
) -> None:
    """The test measures every tensor.

    The bound does not cover the n x n Gram matrix, gradient-shaped tensors and roots of weights.
    """
    case = SolverCase(*shape, 40, 0.2)
    fisher, gradient = case.fisher(), case.gradient()
    limit = units * DIRECT[method](**options).work(case.n, case.d) * 8
    beside = (case.n**2 + 2 * case.d**2 + 3 * case.m * (case.n + case.d)) * 8
    solver = DIRECT[method](max_bytes=limit, **options)
    with PeakBytes() as memory:
        for _ in range(2):  # the first factors, if they were kept, would count the second time
            solver.factor(fisher, case.damping)
            solver.solve(gradient)
    assert memory.peak > 0.3 * units * min(case.n, case.d) ** 2 * 8, "nothing was measured"
    assert memory.peak <= limit + beside


# --- the running estimate -------------------------------------------------------------------------


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
    solver = ShermanMorrison(block=block, forgetting=forgetting)
    for batch in range(6):
        solver.factor(case.fisher(seed=batch), case.damping)
        expected = solve_dense(running_average(case, forgetting, batch + 1), 0.05, case.gradient())
        assert error(solver.solve(case.gradient()), expected) < EXACT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("block", [1, 16])
def test_a_running_inverse_stays_true_over_many_batches(block: int, dtype: torch.dtype) -> None:
    """The running inverse also stays symmetric.

    Otherwise the asymmetry from rounding would double every 14 batches.
    After 400 batches nothing else would be left.
    """
    case = SolverCase(30, 9, 4, 0.2, dtype=dtype)
    solver, fishers = ShermanMorrison(forgetting=0.95, block=block), [*map(case.fisher, range(40))]
    blocks = [dense(fisher) for fisher in fishers]
    average = blocks[0]
    for batch in range(600):
        solver.factor(fishers[batch % 40], case.damping)
        average = 0.95 * average + 0.05 * blocks[batch % 40]
    expected = solve_dense(average, 0.2, case.gradient())
    assert error(solver.solve(case.gradient()), expected) < tolerance(dtype)


def test_where_alpha_changes_its_running_mean_damps() -> None:
    case, solver = SolverCase(20, 12, 4, 0.1), ShermanMorrison(forgetting=0.8, block=5)
    alphas = [0.1, 0.5, 0.02]
    for batch, alpha in enumerate(alphas):
        solver.factor(case.fisher(seed=batch), torch.tensor(alpha, dtype=case.dtype))
    mean = 0.8 * (0.8 * alphas[0] + 0.2 * alphas[1]) + 0.2 * alphas[2]
    average = running_average(case, 0.8, 3)
    assert error(solver.solve(case.gradient()), solve_dense(average, mean, case.gradient())) < EXACT
    assert (
        error(solver.solve(case.gradient()), solve_dense(average, alphas[2], case.gradient()))
        > 1e-2
    )


def test_a_running_inverse_that_does_not_fit_names_the_layer_and_the_way_out() -> None:
    case = SolverCase(20, 12, 4, 0.1)
    needed = ShermanMorrison().work(20, 12) * 4 * 8
    factored(ShermanMorrison(forgetting=0.9, max_bytes=needed), case)
    with pytest.raises(UserError) as raised:
        ShermanMorrison(forgetting=0.9, max_bytes=needed - 1).factor(
            case.fisher(name="generator.2"), case.damping
        )
    message = str(raised.value)
    for part in ("generator.2", "12", "solver.max_bytes", "solver.forgetting=0"):
        assert part in message
