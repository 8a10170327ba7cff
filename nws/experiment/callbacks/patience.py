"""The end of a run that gets no better."""

from typing import Any

from nws.errors import positive_int
from nws.experiment.callbacks.callback import Callback, Row, Trainer


class Patience(Callback):
    """Ends a run after so many evaluations without a better valid/log_likelihood.

    Args:
        evaluations: How many; null for no such end.
    """

    def __init__(self, evaluations: int | None = None) -> None:
        name = "callbacks.patience.evaluations"
        self.evaluations = None if evaluations is None else positive_int(name, evaluations)
        self.waited = 0  # evaluations since the best one

    @property
    def ends(self) -> str:  # type: ignore[override]
        if self.evaluations is None or self.waited < self.evaluations:
            return ""
        way = f"go on with callbacks.patience.evaluations=N, N > {self.waited}"
        return f"{self.waited} evaluations brought no better valid/log_likelihood; {way}"

    def state_dict(self) -> dict[str, Any]:
        return {"waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waited = int(state["waited"])

    def after_row(self, trainer: Trainer, row: Row) -> None:
        better = not row["step"] or row["valid/log_likelihood"] > trainer.best  # that of before
        self.waited = 0 if better else self.waited + 1
