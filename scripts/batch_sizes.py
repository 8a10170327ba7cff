"""How far a larger batch helps: `python scripts/batch_sizes.py RUN... --target NATS`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.batch_sizes")
