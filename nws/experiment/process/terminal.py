"""What a run says while it goes on: panels, lines and bars on a terminal, plain lines elsewhere."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from nws import distributed
from nws.errors import UserError
from nws.experiment.process.signals import announce

REDRAW_EVERY = 0.1  # seconds between two drawings of a bar
READ_EVERY = 1.0  # seconds between two looks at the bound, each of which waits for the device
SPEAK_EVERY = 60.0  # seconds without a line, at most, where there is no bar
VERBOSITY = ("normal", "quiet")

PanelLines = Sequence[tuple[str, str]]  # what each line of a panel is about, and what it says


def write_line(text: object) -> None:
    """Write a line to standard output as one piece, which parallel jobs may share.

    Of several processes of a run the first one does.
    `print` writes the end of a line by itself where Python does not buffer its output.
    """
    if distributed.is_first():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def short_path(path: Path) -> Path:
    """Return a path relative to the working directory where it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def silence_warnings() -> None:
    """Let nothing but errors come from the log to the terminal; train.log keeps everything."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and not hasattr(handler, "baseFilename"):
            handler.setLevel(logging.ERROR)


class Terminal:
    """What one run shows. It draws between two steps and in no other thread.

    Args:
        verbosity: `normal`, or `quiet` for nothing at all.
        progress: Whether there are bars, where the output is a terminal.
        job: The name of a job that shares the output with others. It stands before each line, and
            there are no bars.

    Raises:
        UserError: For another verbosity.
    """

    def __init__(
        self, verbosity: str = "normal", progress: bool = True, job: str | None = None
    ) -> None:
        if verbosity not in VERBOSITY:
            raise UserError(f"verbosity must be normal or quiet, got {verbosity!r}")
        self.speaks = verbosity == "normal" and distributed.is_first()
        self.is_terminal = sys.stdout.isatty() and job is None
        self.name = "" if job is None else f"[{job}] "
        self.console = Console(highlight=False)
        self.width = self.console.width - len(self.name) if sys.stdout.isatty() else None
        columns = (
            TextColumn("{task.description}", table_column=Column(no_wrap=True)), BarColumn(None),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        )  # fmt: skip
        self.bars = Progress(
            *columns, console=self.console, auto_refresh=False, transient=True, expand=True,
            disable=not (self.speaks and progress and self.is_terminal),
        )  # fmt: skip
        self._start(0, 1, 1.0)

    def line(self, text: str) -> None:
        """Write a line, above the bars where there are some."""
        if self.speaks and self.is_terminal:
            self.console.print(Text(text), soft_wrap=True)
        elif self.speaks:
            write_line(self.name + text)
        self._spoke = time.monotonic()

    def row(self, parts: Sequence[str]) -> None:
        """Write the parts of a line, on a terminal the first ones that fit into its width."""
        shown = [*parts]
        while self.width is not None and len("  ".join(shown)) > self.width and len(shown) > 1:
            shown.pop()
        self.line("  ".join(shown))

    def announce_stop(self, number: int) -> None:
        """Say that a signal stops the run; of several jobs at once the sweep says so."""
        if not self.name and distributed.is_first():
            announce("after this step or evaluation", number)

    def panel(self, title: str, rows: PanelLines, foot: str = "") -> None:
        """Show what a run is, or what became of it: a frame on a terminal, else plain lines."""
        if not (self.speaks and self.is_terminal):
            text = [f"{title} ({foot})" if foot else title]
            text += [f"  {label:10} {what}" for label, what in rows]
            self.line(f"\n{self.name}".join(text))  # one piece
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, what in rows:
            table.add_row(label, Text(what))
        frame = Panel(
            table, title=Text(title, "bold"), subtitle=Text(foot, "dim"), title_align="left",
            subtitle_align="right", expand=False,
        )  # fmt: skip
        self.console.print(frame)

    @contextmanager
    def training(self, step: int, total: int, epochs: float) -> Iterator["Terminal"]:
        """Show a bar while the run goes on from a step up to `total`, which is so many epochs."""
        self._start(step, total, epochs)
        with self.bars:
            self._bar = self.bars.add_task(f"epoch 0/{epochs:g}", total=total, note="")
            self.bars.update(self._bar, completed=step)
            yield self
        self.bars.remove_task(self._bar)

    def _start(self, step: int, total: int, epochs: float) -> None:
        self.first, self.total, self.epochs = step, total, epochs
        self._began = self._spoke = time.monotonic()
        self._drawn = self._read = -math.inf
        self._bound = ""

    def step(self, step: int, epoch: float, bound: Callable[[], float]) -> None:
        """Show that a step was taken; `bound` is the training bound in nats, which is read."""
        now = time.monotonic()
        if self.bars.disable:
            if self.speaks and now - self._spoke > SPEAK_EVERY:
                self._bound = f"  bound {bound():.2f} nats"
                head = f"epoch {epoch:.2f} of {self.epochs:g}  step {step} of {self.total}"
                self.line(f"{head}  {self._pace(step, now)}")
        elif step == self.first + 1 or now - self._drawn > REDRAW_EVERY:  # the first at once
            if step == self.first + 1 or now - self._read > READ_EVERY:
                self._bound, self._read = f"  bound {bound():.2f} nats", now
            self.bars.update(
                self._bar, completed=step, description=f"epoch {epoch:.2f}/{self.epochs:g}",
                note=self._pace(step, now), refresh=True,
            )  # fmt: skip
            self._drawn = now

    def _pace(self, step: int, now: float) -> str:
        """Return the time that is left, the time of a step, and the bound as it was read last."""
        each = (now - self._began) / max(1, step - self.first)
        left = timedelta(seconds=round(each * (self.total - step)))
        return f"{left} left  {1000 * each:.1f} ms/step{self._bound}"

    @contextmanager
    def evaluation(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar of an evaluation; the function takes the images done, and how many there are.

        Its time is not counted as training.
        """
        began = time.monotonic()
        bar = self.bars.add_task(what, total=1, note="")
        self.bars.refresh()

        def show(done: int, total: int) -> None:
            now = time.monotonic()
            text = f"{done:,} of {total:,} images"
            if self.bars.disable and self.speaks and now - self._spoke > SPEAK_EVERY:
                self.line(f"{what}: {text}")
            elif not self.bars.disable and now - self._drawn > REDRAW_EVERY:
                self.bars.update(bar, completed=done, total=total, note=text, refresh=True)
                self._drawn = now

        yield show
        self.bars.remove_task(bar)
        self._began += time.monotonic() - began
