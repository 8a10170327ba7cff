"""Draw the small worlds of information geometry: `python scripts/worlds.py NAME|all`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.worlds")
