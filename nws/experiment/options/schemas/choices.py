"""All groups of conf/: their choices, and what is checked of classes without a schema."""

from __future__ import annotations

from dataclasses import dataclass

from nws.experiment.options.schemas import (
    algorithm,
    damping,
    data,
    functions,
    metrics,
    model,
    optimizers,
    programs,
    schedulers,
    solvers,
)
from nws.experiment.options.schemas.schema import Choice, Schema

#: The files of each group of conf/. In place of a choice of its own, a natural rule has the rule
#: that it is of.
CHOICES: dict[str, dict[str, Choice | str]] = {
    "algorithm": algorithm.CHOICES,
    "metric": metrics.METRICS,
    "solver": solvers.SOLVERS,
    "damping": damping.DAMPINGS,
    "model": model.MODELS,
    "model/visible": model.VISIBLE,
    "data": data.DATA,
    "optimizer": optimizers.OPTIMIZERS,
    "scheduler": schedulers.SCHEDULERS,
    "average": schedulers.AVERAGES,
    "logger": programs.LOGGERS,
}


@dataclass(frozen=True)
class Group:
    """What may be named by the `_target_` of a group, or of a part of one.

    Attributes:
        what: What `_target_` names, in words.
        given: Positional arguments that nws gives besides the options; None where unknown.
        common: Options of every class of the group, also of one without a schema.
        taken: Options that nws takes out before it calls the class.
        keywords: Arguments that nws gives by name.
        null: Whether `_target_: null` stands for none.
        own_first: Whether an option that a class has itself is no common one.
        schemas: Of a part: the classes that fit it.
    """

    what: str
    given: int | None = 0
    common: type[Schema] | None = None
    taken: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    null: bool = False
    own_first: bool = False
    schemas: tuple[type[Schema], ...] = ()


#: The groups whose classes `_target_` names.
GROUP_SCHEMAS = {
    "algorithm": Group("nws.learning.Rule or a class like it", common=algorithm.RuleOptions),
    "data": Group(
        "a function that returns nws.data.RawImages",
        common=data.SourceOptions,
        taken=("name", "binarize", "where", "root"),
    ),
    "model": Group(
        "a Helmholtz machine",
        1,
        model.HelmholtzMachineOptions,
        taken=("layers",),
        keywords=("rng",),
    ),
    "metric": Group(
        "a metric, or null",
        common=metrics.MetricOptions,
        taken=tuple(metrics.MetricOptions.model_fields),
        keywords=("solver",),
        null=True,
        own_first=True,
    ),
    "solver": Group("a solver"),
    "damping": Group("a class of nws.natural.damping"),
    "optimizer": Group(
        "an optimizer of torch", 1, optimizers.RateOptions, taken=("generator_lr", "recognition_lr")
    ),
    "scheduler": Group("one of torch.optim.lr_scheduler", 1),
    "average": Group("nws.experiment.averaging.Average, or null", 2, null=True),
    "logger": Group("a logger, or null", null=True),
}
SCHEDULE = Group("a function of the step", 1, schemas=functions.SCHEDULES)
UNITS = Group("a family of units", schemas=model.UNITS)
#: Parts of a group with a `_target_` of their own, by the last word of their key.
PARTS = {
    "weighting": Group("a function of log p and log q", 2, schemas=functions.WEIGHTINGS),
    "samples_schedule": SCHEDULE,
    "schedule": SCHEDULE,
    "lr_lambda": SCHEDULE,
    "units": UNITS,
    "visible": UNITS,
}
PART_SCHEMAS = (*functions.SCHEDULES, *functions.WEIGHTINGS, *model.UNITS)
PART = Group("a class or a function", None, schemas=PART_SCHEMAS)


def schemas_of(group: str) -> list[type[Schema]]:
    """Return the schemas of a group's classes."""
    found = [each.schema for each in CHOICES[group].values() if isinstance(each, Choice)]
    return list(dict.fromkeys(each for each in found if each is not None))
