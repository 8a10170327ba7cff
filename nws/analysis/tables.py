"""Tables on standard output, by rich."""

import re
import sys

import pandas as pd
from rich.console import Console
from rich.table import Table

NUMBER = re.compile(r"\W?\d|$|-$|nan$")  # how a cell of a column of numbers starts


def show(cells: pd.DataFrame) -> None:
    """Print a table of texts: columns of numbers to the right, others to the left, none cut."""
    width = None if sys.stdout.isatty() else 10_000  # of a file or a pipe: as wide as need be
    screen = Console(width=width, markup=False, highlight=False, emoji=False)
    cells = cells.astype(str)
    gap = 2 if screen.width > 100 else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for place, name in enumerate(cells):
        numeric = all(map(NUMBER.match, cells.iloc[:, place]))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells.itertuples(index=False):
        table.add_row(*map(str, row))
    screen.print(table, crop=False)


def with_error(value: float, error: float | None = None, digits: int = 3) -> str:
    """A value ± its error, where it has one; empty for a value that is none."""
    if pd.isna(value):
        return ""
    return f"{value:,.{digits}f}" + ("" if pd.isna(error) else f" ± {error:,.{digits}f}")
