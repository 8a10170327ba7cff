"""The code that a run was made by, as git sees it: the commit, and what was changed since."""

import os
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nws.files import PACKAGE

SOURCES = ("*.py", "conf/*.yaml")  # new files that count as a change
MAX_FILES = 50  # of these
TIMEOUT = 10.0  # seconds that git may take


@dataclass(frozen=True)
class Code:
    """The state of a working tree."""

    commit: str
    diff: bytes  # as git writes it, with new source files; empty where nothing was changed


@lru_cache
def code_of_this_process() -> Code | None:
    """Return the state of the tree that nws was imported from, once for each process.

    An installed nws lies in no tree of its own: then it is the tree of the working directory.
    None where there is no git.
    """
    tracked = _git(PACKAGE, "ls-files", "--error-unmatch", "__init__.py") is not None
    return read_code(PACKAGE if tracked else Path.cwd())


def read_code(folder: Path) -> Code | None:
    """Return the state of the working tree around a folder; None where git knows of none."""
    commit = _git(folder, "rev-parse", "HEAD")
    top = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    changed = _git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD") or b""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *SOURCES) or b""
    names = [os.fsdecode(name) for name in new.split(b"\0") if name]
    patches = [_new_file(root, name) for name in names[:MAX_FILES]]
    if len(names) > MAX_FILES:
        patches.append(f"# and {len(names) - MAX_FILES} new files more\n".encode())
    return Code(commit.decode().strip(), b"".join([changed, *patches]))


def _new_file(root: Path, name: str) -> bytes:
    """Return the patch that makes a new file."""
    try:
        content = (root / name).read_bytes()
    except OSError:  # gone meanwhile
        return b""
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    lines = content.splitlines(keepends=True)
    if lines:
        head += f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n"
    body = b"".join(b"+" + line for line in lines)
    end = b"" if not lines or content.endswith(b"\n") else b"\n\\ No newline at end of file\n"
    return os.fsencode(head) + body + end


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what a git command prints, None where it fails. It writes nothing, no lock either."""
    # A hook of git sets GIT_DIR and others, which would point to another tree.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "--no-optional-locks", "-C", folder, *arguments], check=True, env=own,
            timeout=TIMEOUT, stdin=subprocess.DEVNULL, capture_output=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
