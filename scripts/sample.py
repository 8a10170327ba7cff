"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.sample")
