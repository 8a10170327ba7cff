"""How far a larger batch helps: `python scripts/batch_sizes.py RUN... --target NATS`."""

from nws.programs.batch_sizes import run

if __name__ == "__main__":
    run()
