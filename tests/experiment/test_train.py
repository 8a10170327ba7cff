"""TEMPORARY: old names for tests outside this folder until the merge; to be deleted."""

from conftest import CONF, TWO_STEPS, data_root, names  # noqa: F401
