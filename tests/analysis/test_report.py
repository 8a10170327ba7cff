"""scripts/report.py: one file with everything in it, and what it says, in Chromium too."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Command
from PIL import Image
from written import write_run

from nws.analysis.curves import group_runs
from nws.analysis.report.content import entries
from nws.analysis.report.page import packed_plotly
from nws.analysis.report.pictures import data_uri, frames, spread
from nws.analysis.runs import read_run

REPORT = "scripts/report.py"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


def write_image(run: Path, name: str, grey: int = 128, side: int = 40) -> Path:
    (run / "images").mkdir(exist_ok=True)
    path = run / "images" / f"{name}.png"
    Image.fromarray(np.full((side, side, 3), grey, np.uint8)).save(path)
    return path


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    """Two methods with three seeds each, one run that diverged and one that has just begun."""
    folder = tmp_path / "sweep"
    for number in range(6):
        name, seed = ("rws", "nrws")[number // 3], number % 3
        end = -25 + 2 * (number // 3) + 0.1 * seed
        rows = [(0, 0.0, -40.0), (1, 1.0 + number // 3, end - 1), (2, 2.0 + 2 * (number // 3), end)]
        run = write_run(folder, str(number), rows, name, seed=seed)
        facts = {
            "command": ["python", "train.py", f"seed={seed}"], "state": "finished", "host": "h",
            "device": "cpu", "processor": "P", "threads": 1, "torch": "2", "layers": [64, 8],
            "git": {"commit": "abc", "changed": True, "diff": "provenance.diff"},
        }  # fmt: skip
        (run / "provenance.json").write_text(json.dumps(facts))
        (run / "provenance.diff").write_text("+ a changed line <b>")
        for step in (10, 20):
            write_image(run, f"generated_step_{step:07d}", 10 * number + step)
    diverged = write_run(folder, "6", [(0, 0.0, -40.0), (1, 1.0, -9e9)], "rws", lr=9.0)
    (diverged / "provenance.json").write_text(json.dumps({"state": "diverged"}))
    begun = write_run(folder, "7", [], "rws", lr=0.5)
    (begun / "metrics.csv").unlink()
    (begun / "provenance.json").write_text(json.dumps({"state": "running"}))
    return folder


def page_of(command: Command, *arguments: str) -> str:
    outcome = command(REPORT, *arguments)
    assert outcome.code == 0 and outcome.err == "", outcome.err
    return Path(outcome.run).read_text()


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def words(page: str) -> str:
    """The page without scripts and tags, as people read it."""
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def test_all_is_in_the_page(command: Command, reported: Path) -> None:
    page = page_of(command, str(reported), "--output", str(reported / "page.html"))
    shown = words(page)
    assert "Report on sweep" in shown and "8 runs" in shown
    for text in ("diverged", "running", "python train.py seed=2", "64-8", "abc, changed"):
        assert text in shown, text
    assert "-22.80" in shown and "a changed line <b>" in shown
    views = data_of(page)["views"]
    assert {name: len(view["lines"]) for name, view in views.items()} == {"runs": 7, "methods": 3}
    curve = views["runs"]["columns"]["valid/log_likelihood"]
    assert curve["lines"][5]["seconds"] == {"x": [0, 2, 4], "y": [-40, -23.8, -22.8]}
    assert curve["range"][0] > -100 and "-9e+09" in "".join(curve["cut"])  # it flattens no other
    method = views["methods"]["columns"]["valid/log_likelihood"]["lines"][1]["epoch"]
    assert method["y"][-1] == pytest.approx(-22.9) and method["deviation"][-1] == pytest.approx(0.1)
    images = re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 12
    with Image.open(io.BytesIO(base64.b64decode(images[3]))) as image:
        assert image.convert("L").getpixel((5, 5)) == 30  # run 1, step 20


def test_its_command_can_be_typed_again(command: Command, reported: Path) -> None:
    path = reported / "page.html"
    for program, typed in (
        ([REPORT], f"python {ROOT / REPORT}"),
        (["nws", "report"], "nws report"),
    ):
        assert command(*program, str(reported), "--output", str(path)).code == 0
        assert f"<code>{typed} {reported} --output {path}</code>" in path.read_text()


def test_nothing_is_loaded(command: Command, reported: Path) -> None:
    """No address but those of data in the page; a policy forbids the browser any other."""
    page = page_of(command, str(reported), "--output", str(reported / "page.html"))
    assert "default-src 'none'" in page and packed_plotly() in page
    sources = re.findall(r'\s(?:src|href|srcset|action|data)="([^"]*)"', page)
    assert sources and all(each.startswith(("data:", "#")) for each in sources)
    assert not re.search(r"https?://|@import|url\(", page)


def test_hostile_names_are_text(command: Command, reported: Path) -> None:
    run = reported / "0"
    config = run / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("name: rws", f"name: {json.dumps(HOSTILE)}"))
    (run / "provenance.json").write_text(
        json.dumps({"command": ["python", HOSTILE], "host": HOSTILE})
    )
    write_image(run, "a'b<i>")
    page = page_of(command, str(reported), "--output", str(reported / "p.html"), "--title", HOSTILE)
    assert "<img src=x" not in page and "<i>" not in page
    # The scripts of the page are its own: data, colours, plotly, and the code.
    assert page.count("</script>") == page.count("<script") == 4
    assert words(page).count(HOSTILE) >= 4
    assert HOSTILE in json.dumps(data_of(page), ensure_ascii=False).replace('\\"', '"')


def test_what_is_no_report(command: Command, reported: Path, tmp_path: Path) -> None:
    cases = {
        (str(reported), "--output", "report.txt"): "--output must name an .html file",
        (str(reported), "--images", "-1"): "--images must be a whole number of at least 0",
        (str(reported / "7"),): "has a metrics.csv yet",
        (str(tmp_path / "none"),): "does not exist",
    }
    for arguments, expected in cases.items():
        assert expected in command(REPORT, *arguments).message()
    assert not list(tmp_path.glob("report*"))


def test_one_run_without_provenance_and_without_images(command: Command, tmp_path: Path) -> None:
    """A run of an earlier version; a file that is no image is left out."""
    run = write_run(tmp_path, "old", [(1, 1.0, -3.0)])
    write_image(run, "samples_seed_0")
    (run / "images" / "broken.png").write_bytes(b"no image")
    shown = words(page_of(command, "old"))
    assert "1 run," in shown and "Its command is unknown" in shown
    assert "rws, 1 seed: -3.00 nats" in shown and "samples seed 0" in shown
    assert "Images" not in words(page_of(command, "old", "--images", "0"))


def test_frames_are_spread_over_training(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", [(1, 1.0, -3.0), (2, 2.0, -2.0)])
    for step in range(10, 110, 10):
        write_image(run, f"generated_step_{step:07d}")
    found = frames(read_run(run), 4)
    assert [frame.step for frame in found] == [10, 40, 70, 100]
    assert found[0].caption == "step 10, epoch 1, -3.00 nats" and found[3].caption == "step 100"
    assert spread([1, 2, 3], 1) == [3]


def test_large_images_become_smaller(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", [])
    uri = data_uri(write_image(run, "large", side=1500))
    assert uri is not None
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        assert image.size == (640, 640)


def test_runs_have_names_of_their_own(tmp_path: Path) -> None:
    """Also where nothing but the directory tells them apart."""
    paths = [write_run(tmp_path, name, [(1, 1.0, -3.0)]) for name in ("a/0", "b/0", "b/1")]
    runs = [read_run(path) for path in paths]
    _, found = entries(runs, 0)
    assert len({entry.name for entry in found}) == 3 and len(group_runs(runs)) == 1
    assert {entry.group for entry in found} == {0}


def test_a_key_does_not_hide_a_column(tmp_path: Path) -> None:
    """trainer.epochs is called epochs; how far a run is stands in another column."""
    runs = [read_run(write_run(tmp_path, str(n), [(n, 1.0, -3.0)])) for n in (1, 2)]
    for run, epochs in zip(runs, (50, 60), strict=True):
        run.config["trainer.epochs"] = epochs
    heads, found = entries(runs, 0)
    assert len(set(heads)) == len(heads)
    shown = [dict(zip(heads, [cell.text for cell in entry.cells], strict=True)) for entry in found]
    assert [(each["epochs"], each["epochs done"]) for each in shown] == [("50", "1"), ("60", "2")]


# --- in a browser ---------------------------------------------------------------------------------


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")
def test_in_chromium(command: Command, reported: Path, tmp_path: Path) -> None:
    """The curves are drawn, a table is sorted, a line switched off, and no script fails."""
    path = tmp_path / "page.html"
    page = page_of(command, str(reported), "--output", str(path))
    probe = """
    addEventListener("error", (event) => { document.body.dataset.error = event.message; });
    const wait = setInterval(() => {
      if (!document.body.dataset.drawn) return;
      clearInterval(wait);
      const line = "#epoch .scatterlayer .trace path.js-line";
      const lines = () => document.querySelectorAll(line).length;
      const said = {drawn: document.body.dataset.drawn, methods: lines()};
      const view = document.getElementById("view");
      view.value = "runs";
      view.onchange();
      said.runs = lines();
      document.querySelector("#legend button").click();
      said.without_one = lines();
      const heading = [...document.querySelectorAll("#runs th")]
        .find((each) => each.textContent === "best valid, nats");
      heading.querySelector("button").click();
      const rows = [...document.querySelectorAll("#runs tbody tr")];
      said.order = rows.map((row) => row.cells[0].textContent);
      const slider = document.querySelector(".gallery input");
      slider.value = 0;
      slider.oninput();
      said.image = document.querySelector("figure img:not([hidden])").dataset.caption;
      document.body.dataset.said = JSON.stringify(said);
    }, 20);
    """
    path.write_text(page.replace("</body>", f"<script>{probe}</script></body>"))
    shown = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "data-error" not in shown and "data-failed" not in shown
    match = re.search(r'data-said="([^"]*)"', shown)
    assert match is not None, "the curves were not drawn"
    said = json.loads(html.unescape(match[1]))
    assert said["drawn"] == "valid/log_likelihood"
    assert said["runs"] == 7 and said["without_one"] == 6 and said["methods"] >= 3
    assert [row.rsplit("/")[-1] for row in said["order"]] == [
        "5",
        "4",
        "3",
        "2",
        "1",
        "0",
        "6",
        "7",
    ]
    assert said["image"].startswith("step 10")
