"""Tables of docs/results show what the files of trials have."""

import re

import pandas as pd
from conftest import ROOT

RESULTS = ROOT / "docs" / "results"
ROUNDING = 0.055  # of one decimal place in tables, and of two in files
SETTINGS = ["digits", *(f"fashion_mnist_{batch}" for batch in (32, 128, 512)), "sbn", "bihm"]
#: Rows of published.md: data, method, optimizer, refresh_every.
PUBLISHED: dict[str, tuple[str, str, str, int]] = {
    "WS, three seeds": ("tfd", "WS", "SGD", 0),
    "RWS, three seeds": ("tfd", "RWS", "SGD", 0),
    "RWS, Nadam": ("tfd", "RWS", "NAdam", 0),
    "NRWS, exact, 1,000 steps old, two seeds": ("tfd", "NRWS, exact", "SGD", 1000),
    "NRWS, diagonal, fresh": ("tfd", "NRWS, diagonal", "SGD", 1),
    "NRWS, Kronecker, three seeds": ("tfd", "NRWS, Kronecker", "SGD", 20),
    "NRWS, Kronecker, Nadam": ("tfd", "NRWS, Kronecker", "NAdam", 20),
}
OTHER_DATA: dict[str, tuple[str, str, str, int]] = {
    "WS": ("fashion_mnist", "WS", "SGD", 0),
    "RWS": ("fashion_mnist", "RWS", "SGD", 0),
    "NRWS, exact, 1,000 steps old": ("fashion_mnist", "NRWS, exact", "SGD", 1000),
    "NRWS, Kronecker": ("fashion_mnist", "NRWS, Kronecker", "SGD", 20),
    "MNIST: WS": ("binarized_mnist", "WS", "SGD", 0),
    "MNIST: RWS": ("binarized_mnist", "RWS", "SGD", 0),
    "MNIST: NRWS, exact": ("binarized_mnist", "NRWS, exact", "SGD", 1000),
    "MNIST: NRWS, Kronecker": ("binarized_mnist", "NRWS, Kronecker", "SGD", 20),
}


def tables(page: str, head: str) -> list[dict[str, list[list[float]]]]:
    """Of each table whose first cell is `head`, the numbers of its rows' cells by the first one."""
    found = []
    for block in (RESULTS / page).read_text().replace("*", "").split("\n\n"):
        lines = [[c.strip() for c in line.split("|")[1:-1]] for line in block.splitlines()]
        if lines and lines[0][:1] == [head]:
            found.append({
                name: [[float(n) for n in re.findall(r"-?\d+\.?\d*", cell)] for cell in cells]
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
    trials = pd.read_csv(RESULTS / "trials" / "published.csv").fillna({"refresh_every": 0})
    first, second = tables("published.md", "method")
    lines = [*PUBLISHED.items(), *OTHER_DATA.items()]
    for (name, case), table in zip(lines, [first] * 7 + [second] * 8, strict=True):
        rate = 0.001 if case[2] == "NAdam" else 0.005
        keys = ["data", "method", "optimizer", "refresh_every", "rate"]
        runs = trials[(trials[keys] == [*case, rate]).all(axis=1)]
        seeds = {"two seeds": 2, "three seeds": 3}.get(name.rpartition(", ")[2], 1)
        assert runs["seed"].nunique() == seeds
        for epoch, cell in zip((2, 10, 20, 50), table[name], strict=False):
            values = runs[(runs["epoch"] - epoch).abs() < 0.01]["valid"]
            if cell:
                assert abs(cell[0] - values.mean()) < ROUNDING, (name, epoch)
            assert len(cell) < 2 or abs(cell[1] - values.std()) < ROUNDING, (name, epoch)
