"""metrics.csv: the rows of a run's evaluations, which its checkpoints have too."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nws import distributed
from nws.errors import UserError
from nws.files import write_atomically

log = logging.getLogger(__name__)

Row = dict[str, float]  # a row of metrics.csv
CsvRows = Sequence[Mapping[str, Any]]


class MetricsFile:
    """metrics.csv: a row for each evaluation. It is written again as a whole, so it is never torn.

    Args:
        path: The file.
        rows: Those before the first one that will be written.
    """

    def __init__(self, path: Path, rows: CsvRows = ()) -> None:
        self.path = path
        self.rows: list[Mapping[str, Any]] = list(rows)

    def write(self, row: Row) -> None:
        """Add a row. Of several processes the first one writes the file."""
        self.rows.append(row)
        if distributed.is_first():
            write_atomically(self.path, self.text().encode())

    def text(self) -> str:
        """Return the rows as the file has them."""
        newest_first = reversed(self.rows)  # the row of step 0 has no columns of training
        columns = list(dict.fromkeys(name for each in newest_first for name in each))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


def restore_metrics(path: Path, step: int, kept: str | None) -> MetricsFile:
    """Return metrics.csv of a run that goes on from a checkpoint, without the rows after it.

    Where the file is missing, damaged or behind, it is written again from the checkpoint, and a
    line says so.

    Args:
        path: The file.
        step: That of the checkpoint.
        kept: The rows in the checkpoint, as text; None for one of a run that kept none.

    Raises:
        UserError: The file is damaged and the checkpoint has no rows.
    """
    try:
        found = [row for row in _parse(path.read_text()) if int(row["step"]) <= step]
        state, reason = "is not what the checkpoint knows", ""
    except FileNotFoundError:
        found, state, reason = [], "is missing", ""
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        found, state, reason = [], "is damaged", repr(error)
    if kept is None:
        if reason:
            raise UserError(
                f"{path} cannot be read: expected a column step of whole numbers ({reason});"
                " move it away to go on"
            )
        if not found:
            log.warning(f"{path} {state}: its rows up to step {step} are lost")
        return MetricsFile(path, found)
    rows = _parse(kept)
    if _filled(found) != _filled(rows):
        log.warning(f"{path} {state}: its rows up to step {step} are written again")
        write_atomically(path, MetricsFile(path, rows).text().encode())
    return MetricsFile(path, rows)


def _parse(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _filled(rows: CsvRows) -> list[dict[str, Any]]:
    """Return rows without empty cells: other rows may bring columns that these do not have."""
    return [{name: each for name, each in row.items() if each != ""} for row in rows]
