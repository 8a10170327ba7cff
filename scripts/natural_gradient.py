"""NaturalGradient beside SGD and Adam: `python scripts/natural_gradient.py TASK`."""

from nws.programs.natural_gradient import run

if __name__ == "__main__":
    run()
