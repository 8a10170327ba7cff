"""TEMPORARY: old name until the merge; to be deleted."""

from nws.experiment.hardware import processor as processor
