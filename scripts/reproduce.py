"""A whole comparison by one command: `python scripts/reproduce.py WHAT`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.reproduce")
