"""Experiments: from a command line to a trained machine, its files, and back.

Its packages, each of which imports itself and those above it alone:

- `process`: the process itself: how it ends, signals, the terminal, hardware, other processes.
- `options`: the configuration: schemas of all options, checks, messages, `--help`.
- `storage`: a run on the disk: its directory and lock, checkpoints, metrics.csv, provenance.
- `training`: what is built, the loop, evaluation, divergence, outputs.
- `trained`: runs that are there: loading, export, the library's functions.
- `launch`: the command line, resuming, sweeps, what the terminal shows of a run.

`averaging`, `wandb_logger` and `tensorboard_logger` belong to `training`. They stand here because
configurations of runs name their classes by `_target_`.
"""
