"""metrics.csv grows by rows, and comes back from the checkpoint where it was lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Command, Interrupt, assert_same_run, metrics

from nws.errors import UserError
from nws.experiment.storage.metrics_file import MetricsFile, restore_metrics


def test_metrics_grow_columns_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.write({"step": 1, "a": 0.1})
    kept = file.text()
    file.write({"step": 2, "a": 1 / 3, "b": 5})
    assert path.read_text() == file.text() == f"step,a,b\n1,0.1,\n2,{1 / 3!r},5\n"
    for rows in (kept, None):  # the row of step 2 came after the checkpoint
        again = restore_metrics(path, 1, rows)
        assert path.read_text() == file.text()  # nothing is wrong with it
        assert [int(row["step"]) for row in again.rows] == [1]
    again = restore_metrics(path, 1, kept)
    again.write({"step": 2, "a": 7})
    assert path.read_text() == "step,a\n1,0.1\n2,7\n"


LOST = {
    "missing": (None, "is missing"),
    "empty": (b"", "is not what the checkpoint knows"),
    "torn": (b"step,a\n1,0.1\n2,0.", "is not what the checkpoint knows"),
    "behind": (b"step,a\n1,0.1\n", "is not what the checkpoint knows"),
    "nonsense": (b"nonsense\n1\n", "is damaged"),
    "bytes": (b"step,a\n\xff\xfe\x00", "is damaged"),
}


@pytest.mark.parametrize(("content", "said"), LOST.values(), ids=LOST.keys())
def test_a_lost_file_is_written_again_from_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, said: str
) -> None:
    path = tmp_path / "metrics.csv"
    file = MetricsFile(path)
    file.write({"step": 1, "a": 0.1})
    file.write({"step": 2, "a": 0.25, "b": 3})
    whole = path.read_text()
    path.unlink() if content is None else path.write_bytes(content)
    assert restore_metrics(path, 2, file.text()).text() == path.read_text() == whole
    (record,) = caplog.records
    assert said in record.message and "rows up to step 2 are written again" in record.message


def test_a_checkpoint_without_rows_has_those_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.csv"
    assert restore_metrics(path, 1, None).rows == []
    assert "is missing: its rows up to step 1 are lost" in caplog.text
    path.write_text("nonsense\n1\n")
    with pytest.raises(UserError, match="expected a column step of whole numbers"):
        restore_metrics(path, 1, None)


AUTO = (*SMALL, "hydra.run.dir=run", "resume=auto")


@pytest.mark.parametrize("again", [("resume=run",), AUTO], ids=["named", "auto"])
def test_a_run_goes_on_without_its_metrics(
    train: Command, interrupt: Interrupt, again: tuple[str, ...]
) -> None:
    whole = train("hydra.run.dir=whole").run
    interrupt(9, signal.SIGTERM)
    run = train("hydra.run.dir=run").run
    (run / "metrics.csv").unlink()
    outcome = train(*again)
    assert "metrics.csv is missing: its rows up to step 9 are written again" in outcome.err
    assert_same_run(whole, run)
    (run / "metrics.csv").write_text("")  # of a run that is finished
    assert "are written again" in train(*again).err
    assert metrics(run, start=True) == metrics(whole, start=True)


def test_rows_in_a_checkpoint_are_those_of_its_time(train: Command) -> None:
    run = train("hydra.run.dir=run").run
    state = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    assert state["rows"] == (run / "metrics.csv").read_text()
