"""How far a run is, in a few numbers: for provenance.json and for the summary of a logger."""

from typing import TYPE_CHECKING, Any

from nws.experiment.process.hardware import peak_memory
from nws.experiment.training.measures import best_and_last

if TYPE_CHECKING:
    from nws.experiment.training.trainer import Trainer


def facts(trainer: "Trainer") -> dict[str, Any]:
    """Return how far a run is, for its provenance; docs/runs.md has the keys in words."""
    best, last = best_and_last(trainer.outputs.metrics.rows)
    step, seconds = trainer.step, trainer.seconds
    return {
        "state": "finished" if trainer.finished else "stopped",
        "steps": step,
        "total_steps": trainer.total_steps,
        "epochs": trainer.settings.epochs,
        "ms_per_step": round(1000 * seconds / step, 3) if step else None,
        "training_seconds": round(seconds, 3),
        "evaluation_seconds": trainer.evaluation_seconds,
        "peak_memory_bytes": peak_memory(trainer.device),
        "best": best.mean if best else None,
        "last": last.mean if last else None,
    }


def summary(trainer: "Trainer") -> dict[str, Any]:
    """Return a run in a few numbers, for a logger."""
    numbers = {"best/log_likelihood": trainer.best, "steps": trainer.step}
    return numbers | {"training_seconds": round(trainer.seconds, 3)}
