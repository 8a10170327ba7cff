"""Training curves of runs and sweeps: `python scripts/plot_curves.py RUN...`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.plot")
