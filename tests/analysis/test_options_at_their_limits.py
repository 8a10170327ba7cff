"""Options and places that programs cannot use: one line, before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Command

from nws.errors import UserError
from nws.files import check_folder, check_writable, write_atomically

LONG = "99999999999999999999"
SEED = f"--seed must be a whole number below 2^63, got {LONG}"


@pytest.fixture
def run(train: Command) -> Path:
    return train("trainer.epochs=1").run


def test_options_of_programs(command: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file of the user's")
    (tmp_path / "folder.png").mkdir()
    place = "is a file, expected a folder there; choose another place"
    for line, message in {
        f"sample RUN --seed {LONG}": SEED,
        f"evaluate RUN --seed {LONG}": SEED,
        "sample RUN --output file/a/b.png": place,
        "sample RUN --output folder.png": "expected the name of a file to write, got the folder",
        "plot RUN --output file/a.png": place,
        "plot RUN --ymin nan": "--ymin must be a number that can be drawn, got nan",
        "plot RUN --ymax=-inf": "--ymax must be a number that can be drawn, got -inf",
        "report RUN --output file/a.html": place,
        "export RUN file/a": place,
        "reproduce three_by_three --quick --output file": place,
        "batch_sizes RUN --target nan": "--target must be a number of nats, got [nan]",
        "batch_sizes RUN --target 1 --output file/a.png": place,
    }.items():
        words = [str(run) if word == "RUN" else word for word in line.split()]
        assert message in command("nws", *words).message(), line
    for program in ("sample", "plot", "batch_sizes"):
        target = ["--target", "1"] if program == "batch_sizes" else []
        message = command("nws", program, str(run), *target, "--output", "").message()
        assert "name" in message and message.count("\n") == 1
    assert (tmp_path / "file").read_text() == "a file of the user's"
    assert sorted(path.name for path in run.iterdir()) == sorted(
        [".hydra", "checkpoints", "images", "metrics.csv", "provenance.json", "train.log"]
        + [path.name for path in run.glob("provenance.diff")]
    )


def test_a_title_that_is_no_formula_is_drawn_as_it_is(command: Command, run: Path) -> None:
    for number, title in enumerate((r"$\nosuch{$", "$", r"rate $\alpha$", "5 $ and 6 $", "")):
        output = f"{number}.png"
        drawn = command(
            "nws", "plot", str(run), "--title", title, "--label", title + "x", "--output", output
        )
        assert drawn.code == 0 and Path(output).is_file(), drawn.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--repeats 0", "--repeats must be a whole number of at least 2, got 0"),
        ("--repeats -3", "--repeats must be a whole number of at least 2, got -3"),
        ("--damping nan", "--damping must be a number above 0 and at most 1e+07, got nan"),
        ("--damping -1", "--damping must be a number above 0"),
        ("--accuracy 0", "--accuracy must be a number above 0 and at most 1, got 0"),
        ("--batch 0", "--batch must be a whole number of at least 1"),
        ("--threads -1", "--threads must be a whole number of at least 1"),
        ("--iterations 0", "--iterations must be a whole number of at least 1"),
        ("--layers 784", "--layers needs two sizes or more, got [784]"),
        ("--layers 784,0", "--layers must be a whole number of at least 1, got 0"),
        ("--visible -5", "--visible must be a whole number of at least 1, got -5"),
        ("--device tpu", "--device must be cpu or cuda, got tpu"),
    ],
)
def test_options_of_the_benchmark(command: Command, options: str, message: str) -> None:
    name, value = options.split()
    assert message in command("scripts/benchmark.py", "step", f"{name}={value}").message()


def test_places_for_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("good")
    check_writable(tmp_path / "new" / "folders" / "a.png")
    check_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for path in (Path(""), tmp_path):
        with pytest.raises(UserError, match="expected the name of a file to write, got"):
            check_writable(path)
        with pytest.raises(UserError, match="expected the name of a file to write, got"):
            write_atomically(path, b"")
    with pytest.raises(UserError, match="file is a file, expected a folder there"):
        check_writable(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written to; choose another place"):
        check_writable(tmp_path / "a.png")
    tmp_path.chmod(0o700)
