"""`NaturalGradient` beside SGD and Adam on supervised tasks: `scripts/natural_gradient.py`."""
