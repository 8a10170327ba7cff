"""Grids of generated and reconstructed images along a run."""

import torch

from nws.errors import number, positive_int
from nws.experiment import pictures
from nws.experiment.batches import EVALUATION_SEED
from nws.experiment.callbacks.callback import Callback, Trainer
from nws.models.sampling import generate, reconstruct


class Images(Callback):
    """Writes RUN/images/NAME_step_N.png, and hands it to the loggers.

    Args:
        every: Epochs between image grids, which may be a fraction; null for none.
        count: Images of a grid of generated ones, at least 2; half as many are reconstructed.
    """

    shows = True

    def __init__(self, every: float | None = 50, count: int = 64) -> None:
        if every is not None:
            every = number("callbacks.images.every", every, above=0, more=" epochs, or null")
        self.every = every
        self.count = positive_int("callbacks.images.count", count, minimum=2, maximum=10_000)

    def due(self, trainer: Trainer) -> None:
        """Draw the pictures, always from the same random numbers."""
        run, row, data = trainer.run, trainer.rows[-1], trainer.data
        rng = torch.Generator(data.valid.device).manual_seed(EVALUATION_SEED)
        drawn = pictures.image_grid(generate(trainer.machine, self.count, rng), data.shape)
        originals = data.valid.first(self.count // 2)
        parts, names = pictures.with_source(data.valid, originals, "validation images")
        parts.append(reconstruct(trainer.machine, originals, rng))
        rows = pictures.rows([*names, pictures.RECONSTRUCTION])
        grids = {"generated": (drawn, pictures.GENERATED)}
        grids["reconstructed"] = pictures.stacked_grid(parts, data.shape), rows
        where = f"{run.path.parent.name}/{run.path.name}, step {trainer.step:,}"
        if row["step"] == trainer.step:
            mean, error = row["valid/log_likelihood"], row["valid/standard_error"]
            where += f", validation log p {mean:.2f} ± {error:.2f} nats"
        for name, (grid, rows) in grids.items():
            path = run.images / f"{name}_step_{trainer.step:07d}.png"
            pictures.save_png(grid, path, f"{name}, {where}\n{rows}")
            trainer.call("image", f"images/{name}", path, trainer.step)
