"""TEMPORARY: old name until the merge; to be deleted."""

from nws.experiment.checkpoints import load_checkpoint, load_parameters  # noqa: F401
