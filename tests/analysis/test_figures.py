"""nws/analysis/figures.py: what a figure shows, and its files."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from written import LL, Make, write_run

from nws.analysis.figures import draw, save
from nws.analysis.runs import read_run
from nws.errors import UserError


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("a/0", [(epoch, seconds, value), ...], seed=1, ...): a run directory."""
    return partial(write_run, tmp_path)


def test_the_figure(make: Make, tmp_path: Path) -> None:
    rows = [(epoch, 2.0 * epoch, -10 / epoch) for epoch in range(1, 5)]
    groups = {
        "mine": [read_run(make(f"a/{seed}", rows, seed=seed)) for seed in range(3)],
        "theirs": [read_run(make("b", rows, "nrws"))],
    }
    files = draw(groups, LL, title="A title", ymin=-12, ymax=0)
    text = files["svg"].decode()
    for expected in (
        "epochs",
        "training seconds",
        "log-likelihood (nats)",
        "50 importance samples",
        "A title",
    ):
        assert f"{expected}</text>" in text, expected
    assert ">mine (3 seeds)<" in text and ">theirs (1 seed)<" in text
    assert "#0072b2" in text and "#d55e00" in text and "dc:date" not in text
    assert draw(groups, LL, title="A title", ymin=-12, ymax=0) == files
    assert draw(groups, LL, title="Another", ymin=-12, ymax=0) != files
    with Image.open(io.BytesIO(files["png"])) as image:
        assert image.format == "PNG" and image.width == 1360 and round(image.info["dpi"][0]) == 200
    for name in ("x.png", "x.svg", "x"):
        assert save(files, tmp_path / name) == [tmp_path / "x.png", tmp_path / "x.svg"]
    assert (tmp_path / "x.svg").read_bytes() == files["svg"] and (
        tmp_path / "x.png"
    ).read_bytes() == files["png"]


def test_axes_that_cannot_be(make: Make, tmp_path: Path) -> None:
    groups = {"a": [read_run(make("a", [(1, 1, -8)]))]}
    with pytest.raises(
        UserError, match="needs values above 0, valid/log_likelihood goes down to -8"
    ):
        draw(groups, LL, log=True)
    assert draw(groups, "seconds", log=True, log_x=True)
    with pytest.raises(UserError, match="--ymin must be below --ymax, got 2 and 1"):
        draw(groups, LL, ymin=2, ymax=1)
    with pytest.raises(UserError, match="--ymin must be above 0"):
        draw(groups, "seconds", log=True, ymin=0)
    with pytest.raises(UserError, match=r"got x\.pdf"):
        save({}, tmp_path / "x.pdf")
