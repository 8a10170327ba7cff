"""The page itself: HTML with everything in it, so that it opens without a network."""

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from plotly.offline import get_plotlyjs

from nws.analysis.figures import COLOURS
from nws.analysis.report.content import Entry, curves, entries
from nws.analysis.report.verdict import verdict
from nws.analysis.runs import LOG_LIKELIHOOD, Run, differing_keys, read_config, read_run
from nws.analysis.summaries import means_table
from nws.errors import UserError
from nws.experiment.storage.directory import RunDirectory, find_runs
from nws.files import write_atomically

IMAGES = 6  # of each kind and run, at most


@dataclass(frozen=True)
class Gallery:
    """The images of one kind: for each run that has some, its entry and their numbers there."""

    kind: str
    rows: list[tuple[Entry, list[int]]]

    @property
    def length(self) -> int:
        """The most images of a run."""
        return max(len(numbers) for _, numbers in self.rows)


def write_page(
    folders: Sequence[str | Path], path: Path, *, title: str | None = None, command: str,
    images: int = IMAGES,
) -> str:  # fmt: skip
    """Write a page on all runs at or below folders: verdict, table, curves, images, provenance.

    Args:
        folders: Run directories, or folders with runs below them.
        path: The file, .html.
        title: The heading; None: the names of the folders.
        command: The command that makes the page.
        images: How many of each kind and run it shows at most; 0: none.

    Returns:
        How many runs it shows, and the size of the file, for people.

    Raises:
        UserError: No run has an evaluation, a file of one is damaged, or the page cannot be
            written.
    """
    runs = every_run(folders)
    title = title or "Report on " + ", ".join(map(_heading, folders))
    content = render(runs, title, command, images).encode()
    write_atomically(path, content)
    return f"{len(runs)} run{'s' * (len(runs) > 1)}, {len(content) / 1e6:.1f} MB"


def _heading(folder: str | Path) -> str:
    """What a page calls a folder: its name, with that of the folder above where it is a time."""
    name, above = Path(folder).resolve().name, Path(folder).resolve().parent.name
    return name if name[:1].isalpha() else f"{above}/{name}"


def every_run(folders: Sequence[str | Path]) -> list[Run]:
    """All runs at or below folders, each once, also those without an evaluation."""
    paths = dict.fromkeys(path for folder in folders for path in find_runs(folder))
    there = [path for path in paths if RunDirectory(path).metrics.is_file()]
    if not there:
        names, when = ", ".join(map(str, folders)), "it is there after the first evaluation"
        raise UserError(f"no run at or below {names} has a metrics.csv yet: {when}")
    return [read_run(path) if path in there else read_config(path) for path in paths]


def render(runs: Sequence[Run], title: str, command: str, images: int) -> str:
    """Return the text of the page."""
    loader = PackageLoader("nws.analysis.report", ".")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    heads, found = entries(runs, images)
    values = [run.best.get(LOG_LIKELIHOOD, float("nan")) for run in runs]
    means = means_table(runs, values, differing_keys(runs), "best valid, nats")
    return environment.get_template("page.html").render(
        title=title, command=command, time=datetime.now().astimezone().isoformat(" ", "minutes"),
        sentences=verdict(runs), means=means, heads=heads, entries=found,
        galleries=galleries(found), colours=COLOURS, data=curves(runs), plotly=packed_plotly(),
        style=read("page.css"), script=read("page.js"),
    )  # fmt: skip


def galleries(found: Sequence[Entry]) -> list[Gallery]:
    """The images of all runs by their kinds, in the order in which runs have them."""
    kinds = dict.fromkeys(frame.kind for entry in found for frame in entry.frames)
    made = []
    for kind in kinds:
        rows = [
            (entry, [i for i, frame in enumerate(entry.frames) if frame.kind == kind])
            for entry in found
        ]
        made.append(Gallery(kind, [(entry, numbers) for entry, numbers in rows if numbers]))
    return made


def packed_plotly() -> str:
    """plotly.js, packed: base64 of gzip, less than half as long as itself."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def read(name: str) -> str:
    """A part of the page that stands in a file of its own."""
    return Path(__file__).with_name(name).read_text()
