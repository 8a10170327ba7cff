"""A small copy of a run, to share and to sample from: `python scripts/export.py RUN FOLDER`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.export")
