"""nws/analysis/figures.py: what a figure shows, and its files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from written import LL, Make

from nws.analysis.figures import draw, save
from nws.analysis.runs import read_run
from nws.errors import UserError


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


def test_every_entry_of_a_long_legend_is_whole(make: Make) -> None:
    rows = [(epoch, 2.0 * epoch, -10 / epoch) for epoch in range(1, 5)]
    for number, words in ((6, 3), (20, 3), (2, 60)):
        names = [f"{each}: " + "of a long name " * words for each in range(number)]
        groups = {name: [read_run(make(f"{number}/{name[:3]}", rows))] for name in names}
        files = draw(groups, LL)
        with Image.open(io.BytesIO(files["png"])) as image:
            grey = np.asarray(image.convert("L"))
        assert grey.shape[1] == 1360  # the legend grows downwards
        edge = np.concatenate([grey[:, :4].ravel(), grey[:, -4:].ravel(), grey[-4:].ravel()])
        assert edge.min() == 255  # nothing is cut at an edge
        text = files["svg"].decode()
        assert all(f">{each}: of a long name" in text for each in range(number))
        heights = grey.shape[0]
        assert heights > 580 + (number > 6) * 200  # 2.9 inches and more


def test_a_curve_that_is_cut_is_said_to_be(make: Make) -> None:
    rows = [(epoch, 2.0 * epoch, -200 + epoch) for epoch in range(1, 5)]
    groups = {
        "good": [read_run(make("good", rows))],
        "bad": [read_run(make("bad", [(1, 1, -300), (2, 2, -12_345)]))],
    }
    text = draw(groups, LL)["svg"].decode()
    assert ">good<" in text and ">bad, cut: goes to -12,345<" in text
    assert "cut" not in draw(groups, LL, ymin=-13_000)["svg"].decode()


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
