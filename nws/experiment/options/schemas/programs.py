"""The group `logger`, and what Hydra's launchers and sweepers take from users."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field, model_validator

from nws.experiment.options.schemas.schema import (
    Choice,
    Count,
    CountOrZero,
    Schema,
    Share,
    Text,
    WholeNumber,
)


class WandbOptions(Schema):
    """Weights & Biases."""

    target = "nws.experiment.wandb_logger.WandbLogger"
    others = True
    mode: Literal["online", "offline", "disabled"] = Field(
        "offline", description="online, offline or disabled"
    )
    project: Text = Field("nws", description="in Weights & Biases")


class TensorBoardOptions(Schema):
    """TensorBoard."""

    target = "nws.experiment.tensorboard_logger.TensorBoardLogger"


LOGGERS: dict[str, Choice | str] = {
    "none": Choice(
        None, "No logger beside the files of the run: metrics.csv, images and checkpoints."
    ),
    "tensorboard": Choice(
        TensorBoardOptions,
        "TensorBoard: rows, images and the configuration; tensorboard --logdir RUN",
    ),
    "wandb": Choice(WandbOptions, "Weights & Biases, online.", mode="online"),
    "wandb_offline": Choice(
        WandbOptions,
        "Weights & Biases, offline: nothing leaves the machine; upload later with wandb sync"
        " RUN/wandb/offline-run-*.",
    ),
}


class JoblibOptions(Schema):
    """hydra/launcher=joblib."""

    target = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
    n_jobs: WholeNumber = Field(-1, description="jobs at once; -1: as many as there are cores")

    @model_validator(mode="after")
    def _some_jobs(self) -> JoblibOptions:
        if self.n_jobs == 0:
            raise ValueError(
                "hydra.launcher.n_jobs must be jobs at once, 1 or more, or -1 for as many as there"
                " are cores, got 0; for instance hydra.launcher.n_jobs=2"
            )
        return self


class SubmititOptions(Schema):
    """hydra/launcher=submitit_slurm."""

    target = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
    timeout_min: Count = Field(240, description="minutes that a job may take")
    cpus_per_task: Count | None = Field(2, description="CPU cores of a job")
    mem_gb: Count | None = Field(8, description="memory of a job, in GB")
    gpus_per_node: CountOrZero | None = Field(None, description="GPUs of a job")
    array_parallelism: Count = Field(32, description="jobs at once")
    signal_delay_s: CountOrZero = Field(120, description="seconds before the end of its time")
    max_num_timeout: CountOrZero = Field(0, description="times that a job goes on")


class OptunaOptions(Schema):
    """hydra/sweeper=optuna."""

    target = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
    direction: Literal["maximize", "minimize"] = Field(
        "maximize", description="maximize: the larger valid/log_likelihood, the better"
    )
    n_trials: Count = Field(30, description="trials of the search")
    n_jobs: Count = Field(1, description="trials at once")
    max_failure_rate: Share = Field(0.0, description="share of trials that may fail")


class BasicOptions(Schema):
    """Hydra's own sweeper."""

    target = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    max_batch_size: Annotated[WholeNumber, Ge(1)] | None = Field(
        None, description="jobs that are given to the launcher at once; null: all"
    )


HYDRA: tuple[type[Schema], ...] = (JoblibOptions, SubmititOptions, OptunaOptions, BasicOptions)
