"""`NaturalGradient` beside SGD and Adam on supervised tasks: `examples/natural_gradient.py`."""
