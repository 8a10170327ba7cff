"""A small copy of a run, to share and to sample from: `python scripts/export.py RUN FOLDER`."""

from nws.programs.export import run

if __name__ == "__main__":
    run()
