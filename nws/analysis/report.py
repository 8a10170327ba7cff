"""The report: one page on runs that opens in a browser without a network, `scripts/report.py`.

page.html is its template, with its script, and page.css its style.
"""

import base64
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image
from plotly.offline import get_plotlyjs

from nws.analysis.curves import Band, curve, group_runs, scale, with_column
from nws.analysis.evaluation import FILE, read_rows
from nws.analysis.figures import LABELS
from nws.analysis.keys import all_differences, differing_keys, value_text
from nws.analysis.likelihoods import LOW
from nws.analysis.runs import LOG_LIKELIHOOD, POSITION, Run, folder_names, frame
from nws.analysis.summaries import means_table, runs_table
from nws.analysis.tables import with_error
from nws.errors import UserError, explained
from nws.experiment.config import Mistakes, flatten
from nws.experiment.run import RunDirectory
from nws.files import read_bytes, read_text, write_atomically
from nws.models.likelihood import TRUSTED_ESS
from nws.style import COLOURS

IMAGES = 6  # of each kind and run, at most
MAX_DIFF = 100_000  # letters of a diff, of which the rest is left out
HIDDEN = ("command", "overrides", "pid", "best", "last", "git")  # of provenance.json
STEP = re.compile(r"_step_\d+$")


def write_report(runs: Sequence[Run], path: Path, *, title: str, command: str) -> list[str]:
    """Write an .html page on runs: tables, curves, images, provenance, the command that makes it.

    Returns what is damaged, and left out.
    """
    folder = Path(__file__).parent
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    keys, found = differing_keys(runs), entries(runs)
    table, evaluated = runs_table(runs, keys), pd.DataFrame([e["evaluations"] for e in found])
    links = enumerate(table["run"], 1)
    table["run"] = [Markup(f'<a href="#run-{n}">{escape(name)}</a>') for n, name in links]
    kinds = dict.fromkeys(kind for entry in found for kind in entry["images"])
    lengths = {kind: max(len(each["images"].get(kind, ())) for each in found) for kind in kinds}
    content = environment.from_string((folder / "page.html").read_text()).render(
        title=title, command=command, time=datetime.now().astimezone().isoformat(" ", "minutes"),
        means=means_table(runs, list(frame(runs)["best"]), keys, "best valid, nats"),
        table=pd.concat([table, evaluated.fillna(""), frame(runs)["host"]], axis=1),
        entries=found, kinds=lengths, figures=figures(runs), labels=LABELS,
        colours=COLOURS[:-1],  # the last, black, is for the page's ink
        style=Markup((folder / "page.css").read_text()), plotly=Markup(get_plotlyjs()),
    ).encode()  # fmt: skip
    write_atomically(path, content)
    return [text for entry in found for text in entry["damaged"]]


def _evaluations(run: Run) -> dict[str, str]:
    """The figures of a run's evaluation.json by what was asked for, of the present checkpoints."""
    rows, found = read_rows(run.path), {}
    with explained(f"{run.path / FILE} has rows of another kind"):
        for row in rows:
            checkpoint, weights = row.get("checkpoint"), row.get("weights", "plain")
            last = run.provenance.get("steps", run.last.get("step"))  # it may be between two rows
            step = last if checkpoint == "last" else run.best.get("step")
            if len(run.metrics) and row.get("step") != step:  # a copy has no rows
                continue
            asked = f"{row['data_points']:,} {row.get('split')} images, K = {row['samples']:,}"
            asked += f", seed {row.get('seed')}" * bool(row.get("seed"))
            asked += f", {checkpoint}" + f", {weights}" * (weights != "plain")
            value, ess = with_error(row["log_likelihood"], row["standard_error"], 2), row.get("ess")
            found[f"log p ({asked})"] = value + f" {LOW}" * (ess is not None and ess < TRUSTED_ESS)
            if "log_p_star" in row:
                pair = row["log_p_star"], row["log_p_star_standard_error"]
                dreams = f"{row['z_samples']:,} dreams"
                found[f"log p* ({asked}, {dreams})"] = with_error(*pair, digits=2)
    return found


