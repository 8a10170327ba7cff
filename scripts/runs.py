"""The runs below folders, as a table: `python scripts/runs.py [DIR...]`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.runs")
