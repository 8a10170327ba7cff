"""Where an error arose: in nws, in a library, or in a file of the user's own."""

import os
import traceback
from pathlib import Path

from nws.files import PACKAGE

STANDARD = Path(os.__file__).resolve().parent  # the standard library
LIBRARIES = {"site-packages", "dist-packages"}
OURS = (PACKAGE, PACKAGE.parent / "scripts")


def describe_error(error: BaseException) -> str:
    """Return the first line of an error; of one in a user's own file with its place and kind.

    Such a line is `my_ideas.py line 3: NameError: name 'torhc' is not defined`.
    """
    kind, text = type(error).__name__, str(error)
    if isinstance(error, SyntaxError):
        text = error.msg  # without the place, which stands in front
    first = (text.strip().splitlines() or [""])[0]
    place = own_place(error)
    if place:
        return ": ".join(filter(None, [place, kind, first]))
    return first or kind


def own_place(error: BaseException) -> str:
    """Return the file and line of a user's own in which an error arose; empty for other errors.

    The innermost frame counts that is in no library.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [(each.filename, each.lineno) for each in reversed(frames)]
    if isinstance(error, SyntaxError) and error.filename:
        places.insert(0, (error.filename, error.lineno))
    for file, line in places:
        path = Path(file).resolve()
        if any(path.is_relative_to(each) for each in OURS):
            return ""
        if not (file.startswith("<") or is_library(path)):
            here = Path.cwd()
            return f"{path.relative_to(here) if path.is_relative_to(here) else path} line {line}"
    return ""


def is_library(path: Path) -> bool:
    """Return whether a file is of an installed package or the standard library."""
    return path.is_relative_to(STANDARD) or not LIBRARIES.isdisjoint(path.parts)
