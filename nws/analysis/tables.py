"""Tables: in the terminal by rich, in reports as Markdown."""

import re
import sys
from collections.abc import Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table

NUMBER = re.compile(r"\W?\d|$|-$|nan$")  # how a cell of a column of numbers starts


def console() -> Console:
    """A console on standard output; a file or a pipe gets lines as long as they need to be."""
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: columns of numbers to the right, others to the left.

    In a narrow terminal cells take several lines, broken between words. No text is cut.
    """
    screen = console()
    gap = _gap(screen)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    rest = sum(natural_widths(heads, rows, gap)[1:])
    rows = [[broken(row[0], screen.width - rest), *row[1:]] for row in rows]
    for head, cells in zip(heads, zip(*rows, strict=True), strict=True):
        justify: JustifyMethod = "right" if all(map(NUMBER.match, cells)) else "left"
        words = [word for cell in (head, *cells) for word in cell.split()]
        table.add_column(
            head, justify=justify, overflow="fold", min_width=max(map(len, words), default=1)
        )
    for row in rows:
        table.add_row(*row)
    screen.print(table, crop=False)


def natural_widths(heads: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> list[int]:
    """The widths of columns whose cells take one line, each with the gap beside it."""
    columns = zip(heads, *rows, strict=True)
    return [max(map(len, column)) + gap for column in columns]


def fits(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table fits standard output, with the paths of its first column broken alone."""
    screen = console()
    parts = [[max(row[0].split("/"), key=len) + "/", *row[1:]] for row in rows]
    return sum(natural_widths(heads, parts, _gap(screen))) <= screen.width


def _gap(screen: Console) -> int:
    """The spaces between columns."""
    return 2 if screen.width > 100 else 1


def broken(path: str, width: int) -> str:
    """A path on several lines, broken after slashes, where it is wider than its column."""
    lines = [""]
    for part in re.split(r"(?<=/)", path):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same in Markdown."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (heads, *rows)]
    lines.insert(1, ["---"] * len(heads))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
