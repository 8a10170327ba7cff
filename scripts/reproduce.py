"""A whole comparison by one command: `python scripts/reproduce.py WHAT`."""

from nws.programs.reproduce import run

if __name__ == "__main__":
    run()
