"""The cells of every notebook run, one after the other, as a kernel would run them."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_any_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()) or plt.close("all"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path, "code")):
        exec(compile("".join(cell["source"]), f"{path.name}, code {number}", "exec"), namespace)
    assert len(shown) >= 3 and "nats after 5 epochs" in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_output_and_is_small(path: Path) -> None:
    """So that it can be read where nothing runs; no error, and nothing of the machine it ran on."""
    text = path.read_text()
    assert len(text) < 250_000 and "Traceback" not in text and "/tmp/" not in text
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert text.count('"image/png"') >= 3
