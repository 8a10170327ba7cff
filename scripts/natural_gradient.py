"""NaturalGradient beside SGD and Adam: `python scripts/natural_gradient.py TASK`."""

from nws.experiment.boundary import launch

if __name__ == "__main__":
    launch("nws.programs.natural_gradient")
