"""What `benchmark.py` measures beside steps of nws."""
