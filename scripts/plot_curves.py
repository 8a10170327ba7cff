"""Training curves of runs and sweeps: `python scripts/plot_curves.py RUN...`."""

from nws.programs.plot_curves import run

if __name__ == "__main__":
    run()
