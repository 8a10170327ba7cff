"""One page on runs and sweeps: `python scripts/report.py RUN_OR_SWEEP...`."""

from nws.programs.report import run

if __name__ == "__main__":
    run()
