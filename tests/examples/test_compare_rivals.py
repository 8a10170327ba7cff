"""examples/rivals.py: how rates are searched, and a comparison of runs that a test writes."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import rivals
from conftest import composed
from omegaconf import OmegaConf
from written import write_run

from nws.errors import UserError

EVALUATED = {"log_likelihood": -7.125, "standard_error": 1.0, "samples": 1, "data_points": 1}
BEST = {"RWS, Adam": 0.05, "NRWS, Kronecker": 0.3}  # rates, of runs whose other choice is worse


@pytest.mark.parametrize(("peak", "tried"), [(0, 7), (-3, 8), (6, 11), (-8, 13)])
def test_a_search_ends_where_both_neighbours_are_worse(peak: int, tried: int) -> None:
    """Of a likelihood with its maximum at some place, where high rates diverge."""
    seen: list[int] = []

    def attempt(places: list[int]) -> list[float]:
        seen.extend(places)
        return [-math.inf if place > 7 else -float(abs(place - peak)) for place in places]

    assert rivals.search(attempt, [*range(-3, 4)]) == (peak, 0.0)
    assert len(seen) == len(set(seen)) == tried and {peak - 1, peak + 1} <= {*seen}
    assert rivals.search(lambda places: [-math.inf] * len(places), [0, 1])[1] == -math.inf


def pretend(arguments: list[str], **options: object) -> SimpleNamespace:
    """Write what a program would leave: likelihoods that fall away from the best rate."""
    if arguments[3] == "evaluate":
        for path in Path(arguments[4]).glob("*/metrics.csv"):
            path.with_name("evaluation.json").write_text(json.dumps([EVALUATED]))
        return SimpleNamespace(returncode=0)
    lists = ("optimizer.lr=", "seed=")
    given = dict(word.split("=", 1) for word in arguments[5:] if word.startswith(lists))
    rest = [word for word in arguments[5:] if not word.startswith((*lists, "hydra."))]
    place = next(Path(word.split("=")[1]) for word in arguments if word.startswith("hydra.sweep"))
    runs = [(rate, seed) for rate in given["optimizer.lr"].split(",") for seed in
            given.get("seed", "0").split(",")]  # fmt: skip
    for number, (rate, seed) in enumerate(runs):
        config = composed(*rest, f"optimizer.lr={rate}", f"seed={seed}")  # they are options
        other = config.optimizer.get("betas") == [0.95, 0.95] or config.damping.value == 0.1
        best = BEST["NRWS, Kronecker" if config.algorithm.name == "nrws" else "RWS, Adam"]
        value = -9 - abs(math.log(float(rate) / best)) - other
        path = write_run(place, str(number), [(10 * k, k, value - 10 + k) for k in range(11)])
        (path / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=False))
        (path / "provenance.json").write_text(json.dumps({"state": "finished"}))
    return SimpleNamespace(returncode=0)


def test_a_comparison_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rivals, "subprocess", SimpleNamespace(run=pretend))
    monkeypatch.setattr(sys, "argv", ["rivals.py", "digits", "--methods", *BEST])
    rivals.main()
    table = pd.read_csv("rivals/digits/trials.csv")
    for method, best in BEST.items():
        rows = table[table["method"] == method]
        seeds, trials = rows[rows["test"].notna()], rows[rows["test"].isna()]
        nearest = trials.rate.iloc[(trials.rate / best).map(math.log).abs().argmin()]
        assert len(trials) >= 8 and trials["choice"].nunique() == 2
        assert seeds.seed.tolist() == [0, 1, 2] and {*seeds.rate} == {nearest}
        assert {*seeds.test} == {-7.12} and (seeds.valid_1 - seeds["valid_0.5"] == 5).all()


def test_overrides_have_a_folder_of_their_own_and_what_diverged_no_part_in_a_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rivals, "subprocess", SimpleNamespace(run=pretend))
    arguments = ["digits", "damping.value=0.3", "--methods", "RWS, Adam"]
    monkeypatch.setattr(sys, "argv", ["rivals.py", *arguments])
    rivals.main()
    (place,) = Path("rivals").iterdir()
    assert place.name == "digits_damping.value_0.3" and " 3\n" in capsys.readouterr().out
    (place / "rws_muon").mkdir()  # of a method that could not start
    ended = place / "rws_adam/seeds/2/provenance.json"
    ended.write_text(json.dumps({"state": "diverged"}))
    rivals.report(place)
    assert " 2\n" in capsys.readouterr().out


def test_a_refused_sweep_has_not_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have status 1; other runs that lie there are not taken for the new ones."""
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr(rivals, "subprocess", SimpleNamespace(run=lambda *given, **_: done))
    write_run(tmp_path / "sweep", "0", [(0, 0, -9.0), (1, 1, -8.0)])
    state = tmp_path / "sweep" / "0" / "provenance.json"
    what = rivals.SETTINGS["digits"], rivals.METHODS["RWS, Adam"]
    compared = rivals.Comparison(tmp_path, *what, [])
    for name, done.returncode in (("finished", 0), ("diverged", 1)):
        state.write_text(json.dumps({"state": name}))
        assert [run.state for run in compared.train("sweep", "", 1)] == [name]
    state.write_text(json.dumps({"state": "finished"}))
    with pytest.raises(UserError, match="log says why"):
        compared.train("sweep", "", 1)


@pytest.mark.parametrize(("program", "code"), [("train", 130), ("evaluate", 1)])
def test_a_program_that_ends_early_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: int
) -> None:
    def run(arguments: list[str], **options: object) -> SimpleNamespace:
        started.append(arguments[3])
        done = pretend(arguments)
        return SimpleNamespace(returncode=code) if arguments[3] == program else done

    started: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rivals, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(sys, "argv", ["rivals.py", "digits", "--methods", *BEST])
    with pytest.raises(UserError, match=f"{program} ended with status {code}; .*log says why"):
        rivals.main()
    assert started.count(program) == 1 and not Path("rivals/digits/trials.csv").exists()
