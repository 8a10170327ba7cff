"""examples/data_order.py: what is replaced, which rates are compared, and the variances."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_order import DRAWS, Stream, compare, figure, matched, measure, outputs, summary
from supervised.methods import Settings
from supervised.tasks import TASKS

PARTS, REPLACED, SIZE = 5, 3, 4  # fewer parts than the program has, of few images


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Digits in order; the other draws are of random pixels."""
    monkeypatch.setattr("data_order.REPLACED", REPLACED)
    task = TASKS["digits"](tmp_path)
    inputs, targets = (each[: PARTS * SIZE] for each in task.train)
    rng = torch.Generator().manual_seed(0)
    others = torch.rand(REPLACED, DRAWS, SIZE, 64, generator=rng)
    labels = torch.randint(10, (REPLACED, DRAWS, SIZE), generator=rng)
    test = task.test[0][:20], task.test[1][:20]
    task = replace(task, train=(inputs, targets), test=test, sizes=(64, 6, 10), batch=SIZE)
    return Stream(task, (others, labels))


def test_one_part_is_replaced_and_the_rest_stays(stream: Stream) -> None:
    changed = stream.replaced(2, 1)
    for whole, before, others in zip(changed.train, stream.task.train, stream.others, strict=True):
        parts = zip(whole.split(SIZE), before.split(SIZE), strict=True)
        assert [k for k, (new, old) in enumerate(parts) if not torch.equal(new, old)] == [2]
        assert torch.equal(whole.split(SIZE)[2], others[2, 1])


def test_the_variance_is_between_the_draws_of_a_part(stream: Stream) -> None:
    """Against numpy, a run at a time; draws that are the same have none."""
    settings = Settings("same", 0.2, 0.1, 0)
    rows = measure(stream, settings)
    runs = [outputs(stream.replaced(1, draw), settings).numpy() for draw in range(DRAWS)]
    expected = np.mean([np.var(each, axis=0, ddof=1).sum() for each in np.swapaxes(runs, 0, 1)])
    assert rows["part"].tolist() == list(range(1, REPLACED + 1))
    assert rows["variance"][1] == pytest.approx(expected, rel=1e-4)
    same = [each[:, :1].expand_as(each) for each in stream.others]
    still = measure(Stream(stream.task, (same[0], same[1])), settings)
    assert (still["variance"] == 0).all() and (rows["variance"] > 1e-8).all()


def test_rates_are_of_equal_error() -> None:
    """Of each method the smallest within half a percent of the worse one's best, 20 %."""
    errors = {"sgd": [90.0, 20, 20.4, 20.6], "same": [22.0, 10, 15, 20.5, 40]}
    assert matched(errors) == {"sgd": 2, "same": 3}


def test_a_comparison_is_table_and_figure(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_order.RATES", [0.4, 0.3, 0.2])
    monkeypatch.setattr("data_order.SLACK", 100.0)
    rows = compare(stream, 1)
    assert len(rows) == 4 * REPLACED and rows["variance"].gt(0).all()
    assert summary(rows)["rate"].tolist() == ["0.2", "0.4"] * 2
    assert len(figure(rows).axes[0].lines) == 4
