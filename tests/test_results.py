"""Tables of docs/results show what the files of trials have."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT

RESULTS = ROOT / "docs" / "results"
ROUNDING = 0.055  # of one decimal place in tables, and of two in files
SETTINGS = ["digits", *(f"fashion_mnist_{batch}" for batch in (32, 128, 512)), "sbn", "bihm"]
#: Methods of published.md, and their refresh_every.
METHODS = {"WS, K = 10": 0, "WS": 0, "RWS": 0}
METHODS |= {"NRWS, exact": 1000, "NRWS, diagonal": 1, "NRWS, Kronecker": 20}


def tables(
    page: str, head: str, kind: Callable[[str], Any] = float
) -> list[dict[str, list[list[Any]]]]:
    """Of each table whose first cell is `head`, the numbers of its rows' cells by the first one."""
    found = []
    for block in (RESULTS / page).read_text().replace("*", "").split("\n\n"):
        lines = [[c.strip() for c in line.split("|")[1:-1]] for line in block.splitlines()]
        if lines and lines[0][:1] == [head]:
            found.append({
                name: [[kind(n) for n in re.findall(r"-?\d+\.?\d*", cell)] for cell in cells]
                for name, *cells in lines[2:]
            })  # fmt: skip
    return found


def test_where_the_rivals_end() -> None:
    trials = pd.read_csv(RESULTS / "trials" / "comparison.csv")
    (table,) = tables("rivals.md", "test")
    ends = trials[trials["test"].notna() & trials["note"].isna()].groupby(["method", "setting"])
    checked = 0
    for method, cells in table.items():
        for setting, cell in zip(SETTINGS, cells, strict=True):
            if method in set(trials["method"]):  # not the preset
                tests = ends.get_group((method, setting))["test"]
                assert len(tests) == 3, (method, setting)
                assert abs(cell[0] - tests.mean()) < ROUNDING, (method, setting)
                assert abs(cell[1] - tests.std()) < ROUNDING, (method, setting)
                checked += 1
    assert checked == 8 * len(SETTINGS)


def test_curves_at_published_settings() -> None:
    trials = pd.read_csv(RESULTS / "trials" / "published.csv")
    tests = pd.read_csv(RESULTS / "trials" / "published_test.csv")  # not of every run
    tests = tests.rename(columns={"test": "valid"}).assign(epoch=-1)
    trials = pd.concat([trials, tests]).fillna({"refresh_every": 0})
    checked = 0
    faces, others = tables("published.md", "method")
    (table,) = tables("published.md", "")  # ends by rate
    assert (len(faces), len(others), len(table)) == (9, 15, 6)
    for name, cells in [*faces.items(), *others.items()]:
        data = "tfd" if cells is faces.get(name) else "fashion_mnist"
        data = "binarized_mnist" if name.startswith("MNIST: ") else data
        method = next(m for m in METHODS if name.removeprefix("MNIST: ").startswith(m))
        optimizer, rate = ("NAdam", 0.001) if name.endswith("Nadam") else ("SGD", 0.005)
        keys = ["data", "method", "refresh_every", "optimizer", "rate"]
        case = trials[keys] == [data, method, METHODS[method], optimizer, rate]
        runs, seeds = trials[case.all(axis=1)], 3 if name.endswith("three seeds") else 1
        assert runs["seed"].nunique() == seeds, name
        for epoch, cell in zip((2, 10, 20, 50, -1), cells, strict=True):
            values = runs[(runs["epoch"] - epoch).abs() < 0.01]["valid"]
            if len(values) < seeds:
                assert epoch == -1, (name, epoch)
                continue
            checked += epoch == -1
            assert len(cell) == 0 or abs(cell[0] - values.mean()) < ROUNDING, (name, epoch)
            assert len(cell) < 2 or abs(cell[1] - values.std()) < ROUNDING, (name, epoch)
    assert checked == 14
    rates = [("SGD", 0.002), ("SGD", 0.005), ("NAdam", 0.0005), ("NAdam", 0.001), ("NAdam", 0.002)]
    ends = trials[trials["epoch"] == 50].groupby(["data", "method", "optimizer", "rate"])["valid"]
    for place, (name, cells) in enumerate(table.items()):
        data = ["tfd", "fashion_mnist", "binarized_mnist"][place // 2]
        case = data, "RWS" if name.endswith(": RWS") else "NRWS, Kronecker"
        for rate, cell in zip(rates, cells, strict=True):  # empty where it was not run
            end = ends.mean().get((*case, *rate))
            assert cell == ([] if end is None else [pytest.approx(end, abs=ROUNDING)]), name


def test_supervised_tasks() -> None:
    results = pd.read_csv(RESULTS / "natural_gradient.csv").set_index(["task", "method"])
    shown = tables("natural_gradient.md", "method", str)
    errors = ["test_error", "test_error_deviation"]
    cases = {"digits": errors, "fashion": errors, "autoencoder": ["test_loss_deviation"]}
    for (task, last), table in zip(cases.items(), shown, strict=True):
        columns = ["rate", "damping", "train_loss", "test_loss", *last, "cpu_seconds"]
        assert [*table] == [*results.loc[task].index]
        for method, cells in table.items():
            values = results.loc[(task, method), columns].dropna()
            for text, value in zip(itertools.chain(*cells), values, strict=True):
                half = ROUNDING * 10 ** (1 - len(text.partition(".")[2]))
                assert abs(float(text) - value) < half, (task, method, text)


def test_errors_of_convolutions_and_faces() -> None:
    results = pd.read_csv(RESULTS / "natural_gradient.csv").set_index(["task", "method"])
    (table,) = tables("natural_gradient.md", "errors, %")
    assert [*table] == ["SGD", "same", "other", "unlabelled"]
    columns = ["train_error", "test_error", "test_error_deviation"]
    for name, cells in table.items():
        method = "SGD, momentum 0.9" if name == "SGD" else f"natural, {name} batch"
        for task, (train, test) in {"convolutional": cells[:2], "faces": cells[2:]}.items():
            shown = [*train, *test]
            values = results.loc[(task, method), columns] if shown else []
            assert all(abs(a - b) < ROUNDING for a, b in zip(shown, values, strict=True)), name


def test_the_order_of_the_data() -> None:
    rows = pd.read_csv(RESULTS / "trials" / "data_order.csv")
    found = rows.groupby(["method", "lr"])["variance"].mean()
    page = (RESULTS / "natural_gradient.md").read_text()
    (sgd, twice), (natural, natural_twice) = found["sgd"], found["same"]
    assert f"the mean variance is {natural:.4f}, and {sgd:.4f} with SGD" in page
    assert all(6.5 < each < 8 for each in (twice / sgd, natural_twice / natural))
    assert "twice the rate has seven times the variance" in page
