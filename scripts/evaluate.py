"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

from nws.programs.evaluate import run

if __name__ == "__main__":
    run()
