"""Tables: in the terminal by rich, in reports as Markdown."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """A console on standard output; a file or a pipe gets lines as long as they need to be."""
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others, mostly numbers, to the right.

    In a narrow terminal cells take several lines, broken between words. No text is cut.
    """
    screen = console()
    gap = 2 if screen.width > 100 else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for head, cells in zip(heads, zip(*rows, strict=True), strict=True):
        words = [word for cell in (head, *cells) for word in cell.split()]
        if table.columns:
            table.add_column(head, justify="right", overflow="fold", min_width=max(map(len, words)))
        else:
            table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen.print(table, crop=False)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same in Markdown."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (heads, *rows)]
    lines.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
