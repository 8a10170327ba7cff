"""nws/analysis/summaries.py: means over seeds, and the end of a sweep."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from written import Make

from nws.analysis.runs import differing_keys, read_run
from nws.analysis.summaries import means_table, print_sweep, repeating, summaries


def test_means_are_over_the_runs_that_share_all_but_the_seed(make: Make) -> None:
    kinds = [("rws", 0), ("rws", 1), ("nrws", 0), ("nrws", 1), ("nrws", 2)]
    runs = [
        read_run(make(f"{place}", [(1, 1, -5)], algorithm, seed=seed))
        for place, (algorithm, seed) in enumerate(kinds)
    ]
    keys = differing_keys(runs)
    assert keys == ["algorithm.name", "seed"]
    found = summaries(runs, [-1.0, -4.0, -2.0, math.nan, -math.inf], keys)
    assert [(each.cells, each.mean, len(each.runs)) for each in found] == [
        (["rws"], -2.5, 2),
        (["nrws"], -2.0, 1),
    ]
    assert found[0].deviation == pytest.approx(3 / 2**0.5) and math.isnan(found[1].deviation)
    table = means_table(runs, [-1.0, -4.0, -2.0, math.nan, -math.inf], keys, "x")
    assert table is not None
    assert table[0][:2] == ["algorithm", "seeds"]
    assert table[1] == [["rws", "2", "-2.500 ± 2.121"], ["nrws", "1", "-2.000"]]
    assert means_table(runs[::3], [-1.0, -2.0], keys, "x") is None  # no seeds of one thing


def test_the_end_of_a_search(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, (lr, value) in enumerate([(0.1, -9), (0.3, -7), (0.2, -8)]):
        path = make(f"search/{job}", [(1, 1, value)], lr=lr)
        overrides = [f"optimizer.lr={lr}", "name=my own", "resume=auto", "hydra.x=1"]
        (path / "provenance.json").write_text(json.dumps({"overrides": overrides}))
    (make("search/3", [], lr=0.4) / "metrics.csv").unlink()
    (tmp_path / "search" / "optimization_results.yaml").touch()
    print_sweep(tmp_path / "search")
    out = capsys.readouterr().out
    assert re.findall(r"^ *(\d) +0\.", out, re.MULTILINE) == ["1", "2", "0", "3"]
    assert out.splitlines()[-8:] == [
        "best of 4 runs: lr 0.3: -7.000 nats",
        "repeat it with",
        "  nws train optimizer.lr=0.3 'name=my own'",  # pytest is none of the scripts
        "next:",
        *(f"  nws {program} {tmp_path / 'search'}" for program in ("evaluate", "plot", "report")),
        str(tmp_path / "search" / "1"),
    ]
    assert repeating(read_run(make("older", [(1, 1, -5)]))) is None
    print_sweep(tmp_path / "search" / "3" / "nothing")  # no run: nothing to print
    assert capsys.readouterr().out == ""
