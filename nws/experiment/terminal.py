"""What a run says while it goes on: panels, lines and bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from nws.experiment.callbacks.callback import Row, Trainer

LOOK_EVERY = 1.0  # seconds between two looks at the bound, each of which waits for the device
#: How a line shows the columns of metrics.csv that it has.
PARTS = {
    "epoch": "epoch {epoch:6.2f}",
    "step": "step {step:7d}",
    "valid/log_likelihood": "valid {valid/log_likelihood:8.3f} ± {valid/standard_error:.3f} nats",
    "train/log_likelihood": "bound {train/log_likelihood:8.3f}",
    "exact/kl": "KL {exact/kl:.3f}",
    "average/log_likelihood": "average {average/log_likelihood:8.3f}",
    "seconds": "{seconds:.1f} s",
    "train/ess": "ess {train/ess:.2f}",
    "valid/samples": "{valid/samples} samples",
}


def write_line(text: object) -> None:
    """Write a line to standard output as one piece, which parallel jobs may share."""
    print(f"{text}\n", end="", flush=True)


def short_path(path: Path) -> Path:
    """Return a path relative to the working directory where it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path != here and path.is_relative_to(here) else path


def duration(seconds: float) -> str:
    """Return a time in seconds, or from two minutes on as hours:minutes:seconds.

    Examples:
        >>> duration(12.34), duration(3723.2)
        ('12.3 s', '1:02:03')
    """
    return f"{seconds:.1f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def row_parts(row: Row) -> list[str]:
    """Return a row of metrics.csv for people, in parts, what matters most first."""
    return [text.format_map(row) for name, text in PARTS.items() if name in row]


class Terminal:
    """What one run shows: bars on a terminal; a `job` that shares it puts its name before lines."""

    def __init__(self, progress: bool = True, job: str | None = None, speaks: bool = True) -> None:
        self.speaks = speaks
        self.is_terminal = self.speaks and sys.stdout.isatty() and job is None
        self.name = "" if job is None else f"[{job}] "
        self.console = Console(highlight=False)
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(None), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"), console=self.console, transient=True, expand=True,
            disable=not (progress and self.is_terminal),
        )  # fmt: skip
        self._looked = time.monotonic()

    def line(self, text: str) -> None:
        """Write a line, above the bars where there are some."""
        if self.is_terminal:
            self.console.print(Text(text), soft_wrap=True)
        elif self.speaks:
            write_line(self.name + text)

    def row(self, row: Row) -> None:
        """Write a row of metrics.csv, on a terminal the first parts that fit into its width."""
        shown = row_parts(row)
        while self.is_terminal and len("  ".join(shown)) > self.console.width and len(shown) > 1:
            shown.pop()
        self.line("  ".join(shown))

    def panel(self, title: str, rows: Sequence[tuple[str, str]], foot: str = "") -> None:
        """Show what a run is, or what became of it: a frame on a terminal, else plain lines."""
        if not self.is_terminal:
            text = [f"{title} ({foot})" if foot else title]
            text += [f"  {label:10} {what}" for label, what in rows]
            self.line(f"\n{self.name}".join(text))  # one piece
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, what in rows:
            table.add_row(label, Text(what))
        self.console.print(Panel(
            table, title=Text(title, "bold"), subtitle=Text(foot, "dim"), title_align="left",
            subtitle_align="right", expand=False,
        ))  # fmt: skip

    @contextmanager
    def training(self, trainer: Trainer) -> Iterator[None]:
        """Show a bar while a run goes on."""
        with self.bars:
            total, step = trainer.total_steps, trainer.step
            self._bar = self.bars.add_task("training", total=total, completed=step, note="")
            yield
        self.bars.remove_task(self._bar)

    def step(self, trainer: Trainer) -> None:
        """Show on the bar that a step was taken; the bound is read from time to time."""
        if self.bars.disable:
            return
        head, now = f"epoch {trainer.epoch:.2f} of {trainer.settings.epochs:g}", time.monotonic()
        self.bars.update(self._bar, completed=trainer.step, description=head)
        if now - self._looked > LOOK_EVERY:
            self.bars.update(self._bar, note=f"bound {trainer.bound():.2f} nats")
            self._looked = now
