"""The report: one page on runs that opens in a browser without a network, `scripts/report.py`."""
