"""Experiments: from a command line to a trained machine, its files, and back.

Each module imports those above it alone:

- `boundary`, `invocation`, `signals`, `hardware`: the process: how it ends, and what it runs on.
- `config`: the configuration: composed by Hydra, checked, and made into objects.
- `checkpoints`, `run`: a run on the disk.
- `batches`, `optimizers`, `pictures`, `callbacks`, `provenance`, `build`, `trainer`: the loop.
- `terminal`, `resume`, `launch`: a run as the command line starts it.
- `loading`: runs that are there, and the library's functions by name.
"""
