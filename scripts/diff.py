"""The configurations of runs, side by side: `python scripts/diff.py RUN RUN`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.diff")
