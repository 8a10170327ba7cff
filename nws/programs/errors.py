"""What a user sees of an error: one line, and never a page of Python."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf.errors import OmegaConfBaseException

from nws.errors import UserError


@contextmanager
def errors_for_people() -> Iterator[None]:
    """End the program with one message for a user's error."""
    try:
        yield
    except (UserError, OmegaConfBaseException) as error:
        sys.exit(f"error: {error}")
