"""The configurations of runs, side by side: `python scripts/diff.py RUN RUN`."""

from nws.programs.diff import run

if __name__ == "__main__":
    run()
