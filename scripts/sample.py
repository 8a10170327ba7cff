"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

from nws.programs.sample import run

if __name__ == "__main__":
    run()
