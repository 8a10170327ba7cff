"""TEMPORARY: old names until the merge; to be deleted."""

from nws.experiment.build import (  # noqa: F401
    build_data,
    build_machine,
    build_metrics,
    build_optimizer,
    build_rule,
    load_machine,
    unused_options,
)
from nws.experiment.configuration import GROUPS, check_groups  # noqa: F401
from nws.experiment.configuration import to_dict as plain  # noqa: F401
from nws.experiment.directory import RunDirectory, open_run  # noqa: F401
from nws.experiment.hardware import pick_device  # noqa: F401
from nws.experiment.seeds import derive_seed  # noqa: F401
