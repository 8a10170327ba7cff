"""One page on runs and sweeps: `python scripts/report.py RUN_OR_SWEEP...`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.report")
