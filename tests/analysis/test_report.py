"""scripts/report.py: one file with everything in it, and what it says, in Chromium too."""

import base64
import html
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Command
from PIL import Image
from written import write_run

from nws.analysis.report import entries
from nws.analysis.runs import read_run
from nws.experiment.pictures import save_png

REPORT = "scripts/report.py"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), "")
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


def write_image(run: Path, name: str, grey: int = 128) -> Path:
    path = run / "images" / f"{name}.png"
    save_png(torch.full((3, 40, 40), grey / 255), path, "a caption\nof two lines")
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
            "layers": [64, 8], "git": {"commit": "abc", "changed": True, "diff": "provenance.diff"},
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


def words(page: str) -> str:
    """The page without scripts and tags, as people read it."""
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def picture(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_all_is_in_the_page(command: Command, reported: Path) -> None:
    row = {"split": "test", "samples": 500, "data_points": 9, "checkpoint": "best", "step": 20,
           "log_likelihood": -20.5, "standard_error": 0.25, "ess": 9, "z_samples": 4000,
           "bits_per_dimension": 1, "log_p_star": -21, "log_p_star_standard_error": 1}  # fmt: skip
    rows = [row, row | {"step": 10, "samples": 7}]  # the second of an earlier checkpoint
    (reported / "4" / "evaluation.json").write_text(json.dumps(rows))
    page = page_of(command, str(reported), "--output", "page.html")
    shown = words(page)
    for text in (
        "sweep", "8 runs", "diverged", "running", "python train.py seed=2", "64-8", "abc, changed",
        "-22.800", "a changed line <b>", "nrws 0.1 3 -22.900 ± 0.100", "-20.50 ± 0.25 (low)",
        "log p (9 test images, K = 500, best)", "K = 500, best, 4,000 dreams)", "-21.00 ± 1.00",
    ):  # fmt: skip
        assert text in shown, text
    assert "K = 7," not in shown
    figures = figures_of(page)
    assert list(figures) == ["mean ± deviation over seeds", "each run"]
    runs = figures["each run"]["seconds"]["valid/log_likelihood"]
    assert len(runs["lines"]) == 7 and runs["lines"][5]["x"] == [0, 2, 4]
    assert runs["lines"][5]["mean"] == [-40, -23.8, -22.8]
    assert runs["range"][0] > -100 and "-9e+09" in runs["cut"]  # it flattens no other
    means = figures["mean ± deviation over seeds"]["epoch"]["valid/log_likelihood"]
    assert means["lines"][1]["mean"][-1] == pytest.approx(-22.9)
    assert means["lines"][1]["deviation"][-1] == pytest.approx(0.1)
    images = re.findall(r'<img src="([^"]+)"', page)
    assert len(images) == 12 and "generated_step_0000020" in shown
    with picture(images[3]) as image:  # run 1, step 20
        assert image.convert("L").getpixel((5, 5)) == 30
    typed = f"<code>python {ROOT / REPORT} {reported} --output page.html</code>"
    assert typed in page


def test_nothing_is_loaded_and_hostile_names_are_text(command: Command, reported: Path) -> None:
    """No address but those of data in the page; a policy forbids the browser any other."""
    config = reported / "0" / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("name: rws", f"name: {json.dumps(HOSTILE)}"))
    facts = {"command": ["python", HOSTILE], "host": HOSTILE}
    (reported / "0" / "provenance.json").write_text(json.dumps(facts))
    write_image(reported / "0", "a'b<i>")
    page = page_of(command, str(reported))
    assert "default-src 'none'" in page
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)  # without plotly, and the code
    sources = re.findall(r'\s(?:src|href|srcset|action|data)="([^"]*)"', own)
    assert sources and all(each.startswith(("data:", "#")) for each in sources)
    assert not re.search(r"https?://|@import|url\(", own)
    assert "<img src=x" not in page and "<i>" not in page
    # The scripts of the page are its own: figures, labels, colours, plotly, and the code.
    assert page.count("</script>") == 5 == len(re.findall(r"<script[ >]", own)) + 2
    assert words(page).count(HOSTILE) >= 3 and "{{7*7}}" in json.dumps(figures_of(page))


def test_what_is_no_report(command: Command, reported: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, expected in {
        (str(reported), "--output", "report.txt"): "--output must name an .html file",
        (str(reported), "--output", "file/a.html"): "is a file, expected a folder there",
        (str(reported / "7"),): "there are no rows, as before",
        (str(tmp_path / "none"),): "does not exist",
    }.items():
        assert expected in command(REPORT, *arguments).message()
    assert not list(tmp_path.glob("report*"))


def test_one_run_without_provenance(command: Command, tmp_path: Path) -> None:
    """A copy by `nws export`; files that have no end are left out."""
    run = write_run(tmp_path, "old", [(1, 1.0, -3.0)])
    write_image(run, "samples_seed_0")
    os.mkfifo(run / "images" / "pipe.png")
    shown = words(page_of(command, "old"))
    assert "1 run," in shown and "Its command is unknown" in shown and "samples_seed_0" in shown


def test_images_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", [(1, 1.0, -3.0)])
    for step in range(10, 120, 10):
        write_image(run, f"generated_step_{step:07d}", step)
    (entry,) = entries([read_run(run)])  # six: the first, the last, and between
    shown = [picture(uri) for uri, _ in entry["images"]["generated"]]
    assert [image.convert("L").getpixel((0, 0)) for image in shown] == [*range(10, 120, 20)]


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")
def test_in_chromium(command: Command, reported: Path, tmp_path: Path) -> None:
    """The curves are drawn, a table is sorted, and no script fails."""
    path = tmp_path / "page.html"
    page = page_of(command, str(reported), "--output", str(path))
    probe = """
    addEventListener("error", (event) => { document.body.dataset.error = event.message; });
    const wait = setInterval(() => {
      if (!document.body.dataset.drawn) return;
      clearInterval(wait);
      const heading = [...document.querySelectorAll("#runs th")]
        .findLast((each) => each.textContent === "best valid, nats");
      heading.firstChild.click();
      const rows = [...heading.closest("table").tBodies[0].rows];
      document.body.dataset.order = rows.map((row) => row.cells[0].textContent).join("");
    }, 20);
    """
    path.write_text(page.replace("</body>", f"<script>{probe}</script></body>"))
    shown = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "data-error" not in shown
    assert 'data-drawn="valid/log_likelihood"' in shown, "the curves were not drawn"
    assert 'data-order="60123457"' in shown  # without a value last


def test_damaged_files_are_left_out(command: Command, tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", [(1, 1.0, -3.0)])
    image = write_image(run, "generated_step_0000010")
    write_image(run, "generated_step_0000020")
    image.write_bytes(image.read_bytes()[:200])
    row = {"data_points": "nine", "samples": 3, "log_likelihood": -1, "standard_error": 1}
    for text, why in {
        '[{"data_points": 9,': "is not the list that evaluate.py writes",
        json.dumps([row | {"step": 10}]): "has rows of another kind",
    }.items():
        (run / "evaluation.json").write_text(text)
        outcome = command(REPORT, "run")
        assert outcome.code == 0 and outcome.err.count("warning: left out: ") == 2, outcome.err
        assert why in outcome.err and "generated_step_0000010.png is damaged" in outcome.err
        assert outcome.run.read_text().count('<img src="data:') == 1