def entries(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the page says of each run beside the tables and the curves."""
    names, unlike, found = group_runs(runs, "run"), set(all_differences(runs)), []
    for run, name, place in zip(runs, names, folder_names(runs), strict=True):
        mistakes = Mistakes()
        found.append({
            "name": name,
            "place": place,
            "command": shlex.join(map(str, run.provenance.get("command") or ())),
            "facts": _facts(run),
            "diff": _diff(run),
            "config": [(key, value_text(key, v), key in unlike) for key, v in run.config.items()],
            "evaluations": mistakes.attempt(_evaluations, run) or {},
            "images": _images(run, mistakes),
            "damaged": mistakes.texts,
        })  # fmt: skip
    return found


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = {key: value for key, value in run.provenance.items() if key not in HIDDEN}
    git = run.provenance.get("git") or {}
    if git:
        facts["commit"] = f"{git.get('commit')}{', changed since' * bool(git.get('changed'))}"
    if resumed := [each for each in facts.get("resumed", ()) if isinstance(each, dict)]:
        facts["resumed"] = ", ".join(f"step {e.get('step')} at {e.get('time')}" for e in resumed)
    flat = flatten(facts).items() if facts else ()
    return [(key.replace("_", " "), value_text(key, each)) for key, each in flat if each != []]


def _diff(run: Run) -> str:
    """What was changed in the code since its commit."""
    path = run.path / Path(str((run.provenance.get("git") or {}).get("diff"))).name
    with suppress(UserError):  # there was none, or it is gone
        return read_text(path)[:MAX_DIFF]
    return ""


def _images(run: Run, mistakes: Mistakes) -> dict[str, list[tuple[str, str]]]:
    """The PNGs of a run, some of each kind, the first, the last, and between: address and name."""
    kinds: dict[str, list[Path]] = {}
    for path in filter(Path.is_file, sorted(RunDirectory(run.path).images.glob("*.png"))):
        kinds.setdefault(STEP.sub("", path.stem).replace("_", " "), []).append(path)
    found = {}
    for kind, files in kinds.items():
        places = np.linspace(0, len(files) - 1, min(IMAGES, len(files))).round().astype(int)
        pairs = [(mistakes.attempt(_address, files[n]), files[n].stem) for n in places]
        if shown := [(address, name) for address, name in pairs if address]:
            found[kind] = shown
    return found


def _address(path: Path) -> str:
    """A PNG as the address of an image."""
    content = read_bytes(path)
    with explained(f"{path} is damaged"), Image.open(path) as picture:
        picture.verify()
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def figures(every: Sequence[Run]) -> dict[str, Any]:
    """What the page draws of each view, axis and column: lines, the range of y, what is cut."""
    runs = [run for run in every if len(run.metrics)]
    names = dict.fromkeys(name for run in runs for name in run.metrics.dropna(axis=1, how="all"))
    columns = sorted((n for n in names if n not in POSITION), key=lambda n: n != LOG_LIKELIHOOD)
    methods, alone = group_runs(runs), group_runs(runs, "run")
    numbers = {run.path: n for n, group in enumerate(methods.values()) for run in group}
    views = {"each run": alone}
    if len(methods) < len(runs):
        views = {"mean ± deviation over seeds": methods} | views
    return {
        view: {axis: {name: _figure(groups, axis, name, numbers) for name in columns}
               for axis in ("epoch", "seconds")}
        for view, groups in views.items()
    }  # fmt: skip


def _figure(
    groups: dict[str, list[Run]], axis: str, column: str, numbers: dict[Path, int]
) -> dict[str, Any]:
    bands: dict[str, Band] = {}
    for name, group in groups.items():
        with suppress(UserError):  # none of them has the column
            bands[name] = curve(with_column(group, column), axis, column)
    lines = [
        {"name": name, "method": numbers[groups[name][0].path], "x": band.index.tolist()}
        | band.to_dict("list")
        for name, band in bands.items()
    ]
    found = scale(bands, column)
    ends = None if found.low is None else [found.low, found.high]
    cut = "; ".join(f"{name} goes to {value:,.4g}" for name, value in found.cut.items())
    return {"lines": lines, "range": ends, "cut": cut}
