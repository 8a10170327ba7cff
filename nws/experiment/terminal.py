"""A run on the terminal: a progress bar and a line for each evaluation."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

REDRAW_EVERY = 0.1  # seconds


def write_line(text: object) -> None:
    """Write a line to standard output as one piece, which parallel jobs may share.

    `print` writes the end of a line by itself where Python does not buffer its output.
    """
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class SpeedColumn(ProgressColumn):
    """Training steps a second."""

    def render(self, task: Task) -> Text:
        """The speed, as rich asks for it."""
        return Text(f"{task.speed or 0:.1f} steps/s", no_wrap=True)


class Terminal(Progress):
    """Lines and a progress bar, drawn between two steps and by no other thread.

    Nothing is written where the output is no terminal, or where `show` is off.
    """

    def __init__(self, show: bool, step: int, total: int, epochs: float) -> None:
        columns = (
            TextColumn(f"epoch {{task.fields[epoch]:.2f}}/{epochs:g}"), BarColumn(16),
            TimeRemainingColumn(), SpeedColumn(), TextColumn("{task.fields[bound]}"),
        )  # fmt: skip
        self.shown = show and sys.stdout.isatty()
        console, hidden = Console(highlight=False), not self.shown
        super().__init__(
            *columns, console=console, auto_refresh=False, transient=True, disable=hidden
        )
        self._drawn = 0.0
        self._bar = self.add_task("", completed=step, total=total, epoch=0.0, bound="")

    def show_step(self, step: int, epoch: float) -> None:
        """Show that a step was taken."""
        if self.shown and time.monotonic() - self._drawn > REDRAW_EVERY:
            self.update(self._bar, completed=step, epoch=epoch, refresh=True)
            self._drawn = time.monotonic()

    def show_bound(self, bound: float) -> None:
        """Show the training bound in nats from now on."""
        self.update(self._bar, bound=f"bound {bound:.2f} nats")

    def show_line(self, text: str) -> None:
        """Write a line above the bar."""
        if self.shown:
            self.console.print(Text(text), soft_wrap=True)
