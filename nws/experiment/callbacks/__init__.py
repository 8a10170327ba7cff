"""Policies around the training loop, a file each: what is looked at, averaged, shown or stopped."""

from nws.experiment.callbacks.average import Average
from nws.experiment.callbacks.callback import Callback
from nws.experiment.callbacks.divergence import Divergence
from nws.experiment.callbacks.images import Images
from nws.experiment.callbacks.patience import Patience
from nws.experiment.callbacks.pruning import Pruning
from nws.experiment.callbacks.tensorboard import TensorBoardLogger
from nws.experiment.callbacks.wandb import WandbLogger

__all__ = [
    "Average", "Callback", "Divergence", "Images", "Patience", "Pruning", "TensorBoardLogger",
    "WandbLogger",
]  # fmt: skip
