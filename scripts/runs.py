"""The runs below folders, as a table: `python scripts/runs.py [DIR...]`."""

from nws.programs.runs import run

if __name__ == "__main__":
    run()
