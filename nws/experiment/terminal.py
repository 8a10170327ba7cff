"""A run on the terminal: a progress bar and a line for each evaluation."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

REDRAW_EVERY = 0.1  # seconds


class SpeedColumn(ProgressColumn):
    """Training steps a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.1f} steps/s", no_wrap=True)


class Terminal:
    """Lines and a progress bar, drawn between two steps and by no other thread.

    Nothing is written where the output is no terminal, or where `show` is off.

    Args:
        show: The option `progress`.
        step, total, per_epoch: Training steps taken so far, of the run, and of an epoch.
        epochs: Epochs of the run.
    """

    def __init__(self, show: bool, step: int, total: int, per_epoch: int, epochs: float) -> None:
        self.shown = show and sys.stdout.isatty()
        columns = [
            TextColumn(f"epoch {{task.fields[epoch]:.2f}}/{epochs:g}"), BarColumn(16),
            TimeRemainingColumn(), SpeedColumn(), TextColumn("{task.fields[bound]}"),
        ]  # fmt: skip
        self._bar = Progress(
            *columns, console=Console(highlight=False), auto_refresh=False, transient=True,
            disable=not self.shown,
        )  # fmt: skip
        self._per_epoch, self._drawn = per_epoch, 0.0
        self._task = self._bar.add_task(
            "", completed=step, total=total, epoch=step / per_epoch, bound=""
        )

    def advance(self, step: int) -> None:
        """Show that a step was taken."""
        if self.shown and time.monotonic() - self._drawn > REDRAW_EVERY:
            epoch = step / self._per_epoch
            self._bar.update(self._task, completed=step, epoch=epoch, refresh=True)
            self._drawn = time.monotonic()

    def show_bound(self, bound: float) -> None:
        """Show the training bound in nats from now on."""
        self._bar.update(self._task, bound=f"bound {bound:.2f} nats")

    def line(self, text: str) -> None:
        """Write a line above the bar."""
        if self.shown:
            self._bar.console.print(Text(text), soft_wrap=True)

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()
