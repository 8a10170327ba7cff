"""The programs: what `train.py` and `scripts/` run. Each module has `run`, its command line."""
