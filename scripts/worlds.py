"""Draw the small worlds of information geometry: `python scripts/worlds.py NAME|all`."""

from nws.programs.worlds import run

if __name__ == "__main__":
    run()
