"""`python -m nws PROGRAM ...`: the command `nws` where it is not on the path."""

from nws.programs.command import run

if __name__ == "__main__":
    run()
