"""Tables of docs/results show what the files of trials have."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

RESULTS = ROOT / "docs" / "results"
ROUNDING = 0.055  # of one decimal place in tables, and of two in files
SETTINGS = ["digits", *(f"fashion_mnist_{batch}" for batch in (32, 128, 512)), "sbn", "bihm"]
#: Methods of published.md, and their refresh_every.
METHODS = {"WS, K = 10": 0, "WS": 0, "RWS": 0, "NRWS, diagonal": 1, "NRWS, Kronecker": 20}
METHODS |= {"NRWS, exact, fresh": 1, "NRWS, exact": 1000}
DATA = {"Faces": "tfd", "Fashion-MNIST": "fashion_mnist", "MNIST": "binarized_mnist"}
SGD, NADAM = ("SGD", 0.005), ("NAdam", 0.001)


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


def published_runs() -> pd.DataFrame:
    """Rows by data, method, refresh_every, optimizer, rate and epoch, of which -1 is the test."""
    runs, tests = (pd.read_csv(RESULTS / f"trials/published{end}.csv") for end in ("", "_test"))
    tests = tests.rename(columns={"test": "valid"}).assign(epoch=-1)
    runs = pd.concat([runs, tests]).fillna({"refresh_every": 0}).round({"epoch": 0})
    keys = ["data", "method", "refresh_every", "optimizer", "rate", "epoch"]
    return runs.set_index(keys).sort_index()


def test_curves_at_published_settings() -> None:
    runs, checked = published_runs(), 0
    faces, others = tables("published.md", "method")
    assert (len(faces), len(others)) == (9, 18)
    for name, cells in ({f"Faces: {name}": each for name, each in faces.items()} | others).items():
        data, _, rest = name.rpartition(": ")
        method = next(each for each in METHODS if rest.startswith(each))
        case = method.removesuffix(", fresh"), METHODS[method], *(NADAM if "Nadam" in name else SGD)
        mine = runs.loc[(DATA[data or "Fashion-MNIST"], *case)]
        seeds = mine["seed"].nunique()
        assert seeds == (3 if name.endswith("three seeds") else 1), name
        for epoch, cell in zip((2, 10, 20, 50, -1), cells, strict=True):
            values = mine.loc[mine.index == epoch, "valid"]
            assert len(values) == seeds or (len(values) < seeds and epoch == -1), (name, epoch)
            if len(values) == seeds:
                checked += epoch == -1
                pairs = zip(cell, (values.mean(), values.std()), strict=False)
                assert all(abs(a - b) < ROUNDING for a, b in pairs), (name, epoch)
    assert checked == 17


def test_ends_by_rate() -> None:
    runs, (table,) = published_runs().xs(50, level="epoch"), tables("published.md", "")
    ends = runs.groupby(level=runs.index.names)["valid"].mean()
    rates = [("SGD", 0.002), SGD, ("NAdam", 0.0005), NADAM, ("NAdam", 0.002)]
    assert len(table) == 7
    for name, cells in table.items():
        data, method = name.split(": ")
        for rate, cell in zip(rates, cells, strict=True):  # empty where it was not run
            end = ends.get((DATA[data], method, METHODS[method], *rate))
            assert cell == ([] if end is None else [pytest.approx(end, abs=ROUNDING)]), name


def test_sentences_at_published_settings() -> None:
    """When methods come to the end of RWS, and what the age of the inverses costs on the faces."""
    runs, page = published_runs(), (RESULTS / "published.md").read_text()
    curves = runs.groupby(level=runs.index.names)[["valid", "seconds"]].mean()
    cases = ("NRWS, Kronecker", 20, *SGD), ("RWS", 0, *NADAM), ("NRWS, exact", 1000, *SGD)
    cases = ("NRWS, Kronecker", 20, *NADAM), *cases
    times = []
    for data in DATA.values():
        rws, *mine = (curves.loc[(data, *case)].loc[1:] for case in (("RWS", 0, *SGD), *cases))
        end, total = rws.iloc[-1]
        times.append([np.interp(end, each.valid.cummax(), each.seconds) for each in mine] + [total])
    words = "end in {:.0f} s. RWS with Nadam needs {:.0f} s, exact {:.0f} s, RWS itself {:.0f} s"
    assert words.format(*times[0][1:]) in page
    shares = (100 * np.array(times[1:]) / [each[-1:] for each in times[1:]]).T
    assert "is at RWS's end in {:.0f} and {:.0f} % of its time".format(*shares[1]) in page
    nadam = "RWS is there in {:.0f} and {:.0f} %, Kronecker in {:.0f} and {:.0f} %"
    assert nadam.format(*shares[2], *shares[0]) in page
    ages = [curves.loc[("tfd", "NRWS, exact", age, *SGD), "valid"] for age in (1, 10, 100, 1000)]
    for epoch, words in (2, "NRWS is at"), (20, "after 20 epochs at"):
        found = "{:.1f}, {:.1f}, {:.1f} and {:.1f}".format(*(each[epoch] for each in ages))
        assert f"{words} {found}" in page


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
