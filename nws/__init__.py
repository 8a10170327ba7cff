"""nws: natural wake-sleep. Helmholtz machines trained by (reweighted) wake-sleep with the exact
natural gradient."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nws.experiment.loading import LoadedRun, load_data, load_run, named_rule, natural_metrics
    from nws.learning import NaturalMetric, RowOptions, Rule, WakeSleep
    from nws.models import BeliefNetwork, HelmholtzMachine, Layer, Trace
    from nws.models.likelihood import exact_log_likelihood, log_likelihood
    from nws.natural import Damping, UnitFisher, natural_direction

__version__ = "0.2.0"  # pyproject.toml reads it here

__all__ = [
    "BeliefNetwork", "Damping", "HelmholtzMachine", "Layer", "LoadedRun", "NaturalMetric",
    "RowOptions", "Rule", "Trace", "UnitFisher", "WakeSleep", "exact_log_likelihood", "load_data",
    "load_run", "log_likelihood", "named_rule", "natural_direction", "natural_metrics",
]  # fmt: skip

# Imported when a name is first used: torch takes a second, and `nws --help` needs none of it.
_MODULES = ("nws.natural", "nws.models", "nws.learning", "nws.experiment.loading")


def __dir__() -> list[str]:
    return [*__all__, "data", "geometry", "learning", "models", "natural"]


def __getattr__(name: str) -> Any:
    """Return what is imported late, as Python asks for an attribute that is not there yet."""
    if name in ("data", "geometry", "learning", "models", "natural"):
        return importlib.import_module(f"nws.{name}")
    if name in __all__:
        modules = map(importlib.import_module, _MODULES)
        return next(vars(each)[name] for each in modules if name in vars(each))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
