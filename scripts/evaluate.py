"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.evaluate")
